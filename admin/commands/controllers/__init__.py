"""The commands that change which Controllers there are, and which of them leads."""
