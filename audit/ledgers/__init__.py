"""Which messages were acknowledged? Ledgers, and the histories of drills, line by line."""
