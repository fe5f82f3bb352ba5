"""Writes docs/events.md to stdout."""

from __future__ import annotations

import sys

from runtime.report.events import page

if __name__ == "__main__":
    sys.stdout.write(page())
