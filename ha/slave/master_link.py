"""A link of a slave to its master: between the connection, ``ha.slave.follow`` and the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from ha.slave.follow import ClassicFollowing, Following, Master
from ha.slave.own_log import LogActions, OwnBytes, own_log, reach
from ha.slave.parts import Parts
from ha.wire.classic_codec import TransferReader, encode_report
from ha.wire.codec import (
    BODY_BYTES_MAX,
    MasterHandshake,
    MasterReader,
    SlaveHandshake,
    encode_ack,
    encode_slave_handshake,
)
from ha.wire.proof import NO_PROOF, PROOF_S, HandshakeInitiator, UnprovenError, need_no_refusal
from ha.wire.silence import excused_ms, patience_ms
from model.config import BrokerConfig
from model.errors import PeerError
from model.ids import Epoch, PhysicalOffset

if TYPE_CHECKING:
    from store.message_store import MessageStore

ANEW_MS: Final = 5000
"""So long after a RocketMQ master was elected again it has recorded that epoch, if it does."""


class Owner(Protocol):
    """What a link needs of the slave it belongs to."""

    @property
    def master(self) -> Master:
        """As of now: the master may be elected again while the link lives."""

    @property
    def cut_told(self) -> bool:
        """Whether the Controllers know that the log loses what was acknowledged."""

    def on_connected(self) -> None: ...
    def on_agreed(self) -> None:
        """Our log goes on in the master's."""

    def on_progress(self, epoch: Epoch, now_ms: float) -> None:
        """A frame of a master in ``epoch`` was taken."""


class Dialect(NamedTuple):
    """One of the two protocols of the HA port, as a slave speaks it."""

    following: Following | ClassicFollowing
    reader: MasterReader | TransferReader
    greeting: bytes
    encode_end: Callable[[PhysicalOffset], bytes]
    silence_ms: int
    synced: bool
    """What is on the disk is acknowledged."""

    @classmethod
    def of(
        cls,
        store: MessageStore,
        config: BrokerConfig,
        handshake: SlaveHandshake,
        *,
        classic: bool,
        rocketmq_peer: bool,
    ) -> Dialect:
        log, synced = OwnBytes(store, config.segment_bytes), config.flush_disk_type == "SYNC_FLUSH"
        body_bytes_max = max(BODY_BYTES_MAX, config.ha_batch_bytes)
        if not classic:
            return cls(
                Following(synced=synced, log=log),
                MasterReader(body_bytes_max),
                encode_slave_handshake(handshake),
                encode_ack,
                patience_ms(config, rocketmq_peer=rocketmq_peer),
                synced,
            )
        following = ClassicFollowing(
            own_log(store), segment_bytes=config.segment_bytes, synced=synced, log=log
        )
        # Nobody says in this protocol which kind of broker it is.
        silence_ms = patience_ms(config, rocketmq_peer=True)
        return cls(following, TransferReader(body_bytes_max), b"", encode_report, silence_ms, synced)


class MasterLink(asyncio.BufferedProtocol):
    """One connection to the master. Whatever is wrong with it or with the disk ends it, with the reason in
    ``ended``. Its bytes go into the log from where the transport read them to."""

    def __init__(
        self,
        parts: Parts,
        owner: Owner,
        dialect: Dialect,
        initiator: HandshakeInitiator | None = None,
    ) -> None:
        """``initiator``: prove ourselves with it, and have the master do so, before anything else."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._env, self._store, self._config = parts
        self._log = LogActions(parts.store, lambda: owner.cut_told)
        self._owner = owner
        self._dialect = dialect
        self._initiator = initiator  # None: the master has proven itself, or need not
        self._epoch = owner.master.epoch
        self._heard = False
        self._outdated_ms: float | None = None  # since when there is an election this link knows nothing of
        self._transport: asyncio.Transport | None = None
        self._last_read_ms = self._last_write_ms = parts.env.monotonic_ms()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        if self.ended.done():
            self._transport.abort()
            return
        self._owner.on_connected()
        if self._initiator is None:
            self._greet(self._transport)
        else:
            self._transport.write(self._initiator.hello)
            self._timers["proof"] = asyncio.get_running_loop().call_later(PROOF_S, self._too_late)
        self._arm()

    def _too_late(self) -> None:
        self.end(UnprovenError(f"the master did not prove within {PROOF_S:g} s that it knows haSecretFile"))

    def _prove(self, initiator: HandshakeInitiator, transport: asyncio.Transport, data: bytes) -> None:
        proof = initiator.feed(data)
        if proof is None:
            return
        self._initiator = None
        if (timer := self._timers.pop("proof", None)) is not None:
            timer.cancel()
        transport.write(proof)
        self._greet(transport)

    def _greet(self, transport: asyncio.Transport) -> None:
        # One write: a RocketMQ master parses a handshake as soon as 12 of its 16 bytes are there.
        if self._dialect.greeting:
            transport.write(self._dialect.greeting)
        else:
            self._sync()
            self.report(self._env.monotonic_ms(), always=True)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        hung_up = "the master closed the connection" if self._initiator is None else NO_PROOF
        self.end(exc or PeerError(hung_up))

    def end(self, error: Exception) -> None:
        """End the link; bytes that still arrive are not looked at."""
        if not self.ended.done():
            self.ended.set_exception(error)
            # Nobody may be waiting any more (a stop): then there is nobody to tell.
            self.ended.exception()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._store.hurry()
        if self._transport is not None:
            self._transport.abort()

    @property
    def get_buffer(self) -> Callable[[int], memoryview]:
        """The reader's own: the transport asks for it once, and no call of Python is between."""
        return self._dialect.reader.room

    def buffer_updated(self, nbytes: int) -> None:
        if self.ended.done() or self._transport is None:
            return
        self._last_read_ms = self._env.monotonic_ms()
        try:
            if self._initiator is not None:
                self._prove(self._initiator, self._transport, self._dialect.reader.peek(nbytes))
                return
            if not self._heard:
                need_no_refusal(self._dialect.reader.peek(nbytes))
                self._heard = True
            self._read(nbytes)
        except Exception as error:  # noqa: BLE001 - the slave tells it, with its traceback if need be
            self.end(error)

    def _read(self, size: int) -> None:
        following, store, master = self._dialect.following, self._store, self._owner.master
        now_ms = self._last_read_ms
        heard: Epoch | None = None
        goes_on = False  # nothing is to be decided of the last frame
        for frame in self._dialect.reader.came(size):
            if isinstance(frame, MasterHandshake):
                actions = following.on_handshake(frame, own_log(store), master)
            else:
                heard = frame.epoch
                goes_on = following.goes_on(frame, store.log.end, store.epochs.entries)
                if goes_on:
                    if frame.body:
                        store.append_raw(frame.offset, frame.body)
                    store.confirm_copied(frame.confirmed)  # as far as the log reaches
                    continue
                actions = following.on_frame(frame, reach(store), now_ms)
            if self._log.carry_out(actions, following.master_end):
                self._owner.on_agreed()
            if isinstance(frame, MasterHandshake):
                self._sync()
                # At once: a RocketMQ slave waits for its idle timer here, and every reconnect costs 5 s.
                self.report(now_ms, always=True)
        if heard is not None:
            if goes_on or following.agreed:
                # A RocketMQ master may go on under an older number than the Controllers'.
                self._owner.on_progress(self._epoch if master.rocketmq_peer else heard, now_ms)
            if self._dialect.synced:
                self._sync()
            # Once a read, not once a frame. A heartbeat is answered too: the master sees that this slave
            # lives.
            if goes_on and following.acks(store.log.end):
                self._say(store.log.end, now_ms)
            else:
                self.report(now_ms, always=True)

    def _sync(self) -> None:
        log = self._store.log
        if self._dialect.synced and log.flushed < log.end:
            self._store.sync_to(log.end)

    def report(self, now_ms: float, *, always: bool = False) -> None:
        """Tell the master how far the log reaches (with SYNC_FLUSH: how far it is on disk)."""
        if self._transport is None or self._initiator is not None or self.ended.done():
            return
        end = self._dialect.following.ack(reach(self._store), always=always)
        if end is not None:
            self._say(end, now_ms)

    def _say(self, end: PhysicalOffset, now_ms: float) -> None:
        if self._transport is not None and not self.ended.done():
            self._last_write_ms = now_ms
            self._transport.write(self._dialect.encode_end(end))

    def _arm(self) -> None:
        period_ms = min(self._config.ha_heartbeat_ms, self._dialect.silence_ms / 2)
        due_ms = self._env.monotonic_ms() + period_ms
        self._timers["tick"] = asyncio.get_running_loop().call_later(period_ms / 1000, self._tick, due_ms)

    def _tick(self, due_ms: float) -> None:
        now_ms, silence_ms = self._env.monotonic_ms(), self._dialect.silence_ms
        self._last_read_ms = excused_ms(self._last_read_ms, now_ms - due_ms, silence_ms, now_ms)
        if now_ms - self._last_read_ms > silence_ms:
            self.end(PeerError(f"nothing from the master for {silence_ms} ms"))
            return
        master = self._owner.master
        if master.rocketmq_peer and master.epoch > self._epoch:
            self._outdated_ms = now_ms if self._outdated_ms is None else self._outdated_ms
            if now_ms - self._outdated_ms >= ANEW_MS:
                # A RocketMQ master goes on under the number of its former epoch on links it has, and tells
                # new ones where the latest began: all we copied since would be cut whenever this one ends.
                self.end(PeerError(f"the master was elected again, for epoch {master.epoch}"))
                return
        if now_ms - self._last_write_ms >= self._config.ha_heartbeat_ms:
            self.report(now_ms, always=True)
        self._arm()
