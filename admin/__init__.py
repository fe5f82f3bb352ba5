"""How an operator runs it: one process per server, its HTTP endpoint, local clusters, the command line."""
