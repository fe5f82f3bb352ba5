"""The disk: a CommitLog, the ConsumeQueues and indexes made from it, and how all of it survives a crash."""
