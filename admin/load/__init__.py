"""Load from the shell: sends at a fixed rate or as fast as it goes, reads, and how long both take."""
