"""What reads the logs and answers questions about their records: this process, or Spark."""
