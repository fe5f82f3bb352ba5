"""What is true after a stop, and how the log is truncated."""
