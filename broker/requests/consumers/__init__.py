"""Requests of consumers: pulls, offsets, queue locks, heartbeats; and who serves them without a master."""
