"""What a producer does: compose, aim, try again, and say how it ended."""
