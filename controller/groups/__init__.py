"""Who is in sync in each broker group, who is its master, and how a new one is elected."""
