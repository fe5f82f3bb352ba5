"""Which bytes of which log are wrong, and of which kind? In files, as there may be as many as records."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from audit.rows.parts import Folder

_WAITING: Final = 10_000


class Places:
    """Stretches by kind and replica; asked whether one of them overlaps another stretch."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._of: dict[tuple[str, str], _Stretches] = {}

    def add(self, kind: str, replica: str, begin: int, until: int) -> None:
        of = self._of.get((kind, replica))
        if of is None:
            of = self._of[kind, replica] = _Stretches(self._folder.file("places"))
        of.add(begin, until)

    def overlap(self, kind: str, replica: str, begin: int, end: int) -> bool:
        """An empty stretch counts as one byte. None is added any more."""
        of = self._of.get((kind, replica))
        return of is not None and of.overlap(begin, end)


class _Stretches:
    """Where each begins, and how far those up to it reach: two columns of a file that is looked into."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: list[tuple[int, int]] = []
        self._last, self._ascend = -1, True
        self._begins: Any = None
        self._reach: Any = None

    def add(self, begin: int, until: int) -> None:
        self._ascend &= begin >= self._last
        self._last = begin
        self._waiting.append((begin, until))
        if len(self._waiting) >= _WAITING:
            self._flush()

    def _flush(self) -> None:
        with open(self._path, "ab") as file:
            file.write(np.array(self._waiting, np.int64).tobytes())
        self._waiting.clear()

    def overlap(self, begin: int, end: int) -> bool:
        if self._begins is None:
            self._close()
        at = np.searchsorted(self._reach, begin, "right")
        return bool(at < np.searchsorted(self._begins, max(end, begin + 1)))

    def _close(self) -> None:
        self._flush()
        rows = np.memmap(self._path, np.int64, "r+").reshape(-1, 2)
        if not self._ascend:
            rows[:] = rows[np.argsort(rows[:, 0], kind="stable")]
        columns = np.memmap(f"{self._path}.columns", np.int64, "w+", shape=(2, len(rows)))
        columns[0] = rows[:, 0]
        np.maximum.accumulate(rows[:, 1], out=columns[1])
        self._begins, self._reach = columns
