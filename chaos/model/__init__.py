"""A group of two or three brokers as values: every interleaving of its steps, by the real rules."""
