"""What a broker knows as long as it runs: its role, its clients, the answers that wait, locks, counters."""
