"""What mends what was found: commands and words, in their order."""
