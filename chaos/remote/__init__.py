"""Drills on a cluster that others run: hosts, and what is allowed there."""
