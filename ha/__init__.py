"""One log on many brokers: a master and its slaves, and what they say to each other on the HA port."""
