"""Which master wrote which part of the log?

    line 1   number of entries
    line 2   CRC-32 of the lines below, each with its line end, sign bit cleared (0 = not checked)
    line n   EPOCH-STARTOFFSET, oldest first

An epoch ends where the next one starts; the last has no end. An election without a write leaves an epoch of
length zero: the next one starts at the same offset and takes its place. An empty list is written like any
other, so that epochs that were cut do not come back. Every change is on disk when the call returns; ``.bak``
holds the same (``store/files/sealed``), and is written first: a change of which only one copy could be
written is none after a restart either. Source of the format: Apache RocketMQ 5.x, ``epochFileCheckpoint``;
checked against files it wrote.

``.classic`` beside it, keelmq's own, holds one such line: number of the last epoch when a broker without a
Controller took up this log, and from where on what was written since belongs to no epoch. It says nothing
once another epoch is the last.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import NamedTuple
from zlib import crc32

from model.errors import DiskError
from model.ids import Epoch, PhysicalOffset
from runtime.env import Disk, write_file
from store.files.sealed import one_bit_off, read_copies, write_copies

log = logging.getLogger(__name__)


class EpochEntry(NamedTuple):
    """``start``: where its first byte lies in the log."""

    epoch: Epoch
    start: PhysicalOffset


def encode(entries: list[EpochEntry]) -> bytes:
    lines = "".join(f"{entry.epoch}-{entry.start}\n" for entry in entries).encode()
    return b"%d\n%d\n%b" % (len(entries), crc32(lines) & 0x7FFFFFFF, lines)


def _entry(line: str) -> EpochEntry:
    epoch, start = line.split("-")
    return EpochEntry(Epoch(int(epoch)), PhysicalOffset(int(start)))


def decode(data: bytes) -> list[EpochEntry]:
    """Raises DiskError when the text is not an epoch file or its CRC is another."""
    try:
        count, crc, *lines = data.decode().split("\n")
        entries = [_entry(line) for line in lines if line]
        wrong = len(entries) != int(count) or int(crc) not in (
            0,
            crc32(encode(entries).split(b"\n", 2)[2]) & 0x7FFFFFFF,
        )
    except ValueError as error:
        raise DiskError(f"not an epoch file: {error}") from None
    if wrong:
        raise DiskError("epoch file: count or CRC does not match its lines")
    if any(b.epoch <= a.epoch or b.start < a.start for a, b in pairwise(entries)):
        raise DiskError("epoch file: epochs or offsets do not grow")
    return entries


class EpochFile:
    """The epochs of this replica's log. ``entries`` is oldest first; replaced, never changed in place."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.entries: list[EpochEntry] = []
        self.unreadable: str | None = None
        """Why nothing is known of the epochs; None: ``entries`` is all there is to know."""
        self.classic_from: PhysicalOffset | None = None
        """From where on, bytes, a log that has epochs was written without a Controller; None: nowhere."""
        self._classic_left: Epoch | None = None  # ``.classic``, which could not be removed, names it
        self._disk = disk
        self._path = path
        self._classic_path = path + ".classic"

    @property
    def last(self) -> EpochEntry | None:
        return self.entries[-1] if self.entries else None

    def load(self, *, may_be_unreadable: bool = False) -> None:
        """Read the file, or its ``.bak``; one flipped bit is turned back. When both are damaged beyond that
        there are no entries and ``unreadable``, or without ``may_be_unreadable`` DiskError."""
        self.entries, self.unreadable = [], None
        try:
            found, whole = read_copies(self._disk, self._path, _mend)
        except OSError as error:
            raise DiskError(f"reading {self._path} failed: {error.strerror or error}") from error
        except DiskError as error:
            if not may_be_unreadable:
                raise
            self.unreadable = str(error)
            log.error("epochs lost, they come from a master: %s", error)
            return
        if found is not None:
            self.entries = decode(found)
            if not whole:
                self._write(self.entries)
        self.classic_from = self._load_classic()

    def _load_classic(self) -> PhysicalOffset | None:
        last = self.last
        try:
            found, _ = read_copies(self._disk, self._classic_path, _mend)
        except OSError as error:
            raise DiskError(f"reading {self._classic_path} failed: {error.strerror or error}") from error
        except DiskError as error:
            log.error("%s.classic is lost, the last epoch counts as unlabelled: %s", self._path, error)
            return last.start if last is not None else None
        noted = decode(found)[-1:] if found is not None else []
        if noted and last is not None and noted[0].epoch == last.epoch:
            return noted[0].start
        if found is not None:
            self._classic_left = noted[0].epoch if noted else Epoch(0)  # it may be the last again
        return None

    def leave(self, end: PhysicalOffset) -> None:
        """Note that what is written from ``end`` on, without a Controller, belongs to no epoch.

        What was noted before stands, unless the log ends before it now. Raises DiskError.
        """
        last = self.last
        if last is None or (self.classic_from is not None and self.classic_from <= end):
            return
        start = max(end, last.start)
        try:
            write_copies(self._disk, self._classic_path, encode([EpochEntry(last.epoch, start)]))
        except OSError as error:
            raise DiskError(f"writing {self._classic_path} failed: {error.strerror or error}") from error
        self.classic_from, self._classic_left = start, None

    def labelled(self) -> None:
        """All of the log belongs to the epochs now. Raises DiskError."""
        if self.classic_from is None and self._classic_left is None:
            return
        try:
            for path in (self._classic_path, self._classic_path + ".bak"):
                if self._disk.exists(path):
                    self._disk.remove(path)
            self._disk.sync_dir(self._path.rpartition("/")[0] or ".")
        except OSError as error:
            raise DiskError(f"removing {self._classic_path} failed: {error.strerror or error}") from error
        self.classic_from, self._classic_left = None, None

    def trust(self, entries: list[EpochEntry]) -> None:
        """End ``unreadable``: these are the epochs."""
        self._write(entries)
        self.entries, self.unreadable = list(entries), None
        self.labelled()

    def append(self, epoch: Epoch, start: PhysicalOffset) -> None:
        """Record that ``epoch`` starts at ``start``; a no-op when it is the last one already.

        An entry of the same start is replaced. Raises ValueError when epoch or start would go back,
        DiskError when the disk refuses (then nothing changed).
        """
        last = self.last
        if last == (epoch, start):
            return
        if last is not None and (epoch <= last.epoch or start < last.start):
            raise ValueError(f"epoch {epoch} at {start} cannot follow epoch {last.epoch} at {last.start}")
        kept = self.entries[:-1] if last is not None and last.start == start else self.entries
        self._store([*kept, EpochEntry(epoch, start)])

    def truncate_suffix(self, offset: PhysicalOffset) -> None:
        """Forget the epochs that start at or behind ``offset``."""
        self._store([entry for entry in self.entries if entry.start < offset])

    def truncate_prefix(self, offset: PhysicalOffset) -> None:
        """Forget the epochs that end at or below ``offset``, the log's new first byte; the last one stays."""
        kept = [entry for entry, following in pairwise(self.entries) if following.start > offset]
        self._store([*kept, *self.entries[-1:]])

    def replace(self, entries: list[EpochEntry]) -> None:
        """Take ``entries`` as they are."""
        self._store(list(entries))

    def _store(self, entries: list[EpochEntry]) -> None:
        if entries == self.entries:
            return
        before = self.last
        if entries and entries[-1].epoch == self._classic_left:
            self.labelled()  # it would count again
        self._write(entries)
        self.entries = entries
        if before is not None and (not entries or entries[-1].epoch != before.epoch):
            self._forget_classic(before.epoch)

    def _forget_classic(self, former: Epoch) -> None:
        """The last epoch is another: what ``.classic`` says of the ``former`` one counts no more."""
        try:
            self.labelled()
        except DiskError as error:
            log.warning("%s; it says nothing any more, and goes later", error)
            if self.classic_from is not None:
                self.classic_from, self._classic_left = None, former

    def _write(self, entries: list[EpochEntry]) -> None:
        data = encode(entries)
        try:
            # What counts is the file itself. A new epoch in it that was never led would say that it was.
            write_file(self._disk, self._path + ".bak", data)
            write_file(self._disk, self._path, data)
        except OSError as error:
            raise DiskError(f"writing {self._path} failed: {error.strerror or error}") from error


def _mend(data: bytes) -> bytes:
    """``data`` with the bit turned back that makes it an epoch file. Raises DiskError."""
    try:
        decode(data)
    except DiskError:
        fixed = one_bit_off(data, lambda tried: (decode(tried), tried)[1])
        if fixed is None:
            raise
        return fixed
    return data
