"""The kinds of findings: one file a kind, or a few that are found by one look."""
