"""Disks that crash, refuse, fill up or forget what was not synced."""
