"""One module a file format: its bytes, and how it is read, written and synced."""
