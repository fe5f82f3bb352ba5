"""Schedules drawn over the pure and the ticked parts of the real code: no servers, every step checked."""
