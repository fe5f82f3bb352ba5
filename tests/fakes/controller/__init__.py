"""Raft groups and Controllers: one member by hand, on loopback, and under virtual time."""
