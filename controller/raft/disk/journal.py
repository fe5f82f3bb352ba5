"""What must a Raft member remember, and is it really on the disk?

The journal keeps log entries, the current term and the vote. Changes gather in memory and leave as one batch
with one checksum when ``sync`` is called, which happens before any message that depends on them is sent. The
next batch is written only after the former is synced. Hence: an unreadable *end* is a write that never
finished and that nobody was told about, it is cut; an unreadable place before a good batch is damage. A good
last batch may be in the page cache only, or not even reach the disk with a later sync of the same file, when
the process ended before its sync did or because it failed. So what a start found is written again and synced
before it counts.

    file    magic b"KMQRJNL1", then batches
    batch   at  size  field
             0     4  magic   b"KRB1"
             4     4  crc     CRC32 of all that follows in this batch
             8     8  number  1, 2, 3 ... within this file
            16     4  length  bytes of the body
            20        body    msgpack list of records

    record  ["o", node id]              whose journal this is (the first record of a file)
            ["e", index, term, command] an entry
            ["t", index]                entries from this index on are gone
            ["m", term, vote or nil]    current term and vote
            ["a"]                       this member was admitted: it may vote
            ["i", incarnation]          of its seat it is this incarnation; without it 0, once admitted

Integers outside msgpack are unsigned and big-endian. Compaction writes a new file beside the old one and
replaces it, so there is no moment without a whole journal. While the new one is being written nothing of the
old one is touched: a disk that refuses then costs the compaction and nothing else.

What is read at a start may be in the machine's memory only: the last batch of a process that was killed
before its sync ended, or whose sync failed (the kernel then forgets that the pages were ever dirty). So a
start writes that batch once more, where it is, before anything that was read is told to anyone.

An unreadable end looks the same whether it is a write that never finished or a synced batch that was damaged
later: a vote or an entry that others count on may be lost with it. So the cut costs the admission: the member
has no vote until a leader finds that it holds every decision, as if its directory had been replaced.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import zlib
from typing import Any, Final, overload

import msgspec

from controller.packing import Limits, Malformed, pack, unpack
from controller.raft.codec import COMMAND_BYTES_MAX, NO_OP, Entry, Natural, Snapshot
from model.errors import DiskError
from runtime.env import Disk, File, write_file

log = logging.getLogger(__name__)

_FILE_MAGIC: Final = b"KMQRJNL1"
_BATCH_MAGIC: Final = b"KRB1"
_HEAD: Final = struct.Struct(">4sIQI")
assert _HEAD.size == 20, "as the table above says"


class _Owner(msgspec.Struct, frozen=True, array_like=True, tag="o"):
    node_id: str


class _Entry(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    index: Natural
    term: Natural
    command: bytes


class _Truncated(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    index: Natural


class _Meta(msgspec.Struct, frozen=True, array_like=True, tag="m"):
    term: Natural
    vote: str | None


class _Admitted(msgspec.Struct, frozen=True, array_like=True, tag="a"):
    pass


class _Incarnation(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    incarnation: Natural


_Record = _Owner | _Entry | _Truncated | _Meta | _Admitted | _Incarnation
_LIMITS: Final = Limits(bytes_max=COMMAND_BYTES_MAX + 1, text_max=255, items_max=2**32 - 1)
"""Of what was written under a checksum. An entry is a command and the byte of its kind; ids have at most 255
bytes; the first batch of a file holds all entries kept."""


class Journal:
    """The log, term and vote of one member. The camelCase methods are what PySyncObj calls.

    Positions in those calls count from the first entry kept. Every method that writes raises DiskError when
    the disk refuses; the journal then refuses all further work, because what was written is unknown.
    """

    def __init__(self, disk: Disk, path: str, node_id: str) -> None:
        """Open or create. Raises DiskError on damage, or when the journal is another member's."""
        self.path = path
        self._directory = path.rpartition("/")[0] or "."
        self._disk = disk
        self._node_id = node_id
        self._entries: list[Entry] = []
        self._term = 0
        self._vote: str | None = None
        self._admitted = False
        self._incarnation: int | None = None
        self._pending: list[_Record] = []
        self._number = 0
        self._end = 0
        self._failed: str | None = None
        self._file: File
        try:
            self.created = not self._open()
        except OSError as error:
            raise DiskError(f"{path}: {error}") from error

    def _open(self) -> bool:
        """Whether there was a journal. Raises OSError, DiskError; leaves no descriptor then."""
        try:
            # Not asked beforehand: a disk that cannot say whether it exists must not look like an empty one.
            self._file = self._disk.open(self.path)
        except FileNotFoundError:
            image = self._image()
            write_file(self._disk, self.path, image)
            self._file = self._disk.open(self.path)
            self._number, self._end = 1, len(image)
            return False
        try:
            data = self._file.pread(self._file.size(), 0)
            last = self._load(data)
            if self._end < len(data) and self._admitted:
                # In one step with the cut: no crash may keep the admission and lose the end.
                self._admitted = False
                self._replace(self._entries)
            else:
                self._write_again(data, last)
        except BaseException:
            self.close()
            raise
        return True

    # reading

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        return self._entries[at]

    @property
    def first_index(self) -> int:
        return self._entries[0][1]

    @property
    def last_index(self) -> int:
        return self._entries[-1][1]

    @property
    def blank(self) -> bool:
        """Whether it holds no decision: nothing but what leaders begin with, and no snapshot before it."""
        return all(
            index == at and command[:1] == NO_OP for at, (command, index, _) in enumerate(self._entries, 1)
        )

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return self._end

    @property
    def usable(self) -> bool:
        """False once the disk refused what cannot be taken back: every further call raises DiskError."""
        return self._failed is None

    @property
    def dirty(self) -> bool:
        """Whether ``sync`` has something to write."""
        return bool(self._pending)

    @property
    def admitted(self) -> bool:
        """Whether this member may vote: a leader said that it lacks no decision of its past."""
        return self._admitted

    @property
    def incarnation(self) -> int | None:
        """Which incarnation of its seat this directory is; None = it was never admitted."""
        return self._incarnation

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote

    def getRaftCommitIndex(self) -> int:
        # Not kept: after a start the leader says what is committed, and until then nothing is answered.
        return 1

    def setRaftCommitIndex(self, index: int) -> None:
        """Not kept, see ``getRaftCommitIndex``."""

    def onOneSecondTimer(self) -> None:
        """Nothing waits for a timer: what matters is synced before it is told."""

    # writing

    def add(self, command: bytes, index: int, term: int) -> None:
        self._check()
        assert not self._entries or index == self.last_index + 1, "a log has no holes"
        self._entries.append((command, index, term))
        self._pending.append(_Entry(index, term, command))

    def deleteEntriesFrom(self, position: int) -> None:
        """Drop the entries from ``position`` on: another leader's log goes another way."""
        self._check()
        if position < len(self._entries):
            self._pending.append(_Truncated(self._entries[position][1]))
            del self._entries[position:]

    def deleteEntriesTo(self, position: int) -> None:
        """Drop the entries before ``position``: a durable snapshot holds them.

        Raises DiskError; if the journal is ``usable`` still, it is what it was before the call.
        """
        self._replace(self._entries[position:])

    def reset(self, entries: list[Entry]) -> None:
        """Start anew with ``entries``, the end of a durable snapshot."""
        self._replace(list(entries))

    def clear(self) -> None:
        self._replace([])

    def setCurrentTerm(self, term: int, vote: str | None) -> None:
        """Durable when this returns: a term or a vote must not be forgotten once it is told."""
        self._check()
        self._term, self._vote = term, vote
        self._pending.append(_Meta(term, vote))
        self.sync()

    def admit(self, incarnation: int = 0) -> None:
        """This member may vote, as this incarnation of its seat. Durable when this returns."""
        self._check()
        if not self._admitted:
            self._admitted = True
            self._incarnation = max(incarnation, self._incarnation or 0)
            self._pending.append(_Admitted())
            if self._incarnation:
                self._pending.append(_Incarnation(self._incarnation))
            self.sync()

    def sync(self) -> None:
        """Make everything durable. Blocks for one write and one sync, if there is something to write."""
        if not self._pending:
            return
        self._check()
        batch = _batch(self._number + 1, self._pending)
        try:
            self._file.pwrite(batch, self._end)
        except OSError as error:
            # Nobody was told of it. What is left of it would look like damage to the next start.
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)
            self._fail(error)
        try:
            self._file.sync()
        except OSError as error:
            self._fail(error)
        self._number += 1
        self._end += len(batch)
        self._pending.clear()

    def close(self) -> None:
        """Forget the file; what was not synced is not written."""
        self._failed = self._failed or "closed"
        _close(self._file)

    def _destroy(self) -> None:
        """PySyncObj's name for the end; the owner of the journal closes it."""

    def _check(self) -> None:
        if self._failed is not None:
            raise DiskError(f"{self.path}: {self._failed}")

    def _fail(self, error: OSError) -> None:
        self._failed = str(error)
        raise DiskError(f"{self.path}: {error}") from error

    def _replace(self, entries: list[Entry]) -> None:
        self._check()
        before, self._entries = self._entries, entries
        image = self._image()
        beside = self.path + ".tmp"
        try:
            file = self._write_beside(beside, image)
        except OSError as error:
            self._entries = before
            raise DiskError(f"{self.path}: {error}") from error
        try:
            self._disk.replace(beside, self.path)
            self._disk.sync_dir(self._directory)
        except OSError as error:
            # Whether the next start finds the old file or the new one is unknown: what is written to either
            # from here on may be lost.
            self._entries = before
            _close(file)
            self._fail(error)
        # The descriptor it was written through stays: none left for opening it again could not hurt.
        former, self._file = self._file, file
        _close(former)
        self._number = 1
        self._end = len(image)
        self._pending.clear()

    def _write_beside(self, path: str, image: bytes) -> File:
        """A durable file under a name nobody looks for. Raises OSError, and leaves no half of it: on a full
        disk that would be the room the next entry needs."""
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            self._disk.keep_mode(self.path, path)
            file.pwrite(image, 0)
            file.sync()
        except OSError:
            _close(file)
            with contextlib.suppress(OSError):
                self._disk.remove(path)
            raise
        return file

    def _image(self) -> bytes:
        """A whole file with what is known now."""
        records: list[_Record] = [_Owner(self._node_id), _Meta(self._term, self._vote)]
        if self._admitted:
            records.append(_Admitted())
        if self._incarnation or (self._incarnation is not None and not self._admitted):
            records.append(_Incarnation(self._incarnation))
        records += [_Entry(index, term, command) for command, index, term in self._entries]
        return _FILE_MAGIC + _batch(1, records)

    # loading

    def _load(self, data: bytes) -> int:
        """Take in what the file holds: where its last good batch begins."""
        if not data.startswith(_FILE_MAGIC):
            raise DiskError(f"{self.path}: starts with {data[:8]!r}, expected {_FILE_MAGIC!r}. {ADVICE}")
        at = last = len(_FILE_MAGIC)
        while (body := _body(data, at, self._number + 1)) is not None:
            self._replay(body, at)
            self._number += 1
            last = at
            at += _HEAD.size + len(body)
        if self._number == 0:
            # The file came into being by a rename after a sync, with its first batch whole.
            raise DiskError(f"{self.path}: the first batch is unreadable. {ADVICE}")
        if at < len(data):
            self._check_tail(data, at)
        self._end = at
        return last

    def _write_again(self, data: bytes, last: int) -> None:
        """Make durable what was read: batch, end and names. The same bytes at the same place need no room on
        a full disk, and whatever part of them arrives, nothing else is there than before."""
        if self._end < len(data):
            self._file.truncate(self._end)
        self._file.pwrite(data[last : self._end], last)
        self._file.sync()
        self._disk.sync_dir(self._directory)

    def _check_tail(self, data: bytes, at: int) -> None:
        behind = at
        while (behind := data.find(_BATCH_MAGIC, behind + 1)) >= 0:
            if _good_batch_behind(data, behind, self._number):
                raise DiskError(
                    f"{self.path}: unreadable at byte {at}, but byte {behind} holds a good batch: "
                    f"this is damage, not an unfinished write. {ADVICE}"
                )
        log.warning(
            "%s: %d bytes at byte %d are an unfinished write or damage; they are cut%s",
            self.path,
            len(data) - at,
            at,
            ", and this member may not vote until a leader admits it" if self._admitted else "",
        )

    def _replay(self, body: bytes, at: int) -> None:
        try:
            records: list[_Record] = unpack(body, list[_Record], _LIMITS)
        except Malformed as error:
            raise DiskError(f"{self.path}: batch at byte {at} is not ours: {error}. {ADVICE}") from None
        for record in records:
            match record:
                case _Owner(node_id=owner):
                    if owner != self._node_id:
                        raise DiskError(
                            f"{self.path} belongs to Controller {owner}, this is {self._node_id}: "
                            "check controllerStorePath and controllerDLegerSelfId"
                        )
                case _Meta(term=term, vote=vote):
                    self._term, self._vote = term, vote
                case _Admitted():
                    self._admitted = True
                    self._incarnation = self._incarnation or 0
                case _Incarnation(incarnation=incarnation):
                    self._incarnation = incarnation
                case _Truncated(index=index):
                    self._entries = [entry for entry in self._entries if entry[1] < index]
                case _Entry(index=index, term=term, command=command):
                    if self._entries and index != self.last_index + 1:
                        raise DiskError(f"{self.path}: entry {index} follows {self.last_index}. {ADVICE}")
                    self._entries.append((command, index, term))


ADVICE: Final = (
    "This member cannot be trusted with what it promised. While a majority of all Controllers is healthy "
    "without it: remove its directory and start it again, it then copies everything from the leader"
)


def align(journal: Journal, snapshot: Snapshot) -> None:
    """Make ``journal`` begin with the snapshot's two entries, keeping what continues them.

    Raises DiskError when entries between the two are missing.
    """
    index, term = snapshot.last[1], snapshot.last[2]
    if len(journal) and journal.first_index > index:
        raise DiskError(
            f"{journal.path} begins at entry {journal.first_index}, the snapshot ends at {index}: "
            f"entries between them are lost. {ADVICE}"
        )
    if len(journal) and journal.last_index >= index and journal[index - journal.first_index][2] == term:
        if journal.first_index < index - 1:
            journal.deleteEntriesTo(index - 1 - journal.first_index)
        elif journal.first_index == index:
            journal.reset([snapshot.before, *journal[:]])
    else:
        journal.reset([snapshot.before, snapshot.last])


def _close(file: File) -> None:
    """What matters was synced before; the descriptor is gone whatever close says."""
    try:
        file.close()
    except OSError as error:
        log.warning("%s: closing it: %s", file.path, error)


def _batch(number: int, records: list[Any]) -> bytes:
    body = pack(records)
    rest = struct.pack(">QI", number, len(body)) + body
    return _BATCH_MAGIC + struct.pack(">I", zlib.crc32(rest)) + rest


def _body(data: bytes, at: int, number: int | None) -> bytes | None:
    """The body of the good batch at ``at`` (with this number), or None."""
    if len(data) - at < _HEAD.size:
        return None
    magic, crc, found, length = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if magic != _BATCH_MAGIC or end > len(data) or (number is not None and found != number):
        return None
    if zlib.crc32(data[at + 8 : end]) != crc:
        return None
    return data[at + _HEAD.size : end]


def _good_batch_behind(data: bytes, at: int, number: int) -> bool:
    """Whether ``at`` holds a batch written after batch ``number``."""
    if _body(data, at, None) is None:
        return False
    return bool(_HEAD.unpack_from(data, at)[2] > number)
