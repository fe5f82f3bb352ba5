"""What is written back, when, and what goes: syncs, the checkpoint, retention, room on the disk."""
