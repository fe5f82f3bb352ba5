"""Where faults happen: a simulated cluster under virtual time, or real processes."""
