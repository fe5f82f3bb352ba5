"""Which bytes do Controllers exchange and keep: Raft messages, snapshots.

Everything is msgpack and is checked against a type while it is decoded; nothing here can run code or build an
object its type does not name. The field names of ``AppendEntries`` and ``RequestVote`` are PySyncObj's own.

A snapshot on disk and on the wire::

    at  size  field
     0     8  magic   b"KMQRSNP1"
     8     4  crc     CRC32 of all that follows
    12     8  length  bytes of the body
    20        body    msgpack [entry before the last applied one, last applied entry, state]

Integers outside msgpack are unsigned and big-endian. A log entry is (command, index, term).
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, Any, Final

import msgspec

from model.errors import DiskError, PeerError

COMMAND_BYTES_MAX: Final = 1 << 20  # one command
BATCH_BYTES_MAX: Final = COMMAND_BYTES_MAX + 1024  # PySyncObj starts a new message beyond this
FRAME_BYTES_MAX: Final = 4 << 20  # a batch may pass its limit by one command
SNAPSHOT_BYTES_MAX: Final = 256 << 20
SNAPSHOT_CHUNK_BYTES: Final = 256 << 10

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Entry = tuple[bytes, Natural, Natural]


class AppendEntries(
    msgspec.Struct, frozen=True, tag_field="type", tag="append_entries", forbid_unknown_fields=True
):
    """The leader's entries after ``prevLogIdx``, or a piece (data, first, last) of its snapshot.

    ``sent_us``: the leader's clock when it sent this; the answer repeats it.
    """

    term: Natural
    commit_index: Natural
    prevLogIdx: Natural | None = None
    prevLogTerm: Natural | None = None
    entries: tuple[Entry, ...] = ()
    serialized: tuple[bytes, bool, bool] | None = None
    sent_us: Natural = 0


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """A follower's answer: it holds the log below ``next_index``, or wants it from there (``reset``).
    ``sent_us``: of the message this answers, so the sender was still followed at that time."""

    term: Natural
    next_index: Natural
    reset: bool
    success: bool
    sent_us: Natural = 0


class RequestVote(
    msgspec.Struct, frozen=True, tag_field="type", tag="request_vote", forbid_unknown_fields=True
):
    """``transfer``: the leader itself asked for this election, so it need not look dead first."""

    term: Natural
    last_log_index: Natural
    last_log_term: Natural
    transfer: bool = False


class Vote(msgspec.Struct, frozen=True, tag_field="type", tag="vote", forbid_unknown_fields=True):
    term: Natural
    granted: bool


class PreVote(msgspec.Struct, frozen=True, tag_field="type", tag="pre_vote", forbid_unknown_fields=True):
    """Would you vote for me in ``term``? Asked before any term is raised."""

    term: Natural
    last_log_index: Natural
    last_log_term: Natural


class PreVoteAnswer(
    msgspec.Struct, frozen=True, tag_field="type", tag="pre_vote_answer", forbid_unknown_fields=True
):
    """``term`` repeats the question's; ``current_term`` is the answering member's own."""

    term: Natural
    current_term: Natural
    granted: bool


class TimeoutNow(
    msgspec.Struct, frozen=True, tag_field="type", tag="timeout_now", forbid_unknown_fields=True
):
    """The leader steps back: stand for election at once."""

    term: Natural


Message = AppendEntries | Ack | RequestVote | Vote | PreVote | PreVoteAnswer | TimeoutNow

_decoder = msgspec.msgpack.Decoder(Message)
_encoder = msgspec.msgpack.Encoder()


def encode_message(message: Message | dict[str, Any]) -> bytes:
    """A message, or the dictionary PySyncObj makes of one, as msgpack."""
    return _encoder.encode(message)


def decode_message(data: bytes | memoryview) -> Message:
    """Raises PeerError when ``data`` is not exactly one message of a known type."""
    try:
        message: Message = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise PeerError(f"not a Raft message: {error}") from None
    return message


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after ``last`` was applied; ``before`` is the entry in front of it."""

    before: Entry
    last: Entry
    state: bytes


_SNAPSHOT_MAGIC = b"KMQRSNP1"
_SNAPSHOT_HEAD = struct.Struct(">8sIQ")
_snapshot_decoder = msgspec.msgpack.Decoder(Snapshot)


def encode_snapshot(snapshot: Snapshot) -> bytes:
    body = _encoder.encode(snapshot)
    length = struct.pack(">Q", len(body))
    crc = zlib.crc32(body, zlib.crc32(length))
    return _SNAPSHOT_HEAD.pack(_SNAPSHOT_MAGIC, crc, len(body)) + body


def decode_snapshot(data: bytes) -> Snapshot:
    """Raises DiskError naming what does not fit."""
    if len(data) < _SNAPSHOT_HEAD.size:
        raise DiskError(f"snapshot of {len(data)} bytes is shorter than its head")
    magic, crc, length = _SNAPSHOT_HEAD.unpack_from(data)
    body = data[_SNAPSHOT_HEAD.size :]
    if magic != _SNAPSHOT_MAGIC:
        raise DiskError(f"snapshot starts with {magic!r}, expected {_SNAPSHOT_MAGIC!r}")
    if length != len(body):
        raise DiskError(f"snapshot has a body of {len(body)} bytes, its head says {length}")
    if zlib.crc32(data[12:]) != crc:
        raise DiskError("snapshot fails its checksum")
    try:
        snapshot = _snapshot_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise DiskError(f"snapshot cannot be read: {error}") from None
    if snapshot.before[1] + 1 != snapshot.last[1]:
        raise DiskError(f"snapshot joins entries {snapshot.before[1]} and {snapshot.last[1]}")
    return snapshot
