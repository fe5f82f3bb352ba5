"""Does a queue's file still begin with what an earlier audit read of it, and what does the rest name?

Of a file that goes on growing neither size nor time stays: so its bytes up to its last entry are known by
their digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from audit.reading.derived.queue_files import ENTRY_BYTES, offsets_of
from audit.reading.storage import open_storage

_WINDOW_BYTES: Final = 8 * 1024 * 1024 // ENTRY_BYTES * ENTRY_BYTES
_DIGEST_BYTES: Final = 16

PREFIX: Final = pa.schema(
    [
        ("replica", pa.int32()),
        ("file", pa.string()),
        ("same", pa.bool_()),  # it begins with what was known
        ("bytes", pa.int64()),  # up to its last entry
        ("digest", pa.binary()),  # of these
        ("lowest", pa.int64()),  # the first record, from where the log begins, that an entry names; -1: none
        ("reach", pa.int64()),  # the last record that one names; -1: none
        ("added", pa.int64()),  # as lowest, of the entries behind what was known
    ]
)


@dataclass(frozen=True, slots=True)
class PrefixTask:
    """``begin``: where the replica's log begins; ``known``, ``digest``: bytes of the file that an earlier
    audit read, and their digest in hex."""

    replica: int
    location: str
    file: str
    begin: int
    known: int = 0
    digest: str = hashlib.blake2b(digest_size=_DIGEST_BYTES).hexdigest()


def run_prefix(task: PrefixTask) -> pa.RecordBatch:
    """One PREFIX row; none of a file that was removed meanwhile. Raises OSError."""
    storage = open_storage(task.location)
    read = _Read(task)
    try:
        at = 0
        while raw := storage.read(task.file, at, _WINDOW_BYTES):
            read.take(at, raw[: len(raw) // ENTRY_BYTES * ENTRY_BYTES])
            at += len(raw)
            if len(raw) < _WINDOW_BYTES:
                break
    except FileNotFoundError:
        return pa.RecordBatch.from_pylist([], schema=PREFIX)
    finally:
        storage.close()
    return pa.RecordBatch.from_pylist([read.row()], schema=PREFIX)


class _Read:
    def __init__(self, task: PrefixTask) -> None:
        self._task = task
        self._own = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._known = self._own.copy()
        self._bytes = 0
        self._lowest, self._reach, self._added = -1, -1, -1

    def take(self, at: int, raw: bytes) -> None:
        """The bytes of the file at ``at``, whole entries."""
        if at < self._task.known:
            self._known.update(raw[: self._task.known - at])
        (written,) = np.nonzero(np.frombuffer(raw, np.uint8))
        if not len(written):
            return
        end = (int(written[-1]) // ENTRY_BYTES + 1) * ENTRY_BYTES
        self._own.update(bytes(at - self._bytes))  # zeros before it
        self._own.update(raw[:end])
        self._bytes = at + end
        places, offsets = offsets_of(raw[:end])
        self._reach = max(self._reach, int(offsets.max(initial=-1)))
        named = offsets >= self._task.begin
        new = named & (at + places * ENTRY_BYTES >= self._task.known)
        self._lowest = _least(self._lowest, offsets[named])
        self._added = _least(self._added, offsets[new])

    def row(self) -> dict[str, Any]:
        task = self._task
        return {
            "replica": task.replica,
            "file": task.file,
            "same": self._known.hexdigest() == task.digest,
            "bytes": self._bytes,
            "digest": self._own.digest(),
            "lowest": self._lowest,
            "reach": self._reach,
            "added": self._added,
        }


def _least(known: int, offsets: Any) -> int:
    if not len(offsets):
        return known
    least = int(offsets.min())
    return least if known < 0 else min(known, least)
