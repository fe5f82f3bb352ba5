"""How a master serves one slave: its handshake, its acks, and the log pushed to it as it grows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, cast

from ha.codec import (
    Ack,
    SlaveHandshake,
    SlaveReader,
    encode_master_handshake,
    encode_transfer_header,
)
from ha.core import SyncSet, label, missed
from model.errors import MqError, PeerError
from runtime.env import Env

if TYPE_CHECKING:
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

TURN_BYTES: Final = 256 * 1024
"""Log bytes one slave is written in one turn of the loop; the others and the clients come in between."""
WINDOW_BYTES: Final = 1024 * 1024
"""Bytes that may wait in one slave's send buffer; above it nothing more is read from the disk for it."""


class Host(Protocol):
    """What a link needs from the service that accepted it."""

    @property
    def sync(self) -> SyncSet | None:
        """None while this broker is not master: slaves are turned away."""

    def greeted(self, link: SlaveLink) -> None: ...
    def acked(self, link: SlaveLink) -> None: ...
    def ended(self, link: SlaveLink) -> None: ...


def epochs_of(store: MessageStore) -> Sequence[tuple[int, int]]:
    """The store's epochs as (epoch, start offset), oldest first."""
    return store.epochs.entries


class SlaveLink(asyncio.Protocol):
    """One slave's connection on the HA port.

    The order of things: handshake (16 bytes, all of them), our epochs, the slave's first ack - which says
    where its log ends and so where the stream starts - then frames one way and acks the other.
    """

    def __init__(
        self, env: Env, store: MessageStore, host: Host, *, batch_bytes: int, segment_bytes: int
    ) -> None:
        self.broker_id = 0
        self.learner = False
        self.prompt = True
        self.address = "?"
        self.end = -1  # acknowledged, bytes; -1 before the first ack
        self.next = -1  # the next byte to send; -1 before the first ack
        self.sent_confirmed = -1
        self.last_read_ms = env.monotonic_ms()
        self.last_write_ms = self.last_read_ms
        self._env = env
        self._store = store
        self._host = host
        self._batch_bytes = batch_bytes
        self._segment_bytes = segment_bytes
        self._from_last_file = False
        self._reader = SlaveReader()
        self._transport: asyncio.Transport | None = None
        self._told: tuple[int, int] | None = None  # the label of the last frame
        self._paused = False
        self._gone = False  # the range the slave needs was deleted here
        self._again: asyncio.Handle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        peer = transport.get_extra_info("peername")
        self.address = f"{peer[0]}:{peer[1]}" if peer else "?"
        self._transport.set_write_buffer_limits(high=WINDOW_BYTES)
        if self._host.sync is None:
            # Usual in the moment of a change of master: the slave tries again.
            log.debug("slave at %s turned away: this broker is not master", self.address)
            self.close()

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self.last_read_ms = self._env.monotonic_ms()
        self._guarded(lambda: self._read(data))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._again is not None:
            self._again.cancel()
        self._host.ended(self)

    # Reading

    def _read(self, data: bytes) -> None:
        for frame in self._reader.feed(data):
            if isinstance(frame, SlaveHandshake):
                self._handshake(frame)
            else:
                self._ack(frame)

    def _handshake(self, frame: SlaveHandshake) -> None:
        sync = self._host.sync
        if sync is None:
            raise PeerError("this broker is not master any more")
        if frame.broker_id == sync.self_id:
            raise PeerError(f"a slave claims to be broker {frame.broker_id}, which is this master")
        epochs = epochs_of(self._store)
        if not epochs:
            raise PeerError("this log has no epochs: slaves need a master with enableControllerMode=true")
        self.broker_id, self.learner, self.prompt = frame.broker_id, frame.learner, frame.prompt
        self._from_last_file = frame.from_last_file
        self._host.greeted(self)
        self._write([encode_master_handshake(self._store.log.end, epochs)])

    def _ack(self, frame: Ack) -> None:
        own_end = self._store.log.end
        if frame.end > own_end:
            raise PeerError(f"slave {self.broker_id} acknowledged {frame.end}, beyond our end {own_end}")
        if self.next < 0:
            self._begin(frame.end)
        elif frame.end > self.next:
            raise PeerError(f"slave {self.broker_id} acknowledged {frame.end}, sent was {self.next}")
        self.end = frame.end
        self._host.acked(self)
        self.pump()

    def _begin(self, asked: int) -> None:
        begin, end = self._store.log.min_offset, self._store.log.end
        if asked == 0 and self._from_last_file and end > 0:
            self.next = max(begin, (end - 1) // self._segment_bytes * self._segment_bytes)
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
        self._guarded(self._pump)

    def _pump(self) -> None:
        if self.next < 0 or self._paused or self._transport is None or self._transport.is_closing():
            return
        end = self._store.log.end
        if self.next >= end:
            return
        self._look_for_gap()
        sync = self._host.sync
        if self._gone or sync is None:
            return
        epochs = epochs_of(self._store)
        parts: list[bytes] = []
        left = TURN_BYTES
        while self.next < end and left > 0:
            size, (epoch, start) = label(epochs, self.next, min(self._batch_bytes, end - self.next))
            data = self._store.log.read(self.next, size)
            if not data:
                raise MqError(f"the log has nothing at {self.next}, its end is {end}")
            if len(data) < size:  # the end of a segment
                size, (epoch, start) = label(epochs, self.next, len(data))
            for before in missed(epochs, self.next, self._told, (epoch, start)):
                parts.append(encode_transfer_header(self.next, 0, *before, sync.confirmed))
            self._told = (epoch, start)
            parts += (encode_transfer_header(self.next, size, epoch, start, sync.confirmed), data)
            self.next += size
            left -= size
        self.sent_confirmed = sync.confirmed
        self._write(parts)
        if self.next < end and not self._paused and self._again is None:
            self._again = asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._again = None
        self.pump()

    def heartbeat(self) -> None:
        """Send an empty frame: the master lives, and this is its confirmOffset and epoch."""
        self._guarded(self._heartbeat)

    def _heartbeat(self) -> None:
        sync = self._host.sync
        if self.next < 0 or self._paused or sync is None:
            return
        _, (epoch, start) = label(epochs_of(self._store), self.next, 0)
        self._told = (epoch, start)
        self.sent_confirmed = sync.confirmed
        self._write([encode_transfer_header(self.next, 0, epoch, start, sync.confirmed)])

    def _look_for_gap(self) -> None:
        begin = self._store.log.min_offset
        if self.next < begin and not self._gone:
            # The slave sees a frame that starts beyond its end and knows: what it needs is not here any more.
            log.warning(
                "slave %d at %s needs the log from %d, which begins at %d here: it must be re-seeded",
                self.broker_id,
                self.address,
                self.next,
                begin,
            )
            self._gone = True
            self.next = begin

    def _write(self, parts: list[bytes]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self.last_write_ms = self._env.monotonic_ms()
            self._transport.writelines(parts)

    # The end

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (MqError, OSError, ValueError) as error:
            self.close(str(error))

    def close(self, reason: str | None = None) -> None:
        """End the connection at once; ``reason`` goes to the log."""
        if self._transport is None or self._transport.is_closing():
            return
        if reason is not None:
            log.warning("HA connection of slave %d at %s ended: %s", self.broker_id, self.address, reason)
        self._transport.abort()
