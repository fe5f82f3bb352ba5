"""Do queue files hold the entries of records that others read, and no others? Stretches at once, by digest.

Whoever read the records made the entries' bytes and their digest; here the files are read. What is not
plainly so is no finding yet: then entries are compared with records one by one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from audit.reading.derived.queue_files import ENTRY_BYTES, offsets_of
from audit.reading.storage import Storage, open_storage

ENTRIES_DIGEST_BYTES: Final = 16
_WINDOW_BYTES: Final = 8 * 1024 * 1024 // ENTRY_BYTES * ENTRY_BYTES
PROVED: Final = pa.schema([("topic", pa.string()), ("queue_id", pa.int32()), ("right", pa.bool_())])


def new_digest() -> Any:
    """Of entries: one that each worker can make."""
    return hashlib.blake2b(digest_size=ENTRIES_DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class SliceTask:
    """A stretch of a queue: places from ``low`` on and before ``high``.

    ``files``: (name, first place, bytes), ascending and apart; ``slices``: (first place, places, digest in
    hex) that touch each other. Other entries may name what is before ``start`` in the log, or from ``until``
    on."""

    location: str
    topic: str
    queue_id: int
    files: tuple[tuple[str, int, int], ...]
    slices: tuple[tuple[int, int, str], ...]
    low: int
    high: int
    start: int
    until: int

    @property
    def bytes(self) -> int:
        return sum(size for _, _, size in self.files)


def run_slices(task: SliceTask) -> pa.RecordBatch:
    """A PROVED row. Raises OSError; a file that is gone proves nothing."""
    storage = open_storage(task.location)
    try:
        right = _right(storage, task)
    except FileNotFoundError:
        right = False
    finally:
        storage.close()
    row = {"topic": task.topic, "queue_id": task.queue_id, "right": right}
    return pa.RecordBatch.from_pylist([row], schema=PROVED)


def _right(storage: Storage, task: SliceTask) -> bool:
    check = _Check(task)
    for name, first, size in task.files:
        begin = max(0, (task.low - first) * ENTRY_BYTES)
        end = min(size, (task.high - first) * ENTRY_BYTES)
        for at, raw in _windows(storage, name, begin, end):
            if not check.take(first + at // ENTRY_BYTES, raw):
                return False
        if end == size and storage.read(name, size, 1):
            return False  # it grew
    return check.done


def _windows(storage: Storage, name: str, begin: int, end: int) -> Iterator[tuple[int, bytes]]:
    for at in range(begin, end, _WINDOW_BYTES):
        yield at, storage.read(name, at, min(_WINDOW_BYTES, end - at))


class _Check:
    """Takes the entries of a queue as they stand in its files, which ascend."""

    def __init__(self, task: SliceTask) -> None:
        self._task = task
        self._number = self._count = 0  # the slice that comes, and how much of it there was
        self._digest = new_digest()

    @property
    def done(self) -> bool:
        return self._number == len(self._task.slices)

    def take(self, place: int, raw: bytes) -> bool:
        """Whether all is right so far."""
        while raw:
            if self.done:
                return self._no_others(raw)
            first, count, _ = self._task.slices[self._number]
            left = first + self._count - place
            if left > 0:  # nothing of the slices yet
                size = min(len(raw), left * ENTRY_BYTES)
                right = not self._count and self._no_others(raw[:size])
            else:
                size = min(len(raw), (count - self._count) * ENTRY_BYTES)
                right = left == 0 and self._goes_on(raw[:size])
            if not right or size % ENTRY_BYTES:
                return False
            raw, place = raw[size:], place + size // ENTRY_BYTES
        return True

    def _goes_on(self, raw: bytes) -> bool:
        _, count, digest = self._task.slices[self._number]
        self._digest.update(raw)
        self._count += len(raw) // ENTRY_BYTES
        if self._count < count:
            return True
        right = bool(self._digest.hexdigest() == digest)
        self._number, self._count, self._digest = self._number + 1, 0, new_digest()
        return right

    def _no_others(self, raw: bytes) -> bool:
        """Whether there is no entry that concerns the records (``audit.tables.EntryBounds``)."""
        if len(raw) % ENTRY_BYTES:
            return False
        _, offset = offsets_of(raw)
        start, until = self._task.start, self._task.until
        return not ((offset < 0) | (offset >= start) & (offset < until)).any()
