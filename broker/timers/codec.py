"""The bytes of ``config/timercheck``.

    at  size  field
     0     8  lastReadTimeMs          slots before it are delivered
     8     8  lastTimerLogFlushPos    bytes of timerlog
    16     8  lastTimerQueueOffset    RocketMQ goes on reading the timer topic here
    24     8  masterTimerQueueOffset  ... but not behind this
    32    24  DataVersion             stateVersion, timestamp, counter
    64     4  mark "KQT1"             from here on ours only: RocketMQ leaves these bytes alone
    68     4  CRC-32                  of bytes 72 to 111
    72    16  lastReadTimeMs and lastTimerQueueOffset once more: where they differ, RocketMQ wrote since
    88     8  queue offset            of the timer topic, up to which all was taken up
    96     8  first                   lowest queue offset that waits
   104     8  read time, ms           what was due before it is delivered

The file has 4096 bytes; integers are signed and big-endian. What is read lies in one sector. Source of the
format: Apache RocketMQ 5.x, ``TimerCheckpoint``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from broker.timers.core import Note
from model.topic import DataVersion

FILE_BYTES: Final = 4096
HEAD: Final = struct.Struct(">7q")
_SEAL: Final = struct.Struct(">4sI")
_OURS: Final = struct.Struct(">5q")
_AT: Final = 64
_MARK: Final = b"KQT1"
READ_BYTES: Final = _AT + _SEAL.size + _OURS.size
assert (HEAD.size, READ_BYTES) == (56, 112)


@dataclass(frozen=True, slots=True)
class Check:
    """What the file says. ``foreign``: RocketMQ wrote it last."""

    note: Note = field(default_factory=Note)
    version: DataVersion = field(default_factory=DataVersion)
    foreign: bool = False


def encode_check(note: Note, version: DataVersion) -> bytes:
    """There is no wheel on disk: RocketMQ has to read the topic anew from the first message that waits."""
    head = HEAD.pack(note.read_ms, 0, note.first, note.first, *_version(version))
    ours = _OURS.pack(note.read_ms, note.first, note.queue_offset, note.first, note.read_ms)
    return head.ljust(_AT, b"\0") + _SEAL.pack(_MARK, crc32(ours)) + ours


def decode_check(data: bytes) -> Check | None:
    """None for a file that cannot be believed: all of the timer topic is to be looked at then."""
    data = data[:READ_BYTES].ljust(READ_BYTES, b"\0")
    read_ms, _, queue_offset, _, state, at_ms, counter = HEAD.unpack_from(data)
    version = DataVersion(state, at_ms, counter)
    mark, crc = _SEAL.unpack_from(data, _AT)
    ours = data[_AT + _SEAL.size :]
    if mark == bytes(4):
        return Check(Note(read_ms, queue_offset, 0), version, foreign=any(data))
    if mark != _MARK or crc != crc32(ours):
        return None
    head_read_ms, head_offset, taken, first, ours_ms = _OURS.unpack(ours)
    if (head_read_ms, head_offset) != (read_ms, queue_offset):
        # What waited at ``first`` may be delivered by now, but nothing before it waits again.
        return Check(Note(read_ms, queue_offset, min(first, queue_offset)), version, foreign=True)
    return Check(Note(ours_ms, taken, first), version)


def encode_told(note: Note, version: DataVersion) -> bytes:
    """The body of the answer to GET_TIMER_CHECK_POINT. A slave of RocketMQ has a wheel of its own, which
    it fills up to the master's queue offset."""
    return HEAD.pack(note.read_ms, 0, note.queue_offset, note.queue_offset, *_version(version))


def decode_told(body: bytes) -> tuple[Note, DataVersion]:
    """Raises ValueError. Where a master's first waiting message is, RocketMQ does not say."""
    if len(body) < HEAD.size - 24:
        raise ValueError(f"a timer checkpoint of {len(body)} bytes")
    read_ms, _, _, offset, state, at_ms, counter = HEAD.unpack(body[: HEAD.size].ljust(HEAD.size, b"\0"))
    return Note(read_ms, offset, 0), DataVersion(state, at_ms, counter)


def _version(version: DataVersion) -> tuple[int, int, int]:
    return version.state_version, version.timestamp_ms, version.counter
