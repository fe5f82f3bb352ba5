"""One log on many brokers: frames on the HA port, which replicas count, how far the log is confirmed."""
