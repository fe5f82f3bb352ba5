"""The command ``keelmq``: every part of the project under one roof."""
