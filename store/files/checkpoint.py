"""How far had each file come when the store was last sure of it?

    at  size  field
     0     8  physicMsgTimestamp    store time of the last message flushed to the CommitLog, ms
     8     8  logicsMsgTimestamp    ... of the last one whose queue entry is flushed
    16     8  indexMsgTimestamp     ... whose index entry is flushed
    24     8  masterFlushedOffset   bytes
    32     8  confirmPhyOffset      bytes; never written beyond what is flushed
    40    24  RocketMQ's            left as they are
    64     4  mark "KQ02"           from here on ours only: RocketMQ leaves these bytes alone
    68     4  CRC-32                of bytes 0 to 39 and 72 to 87
    72     8  settled offset        bytes: up to here the log was whole and is durable, and so are
                                    the entries of its messages in their ConsumeQueues
    80     8  indexed offset        bytes: the index of the messages up to here is durable
    88     4  mark "KQS1"           a note for audits, which no broker reads: zeros say nothing
    92     4  CRC-32                of bytes 64 to 87 and 96 to 103, so that it goes with this very seal
    96     8  log start             bytes: where the log began; what is gone before it, retention took

The file has 4096 bytes; what is read here lies in one sector, so that a crash leaves the old or the new.
Recovery of a sealed one starts at the settled offset, else at the messages the times speak of. Source of
the format: Apache RocketMQ 5.x, ``StoreCheckpoint``; checked against files it wrote.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Final
from zlib import crc32

from model.ids import PhysicalOffset
from runtime.env import Disk, File

FILE_BYTES = 4096
_FIELDS: Final = struct.Struct(">5q")
_KEPT_BYTES: Final = 24
_SEAL: Final = struct.Struct(">4sI")
_SEAL_AT: Final = _FIELDS.size + _KEPT_BYTES
_OURS: Final = struct.Struct(">2q")
_MARK: Final = b"KQ02"
_NOTE_AT: Final = _SEAL_AT + _SEAL.size + _OURS.size
_NOTE: Final = struct.Struct(">4sIq")
_NOTE_MARK: Final = b"KQS1"
READ_BYTES: Final = _NOTE_AT + _NOTE.size
assert (_SEAL_AT, _NOTE_AT, READ_BYTES) == (64, 88, 104)


@dataclass(slots=True)
class Checkpoint:
    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: PhysicalOffset = PhysicalOffset(0)
    confirm_offset: PhysicalOffset = PhysicalOffset(0)
    settled_offset: PhysicalOffset = PhysicalOffset(0)
    indexed_offset: PhysicalOffset = PhysicalOffset(0)
    trusted: bool = False  # written here, and not changed since
    kept: bytes = bytes(_KEPT_BYTES)  # what a RocketMQ newer than ours may keep behind its fields
    log_start: PhysicalOffset | None = None  # None: it does not say

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Too few bytes read as zeros: a checkpoint that was never written.

        One of ours whose CRC does not match was changed by a bit, or by RocketMQ since: nothing in it is
        believed then, and recovery reads the whole log.
        """
        data = data[:READ_BYTES].ljust(READ_BYTES, b"\0")
        mark, crc = _SEAL.unpack_from(data, _SEAL_AT)
        kept = data[_FIELDS.size : _SEAL_AT]
        found = cls(*_FIELDS.unpack_from(data))
        ours = data[_SEAL_AT + _SEAL.size : _NOTE_AT]
        if mark == _MARK:
            if crc != crc32(ours, crc32(data[: _FIELDS.size])):
                return cls(kept=kept)
            found.settled_offset, found.indexed_offset = _OURS.unpack(ours)
            found.trusted = True
            note, note_crc, start = _NOTE.unpack_from(data, _NOTE_AT)
            if (note, note_crc) == (_NOTE_MARK, _note_crc(data[_SEAL_AT:_NOTE_AT], start)):
                found.log_start = PhysicalOffset(start)
        found.kept = kept
        return found

    def encode(self) -> bytes:
        raw = _FIELDS.pack(*(getattr(self, field.name) for field in fields(self)[:5]))
        ours = _OURS.pack(self.settled_offset, self.indexed_offset)
        seal = _SEAL.pack(_MARK, crc32(ours, crc32(raw))) + ours
        note = bytes(_NOTE.size)
        if self.log_start is not None:
            note = _NOTE.pack(_NOTE_MARK, _note_crc(seal, self.log_start), self.log_start)
        return raw + self.kept + seal + note


def _note_crc(seal: bytes, start: int) -> int:
    return crc32(start.to_bytes(8, "big", signed=True), crc32(seal))


class CheckpointFile:
    """The open checkpoint. ``write`` puts ``now`` into the file; the caller decides when that is true.

    ``writes`` counts the calls that wrote something."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.now = Checkpoint()
        self.writes = 0
        self._disk = disk
        self._path = path
        self._file: File | None = None

    def load(self) -> None:
        """Read it, making it when absent. Raises OSError."""
        file = self._file = self._disk.open(self._path, create=True)
        if file.size() < FILE_BYTES:
            file.truncate(FILE_BYTES)
            file.sync()
            self._disk.sync_dir(self._path.rpartition("/")[0])
        self.now = Checkpoint.decode(file.pread(READ_BYTES, 0))
        if self.now.trusted:
            # What is read may be in the page cache only: the sync of the last write may have failed.
            self.write(self.now.encode())

    def write(self, values: bytes, since: int | None = None) -> None:
        """Write ``values`` (of ``now.encode()``) and sync. Blocks; raises OSError.

        ``since``: only if ``writes`` still was that. Values taken before they reach their thread may be older
        than what a cut wrote meanwhile: written behind it, they would speak for what it takes away.
        """
        if self._file is not None and since in (None, self.writes):
            self.writes += 1
            self._file.pwrite(values, 0)
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
