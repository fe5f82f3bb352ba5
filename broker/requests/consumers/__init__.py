"""Requests of consumers: pulls, offsets, queue locks, heartbeats; the slave that stands in for a master."""
