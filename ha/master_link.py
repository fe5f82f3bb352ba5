"""A link of a slave to its master: agree on a point, then append what comes and say how far it got."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from ha.classic_codec import TransferReader, encode_report
from ha.codec import (
    BODY_BYTES_MAX,
    MasterHandshake,
    MasterReader,
    SlaveHandshake,
    Transfer,
    encode_ack,
    encode_slave_handshake,
)
from ha.core import consistent_point, excused_ms, missed
from ha.master import epochs_of
from ha.proof import NO_PROOF, PROOF_S, HandshakeInitiator, UnprovenError, need_no_refusal
from ha.tail import NeedsReseedError, Tail, classic_from
from model.config import BrokerConfig
from model.errors import DiskError, PeerError
from runtime.env import Env
from store.files.epoch_file import EpochEntry

if TYPE_CHECKING:
    from ha.slave import Follower
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

FOREIGN_SILENCE_MS: Final = 20_000
"""A real broker breathes every 5 s, and gives its peers so long: ``haHousekeepingInterval``."""
ANEW_MS: Final = 5000
"""So long after a foreign master was elected again it has recorded that epoch, if it does."""


def patience_ms(config: BrokerConfig, *, rocketmq_peer: bool) -> int:
    """After how much silence of the other side a link ends, ms."""
    return max(config.ha_housekeeping_ms, FOREIGN_SILENCE_MS) if rocketmq_peer else config.ha_housekeeping_ms


def cut_epochs(store: MessageStore, offset: int) -> None:
    """Forget epochs that start at ``offset`` or later; touches the disk only when there are any."""
    entries = store.epochs.entries
    if entries and entries[-1].start >= offset:
        store.epochs.truncate_suffix(offset)


class MasterLink(asyncio.Protocol):
    """One connection to the master. Whatever is wrong with it or with the disk ends it, with the reason in
    ``ended``."""

    def __init__(
        self,
        env: Env,
        store: MessageStore,
        config: BrokerConfig,
        follower: Follower,
        handshake: SlaveHandshake,
        knock: HandshakeInitiator | None = None,
    ) -> None:
        """``knock``: prove ourselves with it, and have the master do so, before anything else."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._env = env
        self._store = store
        self._follower = follower
        self._handshake = handshake
        self._knock = knock  # None: the master has proven itself, or need not
        self._deadline: asyncio.TimerHandle | None = None
        self._heard = False
        self._sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._idle_ms = config.ha_heartbeat_ms
        self._silence_ms = patience_ms(config, rocketmq_peer=follower.rocketmq_peer)
        self._reader: MasterReader | TransferReader = MasterReader(max(BODY_BYTES_MAX, config.ha_batch_bytes))
        self._transport: asyncio.Transport | None = None
        self._greeted = False
        self._epochs: tuple[tuple[int, int], ...] = ()  # the master's, as of the handshake
        self._epoch = follower.epoch
        self._outdated_ms: float | None = None  # since when there is an election this link knows nothing of
        self._empty = False  # the log held nothing: the master says where it starts
        self._master_end = 0  # as of the handshake
        self._segment_bytes = config.segment_bytes
        self._tail: Tail | None = None  # is compared with the master's log first; None: need not be
        self._reported = -1
        self._last_read_ms = env.monotonic_ms()
        self._last_write_ms = self._last_read_ms
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has its own class
        if self.ended.done():
            self._transport.abort()
            return
        self._follower.connected()
        if self._knock is None:
            self._greet(self._transport)
        else:
            self._transport.write(self._knock.hello)
            self._deadline = asyncio.get_running_loop().call_later(PROOF_S, self._too_late)
        self._arm()

    def _too_late(self) -> None:
        self.end(UnprovenError(f"the master did not prove within {PROOF_S:g} s that it knows haSecretFile"))

    def _believe(self, knock: HandshakeInitiator, transport: asyncio.Transport, data: bytes) -> None:
        proof = knock.feed(data)
        if proof is None:
            return
        self._knock = None
        if self._deadline is not None:
            self._deadline.cancel()
        transport.write(proof)
        self._greet(transport)

    def _greet(self, transport: asyncio.Transport) -> None:
        # One write: a real master parses a handshake as soon as 12 of its 16 bytes are there.
        transport.write(encode_slave_handshake(self._handshake))

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        hung_up = "the master closed the connection" if self._knock is None else NO_PROOF
        self.end(exc or PeerError(hung_up))

    def end(self, error: Exception) -> None:
        """End the link; bytes that still arrive are not looked at."""
        if not self.ended.done():
            self.ended.set_exception(error)
            # Nobody may be waiting any more (a stop): then there is nobody to tell.
            self.ended.exception()
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.ended.done() or self._transport is None:
            return
        self._last_read_ms = self._env.monotonic_ms()
        try:
            if self._knock is not None:
                self._believe(self._knock, self._transport, data)
                return
            if not self._heard:
                need_no_refusal(data)
                self._heard = True
            heard: int | None = None
            for frame in self._reader.feed(data):
                if isinstance(frame, MasterHandshake):
                    self._agree(frame)
                else:
                    self._append(frame)
                    heard = frame.epoch
            if heard is not None:
                if self._tail is None or self._tail.compared:
                    # A real master may go on under an older number than the Controller's.
                    self._follower.progressed(self._epoch if self._follower.rocketmq_peer else heard)
                if self._sync_flush and self._store.log.flushed < self._store.log.end:
                    self._store.sync_to(self._store.log.end)
                # Once a read, not once a frame. A heartbeat is answered too: the master sees that this
                # slave lives.
                self.report(always=True)
        except Exception as error:  # noqa: BLE001 - the follower tells it, with its traceback if need be
            self.end(error)

    def _agree(self, frame: MasterHandshake) -> None:
        store = self._store
        if store.epochs.doubt is not None:
            self._learn_epochs(frame)
        mine, end = epochs_of(store), store.log.end
        if mine and 0 <= frame.last_epoch < mine[-1][0]:
            self._doubt(frame, mine[-1][0])
        self._empty = end == store.log.min_offset
        self._greeted, self._epochs, self._master_end = True, frame.epochs, frame.end
        if classic_from(store) is not None:
            self._compare(frame)
        else:
            self._cut(frame, mine, end)
            self._follower.agree()
        if self._sync_flush and store.log.flushed < store.log.end:
            store.sync_to(store.log.end)
        # At once: a real slave waits for its idle timer here, and every reconnect costs 5 s.
        self.report(always=True)

    def _compare(self, frame: MasterHandshake) -> None:
        """Our log's end was written without a Controller: nothing but its bytes tells whose it is. It is not
        cut, as all of it may have been acknowledged."""
        end = self._store.log.end
        begin = frame.epochs[0][1] if frame.epochs else frame.end
        if not begin < end <= frame.end:
            raise NeedsReseedError(
                f"our log, written without a Controller, ends at {end},"
                f" and the master's epochs cover {begin} to {frame.end} only",
                frame.end,
            )
        self._tail = Tail(self._store, self._segment_bytes, begin)

    def _cut(self, frame: MasterHandshake, mine: Sequence[tuple[int, int]], end: int) -> None:
        store = self._store
        store.epochs.labelled()  # the log ends before what was written without a Controller
        point = consistent_point(frame.epochs, mine, frame.end, end)
        if point is None and store.confirmed == store.log.min_offset == 0:
            # A young group: this broker led first, another one was elected before it had received anything.
            # What we hold was never confirmed to anyone, so it may go without an operator's word.
            point = 0
        if self._empty:
            cut_epochs(store, 0)
        elif point is None or point < store.log.min_offset:
            raise NeedsReseedError(
                f"no consistent point: our epochs are {_text(mine)} up to {end}, "
                f"the master's {_text(frame.epochs)} up to {frame.end}",
                frame.end,
            )
        else:
            if point < end:
                log.warning("cutting our log from %d to %d, where it leaves the master's", end, point)
                try:
                    store.truncate(point)
                except DiskError as error:
                    if store.writable is not None:
                        raise
                    raise NeedsReseedError(f"the log cannot be cut at {point}: {error}", frame.end) from error
            # The log first: epochs without their bytes are harmless, bytes of a forgotten epoch are not.
            cut_epochs(store, point)

    def _learn_epochs(self, frame: MasterHandshake) -> None:
        """No copy of our epochs could be read: what is confirmed here has those of any master that was
        rightly elected; what lies behind may be of another one, and is copied again."""
        store = self._store
        if frame.end < store.confirmed:
            raise PeerError(
                f"the master's log ends at {frame.end}, ours is confirmed up to {store.confirmed}"
            )
        # What is confirmed may end inside of a record, as a piece of the stream does: a cut must not.
        store.truncate(min(store.confirmed, store.dispatched))
        store.epochs.trust([EpochEntry(e, start) for e, start in frame.epochs if start < store.log.end])
        log.warning("our epochs were lost; the master says %s", _text(store.epochs.entries))

    def _doubt(self, frame: MasterHandshake, newest: int) -> None:
        if not (self._follower.rocketmq_peer and self._follower.epoch > newest):
            # A master of the past, or one that has not heard of its election: its log must not cut ours.
            raise PeerError(f"the master's newest epoch is {frame.last_epoch}, ours is {newest}")
        # Elected after all we know of, it did not record its epoch, as real ones do when nothing was
        # written since the last. But whoever was rightly elected has what was confirmed.
        confirmed = self._store.confirmed
        if frame.end < confirmed:
            raise PeerError(f"the master's log ends at {frame.end}, ours is confirmed up to {confirmed}")

    def _compared(self, tail: Tail, frame: Transfer) -> Transfer | None:
        """What of ``frame`` lies behind our end, which is the master's up to there; None: not known yet."""
        store = self._store
        if frame.offset != tail.at:
            text = f"the master sends from {frame.offset}, we asked from {tail.at} on"
            if frame.offset > tail.at:
                raise NeedsReseedError(text, self._master_end)
            raise PeerError(text)
        try:
            known = tail.take(frame.body, self._env.monotonic_ms())
        except NeedsReseedError as error:
            raise NeedsReseedError(str(error), self._master_end) from None
        if not tail.compared:
            return None
        # All that is here is in the master's log, so its epochs are ours.
        store.epochs.trust([EpochEntry(e, start) for e, start in self._epochs if start < store.log.end])
        log.info("our log, written without a Controller, goes on in epoch %s", _text(store.epochs.entries))
        body = frame.body[known:]
        return Transfer(frame.offset + known, frame.epoch, frame.epoch_start, frame.confirmed, body)

    def _append(self, frame: Transfer) -> None:
        store = self._store
        if self._tail is not None and not self._tail.compared:
            rest = self._compared(self._tail, frame)
            if rest is None:
                return
            frame = rest
        end = store.log.end
        without_log = self._empty and end == store.log.min_offset
        if frame.offset < 0 and without_log:
            return  # neither has a log: a sign of life
        if frame.offset != end and not without_log:
            if frame.offset > end:
                raise NeedsReseedError(
                    f"the master sends from {frame.offset}, our log ends at {end}", frame.offset
                )
            raise PeerError(f"the master sent offset {frame.offset}, our log ends at {end}")
        last = store.epochs.last
        if last is None or frame.epoch > last.epoch:
            if not (last.start if last else 0) <= frame.epoch_start <= frame.offset + len(frame.body):
                raise PeerError(
                    f"the master sent epoch {frame.epoch} from {frame.epoch_start} at {frame.offset}"
                )
            known = (last.epoch, last.start) if last else None
            label = (frame.epoch, frame.epoch_start)
            for epoch, start in [*missed(self._epochs, frame.offset, known, label), label]:
                store.epochs.append(epoch, start)
        elif frame.epoch < last.epoch or frame.epoch_start != last.start:
            raise PeerError(
                f"the master sent epoch {frame.epoch} from {frame.epoch_start}, "
                f"ours is {last.epoch} from {last.start}"
            )
        if frame.body:
            store.append_raw(frame.offset, frame.body)
            self._empty = False
        store.confirm(min(max(frame.confirmed, 0), store.log.end))

    def report(self, *, always: bool = False) -> None:
        """Tell the master how far the log reaches (with SYNC_FLUSH: how far it is on disk)."""
        if not self._greeted or self._transport is None or self.ended.done():
            return
        log_end = self._store.log.end
        end = min(log_end, self._store.log.flushed) if self._sync_flush else log_end
        if self._reported < 0 and end < log_end:
            return  # the first report says where the stream goes on: it waits for the sync
        if self._tail is not None and not self._tail.compared:
            if self._reported >= 0:
                return  # it said where to begin; more would acknowledge what was not compared
            end = self._tail.at
        if self._empty and log_end == self._store.log.min_offset:
            end = 0  # the master starts with the first byte it has
        if end > self._reported or (always and (end == self._reported or self._reported < 0)):
            self._reported = end
            self._last_write_ms = self._env.monotonic_ms()
            self._transport.write(self._report(end))

    def _report(self, end: int) -> bytes:
        return encode_ack(end)

    def _arm(self) -> None:
        period_ms = min(self._idle_ms, self._silence_ms / 2)
        due_ms = self._env.monotonic_ms() + period_ms
        self._timer = asyncio.get_running_loop().call_later(period_ms / 1000, self._tick, due_ms)

    def _tick(self, due_ms: float) -> None:
        now_ms = self._env.monotonic_ms()
        self._last_read_ms = excused_ms(self._last_read_ms, now_ms - due_ms, self._silence_ms, now_ms)
        if now_ms - self._last_read_ms > self._silence_ms:
            self.end(PeerError(f"nothing from the master for {self._silence_ms} ms"))
            return
        if self._follower.rocketmq_peer and self._follower.epoch > self._epoch:
            self._outdated_ms = now_ms if self._outdated_ms is None else self._outdated_ms
            if now_ms - self._outdated_ms >= ANEW_MS:
                # A real master goes on under the number of its former epoch on links it has, and tells new
                # ones where the latest began: all we copied since would be cut whenever this one ends.
                self.end(PeerError(f"the master was elected again, for epoch {self._follower.epoch}"))
                return
        if now_ms - self._last_write_ms >= self._idle_ms:
            self.report(always=True)
        self._arm()


class ClassicMasterLink(MasterLink):
    """The link in a group without Controller: no epochs to compare, so the log's end is (``ha.tail``)."""

    def __init__(
        self,
        env: Env,
        store: MessageStore,
        config: BrokerConfig,
        follower: Follower,
        handshake: SlaveHandshake,
        knock: HandshakeInitiator | None = None,
    ) -> None:
        super().__init__(env, store, config, follower, handshake, knock)
        self._reader = TransferReader(max(BODY_BYTES_MAX, config.ha_batch_bytes))
        # Nobody says which kind of broker he is.
        self._silence_ms = patience_ms(config, rocketmq_peer=True)
        self._tail = Tail(store, config.segment_bytes)

    def _greet(self, transport: asyncio.Transport) -> None:
        store = self._store
        self._empty = store.log.end == store.log.min_offset
        self._greeted = True
        if self._sync_flush and store.log.flushed < store.log.end:
            store.sync_to(store.log.end)
        self.report(always=True)

    def _append(self, frame: Transfer) -> None:
        store, tail = self._store, self._tail
        end = store.log.end
        at = end if tail is None or tail.compared else tail.at
        if frame.offset != at and not (self._empty and end == store.log.min_offset):
            raise NeedsReseedError(
                f"our log ends at {end}, the master's goes on at {frame.offset}: "
                + ("the range between is gone there" if frame.offset > at else "it is not the log we copied"),
                frame.offset,
            )
        known = 0 if tail is None else tail.take(frame.body, self._env.monotonic_ms())
        if len(frame.body) > known:
            store.append_raw(frame.offset + known, frame.body[known:])
            self._empty = False
        if tail is None or tail.compared:
            store.confirm(store.log.end)

    def _report(self, end: int) -> bytes:
        return encode_report(end)


def _text(epochs: object) -> str:
    return str(list(epochs)[-4:]) if isinstance(epochs, list | tuple) else "[]"
