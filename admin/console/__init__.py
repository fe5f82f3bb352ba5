"""A cluster in a browser: its map live, topics, groups, messages, handovers, reports."""
