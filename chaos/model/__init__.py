"""What schedules do to the rules alone, without servers: explored state by state, or drawn."""
