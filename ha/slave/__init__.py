"""A slave and the master it follows."""
