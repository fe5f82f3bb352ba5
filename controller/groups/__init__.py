"""Which brokers of a group are in sync, which is its master, and how a new one is elected."""
