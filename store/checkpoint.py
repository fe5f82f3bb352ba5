"""How far had each file come when the store was last sure of it?

    at  size  field
     0     8  physicMsgTimestamp    store time of the last message flushed to the CommitLog, ms
     8     8  logicsMsgTimestamp    ... of the last one whose queue entry is flushed
    16     8  indexMsgTimestamp     ... whose index entry is flushed
    24     8  masterFlushedOffset   bytes
    32     8  confirmPhyOffset      bytes; never written beyond what is flushed
    40     4  mark "KQ01"           ours only: RocketMQ leaves these bytes alone
    44     4  CRC-32 of bytes 0..40 ours only

The file has 4096 bytes. Recovery starts at the messages these times speak of.
Source of the format: Apache RocketMQ 5.x, ``StoreCheckpoint``; checked against files it wrote.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from typing import Final
from zlib import crc32

from runtime.env import Disk, File

FILE_BYTES = 4096
_FIELDS: Final = struct.Struct(">5q")
_SEAL: Final = struct.Struct(">4sI")
_MARK: Final = b"KQ01"
READ_BYTES: Final = _FIELDS.size + _SEAL.size


@dataclass(slots=True)
class Checkpoint:
    physic_timestamp_ms: int = 0
    logics_timestamp_ms: int = 0
    index_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_offset: int = 0
    vouched: bool = False  # written here, and not changed since

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint:
        """Too few bytes read as zeros: a checkpoint that was never written.

        One of ours whose CRC does not match was changed by a bit, or by RocketMQ since: nothing in it is
        believed then, and recovery reads the whole log.
        """
        data = data[:READ_BYTES].ljust(READ_BYTES, b"\0")
        mark, crc = _SEAL.unpack_from(data, _FIELDS.size)
        if mark == _MARK and crc != crc32(data[: _FIELDS.size]):
            return cls()
        found = cls(*_FIELDS.unpack_from(data))
        found.vouched = mark == _MARK
        return found

    def encode(self) -> bytes:
        raw = _FIELDS.pack(*(getattr(self, field.name) for field in fields(self)[:5]))
        return raw + _SEAL.pack(_MARK, crc32(raw))


class CheckpointFile:
    """The open checkpoint. ``write`` puts ``now`` into the file; the caller decides when that is true."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.now = Checkpoint()
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

    def write(self, values: bytes) -> None:
        """Write ``values`` (of ``now.encode()``) and sync. Blocks; raises OSError."""
        if self._file is not None:
            self._file.pwrite(values, 0)
            self._file.sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
