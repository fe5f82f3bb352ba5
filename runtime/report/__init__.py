"""What a process tells of itself: events, counts over time, slow turns, complaints about peers."""
