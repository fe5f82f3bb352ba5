"""Who is master of each broker group: the replica table, elections, and the Raft group that keeps them."""
