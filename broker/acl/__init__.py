"""Access control of a broker: users and policies as one of its tables, and signed sends on the fast way."""
