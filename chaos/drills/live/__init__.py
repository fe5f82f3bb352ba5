"""Plans on real processes: one, or many of them in a table."""
