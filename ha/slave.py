"""How a slave follows its master: connect, agree on a point, then append what comes and say how far it
got."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

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
from ha.proof import NO_PROOF, PROOF_S, Credentials, Knock, Reason, UnprovenError, need_no_refusal
from ha.tail import NeedsReseedError, Tail, classic_from
from model.config import BrokerConfig
from model.errors import DiskError, MqError, PeerError
from model.settings import split_address
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.tasks import Tasks
from store.epoch_file import EpochEntry

if TYPE_CHECKING:
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

RETRY_FIRST_MS = 50
RETRY_MAX_MS = 1000
STEADY_MS: Final = 2000
STEADY_BYTES: Final = 1 << 20
"""A link that lived for so long, or brought so much that this log never had, works: a master that only takes
connections, says one thing right and fails is not asked again 30 times a second."""
RESEEDS_MAX: Final = 3
"""So many logs are put aside in a row at the most: each stays on the disk."""
RESEED_FIRST_MS: Final = 5000
RESEED_MAX_MS: Final = 60_000
"""After the first one there is a wait, that grows: the gap may have been a passing one."""
RESEED_STEADY_MS: Final = 3_600_000
"""A copy that could be continued for so long ends the row."""
FOREIGN_SILENCE_MS: Final = 20_000
"""A real broker breathes every 5 s, and gives its peers so long: ``haHousekeepingInterval``."""
ANEW_MS: Final = 5000
"""So long after a foreign master was elected again it has recorded that epoch, if it does."""


class State(enum.StrEnum):
    """What a slave is doing, for ``status``."""

    NO_MASTER = "no_master"  # nobody told where the master is
    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    UNPROVEN = "unproven"  # the master does not prove that it knows haSecretFile, or wants a proof of us
    FOLLOWING = "following"
    NEEDS_RESEED = "needs_reseed"  # the logs have nothing in common, or the range is gone at the master
    BROKEN = "broken"  # the own disk refuses


class Follower:
    """The slave's side of the HA link, for as long as this broker is a slave.

    It connects again for ever, with bounded waits, and at once when the master's address changes. A log
    that cannot be continued is kept and reported (``NEEDS_RESEED``), or with ``autoReseed`` put aside; an
    empty one is filled from the master's first byte. If that copy cannot be continued either, the next is put
    aside later, and after ``RESEEDS_MAX`` none: then the fault is the master's, or its segments go sooner
    than they are copied.

    A ``foreign`` master, one that may be a real RocketMQ broker, is given the time its own kind takes
    between heartbeats. And as it records no epoch that starts where the one before it does, its newest epoch
    may be older than ours although it was elected after all we know of: the Controller's word counts then.

    With a secret both ends prove themselves first (``ha.proof``), and a master that does not is not followed.
    Only with ``trustPeers`` is one followed that says it has no secret. A master that may be a real one is
    then asked for no proof unless it asks for ours.
    """

    def __init__(
        self,
        env: Env,
        store: MessageStore,
        config: BrokerConfig,
        broker_id: int,
        credentials: Credentials,
        *,
        classic: bool = False,
    ) -> None:
        """``classic``: a group without Controller, with its own protocol."""
        self.classic = classic
        self.state = State.NO_MASTER
        self.reason: str | None = None
        self.address: str | None = None
        self.broker_id = broker_id
        self.epoch = 0
        self.foreign = False
        self.agreed = False
        """Whether our log is known to go on in the master's, as of this link."""
        self.on_agreed: list[Callable[[], None]] = []
        self.aside: list[str] = []
        """Where logs went that could not be continued, in the life of this process."""
        self._env = env
        self._store = store
        self._config = config
        self._handshake = SlaveHandshake(
            broker_id, config.sync_from_last_file, config.async_learner, prompt=True
        )
        self._credentials = credentials
        self._proving = True
        self._halted = False
        self._moved = asyncio.Event()
        self._link: MasterLink | None = None
        self._told_epoch = -1  # in which the master sent the last frame
        self._backoff = Backoff(env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        self._since_ms = 0.0  # when this link was made
        self._reseeds = 0  # logs put aside in a row
        self._reseed_wait = Backoff(env.random, RESEED_FIRST_MS, RESEED_MAX_MS)
        self._reseed_from_ms = float("-inf")  # no log is put aside before
        self._torn_ms = float("-inf")  # when the log could not be continued the last time
        self._mark = store.log.end  # what counts as new begins here
        self._tasks = Tasks("ha.slave")
        self._tasks.spawn(self._run(), name="follow")
        store.on_flush.append(self._flushed)

    def follow(self, address: str | None) -> None:
        """Follow the master whose HA address this is; None: wait until one is known."""
        if address == self.address:
            return
        self.address = address
        self._proving = not (self._credentials.lenient and (self.foreign or self.classic))
        self._backoff.reset()
        self._moved.set()
        if self._link is not None:
            self._link.end(MqError(f"the master is at {address or 'a place not known yet'} now"))

    def halt(self) -> None:
        """Append nothing more from now on."""
        self._halted = True
        if self._flushed in self._store.on_flush:
            self._store.on_flush.remove(self._flushed)
        if self._link is not None:
            self._link.end(MqError("stopped"))

    async def stop(self) -> None:
        """``halt``, and wait until nothing runs any more."""
        self.halt()
        await self._tasks.cancel()

    @property
    def settled(self) -> int | None:
        """The epoch whose master's log this one is a piece of, as a link that works says; None while that is
        not known: what is here may still have to be cut."""
        link = self._link
        if self.state is not State.FOLLOWING or link is None or link.ended.done():
            return None
        return self.epoch if self._told_epoch == self.epoch else None

    @property
    def needs_reseed(self) -> str | None:
        """Why this log cannot be continued from the master's, or None."""
        return self.reason if self.state is State.NEEDS_RESEED else None

    @property
    def unproven(self) -> str | None:
        """Why this broker and its master do not believe each other, or None."""
        return self.reason if self.state is State.UNPROVEN else None

    def status(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "master": self.address,
            "reason": self.reason,
            "putAside": list(self.aside),
        }

    def connected(self) -> None:
        """A connection was made. What is wrong stays visible until the link works."""
        self._since_ms = self._env.monotonic_ms()
        if self.state in (State.NO_MASTER, State.CONNECTING):
            self.state = State.HANDSHAKE

    def agree(self) -> None:
        """Our log goes on in the master's."""
        if not self.agreed:
            self.agreed = True
            for hook in self.on_agreed:
                hook()

    def progressed(self, epoch: int) -> None:
        """A frame of a master in ``epoch`` was taken. When it is not the first one, the next failure is
        retried soon."""
        self._told_epoch = epoch
        end = self._store.log.end
        if end - self._mark >= STEADY_BYTES:
            self._mark = end
            self._backoff.reset()
        elif self._env.monotonic_ms() - self._since_ms >= STEADY_MS:
            self._backoff.reset()
        if self.state is not State.FOLLOWING:
            log.info("following %s from %d", self.address, self._store.log.end)
        self.state, self.reason = State.FOLLOWING, None
        self.agree()

    def _flushed(self, _flushed: int) -> None:
        if self._link is not None:
            self._link.report()

    async def _run(self) -> None:
        while not self._halted:
            self._moved.clear()
            address = self.address
            if address is None:
                self.state, self.reason = State.NO_MASTER, "the master's HA address is not known yet"
                await self._moved.wait()
                continue
            try:
                await self._session(address)
            except NeedsReseedError as error:
                if self._put_aside(error):
                    continue
            except UnprovenError as error:
                self._note(State.UNPROVEN, error)
                if self._credentials.lenient and error.reason in (Reason.NO_SECRET, Reason.NEEDS_PROOF):
                    self._proving = error.reason is Reason.NEEDS_PROOF
            except (MqError, OSError, ValueError) as error:
                broken = self._store.writable is not None or isinstance(error, DiskError)
                self._note(State.BROKEN if broken else State.CONNECTING, error)
            except Exception as error:
                # Not foreseen; but who follows no more is a replica less, and the status would not say so.
                log.exception("following %s failed", address)
                self._note(State.CONNECTING, error)
            wait_s = self._backoff.next_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._moved.wait()
            except TimeoutError:
                continue

    def _put_aside(self, error: NeedsReseedError) -> bool:
        """With ``autoReseed``: begin with an empty log; whether that was done."""
        store = self._store
        kept = self._kept(error)
        self._note(State.NEEDS_RESEED, MqError(f"{error}; {kept}") if kept else error)
        if kept or not self._config.auto_reseed or self._halted:
            return False
        end = store.log.end
        try:
            aside = store.put_aside()
        except (DiskError, OSError) as problem:
            self._note(State.BROKEN, problem)
            return False
        log.warning("the log up to %d was put aside in %s; copying the master's: %s", end, aside, error)
        self._env.events.add("reseeding", reason=str(error), aside=aside)
        self.aside.append(aside)
        self._mark = store.log.end
        self._reseeds += 1
        self._reseed_from_ms = self._torn_ms + self._reseed_wait.next_s() * 1000
        return True

    def _kept(self, error: NeedsReseedError) -> str | None:
        """Why the log is not put aside although ``autoReseed`` is set, or None.

        Not when the master lacks bytes we know to be confirmed: then it is perhaps the master that should be
        re-seeded, and an operator decides. Nor when what was copied in its place fares no better.
        """
        if not self._config.auto_reseed:
            return None
        confirmed = self._store.confirmed
        if error.master_end < confirmed:
            return f"not put aside: {confirmed} bytes here are confirmed, more than there"
        before_ms, self._torn_ms = self._torn_ms, self._env.monotonic_ms()
        if self._torn_ms - before_ms >= RESEED_STEADY_MS:
            self._reseeds = 0
            self._reseed_wait.reset()
        if self._reseeds >= RESEEDS_MAX:
            return f"not put aside: {self._reseeds} logs were in a row, and no copy could be continued"
        if self._reseeds and self._torn_ms < self._reseed_from_ms:
            return "put aside later: the last copy could not be continued either"
        return None

    def _note(self, state: State, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self.reason:
            log.warning("not following %s: %s", self.address, text)
        self.state, self.reason = state, text

    async def _session(self, address: str) -> None:
        why_not = self._store.writable
        if why_not is not None:
            raise DiskError(why_not)
        # A record cut off by the last link's end: the rest of it will be sent again.
        end = self._store.truncate_partial_tail()
        cut_epochs(self._store, end + 1)
        host, port = split_address(address)
        kind = ClassicMasterLink if self.classic else MasterLink
        link = kind(self._env, self._store, self._config, self, self._handshake, self._knock())
        _, link = await self._env.network.connect(lambda: link, host, port, timeout_s=3.0)
        self._link = link
        try:
            if self._halted or address != self.address:
                return
            await link.ended
        finally:
            self._link, self.agreed = None, False
            link.end(MqError("stopped"))

    def _knock(self) -> Knock | None:
        secret = self._credentials.secret
        if secret is None or not self._proving:
            return None
        return Knock(self._env, secret, self._credentials.scope, self.broker_id, self.epoch)


def patience_ms(config: BrokerConfig, *, foreign: bool) -> int:
    """After how much silence of the other side a link ends, ms."""
    return max(config.ha_housekeeping_ms, FOREIGN_SILENCE_MS) if foreign else config.ha_housekeeping_ms


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
        knock: Knock | None = None,
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
        self._silence_ms = patience_ms(config, foreign=follower.foreign)
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

    def _believe(self, knock: Knock, transport: asyncio.Transport, data: bytes) -> None:
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
                    self._follower.progressed(self._epoch if self._follower.foreign else heard)
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
        if not (self._follower.foreign and self._follower.epoch > newest):
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
        if self._follower.foreign and self._follower.epoch > self._epoch:
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
        knock: Knock | None = None,
    ) -> None:
        super().__init__(env, store, config, follower, handshake, knock)
        self._reader = TransferReader(max(BODY_BYTES_MAX, config.ha_batch_bytes))
        # Nobody says which kind of broker he is.
        self._silence_ms = patience_ms(config, foreign=True)
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
