"""When is the log shortened, and how does a snapshot arrive?"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from controller.raft.codec import SNAPSHOT_BYTES_MAX, Seat, Snapshot, encode_snapshot
from controller.raft.disk.journal import Journal
from model.errors import DiskError, PeerError

log = logging.getLogger(__name__)

COMPACT_AGAIN_S: Final = 5.0  # after a compaction the disk refused
COMPACT_BYTES: Final = 8 << 20  # a journal this long is compacted although it has few entries
COMPACT_ENTRIES_MIN: Final = 64  # ... but never for fewer


@dataclass(frozen=True, slots=True)
class Storage:
    """What a member has on its disk. ``snapshot``: already checked; ``store_snapshot`` makes bytes durable.
    ``compact_entries``: so many applied entries are kept before the log is shortened."""

    journal: Journal
    snapshot: Snapshot | None
    store_snapshot: Callable[[bytes], None]
    compact_entries: int


class Compaction:
    """Replaces applied entries by a snapshot. ``error``: why the last try did not happen."""

    def __init__(self, storage: Storage) -> None:
        self.error: str | None = None
        self.storage = storage
        self._not_before_s = float("-inf")

    def is_due(self, applied: int, now_s: float) -> bool:
        storage = self.storage
        done = applied - storage.journal.first_index
        long = done >= COMPACT_ENTRIES_MIN and storage.journal.size_bytes > COMPACT_BYTES
        return (done >= storage.compact_entries or long) and now_s >= self._not_before_s

    def run(self, applied: int, state: bytes, seats: tuple[Seat, ...], now_s: float) -> bytes | None:
        """The new snapshot, durable; None when the disk refused and nothing was touched. Raises DiskError."""
        journal = self.storage.journal
        done = applied - journal.first_index
        before, last = journal[done - 1 : done + 1]
        data = encode_snapshot(Snapshot(before, last, state, seats))
        try:
            self.storage.store_snapshot(data)
            # Only now: until here a crash finds the old journal whole.
            journal.deleteEntriesTo(done - 1)
        except DiskError as error:
            if not journal.usable:
                raise
            # The journal is as it was, and continues the former snapshot as well as this one.
            self._not_before_s = now_s + COMPACT_AGAIN_S
            self.error = str(error)
            log.warning("no compaction now, next try in %g s: %s", COMPACT_AGAIN_S, error)
            return None
        self.error = None
        return data


class Incoming:
    """The pieces of a leader's snapshot."""

    def __init__(self) -> None:
        self._data: bytearray | None = None

    def clear(self) -> None:
        """Another leader sends from its own begin."""
        self._data = None

    def add(self, piece: bytes, *, first: bool, last: bool) -> bytes | None:
        """The whole snapshot with its last piece, None before. Raises PeerError."""
        if first:
            self._data = bytearray()
        if self._data is None:
            return None  # the begin went to an earlier link; the leader starts again when it hears no ack
        self._data += piece
        if len(self._data) > SNAPSHOT_BYTES_MAX:
            self._data = None
            raise PeerError(f"a snapshot of more than {SNAPSHOT_BYTES_MAX} bytes")
        if not last:
            return None
        data, self._data = bytes(self._data), None
        return data
