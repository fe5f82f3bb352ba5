"""The replica table: what every Controller holds of each group, and the commands that change it."""
