"""Where do changes of a large table go, so that one change does not write all of it?

``NAME.json.changes`` stands beside ``NAME.json`` (docs/formats/store.md). One line a write, synced:

    8 hex digits   CRC-32 of what follows, up to the line's end
    number         of the change, more than that of the line before
    JSON object    what changed, as the table itself reads it

``NAME.json`` says up to which number it has the changes (``keelmqChanges``). Lines up to that one are passed
over, so a crash between writing the table and removing this file costs nothing. A ``NAME.json`` without the
member was written by RocketMQ, or before there were changes: then none here is for it.
"""

from __future__ import annotations

import logging
from typing import Any, Final
from zlib import crc32

from model.errors import DiskError, PeerError
from remoting import bodies
from runtime.env import Disk, read_file
from store.files.sealed import turn_back

log = logging.getLogger(__name__)

UP_TO: Final = "keelmqChanges"
_CRC_DIGITS: Final = 8


def encode(number: int, change: dict[str, Any]) -> bytes:
    """One line."""
    content = b" %d %b" % (number, bodies.dumps_dialect(change))
    return b"%08x%b\n" % (crc32(content), content)


def decode(line: bytes) -> tuple[int, dict[str, Any]]:
    """The number and the change of a line without its end; one flipped bit is turned back. Raises
    DiskError."""
    content = line[_CRC_DIGITS:]
    try:
        crc = int.from_bytes(bytes.fromhex(line[:_CRC_DIGITS].decode("ascii")))
        if crc32(content) != crc:
            content = turn_back(content, crc)
        _, number, text = content.split(b" ", 2)
        change = bodies.believed_object(text)
        return int(number), change
    except (ValueError, PeerError) as error:
        raise DiskError(f"not a change: {error}") from None


def read(data: bytes, base: int) -> tuple[list[dict[str, Any]], int, int]:
    """The changes after number ``base``, the number of the last line, and where the readable lines end.

    A last line that a crash cut short ends them. Raises DiskError when a line that cannot be read is followed
    by one that can: it was synced, and is damaged.
    """
    changes: list[dict[str, Any]] = []
    last = end = at = 0
    problem: str | None = None
    while (stop := data.find(b"\n", at)) >= 0:
        try:
            number, change = decode(data[at:stop])
        except DiskError as error:
            problem = problem or f"at byte {at}: {error}"
        else:
            if problem is None and number <= last:
                problem = f"at byte {at}: change {number} follows {last}"
            if problem is not None:
                raise DiskError(problem)
            last, end = number, stop + 1
            if number > base:
                changes.append(change)
        at = stop + 1
    return changes, max(last, base), end


class ChangeFile:
    """The change file of one table. ``append`` and ``clear`` block: call them off the loop.

    Holds: each change that ``append`` returned from is read again until the table has it and ``clear`` came.
    """

    def __init__(self, disk: Disk, table_path: str) -> None:
        self.path = f"{table_path}.changes"
        self.number = 0
        """Of the last change."""
        self.size = 0
        self._doubtful = False  # a line after these may be on disk: its write failed
        self._disk = disk

    def load(self, base: int | None) -> list[dict[str, Any]]:
        """The changes since a table that has those up to ``base`` (None: it tells of none), in order. Raises
        DiskError for a damaged file, OSError."""
        self.number, self.size, self._doubtful = base or 0, 0, False
        if not self._disk.exists(self.path):
            return []
        if base is None:
            log.warning("%s is older than the table beside it and is removed", self.path)
            self.clear()
            return []
        data = read_file(self._disk, self.path)
        try:
            changes, self.number, self.size = read(data, base)
        except DiskError as error:
            raise DiskError(f"{self.path} is damaged {error}") from None
        self._cut()
        return changes

    def append(self, change: dict[str, Any]) -> None:
        """Write one more. Raises OSError: it may or may not be there then, and the next one replaces it."""
        line = encode(self.number + 1, change)
        new = self.size == 0
        self._doubtful = True
        file = self._disk.open(self.path, create=True)
        try:
            if file.size() > self.size:
                file.truncate(self.size)  # what a failed write left
            file.pwrite(line, self.size)
            file.sync()
        finally:
            file.close()
        if new:
            self._disk.sync_dir(self.path.rpartition("/")[0])
        self._doubtful = False
        self.number += 1
        self.size += len(line)

    def covered(self) -> int:
        """The number for a table that is written now: no line that may be on disk is after it."""
        if self._doubtful:
            self._doubtful = False
            self.number += 1
        return self.number

    def clear(self) -> None:
        """The table on disk has them all. Raises OSError."""
        if self._disk.exists(self.path):
            self._disk.remove(self.path)
            self._disk.sync_dir(self.path.rpartition("/")[0])
        self.size = 0

    def _cut(self) -> None:
        """A torn line must not stand behind one that is written in its place. What is read counts from now
        on, so it is synced."""
        file = self._disk.open(self.path)
        try:
            if file.size() > self.size:
                file.truncate(self.size)
            file.sync()
        finally:
            file.close()
        self._disk.sync_dir(self.path.rpartition("/")[0])
