"""Which bytes do Controllers exchange and keep: Raft messages, snapshots.

Everything is msgpack and is checked against a type while it is decoded; nothing here can run code or build an
object its type does not name. The field names of ``AppendEntries`` and ``RequestVote`` are PySyncObj's own.

A snapshot on disk and on the wire::

    at  size  field
     0     8  magic   b"KMQRSNP1"
     8     4  crc     CRC32 of all that follows
    12     8  length  bytes of the body
    20        body    msgpack [entry before the last applied one, last applied entry, state], and the seats
                        that were replaced, if there are any

Integers outside msgpack are unsigned and big-endian. A log entry is (command, index, term).
"""

from __future__ import annotations

import struct
import zlib
from typing import Annotated, Any, Final

import msgspec

from controller.packing import Limits, Malformed, pack, unpack
from model.errors import DiskError, PeerError

COMMAND_BYTES_MAX: Final = 1 << 20  # one command
BATCH_BYTES_MAX: Final = COMMAND_BYTES_MAX + 1024  # PySyncObj starts a new message beyond this
FRAME_BYTES_MAX: Final = 4 << 20  # a batch may pass its limit by one command
SNAPSHOT_BYTES_MAX: Final = 256 << 20
SNAPSHOT_CHUNK_BYTES: Final = 256 << 10

REGULAR: Final = b"\x00"  # first byte of an entry's command: a command of ours, or nothing to do
NO_OP: Final = b"\x01"

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Entry = tuple[bytes, Natural, Natural]
Said = bool | msgspec.UnsetType  # only where it is true: a member of an older build hears nothing new else


class AppendEntries(
    msgspec.Struct, frozen=True, tag_field="type", tag="append_entries", forbid_unknown_fields=True
):
    """The leader's entries after ``prevLogIdx``, or a piece (data, first, last) of its snapshot.

    ``sent_us``: the leader's clock when it sent this; ``round``: how often it was asked by then whether it
    still leads. The answer repeats both.
    """

    term: Natural
    commit_index: Natural
    prevLogIdx: Natural | None = None
    prevLogTerm: Natural | None = None
    entries: tuple[Entry, ...] = ()
    serialized: tuple[bytes, bool, bool] | None = None
    sent_us: Natural = 0
    round: Natural = 0


class Ack(msgspec.Struct, frozen=True, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """A follower's answer: it holds the log below ``next_index``, or wants it from there (``reset``).
    ``sent_us``, ``round``: of the message this answers, so the sender was still followed at that time.
    ``admitted``: false from a member that began empty and has no vote yet."""

    term: Natural
    next_index: Natural
    reset: bool
    success: bool
    sent_us: Natural = 0
    round: Natural = 0
    admitted: bool = True


class RequestVote(
    msgspec.Struct, frozen=True, tag_field="type", tag="request_vote", forbid_unknown_fields=True
):
    """``transfer``: the leader itself asked for this election, so it need not look dead first."""

    term: Natural
    last_log_index: Natural
    last_log_term: Natural
    transfer: bool = False


class Vote(msgspec.Struct, frozen=True, tag_field="type", tag="vote", forbid_unknown_fields=True):
    """``admitted``: as in ``Ack``. ``kept``: it was admitted once, and has its directory except for an end
    that was cut. ``blank``: its log holds no decision, so as far as it knows there never was one."""

    term: Natural
    granted: bool
    admitted: bool = True
    kept: Said = msgspec.UNSET
    blank: Said = msgspec.UNSET


class PreVote(msgspec.Struct, frozen=True, tag_field="type", tag="pre_vote", forbid_unknown_fields=True):
    """Would you vote for me in ``term``? Asked before any term is raised."""

    term: Natural
    last_log_index: Natural
    last_log_term: Natural


class PreVoteAnswer(
    msgspec.Struct, frozen=True, tag_field="type", tag="pre_vote_answer", forbid_unknown_fields=True
):
    """``term`` repeats the question's; ``current_term`` is the answering member's own; the rest as in
    ``Vote``."""

    term: Natural
    current_term: Natural
    granted: bool
    admitted: bool = True
    kept: Said = msgspec.UNSET
    blank: Said = msgspec.UNSET


class Admit(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="admit",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """The leader of ``term``: you hold all that was decided before you began, so you may vote.
    ``incarnation``: of your seat (``controller.raft.seats``)."""

    term: Natural
    incarnation: Natural = 0


class TimeoutNow(
    msgspec.Struct, frozen=True, tag_field="type", tag="timeout_now", forbid_unknown_fields=True
):
    """The leader steps back: stand for election at once."""

    term: Natural


Message = AppendEntries | Ack | RequestVote | Vote | PreVote | PreVoteAnswer | Admit | TimeoutNow

_MESSAGE: Final = Limits(bytes_max=COMMAND_BYTES_MAX + 1, text_max=64, items_max=BATCH_BYTES_MAX)
_SNAPSHOT: Final = Limits(bytes_max=SNAPSHOT_BYTES_MAX, text_max=4096, items_max=256)


def encode_message(message: Message | dict[str, Any]) -> bytes:
    """A message, or the dictionary PySyncObj makes of one, as msgpack."""
    return pack(message)


def decode_message(data: bytes | memoryview) -> Message:
    """Raises PeerError when ``data`` is not exactly one message of a known type."""
    try:
        return unpack(data, Message, _MESSAGE)
    except Malformed as error:
        raise PeerError(f"not a Raft message: {error}") from None


def check_entries(message: AppendEntries) -> None:
    """Raises PeerError when its entries are no piece of a log."""
    before, term = message.prevLogIdx, message.prevLogTerm
    if before is None:
        if message.entries:
            raise PeerError("entries without the one before them")
        return
    if term is None:
        raise PeerError("an entry without its term")
    for _command, index, of_term in message.entries:
        if index != before + 1 or not term <= of_term <= message.term:
            raise PeerError(f"entry {index} of term {of_term} after entry {before} of term {term}")
        before, term = index, of_term


class Seat(msgspec.Struct, frozen=True, array_like=True):
    """The ``incarnation`` of a member that counts, and its request port and Raft port."""

    node_id: str
    incarnation: Natural
    address: str
    raft_address: str


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state machine after ``last`` was applied; ``before`` is the entry in front of it. ``seats``: those
    that were replaced until then; left out where there are none."""

    before: Entry
    last: Entry
    state: bytes
    seats: tuple[Seat, ...] = ()


_SNAPSHOT_MAGIC = b"KMQRSNP1"
_SNAPSHOT_HEAD = struct.Struct(">8sIQ")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    fields = (snapshot.before, snapshot.last, snapshot.state)
    body = pack(snapshot if snapshot.seats else fields)
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
        snapshot: Snapshot = unpack(body, Snapshot, _SNAPSHOT)
    except Malformed as error:
        raise DiskError(f"snapshot cannot be read: {error}") from None
    if snapshot.before[1] + 1 != snapshot.last[1]:
        raise DiskError(f"snapshot joins entries {snapshot.before[1]} and {snapshot.last[1]}")
    return snapshot
