"""Every interleaving of a small group within stated budgets: the real rules, explored state by state."""
