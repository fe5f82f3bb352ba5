"""What does the directory of a Controller hold, and does its disk take more?

raft.lock      one process at a time
raft.journal   entries, term, vote (``controller.raft.disk.journal``)
raft.snapshot  the state up to some entry (``controller.raft.codec``)
"""

from __future__ import annotations

import contextlib
import errno
import logging
from typing import Final

from controller.raft.codec import BATCH_BYTES_MAX, Snapshot, decode_snapshot
from controller.raft.disk.journal import ADVICE, Journal
from controller.raft.disk.snapshots import Storage
from model.errors import DiskError
from runtime.env import Disk, Lock, read_file, write_file

log = logging.getLogger(__name__)

NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Directory:
    """The files of one member, locked while it is open."""

    def __init__(self, disk: Disk, path: str, node_id: str) -> None:
        self.journal: Journal | None = None
        self.path = path
        self._disk = disk
        self._node_id = node_id
        self._lock: Lock | None = None

    def open(self, compact_entries: int) -> Storage:
        """Read what is there. Raises DiskError: damage, a missing file, another process at work."""
        disk, path = self._disk, self.path
        try:
            disk.makedirs(path)
            self._lock = disk.lock(f"{path}/raft.lock")
        except BlockingIOError:
            raise DiskError(f"{path} is in use by another process") from None
        except OSError as error:
            raise DiskError(f"{path}: {error}") from error
        snapshot = self._read_snapshot()
        journal = self.journal = Journal(disk, f"{path}/raft.journal", self._node_id)
        if snapshot is not None and journal.created:
            raise DiskError(f"{path} has a snapshot, but its journal with term and vote is gone. {ADVICE}")
        if snapshot is None and len(journal) and journal.first_index > 1:
            raise DiskError(
                f"{journal.path} begins at entry {journal.first_index}, but its snapshot is gone. {ADVICE}"
            )
        return Storage(journal, snapshot, self._store_snapshot, compact_entries)

    def close(self) -> None:
        """Give the files back; what was not synced is not written."""
        if self.journal is not None:
            self.journal.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def has_room(self) -> bool:
        """Whether the disk takes a batch as long as any, by writing one beside.

        Reopening the journal would prove nothing: that writes only where there is something already.
        """
        path = f"{self.path}/raft.room"
        room = True
        try:
            file = self._disk.open(path, create=True)
            try:
                file.pwrite(bytes(BATCH_BYTES_MAX), 0)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            log.debug("%s has no room yet: %s", self.path, error)
            room = False
        with contextlib.suppress(OSError):
            self._disk.remove(path)
        return room

    @property
    def _snapshot_path(self) -> str:
        return f"{self.path}/raft.snapshot"

    def _read_snapshot(self) -> Snapshot | None:
        path = self._snapshot_path
        try:
            return decode_snapshot(read_file(self._disk, path))
        except FileNotFoundError:
            # Not asked beforehand: a disk that cannot say so must not look like an empty one.
            return None
        except OSError as error:
            raise DiskError(f"{path}: {error}") from error
        except DiskError as error:
            raise DiskError(f"{path}: {error}. {ADVICE}") from None

    def _store_snapshot(self, data: bytes) -> None:
        path = self._snapshot_path
        try:
            write_file(self._disk, path, data)
        except OSError as error:
            # Half of it would take the room the journal needs.
            with contextlib.suppress(OSError):
                self._disk.remove(path + ".tmp")
            raise DiskError(f"{path}: {error}") from error


def no_room(error: BaseException | None) -> bool:
    """Whether ``error``, or what it came from, is a disk without room: that passes by itself."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            return True
        error = error.__cause__
    return False
