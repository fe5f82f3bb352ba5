"""A cluster live: what its servers say, turned into rates, and shown."""
