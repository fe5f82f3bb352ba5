"""Which broker is master of each group: the replica table, elections, and the Raft group that keeps them."""
