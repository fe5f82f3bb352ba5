"""What travels on the HA port: four frames, and readers that believe none of the bytes.

A slave sends its handshake, in one write (a RocketMQ master parses it as soon as 12 of the 16 bytes are
there), then acks; a RocketMQ slave may repeat the handshake before its first ack:

    handshake, 16 bytes                        ack, 12 bytes
    at  size  field                            at  size  field  unit
     0     4  state               1             0     4  state  2
     4     2  sync from last file 0, 1, 2       4     8  end    bytes (PhysicalOffset)
     6     2  async learner       0 or 1
     8     8  broker id           given by the Controller

A master answers the handshake with its epochs (at most 1000, oldest first), then sends its log:

    handshake, 20 bytes + 12 an epoch          transfer, 36 bytes + body
     0     4  state               1             0     4  state           2
     4     4  body size           bytes         4     4  body size       bytes; 0 = heartbeat
     8     8  master's end        bytes         8     8  offset          bytes (PhysicalOffset)
    16     4  last epoch          -1 if none   16     4  epoch
    20+    4  epoch                            20     8  epoch start     bytes (PhysicalOffset)
    24+    8  start               bytes        28     8  confirmOffset   bytes (PhysicalOffset)

Integers are signed and big-endian; there is no length prefix. Source of the format: Apache RocketMQ 5.x,
``store/ha/autoswitch`` (AutoSwitchHAClient, AutoSwitchHAConnection). "Sync from last file" 2 is ours: no, and
this slave answers every frame at once. A RocketMQ master takes whatever is not 1 for a no.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from ha.epochs import EpochStart
from ha.wire.inflow import Inflow
from model.errors import PeerError
from model.ids import BrokerId, Epoch, PhysicalOffset

HANDSHAKE: Final = 1
TRANSFER: Final = 2

EPOCHS_MAX: Final = 1000
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Longest body believed. RocketMQ sends 32 KiB; ``haTransferBatchSize`` may be larger, never like this."""
OFFSET_MAX: Final = 2**63 - 1
ANSWERS_HEARTBEATS: Final = 2

_SLAVE_HANDSHAKE = struct.Struct(">ihhq")
_ACK = struct.Struct(">iq")
_MASTER_HANDSHAKE = struct.Struct(">iiqi")
_EPOCH = struct.Struct(">iq")
_TRANSFER = struct.Struct(">iiqiqq")

SLAVE_HANDSHAKE_BYTES: Final = _SLAVE_HANDSHAKE.size
ACK_BYTES: Final = _ACK.size
MASTER_HANDSHAKE_BYTES: Final = _MASTER_HANDSHAKE.size
TRANSFER_BYTES: Final = _TRANSFER.size
assert (SLAVE_HANDSHAKE_BYTES, ACK_BYTES, MASTER_HANDSHAKE_BYTES, TRANSFER_BYTES) == (16, 12, 20, 36)


Body = bytes | memoryview


class SlaveHandshake(NamedTuple):
    """Which broker a slave says it is. ``answers_heartbeats``: it answers every frame at once, as ours do; a
    RocketMQ slave is silent for ``haSendHeartbeatInterval`` after its handshake and while it has no news."""

    broker_id: BrokerId
    from_last_file: bool
    learner: bool
    answers_heartbeats: bool = False


class Ack(NamedTuple):
    """How far a slave's log reaches, bytes."""

    end: PhysicalOffset


class MasterHandshake(NamedTuple):
    """Where a master's log ends, bytes, and its epochs as (epoch, start offset), oldest first."""

    end: PhysicalOffset
    last_epoch: Epoch
    epochs: tuple[EpochStart, ...]


class Transfer(NamedTuple):
    """A piece of the master's log; an empty body is a heartbeat and ``offset`` what comes next, or -1:
    the heartbeat of a RocketMQ master that has no log yet. The body is a view of what was read: it holds
    until the next read."""

    offset: PhysicalOffset
    epoch: Epoch
    epoch_start: PhysicalOffset
    confirmed: PhysicalOffset
    body: Body


pack_transfer: Final = partial(_TRANSFER.pack, TRANSFER)
"""Size, offset, epoch, where it begins, confirmOffset: as ``encode_transfer_header``."""
_TRANSFERRED: Final = partial(tuple.__new__, Transfer)  # a call of Python less for each frame
_ACKED: Final = partial(tuple.__new__, Ack)


def encode_slave_handshake(handshake: SlaveHandshake) -> bytes:
    last_file = 1 if handshake.from_last_file else ANSWERS_HEARTBEATS if handshake.answers_heartbeats else 0
    return _SLAVE_HANDSHAKE.pack(HANDSHAKE, last_file, int(handshake.learner), handshake.broker_id)


encode_ack: Final[Callable[[PhysicalOffset], bytes]] = partial(_ACK.pack, TRANSFER)


def encode_master_handshake(end: PhysicalOffset, epochs: Sequence[EpochStart]) -> bytes:
    """The answer to a handshake; of more than ``EPOCHS_MAX`` epochs the newest are sent."""
    sent = epochs[-EPOCHS_MAX:]
    last = sent[-1][0] if sent else -1
    head = _MASTER_HANDSHAKE.pack(HANDSHAKE, len(sent) * _EPOCH.size, end, last)
    return head + b"".join(_EPOCH.pack(epoch, start) for epoch, start in sent)


def encode_transfer_header(
    offset: PhysicalOffset, size: int, epoch: Epoch, epoch_start: PhysicalOffset, confirmed: PhysicalOffset
) -> bytes:
    """The 36 bytes that go before ``size`` bytes of log; ``size`` 0 makes a heartbeat."""
    return _TRANSFER.pack(TRANSFER, size, offset, epoch, epoch_start, confirmed)


class SlaveReader:
    """What a master reads from one slave: a stream cut anywhere -> whole frames.

    A RocketMQ slave says its handshake again while it has not read the whole answer: after 5 s, or when the
    answer came in pieces. It is heard once.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._greeting = b""  # what may be said again; nothing after the first ack
        self._greeted = False

    def feed(self, data: bytes) -> list[SlaveHandshake | Ack]:
        """Return the frames ``data`` completes; keep the rest for the next call. Raises PeerError."""
        buffer = self._buffer
        if len(data) == ACK_BYTES and self._greeted and not self._greeting and not buffer:  # nearly all
            state, end = _ACK.unpack(data)
            if state == TRANSFER and end >= 0:
                return [_ACKED((end,))]
        buffer += data
        frames: list[SlaveHandshake | Ack] = []
        at = 0
        if not self._greeted:
            # The state is checked as soon as it is there: a stranger is not waited for.
            if len(buffer) >= 4:
                _need_state(int.from_bytes(buffer[:4], "big", signed=True), HANDSHAKE, "slave")
            if len(buffer) < SLAVE_HANDSHAKE_BYTES:
                return frames
            frames.append(_slave_handshake(buffer))
            self._greeted = True
            at = SLAVE_HANDSHAKE_BYTES
            self._greeting = bytes(buffer[:at])
        while self._greeting and buffer[at : at + 4] == self._greeting[:4]:
            if len(buffer) - at < SLAVE_HANDSHAKE_BYTES:
                del buffer[:at]
                return frames
            if buffer[at : at + SLAVE_HANDSHAKE_BYTES] != self._greeting:
                raise PeerError("slave said another handshake than before")
            at += SLAVE_HANDSHAKE_BYTES
        while len(buffer) - at >= ACK_BYTES:
            frames.append(_ack(buffer, at))
            self._greeting = b""
            at += ACK_BYTES
        del buffer[:at]
        return frames


def _ack(buffer: bytes | bytearray, at: int) -> Ack:
    state, end = _ACK.unpack_from(buffer, at)
    if state != TRANSFER:
        _need_state(state, TRANSFER, "slave")
    if end < 0:
        raise PeerError(f"slave acknowledged offset {end}")
    return Ack(end)


def _slave_handshake(buffer: bytearray) -> SlaveHandshake:
    _, last_file, learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(buffer)
    if last_file not in (0, 1, ANSWERS_HEARTBEATS) or learner not in (0, 1):
        raise PeerError(f"slave's handshake has flags {last_file} and {learner}, expected 0 or 1")
    if broker_id <= 0:
        raise PeerError(
            f"slave's handshake has broker id {broker_id}; ids given by the Controller start at 1"
        )
    return SlaveHandshake(broker_id, last_file == 1, bool(learner), last_file == ANSWERS_HEARTBEATS)


class MasterReader:
    """What a slave reads from its master: the handshake first, then the log."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self._inflow = Inflow()
        self.room, self.peek = self._inflow.room, self._inflow.peek
        self._greeted = False
        self._body_bytes_max = body_bytes_max

    def came(self, size: int) -> list[MasterHandshake | Transfer]:
        """The frames that ``size`` more bytes in ``room`` complete. Raises PeerError."""
        inflow = self._inflow
        inflow.end += size
        frames: list[MasterHandshake | Transfer] = []
        while True:
            frame = self._transfer() if self._greeted else self._handshake()
            if frame is None:
                return frames
            frames.append(frame)
            if inflow.start == inflow.end:
                return frames

    def _handshake(self) -> MasterHandshake | None:
        inflow = self._inflow
        view, at, there = inflow.view, inflow.start, inflow.end - inflow.start
        if there >= 4:
            _need_state(int.from_bytes(view[at : at + 4], "big", signed=True), HANDSHAKE, "master")
        if there < MASTER_HANDSHAKE_BYTES:
            return None
        _, size, master_end, last_epoch = _MASTER_HANDSHAKE.unpack_from(view, at)
        if size % _EPOCH.size or not 0 <= size <= EPOCHS_MAX * _EPOCH.size:
            raise PeerError(f"master's handshake announces {size} bytes of epochs")
        if master_end < 0 or last_epoch < -1:
            raise PeerError(f"master's handshake says end {master_end}, last epoch {last_epoch}")
        if there < MASTER_HANDSHAKE_BYTES + size:
            return None
        begin = at + MASTER_HANDSHAKE_BYTES
        epochs = tuple(_EPOCH.iter_unpack(view[begin : begin + size]))
        _need_ordered(epochs)
        self._greeted = True
        inflow.start = begin + size
        return MasterHandshake(master_end, last_epoch, epochs)

    def _transfer(self) -> Transfer | None:
        inflow = self._inflow
        view, at, there = inflow.view, inflow.start, inflow.end - inflow.start
        if there < TRANSFER_BYTES:
            if there >= 4:
                _need_state(int.from_bytes(view[at : at + 4], "big", signed=True), TRANSFER, "master")
            return None
        state, size, offset, epoch, epoch_start, confirmed = _TRANSFER.unpack_from(view, at)
        if state != TRANSFER:
            _need_state(state, TRANSFER, "master")
        if not 0 <= size <= self._body_bytes_max:
            raise PeerError(f"master's frame announces {size} bytes")
        # A RocketMQ master that never confirmed anything says -1, and one without a log has nowhere to go on.
        lowest = 0 if size else -1
        if not lowest <= offset <= OFFSET_MAX - size or epoch < 0 or epoch_start < 0 or confirmed < -1:
            raise PeerError(
                f"master's frame has offset {offset}, epoch {epoch} from {epoch_start}, "
                f"confirmOffset {confirmed}"
            )
        if there < TRANSFER_BYTES + size:
            return None
        begin = at + TRANSFER_BYTES
        inflow.start = begin + size
        body = view[begin : begin + size] if size else b""
        return _TRANSFERRED((offset, epoch, epoch_start, confirmed, body))


def _need_state(state: int, expected: int, side: str) -> None:
    if state != expected:
        raise PeerError(f"{side} sent state {state}, expected {expected}")


def _need_ordered(epochs: Sequence[EpochStart]) -> None:
    before_epoch, before_start = -1, -1
    for epoch, start in epochs:
        if epoch <= before_epoch or start <= before_start:
            raise PeerError(f"master's epochs are out of order at {epoch} from {start}")
        before_epoch, before_start = epoch, start
