"""One log on many brokers: frames on the HA port, who counts, how far the log is confirmed."""
