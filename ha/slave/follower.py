"""How a slave follows its master: it connects again for ever, and says what became of it."""

from __future__ import annotations

import asyncio
import enum
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from ha.slave.follow import Master
from ha.slave.master_link import Dialect, MasterLink
from ha.slave.own_log import CannotGoOnError, UntoldCutError, forget_epochs
from ha.slave.parts import Parts
from ha.slave.reseeds import Reseeds
from ha.slave.tail import UnreadableError
from ha.wire.codec import SlaveHandshake
from ha.wire.proof import Credentials, HandshakeInitiator, Reason, UnprovenError
from model.errors import DiskError, MqError
from model.ids import NO_EPOCH, BrokerId, Epoch, PhysicalOffset
from model.settings import split_address
from runtime.backoff import Backoff
from runtime.loops import EXPECTED, UNTIL_WOKEN, level_triggered
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

RETRY_FIRST_MS = 50
RETRY_MAX_MS = 1000
ORDINARY_MS: Final = 5000.0
"""An election takes no longer, so a slave without a link for less is nothing to warn of."""
MEND_WAIT_MS: Final = 60_000
"""So long a slave waits until its master's log is mended where its own is to be compared with it. Then it
says that it needs a re-seed, and tries on."""
MEND_GAP_MS: Final = 15_000
"""Two findings further apart are of two waits."""
STEADY_MS: Final = 2000
STEADY_BYTES: Final = 1 << 20
"""A link that lived for this long, or brought so much that this log never had, works: a master that only
takes connections, says one thing right and fails is not asked again 30 times a second."""


class State(enum.StrEnum):
    """What a slave is doing, for ``status``."""

    NO_MASTER = "no_master"  # nobody told where the master is
    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    UNPROVEN = "unproven"  # the master does not prove that it knows haSecretFile, or wants a proof of us
    FOLLOWING = "following"
    NEEDS_RESEED = "needs_reseed"  # the log cannot go on in the master's, or only by losing what is confirmed
    BROKEN = "broken"  # the own disk refuses


class _Situation(NamedTuple):
    """What the slave is doing, why it is not following, and since when (monotonic ms)."""

    state: State
    reason: str | None = None
    lost_ms: float | None = None
    warned: bool = False

    def lost_for_ms(self, now_ms: float) -> float:
        return 0.0 if self.lost_ms is None else now_ms - self.lost_ms


def _reason_of(error: Exception) -> str:
    """Without the address, which is said beside it, and which asyncio repeats in its errors."""
    if (
        isinstance(error, OSError)
        and error.errno
        and error.filename is None
        and error.errno in errno.errorcode
    ):
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class _MovedError(MqError):
    """There is another master: the link to the former one ends, and nothing is wrong."""


class _Session:
    """One link to the master, and what is known by it."""

    def __init__(self, link: MasterLink) -> None:
        self.link = link
        self.agreed = False  # our log is known to go on in the master's
        self.epoch: Epoch | None = None  # in which the master sent the last frame


class _Unmended(NamedTuple):
    """When the master's log was first found damaged where ours is to be compared, and last (monotonic ms)."""

    since_ms: float
    last_ms: float


class _Retries:
    """When the next link is made after one that failed: soon only if that one worked."""

    def __init__(self, parts: Parts) -> None:
        self.backoff = Backoff(parts.env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        self._parts = parts
        self._mark = parts.store.log.end  # what counts as new begins here
        self._since_ms = 0.0  # when this link was made
        self.unmended: _Unmended | None = None

    def on_connect(self) -> None:
        self._since_ms = self._parts.env.monotonic_ms()

    def on_reseed(self) -> None:
        self._mark = self._parts.store.log.end

    def on_progress(self, now_ms: float) -> None:
        """A frame was taken."""
        end = self._parts.store.log.end
        if end - self._mark >= STEADY_BYTES:
            self._mark = end
        elif now_ms - self._since_ms < STEADY_MS:
            return
        if self.backoff.tries:
            self.backoff.reset()


class _Proving:
    """Whether this slave proves itself to its master, and asks for its proof, on the next link."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._on = True

    def on_master(self, *, may_be_rocketmq: bool) -> None:
        """The master is another one."""
        self._on = not (self._credentials.lenient and may_be_rocketmq)

    def on_unproven(self, reason: Reason | None) -> None:
        """The master was not believed, or did not believe us."""
        if self._credentials.lenient and reason in (Reason.NO_SECRET, Reason.NEEDS_PROOF):
            self._on = reason is Reason.NEEDS_PROOF

    def initiator(self, parts: Parts, broker_id: BrokerId, epoch: Epoch) -> HandshakeInitiator | None:
        secret = self._credentials.secret
        if secret is None or not self._on:
            return None
        return HandshakeInitiator(parts.env, secret, self._credentials.scope, broker_id, epoch)


class Follower:
    """The slave's side of the HA link, for as long as this broker is a slave.

    It connects again for ever, with bounded waits, and at once when the master's address changes. A log
    that cannot be continued is kept and reported (``NEEDS_RESEED``), or with ``autoReseed`` put aside; an
    empty one is filled from the master's first byte. If that copy cannot be continued either, the next is put
    aside later, and after ``RESEEDS_MAX`` none: then the fault is the master's, or its segments go sooner
    than they are copied.

    A ``rocketmq_peer`` master, one that may be a RocketMQ broker, is given the time its own kind takes
    between heartbeats. And as it records no epoch that starts where the one before it does, its newest epoch
    may be older than ours although it was elected after all we know of: the Controllers' word counts then.

    Before a log is cut that may be counted on, as before one is put aside, the Controllers hear that this
    broker is suspect.

    With a secret both ends prove themselves first (``ha.wire.proof``). A master that does not is not
    followed; with ``trustPeers`` one that says it has no secret is. A master that may be RocketMQ is then
    asked for no proof unless it asks for ours.
    """

    def __init__(
        self,
        parts: Parts,
        broker_id: BrokerId,
        credentials: Credentials,
        before_reseed: Callable[[], Awaitable[None]],
        *,
        classic: bool,
    ) -> None:
        """``before_reseed``: see ``Reseeds``. ``classic``: a group without Controllers, with its own
        protocol."""
        self.classic = classic
        self.address: str | None = None
        self.broker_id = broker_id
        self.master = Master(NO_EPOCH)
        self.on_agree: list[Callable[[], None]] = []
        self.cut_told = False
        """The Controllers know that this log loses what was acknowledged, and no link has worked since."""
        self.reseeds = Reseeds(parts, before_reseed)
        self._parts = parts
        self._situation = _Situation(State.NO_MASTER, lost_ms=parts.env.monotonic_ms())
        self._session: _Session | None = None
        self._proving = _Proving(credentials)
        self._retries = _Retries(parts)
        self._halted = False
        self._moved = asyncio.Event()
        self._tasks = Tasks("ha.slave")
        self._tasks.spawn(self._run(), name="follow")
        parts.store.on_flush.append(self._flushed)

    def follow(self, address: str | None, master: Master) -> None:
        """Follow the master whose HA address this is; None: wait until one is known."""
        self.master = master._replace(followed_rocketmq=self.followed_rocketmq or master.followed_rocketmq)
        if address == self.address:
            return
        self.address, self._retries.unmended = address, None
        self._proving.on_master(may_be_rocketmq=master.rocketmq_peer or self.classic)
        self._retries.backoff.reset()
        self._moved.set()
        self._end(_MovedError(f"the master is at {address or 'a place not known yet'} now"))

    def halt(self) -> None:
        """Append nothing more from now on."""
        self._halted = True
        on_flush = self._parts.store.on_flush
        if self._flushed in on_flush:
            on_flush.remove(self._flushed)
        self._end(MqError("stopped"))

    async def stop(self) -> None:
        """``halt``, and wait until nothing runs any more."""
        self.halt()
        await self._tasks.cancel()

    def _end(self, why: MqError) -> None:
        if self._session is not None:
            self._session.link.end(why)

    @property
    def state(self) -> State:
        return self._situation.state

    @property
    def agreed(self) -> bool:
        """Whether our log is known to go on in the master's, by the link there is."""
        return self._session is not None and self._session.agreed

    @property
    def followed_rocketmq(self) -> bool:
        """Whether a master was followed in this process that may have been RocketMQ."""
        return self.master.followed_rocketmq

    @property
    def verified_epoch(self) -> Epoch | None:
        """Epoch in which this log is known to be a prefix of the master's, by a link that works; None: not
        yet, what is here may still have to be cut."""
        session = self._session
        if self.state is not State.FOLLOWING or session is None or session.link.ended.done():
            return None
        return self.master.epoch if session.epoch == self.master.epoch else None

    @property
    def needs_reseed(self) -> str | None:
        """Why this log cannot be continued from the master's, or None."""
        return self._why(State.NEEDS_RESEED)

    @property
    def unproven(self) -> str | None:
        """Why this broker and its master do not believe each other, or None."""
        return self._why(State.UNPROVEN)

    def lost(self, for_ms: float) -> str | None:
        """Why this slave does not follow its master, if it is so for longer than that."""
        lost_ms = self._situation.lost_for_ms(self._now_ms())
        if lost_ms <= for_ms:
            return None
        where = f" at {self.address}" if self.address else ""
        why = self._situation.reason or "no answer yet"
        return f"does not follow its master{where} for {lost_ms / 1000:.0f} s: {why}"

    def _why(self, state: State) -> str | None:
        return self._situation.reason if self.state is state else None

    def status(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "master": self.address,
            "reason": self._situation.reason,
            "putAside": list(self.reseeds.aside),
        }

    # What its link tells (ha.slave.master_link.Owner)

    def on_connected(self) -> None:
        """A connection was made. What is wrong stays visible until the link works."""
        self._retries.on_connect()
        if self.state in (State.NO_MASTER, State.CONNECTING):
            self._situation = self._situation._replace(state=State.HANDSHAKE)

    def on_agreed(self) -> None:
        """Our log goes on in the master's."""
        session = self._session
        if session is not None and not session.agreed:
            session.agreed, self.cut_told = True, False
            self._retries.unmended = None
            for hook in self.on_agree:
                hook()

    def on_progress(self, epoch: Epoch, now_ms: float) -> None:
        """A frame of a master in ``epoch`` was taken. When it is not the first one, the next failure is
        retried soon."""
        session = self._session
        if session is not None:
            session.epoch = epoch
        if self.master.rocketmq_peer and not self.followed_rocketmq:
            self.master = self.master._replace(followed_rocketmq=True)
        self._retries.on_progress(now_ms)
        if self._situation.state is not State.FOLLOWING:
            log.info("following %s from %d", self.address, self._parts.store.log.end)
            self._situation = _Situation(State.FOLLOWING)
        if session is not None and not session.agreed:
            self.on_agreed()

    def _flushed(self, _flushed: PhysicalOffset) -> None:
        if self._session is not None:
            self._session.link.report(self._now_ms())

    # The loop

    async def _run(self) -> None:
        await level_triggered(
            self._follow,
            self._moved,
            0.0,
            self._retries.backoff,
            "following the master",
            on_error=self._on_error,
            ended=lambda: self._halted,
        )

    async def _follow(self) -> float:
        address = self.address
        if address is None:
            self._lose(State.NO_MASTER, "the master's HA address is not known yet")
            return UNTIL_WOKEN
        try:
            await self._link_to(address)
        except CannotGoOnError as error:
            if not await self._reseed(address, error):
                raise
        except UnreadableError as error:
            self._on_unreadable(error)
            raise
        except UntoldCutError as error:
            await self._tell_cut(address, error)
        except Exception as error:
            if not isinstance(error, EXPECTED):
                # Our own mistake, and the status must not hide that this replica follows no more.
                self._note(State.CONNECTING, error)
            raise
        return 0.0

    def _on_unreadable(self, error: UnreadableError) -> None:
        """Raises CannotGoOnError when it lasts. Nothing is put aside: the only sound copy may be here."""
        now_ms, before = self._now_ms(), self._retries.unmended
        if before is None or now_ms - before.last_ms > MEND_GAP_MS:
            before = _Unmended(now_ms, now_ms)
        self._retries.unmended = before._replace(last_ms=now_ms)
        if now_ms - before.since_ms >= MEND_WAIT_MS:
            text = f"{error}; that was not mended for {MEND_WAIT_MS // 1000} s"
            cannot = CannotGoOnError(text, error.at)
            self._note(State.NEEDS_RESEED, cannot)
            raise cannot from error

    def _on_error(self, error: Exception) -> None:
        match error:
            case CannotGoOnError():
                pass  # noted by _reseed
            case _MovedError():
                self._lose(State.CONNECTING, str(error))
            case UnprovenError():
                self._note(State.UNPROVEN, error)
                self._proving.on_unproven(error.reason)
            case _:
                broken = self._parts.store.why_not_writable is not None or isinstance(error, DiskError)
                self._note(State.BROKEN if broken else State.CONNECTING, error)

    async def _tell_cut(self, address: str, cut: UntoldCutError) -> None:
        """Raises MqError: not now."""
        try:
            await self.reseeds.before()
        except (MqError, OSError) as problem:
            raise MqError(f"{cut}; not cut yet: {problem}") from problem
        # Another master may not want the cut; then it is told once more if it does.
        self.cut_told = address == self.address

    async def _reseed(self, address: str, error: CannotGoOnError) -> bool:
        """Whether there is an empty log to go on with: that of the master at ``address``."""
        why_not = self.reseeds.why_not_aside(error)
        if error.lacks_confirmed and self.state is not State.NEEDS_RESEED:
            self._parts.env.events.add("cut_refused", reason=str(error))
        self._note(State.NEEDS_RESEED, MqError(f"{error}; {why_not}") if why_not else error)
        if why_not or self._halted or not self.reseeds.on:
            return False
        try:
            await self.reseeds.before()
        except (MqError, OSError) as problem:
            self._note(State.NEEDS_RESEED, MqError(f"{error}; not put aside yet: {problem}"))
            return False
        if self._halted or address != self.address:
            return False  # the log may go on in the next master's
        try:
            self.reseeds.put_aside(error)
        except (DiskError, OSError) as problem:
            self._note(State.BROKEN, problem)
            return False
        self._retries.on_reseed()
        self._retries.unmended = None
        return True

    def _note(self, state: State, error: Exception) -> None:
        """A link that ends, or cannot be made, is in order while another master is elected; nothing else is,
        and not for long."""
        text, before = _reason_of(error), self._situation
        warn = state is not State.CONNECTING or before.lost_for_ms(self._now_ms()) >= ORDINARY_MS
        if text != before.reason or (warn and not before.warned):
            log.log(logging.WARNING if warn else logging.INFO, "not following %s: %s", self.address, text)
        self._lose(state, text, warned=warn)

    def _lose(self, state: State, reason: str, *, warned: bool = False) -> None:
        lost_ms = self._situation.lost_ms
        self._situation = _Situation(state, reason, self._now_ms() if lost_ms is None else lost_ms, warned)

    def _now_ms(self) -> float:
        return self._parts.env.monotonic_ms()

    async def _link_to(self, address: str) -> None:
        """Follow until the link ends. Returns when there is another master; raises why it ended otherwise."""
        env, store, config = self._parts
        why_not = store.why_not_writable
        if why_not is not None:
            raise DiskError(why_not)
        # A record cut off by the last link's end: the rest of it will be sent again.
        end = store.truncate_partial_tail()
        forget_epochs(store, PhysicalOffset(end + 1))
        host, port = split_address(address)
        handshake = SlaveHandshake(
            self.broker_id, config.sync_from_last_file, config.async_learner, answers_heartbeats=True
        )
        dialect = Dialect.of(
            store, config, handshake, classic=self.classic, rocketmq_peer=self.master.rocketmq_peer
        )
        initiator = self._proving.initiator(self._parts, self.broker_id, self.master.epoch)
        link = MasterLink(self._parts, self, dialect, initiator)
        self._session = _Session(link)
        try:
            await env.ha_network.connect(lambda: link, host, port, timeout_s=3.0)
            if self._halted or address != self.address:
                return
            await link.ended
        finally:
            self._session = None
            link.end(MqError("stopped"))
