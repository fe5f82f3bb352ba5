"""Have files changed, and are they whole? Looked at, never read: time of change, size and inode say it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

LOOK_S: Final = 2.0
"""A change is noticed by one look, and believed by the next: files are written one after the other."""

Seen = tuple[tuple[str, int, int, int], ...]


class Watch:
    """Of files whose list may change with their content."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._used = self._last = look_at(paths)

    def changed(self, paths: Iterable[str]) -> bool:
        """Whether ``paths`` are others than those used, and the same as at the last look. They count as used
        then, good or bad: what is wrong is told once. Blocks."""
        seen = look_at(paths)
        stable, self._last = seen == self._last, seen
        if seen == self._used or not stable:
            return False
        self._used = seen
        return True

    def use(self, seen: Seen) -> None:
        """Files were read; ``seen`` is from before it, so that one replaced meanwhile counts as changed."""
        self._used = self._last = seen


def look_at(paths: Iterable[str]) -> Seen:
    """What ``use`` takes. Blocks."""
    return tuple(_of(path) for path in paths if path)


def _of(path: str) -> tuple[str, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, 0, 0, 0
    return path, found.st_mtime_ns, found.st_size, found.st_ino
