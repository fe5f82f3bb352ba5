"""Faults of ``chaos/faults.py`` on a cluster of real processes: what carries each of them out here."""
