"""How a master serves one slave: its handshake, its acks, and the log pushed to it as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from ha.epochs import EpochStart, frame_epoch, skipped_epochs
from ha.master.log_reader import Budget, Framed, LogReader
from ha.master.replicas import Replicas
from ha.wire.classic_codec import ReportReader, encode_header
from ha.wire.codec import (
    Ack,
    SlaveHandshake,
    SlaveReader,
    encode_master_handshake,
    pack_transfer,
)
from ha.wire.proof import PROOF_S, Credentials, HandshakeResponder, UnprovenError, refusal
from model.errors import MqError, PeerError
from model.ids import NO_EPOCH, NOWHERE, BrokerId, PhysicalOffset
from runtime.env import Buffer, Env

if TYPE_CHECKING:
    from store.files.commit_log import CommitLog
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

TURN_BYTES: Final = 256 * 1024
"""Log bytes one slave is written in one turn of the loop; the others and the clients come in between."""
FRAME_BYTES: Final = 128 * 1024
"""So many log bytes may be one frame to a keelmq slave, whatever ``haTransferBatchSize`` says: it appends and
answers each. A RocketMQ slave is sent what the key says."""
WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that may wait in one slave's send buffer; above it nothing more is read from the disk for it."""

ACK_WAIT_S: Final = 0.001
"""While a slave's answer to the last frame is under way, what is appended goes out with it, or after this
long: of many small frames each costs three processes a turn."""
ACK_WAIT_BYTES: Final = 64 * 1024
"""So many go out at once."""
_ENDS_LINK: Final = (MqError, OSError, ValueError)
STALL_S: Final = 0.1
"""A link that waits for a repair looks again after this."""


class Host(Protocol):
    """What a link needs from the service that accepted it."""

    @property
    def replicas(self) -> Replicas | None:
        """None while this broker is not master: slaves are turned away."""

    def expects(self, link: SlaveLink) -> bool:
        """Has ``link`` kept its place until its connection was made?"""

    def follows(self, link: SlaveLink) -> bool:
        """Is ``link`` that of a slave, which said which broker it is?"""

    def elsewhere(self, offset: PhysicalOffset, link: SlaveLink) -> bool:
        """Has a slave other than ``link``'s the log beyond ``offset``, and may it still mend ours?"""

    def on_greeting(self, link: SlaveLink) -> None:
        """Raises PeerError when ``link`` cannot have the id it says."""

    def on_turned_away(self, link: SlaveLink, why: str) -> None:
        """``link`` did not prove that it is of this group, or did not come to say which broker it is."""

    def on_ack(self, link: SlaveLink) -> None: ...
    def on_end(self, link: SlaveLink) -> None: ...


@dataclass(frozen=True, slots=True)
class Resources:
    """What all links of one master share."""

    env: Env
    store: MessageStore
    host: Host
    budget: Budget
    reader: LogReader
    credentials: Credentials
    batch_bytes: int
    segment_bytes: int


class Dialect(Protocol):
    """One of the two protocols of the HA port, as a master speaks it."""

    reader: SlaveReader | ReportReader
    first_ack_counts: bool
    """Whether the first ack says what the slave has, or only where it wants to begin."""

    def epochs(self, store: MessageStore) -> Sequence[EpochStart]: ...
    def header(
        self, offset: PhysicalOffset, size: int, epoch: EpochStart, confirmed: PhysicalOffset
    ) -> bytes: ...
    def on_proven(self, link: SlaveLink, broker_id: BrokerId) -> None:
        """The slave proved which broker it is."""

    def on_first_ack(self, link: SlaveLink, end: PhysicalOffset) -> bool:
        """The slave says where its log ends; False: it cannot be served."""


class Told(NamedTuple):
    """What a slave was told with the last frame."""

    epoch: EpochStart | None
    confirmed: PhysicalOffset
    """-1: nothing was sent yet."""
    log_ms: float = 0.0
    """When bytes of the log were in it last."""


_TOLD: Final = partial(tuple.__new__, Told)  # a call of Python less for each push


class _Proof(NamedTuple):
    """A link that is not open yet."""

    responder: HandshakeResponder
    deadline: asyncio.TimerHandle | None


_STRANGER: Final = SlaveHandshake(BrokerId(0), from_last_file=False, learner=False, answers_heartbeats=True)


class SlaveLink(asyncio.Protocol):
    """One slave's connection on the HA port.

    In this order: the proofs (``ha.wire.proof``) where ``haSecretFile`` is set; the slave's handshake of 16
    bytes; our epochs; the slave's first ack, which says where its log ends and so where the stream starts;
    then frames one way and acks the other.
    """

    def __init__(self, resources: Resources, dialect: Dialect) -> None:
        self.slave = _STRANGER
        """Which broker it says it is."""
        self.proven: BrokerId | None = None  # the id this slave has proven; None: it has proven none
        self.address = "?"
        self.end = NOWHERE  # acknowledged, bytes; -1 before the first ack
        self.next = NOWHERE  # the next byte to send; -1 before the first ack
        self.told = Told(None, NOWHERE)
        self.last_read_ms = self.last_write_ms = resources.env.monotonic_ms()
        self._shared = resources
        self._dialect = dialect
        self._proof: _Proof | None = None  # None: it is done, or the connection ended
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._gone = False  # the range the slave needs was deleted here
        self._again: asyncio.Handle | None = None

    @property
    def broker_id(self) -> BrokerId:
        """0 before it is known."""
        return self.slave.broker_id

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._transport.set_write_buffer_limits(high=WINDOW_BYTES)
        replicas = self._shared.host.replicas
        if replicas is None or not self._shared.host.expects(self):
            # Usual in the moment of a change of master: the slave tries again.
            log.debug("slave at %s turned away: this broker is not master, or has too many", self.address)
            self.close()
            return
        shared = self._shared
        responder = HandshakeResponder(shared.env, shared.credentials, replicas.epoch)
        deadline = (
            asyncio.get_running_loop().call_later(PROOF_S, self._too_late) if responder.strict else None
        )
        self._proof = _Proof(responder, deadline)

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.last_read_ms = self._shared.env.monotonic_ms()
        try:
            if self._proof is not None:
                data = self._verify(self._proof.responder, data)
            for frame in self._dialect.reader.feed(data) if data else ():
                if isinstance(frame, SlaveHandshake):
                    self._shake_hands(frame)
                else:
                    self._ack(frame)
        except _ENDS_LINK as error:
            self.close(str(error))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._again is not None:
            self._again.cancel()
        if self._proof is not None and self._proof.responder.answered:
            self._shared.host.on_turned_away(
                self, "it hung up instead of proving itself: haSecretFile may differ there"
            )
        self._forget_proof()
        self._shared.host.on_end(self)

    # Before the HA protocol

    def _verify(self, responder: HandshakeResponder, data: bytes) -> bytes:
        """What came behind the proofs: the HA protocol, said by the broker that proved itself if one did."""
        try:
            answer, rest = responder.feed(data)
        except UnprovenError as error:
            self._turn_away(str(error), refusal(error.reason) if error.reason is not None else b"")
            return b""
        if answer:
            self._write([answer])
        if rest is None:
            return b""
        self._forget_proof()
        self.proven = responder.proven
        if responder.proven is not None:
            self._dialect.on_proven(self, responder.proven)
        return rest

    def _too_late(self) -> None:
        self._turn_away(f"it did not prove within {PROOF_S:g} s which broker it is", b"")

    def _turn_away(self, why: str, answer: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._forget_proof()
        self._shared.host.on_turned_away(self, why)
        if answer:
            transport.write(answer)
            transport.close()
        else:
            transport.abort()

    def _forget_proof(self) -> None:
        proof, self._proof = self._proof, None
        if proof is not None and proof.deadline is not None:
            proof.deadline.cancel()

    # Reading

    def _shake_hands(self, frame: SlaveHandshake) -> None:
        replicas = self._shared.host.replicas
        if replicas is None:
            raise PeerError("this broker is not master any more")
        if frame.broker_id == replicas.self_id:
            raise PeerError(f"a slave claims to be broker {frame.broker_id}, which is this master")
        if self.proven not in (None, frame.broker_id):
            raise PeerError(f"broker {self.proven} has proven itself and claims to be {frame.broker_id}")
        store = self._shared.store
        epochs = store.epochs.entries
        if not epochs:
            raise PeerError("this log has no epochs: nothing to compare a slave's log with")
        self.slave = frame
        self.greeted()
        self._write([encode_master_handshake(store.log.end, epochs)])

    def greeted(self) -> None:
        """The slave said which broker it is, if it does. Raises PeerError when it cannot have that id."""
        self._shared.host.on_greeting(self)

    def _ack(self, frame: Ack) -> None:
        if self.next < 0 and not self._dialect.on_first_ack(self, frame.end):
            return
        own_end = self._shared.store.log.end
        if frame.end > own_end:
            raise PeerError(f"slave {self.broker_id} acknowledged {frame.end}, beyond our end {own_end}")
        if self.next < 0:
            self._begin(frame.end)
            if not self._dialect.first_ack_counts:
                self.pump()
                return
        elif frame.end > self.next:
            raise PeerError(f"slave {self.broker_id} acknowledged {frame.end}, sent was {self.next}")
        self.end = frame.end
        self._shared.host.on_ack(self)
        if self.next < own_end:
            self.pump()

    def refuse_beyond_end(self, asked: PhysicalOffset) -> bool:
        """Whether the slave asks for what our log does not have: it is told our end; a RocketMQ slave closes
        at that, too."""
        own_end = self._shared.store.log.end
        if asked <= own_end:
            return False
        self._write([self._dialect.header(own_end, 0, _NO_EPOCHS[0], _BEGIN)])
        self._complain(f"it asks from {asked} on, our log ends at {own_end}; its log is another one")
        if self._transport is not None:
            self._transport.close()
        return True

    def _begin(self, asked: PhysicalOffset) -> None:
        begin, end = self._shared.store.log.min_offset, self._shared.store.log.end
        if asked == 0 and self.slave.from_last_file and end > 0:
            segment_bytes = self._shared.segment_bytes
            self.next = max(begin, PhysicalOffset((end - 1) // segment_bytes * segment_bytes))
        elif asked == 0:
            self.next = begin
        else:
            self.next = asked
        self._look_for_gap()
        if self.next == end or self._gone:
            # Nothing flows by itself: the slave learns at once that it is level, or that its range is gone.
            self.heartbeat()

    # Writing

    def pump(self) -> None:
        """Send what the log has and the slave lacks, up to the window. Never raises: an error ends the
        link."""
        log_ = self._shared.store.log
        try:  # ``_guarded``, without a step for each frame
            if 0 <= self.next < log_.end and not self._paused:
                self._pump(log_)
        except _ENDS_LINK as error:
            self.close(str(error))

    def _pump(self, log_: CommitLog) -> None:
        transport, shared, end = self._transport, self._shared, log_.end
        if transport is None or transport.is_closing():
            return
        if self.end < self.next and self._answer_comes(end):
            self._later(ACK_WAIT_S)
            return
        if self.next < log_.flushed:  # else it is behind the oldest byte, too
            self._look_for_gap()
        if shared.reader.damage.ranges:
            end = self.whole_until(end)
            if self.next >= end:
                self._later(STALL_S)
                return
        replicas = shared.host.replicas
        if self._gone or replicas is None:
            return
        left = end - self.next
        if left > TURN_BYTES:
            left = TURN_BYTES
        if shared.budget.bytes_per_s:
            left = shared.budget.take(left)
            if left <= 0:
                self._later(shared.budget.wait_s())
                return
        until = PhysicalOffset(self.next + left)
        self.last_write_ms = now_ms = shared.env.monotonic_ms()
        transport.writelines(self._frames(until, replicas.confirmed, now_ms))
        if self.next < end and not self._paused:
            self._later(0)

    def _answer_comes(self, end: PhysicalOffset) -> bool:
        """Whether the slave, one that answers each read at once, is about to answer the last frame, which it
        has not answered."""
        if not self.slave.answers_heartbeats or end - self.next >= ACK_WAIT_BYTES:
            return False
        return self._shared.env.monotonic_ms() - self.told.log_ms < ACK_WAIT_S * 1000

    def _frames(self, end: PhysicalOffset, confirmed: PhysicalOffset, now_ms: float) -> list[Buffer]:
        """The log from ``next`` to ``end``, which becomes ``next``, in frames."""
        told = self.told.epoch
        most = self._shared.batch_bytes
        if most < FRAME_BYTES and self.slave.answers_heartbeats:
            most = FRAME_BYTES
        framed, asked = self._shared.reader.framed, (self.next, end, told, confirmed, most)
        made = None if framed is None else framed.get(asked)
        if made is None:
            made = self._made(end, told, confirmed, most)
            if framed is not None:
                framed[asked] = made
        parts, self.next, told = made
        self.told = _TOLD((told, confirmed, now_ms))
        return parts

    def _made(
        self, end: PhysicalOffset, told: EpochStart | None, confirmed: PhysicalOffset, most: int
    ) -> Framed:
        """The frames of ``most`` bytes for a slave that was ``told`` of an epoch; where they end, and the
        epoch they tell of. The same for all slaves of a turn that are as far."""
        epochs, header = self._dialect.epochs(self._shared.store), self._dialect.header
        parts: list[Buffer] = []
        next_ = self.next
        while next_ < end:
            size, epoch = frame_epoch(epochs, next_, min(most, end - next_))
            data = self._shared.reader.read(next_, size)
            if not data:
                raise MqError(f"the log has nothing at {next_}, it should go on to {end}")
            if len(data) < size:  # the end of a segment, or of an append
                size, epoch = frame_epoch(epochs, next_, len(data))
            if epoch != told:
                for skipped in skipped_epochs(epochs, next_, told, epoch):
                    parts.append(header(next_, 0, skipped, confirmed))
                told = epoch
            parts += (header(next_, size, epoch, confirmed), data)
            next_ = PhysicalOffset(next_ + size)
        return parts, next_, told

    def whole_until(self, end: PhysicalOffset) -> PhysicalOffset:
        """How far the log may be sent: up to bytes known to be damaged, while another slave can mend them.

        When none can, a slave takes them as they are: it knows damage when it meets it.
        """
        damage = self._shared.store.damage
        if not damage.ranges:
            return end
        begin = self.next
        if damage.at(begin) is None:
            begin = PhysicalOffset(damage.next_begin(begin, end))
        return begin if begin < end and self._shared.host.elsewhere(begin, self) else end

    def _later(self, wait_s: float) -> None:
        if self._again is None:
            loop = asyncio.get_running_loop()
            later, soon = loop.call_later, loop.call_soon
            self._again = later(wait_s, self._pump_again) if wait_s > 0 else soon(self._pump_again)

    def _pump_again(self) -> None:
        self._again = None
        self.pump()

    def heartbeat(self) -> None:
        """Send an empty frame: the master lives, and this is its confirmOffset and epoch."""
        self._guarded(self._heartbeat)

    def _heartbeat(self) -> None:
        replicas = self._shared.host.replicas
        if self.next < 0 or self._paused or replicas is None:
            return
        _, epoch = frame_epoch(self._dialect.epochs(self._shared.store), self.next, 0)
        self.told = self.told._replace(epoch=epoch, confirmed=replicas.confirmed)
        self._write([self._dialect.header(self.next, 0, epoch, replicas.confirmed)])

    def _look_for_gap(self) -> None:
        begin = self._shared.store.log.min_offset
        if self.next < begin and not self._gone:
            # The slave sees a frame that starts beyond its end and knows: what it needs is not here any more.
            log.warning(
                "slave %d at %s: it needs the log from %d, ours begins at %d; it must be re-seeded",
                self.broker_id,
                self.address,
                self.next,
                begin,
            )
            self._gone = True
            self.next = begin

    def _write(self, parts: Sequence[Buffer]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.last_write_ms = self._shared.env.monotonic_ms()
            self._transport.writelines(parts)

    # The end

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except _ENDS_LINK as error:
            self.close(str(error))

    def _complain(self, why: str) -> None:
        """A line about a slave; those about strangers have a rate."""
        if self.proven is None and not self._shared.host.follows(self):
            self._shared.host.on_turned_away(self, why)
        else:
            log.warning("slave %d at %s: HA connection ended: %s", self.broker_id, self.address, why)

    def close(self, reason: str | None = None) -> None:
        """End the connection at once; ``reason`` goes to the log."""
        if self._transport is None or self._transport.is_closing():
            return
        if reason is not None:
            self._complain(reason)
        self._forget_proof()
        self._transport.abort()


class WithEpochs:
    """The protocol of a group with Controllers."""

    def __init__(self) -> None:
        self.reader: SlaveReader | ReportReader = SlaveReader()
        self.first_ack_counts = True

    def epochs(self, store: MessageStore) -> Sequence[EpochStart]:
        return store.epochs.entries

    def header(
        self, offset: PhysicalOffset, size: int, epoch: EpochStart, confirmed: PhysicalOffset
    ) -> bytes:
        return pack_transfer(size, offset, *epoch, confirmed)

    def on_proven(self, link: SlaveLink, broker_id: BrokerId) -> None:
        """Its handshake says which broker it is, and is compared with the proof."""

    def on_first_ack(self, link: SlaveLink, end: PhysicalOffset) -> bool:
        return True


class Classic:
    """The protocol of a group without Controllers: the first 8 bytes say where the slave's log ends.

    Nobody says in it which broker it is, so slaves that have not proven it before have numbers in the order
    they connected. To an empty slave the whole log is sent; with ``from_last_file`` only from its last
    segment on, as RocketMQ does.
    """

    def __init__(self, number: BrokerId, *, from_last_file: bool) -> None:
        self.reader: SlaveReader | ReportReader = ReportReader()
        self.first_ack_counts = False
        self._number = number
        self._from_last_file = from_last_file

    def open(self, resources: Resources) -> SlaveLink:
        """A link of the next slave."""
        link = SlaveLink(resources, self)
        # It may be a RocketMQ slave: that one says something every 5 s.
        link.slave = SlaveHandshake(
            self._number, self._from_last_file, learner=False, answers_heartbeats=False
        )
        return link

    def epochs(self, store: MessageStore) -> Sequence[EpochStart]:
        return _NO_EPOCHS

    def header(
        self, offset: PhysicalOffset, size: int, epoch: EpochStart, confirmed: PhysicalOffset
    ) -> bytes:
        return encode_header(offset, size)

    def on_proven(self, link: SlaveLink, broker_id: BrokerId) -> None:
        link.slave = link.slave._replace(broker_id=broker_id)

    def on_first_ack(self, link: SlaveLink, end: PhysicalOffset) -> bool:
        """It only says where it wants to begin. Whether it has the same before that, only it can tell: it
        acknowledges with what it says next, which a RocketMQ slave does within 5 s."""
        if link.refuse_beyond_end(end):
            return False
        link.greeted()
        return True


_BEGIN: Final = PhysicalOffset(0)
_NO_EPOCHS: Final[tuple[EpochStart]] = ((NO_EPOCH, _BEGIN),)
"""What a log without epochs is taken for: one, from the beginning."""
