"""What a broker knows: its role, its tables, its clients, the answers that wait."""
