"""What is made of a log, and does not agree with it: queues, their entries, indexes."""
