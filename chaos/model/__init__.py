"""What schedules and interleavings do to the rules alone, without servers: explored state by state, or drawn."""
