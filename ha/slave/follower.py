"""How a slave follows its master: connect again for ever, and say what becomes of it."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from ha.slave.follow import Master
from ha.slave.master_link import Dialect, MasterLink
from ha.slave.own_log import NeedsReseedError, forget_epochs
from ha.wire.codec import SlaveHandshake
from ha.wire.proof import Credentials, HandshakeInitiator, Reason, UnprovenError
from model.config import BrokerConfig
from model.errors import DiskError, MqError
from model.settings import split_address
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.tasks import Tasks

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


class State(enum.StrEnum):
    """What a slave is doing, for ``status``."""

    NO_MASTER = "no_master"  # nobody told where the master is
    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    UNPROVEN = "unproven"  # the master does not prove that it knows haSecretFile, or wants a proof of us
    FOLLOWING = "following"
    NEEDS_RESEED = "needs_reseed"  # the log cannot go on in the master's, or only by losing what is confirmed
    BROKEN = "broken"  # the own disk refuses


class Reseeds:
    """Puts logs aside that cannot be continued (``autoReseed``): how many in a row, and when the next one."""

    def __init__(self, env: Env, store: MessageStore, config: BrokerConfig) -> None:
        self.aside: list[str] = []
        """Where logs went that could not be continued, in the life of this process."""
        self.before: Callable[[], Awaitable[None]] = _nothing_before
        """Returns when a log may be put aside. Raises MqError, OSError: not now."""
        self._env = env
        self._store = store
        self._config = config
        self._row = 0  # logs put aside in a row
        self._wait = Backoff(env.random, RESEED_FIRST_MS, RESEED_MAX_MS)
        self._from_ms = float("-inf")  # no log is put aside before
        self._torn_ms = float("-inf")  # when the log could not be continued the last time

    def kept(self, error: NeedsReseedError) -> str | None:
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
            self._row = 0
            self._wait.reset()
        if self._row >= RESEEDS_MAX:
            return f"not put aside: {self._row} logs were in a row, and no copy could be continued"
        if self._row and self._torn_ms < self._from_ms:
            return "put aside later: the last copy could not be continued either"
        return None

    @property
    def on(self) -> bool:
        return self._config.auto_reseed

    def put_aside(self, error: NeedsReseedError) -> None:
        """Begin with an empty log. Raises DiskError, OSError."""
        end = self._store.log.end
        aside = self._store.quarantine()
        log.warning("the log up to %d was put aside in %s; copying the master's: %s", end, aside, error)
        self._env.events.add("reseeding", reason=str(error), aside=aside)
        self.aside.append(aside)
        self._row += 1
        self._from_ms = self._torn_ms + self._wait.next_s() * 1000


async def _nothing_before() -> None:
    """Nobody else has to know of a log that is put aside."""


class Follower:
    """The slave's side of the HA link, for as long as this broker is a slave.

    It connects again for ever, with bounded waits, and at once when the master's address changes. A log
    that cannot be continued is kept and reported (``NEEDS_RESEED``), or with ``autoReseed`` put aside; an
    empty one is filled from the master's first byte. If that copy cannot be continued either, the next is put
    aside later, and after ``RESEEDS_MAX`` none: then the fault is the master's, or its segments go sooner
    than they are copied.

    A ``rocketmq_peer`` master, one that may be a real RocketMQ broker, is given the time its own kind takes
    between heartbeats. And as it records no epoch that starts where the one before it does, its newest epoch
    may be older than ours although it was elected after all we know of: the Controllers' word counts then.

    With a secret both ends prove themselves first (``ha.wire.proof``). A master that does not is not
    followed; with ``trustPeers`` one that says it has no secret is. A master that may be a real one is then
    asked for no proof unless it asks for ours.
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
        """``classic``: a group without Controllers, with its own protocol."""
        self.classic = classic
        self.state = State.NO_MASTER
        self.reason: str | None = None
        self.address: str | None = None
        self.broker_id = broker_id
        self.master = Master(0)
        self.agreed = False
        """Whether our log is known to go on in the master's, as of this link."""
        self.on_agree: list[Callable[[], None]] = []
        self.reseeds = Reseeds(env, store, config)
        self._env = env
        self._store = store
        self._config = config
        self._credentials = credentials
        self._proving = True
        self._halted = False
        self._moved = asyncio.Event()
        self._link: MasterLink | None = None
        self._told_epoch = -1  # in which the master sent the last frame
        self._backoff = Backoff(env.random, RETRY_FIRST_MS, RETRY_MAX_MS)
        self._since_ms = 0.0  # when this link was made
        self._mark = store.log.end  # what counts as new begins here
        self._tasks = Tasks("ha.slave")
        self._tasks.spawn(self._run(), name="follow")
        store.on_flush.append(self._flushed)

    def follow(self, address: str | None, master: Master) -> None:
        """Follow the master whose HA address this is; None: wait until one is known."""
        self.master = master._replace(followed_rocketmq=self.followed_rocketmq or master.followed_rocketmq)
        if address == self.address:
            return
        self.address = address
        self._proving = not (self._credentials.lenient and (master.rocketmq_peer or self.classic))
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
    def followed_rocketmq(self) -> bool:
        """Whether a master was followed in this process that may have been a real one."""
        return self.master.followed_rocketmq

    @property
    def verified_epoch(self) -> int | None:
        """Epoch in which this log is known to be a prefix of the master's, by a link that works; None: not
        yet, what is here may still have to be cut."""
        link = self._link
        if self.state is not State.FOLLOWING or link is None or link.ended.done():
            return None
        return self.master.epoch if self._told_epoch == self.master.epoch else None

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
            "putAside": list(self.reseeds.aside),
        }

    # What its link tells (ha.slave.master_link.Owner)

    def on_connected(self) -> None:
        """A connection was made. What is wrong stays visible until the link works."""
        self._since_ms = self._env.monotonic_ms()
        if self.state in (State.NO_MASTER, State.CONNECTING):
            self.state = State.HANDSHAKE

    def on_agreed(self) -> None:
        """Our log goes on in the master's."""
        if not self.agreed:
            self.agreed = True
            for hook in self.on_agree:
                hook()

    def on_progress(self, epoch: int) -> None:
        """A frame of a master in ``epoch`` was taken. When it is not the first one, the next failure is
        retried soon."""
        self._told_epoch = epoch
        if self.master.rocketmq_peer and not self.followed_rocketmq:
            self.master = self.master._replace(followed_rocketmq=True)
        end = self._store.log.end
        if end - self._mark >= STEADY_BYTES:
            self._mark = end
            self._backoff.reset()
        elif self._env.monotonic_ms() - self._since_ms >= STEADY_MS:
            self._backoff.reset()
        if self.state is not State.FOLLOWING:
            log.info("following %s from %d", self.address, self._store.log.end)
        self.state, self.reason = State.FOLLOWING, None
        self.on_agreed()

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
                if await self._reseed(error):
                    continue
            except UnprovenError as error:
                self._note(State.UNPROVEN, error)
                if self._credentials.lenient and error.reason in (Reason.NO_SECRET, Reason.NEEDS_PROOF):
                    self._proving = error.reason is Reason.NEEDS_PROOF
            except (MqError, OSError, ValueError) as error:
                broken = self._store.writable is not None or isinstance(error, DiskError)
                self._note(State.BROKEN if broken else State.CONNECTING, error)
            except Exception as error:
                # Not foreseen; but a slave that follows no more is a replica less, and the status hides it.
                log.exception("following %s failed", address)
                self._note(State.CONNECTING, error)
            wait_s = self._backoff.next_s()
            try:
                async with asyncio.timeout(wait_s):
                    await self._moved.wait()
            except TimeoutError:
                continue

    async def _reseed(self, error: NeedsReseedError) -> bool:
        """Whether there is an empty log to go on with."""
        kept = self.reseeds.kept(error)
        if error.lacks_confirmed and self.state is not State.NEEDS_RESEED:
            self._env.events.add("cut_refused", reason=str(error))
        self._note(State.NEEDS_RESEED, MqError(f"{error}; {kept}") if kept else error)
        if kept or self._halted or not self.reseeds.on:
            return False
        try:
            await self.reseeds.before()
        except (MqError, OSError) as problem:
            self._note(State.NEEDS_RESEED, MqError(f"{error}; not put aside yet: {problem}"))
            return False
        if self._halted:
            return False
        try:
            self.reseeds.put_aside(error)
        except (DiskError, OSError) as problem:
            self._note(State.BROKEN, problem)
            return False
        self._mark = self._store.log.end
        return True

    def _note(self, state: State, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if text != self.reason:
            log.warning("not following %s: %s", self.address, text)
        self.state, self.reason = state, text

    async def _session(self, address: str) -> None:
        store, config = self._store, self._config
        why_not = store.writable
        if why_not is not None:
            raise DiskError(why_not)
        # A record cut off by the last link's end: the rest of it will be sent again.
        end = store.truncate_partial_tail()
        forget_epochs(store, end + 1)
        host, port = split_address(address)
        handshake = SlaveHandshake(
            self.broker_id, config.sync_from_last_file, config.async_learner, answers_heartbeats=True
        )
        dialect = Dialect.of(
            store, config, handshake, classic=self.classic, rocketmq_peer=self.master.rocketmq_peer
        )
        link = MasterLink(self._env, store, config, self, dialect, self._initiator())
        _, link = await self._env.network.connect(lambda: link, host, port, timeout_s=3.0)
        self._link = link
        try:
            if self._halted or address != self.address:
                return
            await link.ended
        finally:
            self._link, self.agreed = None, False
            link.end(MqError("stopped"))

    def _initiator(self) -> HandshakeInitiator | None:
        secret = self._credentials.secret
        if secret is None or not self._proving:
            return None
        return HandshakeInitiator(
            self._env, secret, self._credentials.scope, self.broker_id, self.master.epoch
        )
