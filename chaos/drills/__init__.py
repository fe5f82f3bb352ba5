"""One fault into a cluster under load, measured and judged: live, or under virtual time."""
