"""How one log gets onto many brokers: the HA port, the master's slaves, the slave's master.

Moves bytes and time between the links (``ha.master``, ``ha.slave``) and the decisions (``ha.core``);
decides nothing.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from ha.core import ConnectedSet, SyncSet, excused_ms
from ha.master import Budget, ClassicLink, LogReader, SlaveLink
from ha.master_link import patience_ms
from ha.proof import Credentials
from ha.slave import Follower, State
from model.config import BrokerConfig
from model.errors import MqError, PeerError, Refused, Unknown
from runtime.backoff import Backoff
from runtime.env import Env, Listener
from runtime.tasks import Tasks, every

if TYPE_CHECKING:
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

CONFIRM_PUSH_S: Final = 0.02
"""A newer confirmOffset waits at most so long for a data frame to carry it."""
STRANGERS_MAX: Final = 64
"""Connections on the HA port that have not finished their handshake; one more is turned away."""
TELL_MS: Final = 10_000
"""Links turned away for want of a proof share a line in the log for so long."""
NAMELESS_FROM: Final = 1 << 32
"""Numbers of classic slaves without a proof, beside those of slaves that have proven their ids."""
NO_LEASE: Final = "service not available now: no word from the Controllers that this broker still is master"

Propose = Callable[[frozenset[int], int], Awaitable[tuple[frozenset[int], int] | None]]
"""Ask the Controller for a SyncStateSet, given the epoch of the set it replaces: the set and epoch it holds
now, or
None when it refused. Raises Unknown when no answer came, ConnectionError when nothing was sent."""


class Role(enum.StrEnum):
    FENCED = "fenced"
    MASTER = "master"
    SLAVE = "slave"


class HaService:
    """Replication of one broker's log. Roles change by ``become_master``, ``become_slave``,
    ``become_fenced``."""

    def __init__(self, env: Env, store: MessageStore, config: BrokerConfig) -> None:
        """Raises ConfigError: ``haSecretFile``."""
        self.role = Role.FENCED
        self.sync: SyncSet | None = None
        self.turned_away_total = 0
        """Links that did not prove themselves, since the start."""
        self.on_replicated: list[Callable[[int], None]] = []
        self.on_agreed: list[Callable[[], None]] = []
        """Hear that this slave's log is found to go on in its master's."""
        self.entitled: Callable[[], bool] = lambda: True
        """Whether no other master can be there now: ``broker.role.lease``; without Controllers always."""
        self.eligible: Callable[[int], bool] = lambda broker_id: True
        """Whether a slave has all that a member of the SyncStateSet must have besides the log."""
        self.on_connected: list[Callable[[int, bool], None]] = []
        """Hear each new link of a slave: its id, and whether it is a keelmq broker."""
        self._vouch_ms = max(config.controller_heartbeat_timeout_ms * 0.8, config.ha_heartbeat_ms * 1.5)
        self._env = env
        self._store = store
        self._config = config
        self._tasks = Tasks("ha")
        self._role_tasks = Tasks("ha.role")
        self._listener: Listener | None = None
        self._links: dict[int, SlaveLink] = {}
        self._strangers: dict[SlaveLink, None] = {}  # ordered, unlike a set
        self._follower: Follower | None = None
        self.foreign_master = False
        self._propose: Propose | None = None
        self._evaluate = asyncio.Event()
        self._pump_soon = False
        self._ticked_ms = env.monotonic_ms()
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._replicated = 0
        self._sync_flush = config.flush_disk_type == "SYNC_FLUSH"
        self._credentials = Credentials.of(env, config)
        proving = self._credentials.secret is not None
        self._numbers = NAMELESS_FROM if proving else 0  # of classic slaves, in the order they connected
        self._told_ms = -1.0  # when the log was last told of links turned away; -1 = never
        self._untold = 0
        limit = config.ha_bytes_per_s_max if config.ha_flow_control else 0
        self._budget = Budget(limit, env.monotonic_ms)
        self._log = LogReader(store)

    async def start(self) -> None:
        """Listen on the HA port. Raises OSError when it is taken."""
        self._listener = await self._env.network.listen(
            self._accept, self._config.bind_address, self._config.ha_port
        )
        self._store.on_append.append(self._appended)
        self._store.on_flush.append(self._flushed)
        self._ticked_ms = self._env.monotonic_ms()
        self._tasks.spawn(every(self._tick_s(), self._tick, what="the HA housekeeping"), name="tick")

    async def stop(self) -> None:
        """Orderly and idempotent: links end, nothing is appended any more."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._appended in self._store.on_append:
            self._store.on_append.remove(self._appended)
            self._store.on_flush.remove(self._flushed)
        await self.become_fenced()
        await self._tasks.cancel()

    @property
    def port(self) -> int:
        """The port listened on; 0 before ``start``."""
        return self._listener.port if self._listener is not None else 0

    # Roles

    async def become_master(
        self,
        self_id: int,
        epoch: int,
        members: frozenset[int] | set[int],
        set_epoch: int,
        propose: Propose | None,
    ) -> None:
        """Serve slaves as master of ``epoch``, whose entry the store's epoch file already has.

        A master elected again keeps its slaves' connections. ``propose`` None: the set stays. Epoch 0: there
        is no Controller, slaves speak the classic protocol and count while they are connected.
        """
        now_ms = self._env.monotonic_ms()
        last = self._store.epochs.last
        epoch_start = last.start if last is not None else 0
        self._propose = propose
        if self.role is Role.MASTER and self.sync is not None and self.sync.self_id == self_id:
            self.sync.elected(epoch, epoch_start, frozenset(members), set_epoch, now_ms)
            for link in [*self._links.values()]:
                if self._config.majority_ack:
                    link.close()
                else:
                    link.heartbeat()  # carries the new epoch
        else:
            await self._leave()
            config = self._config
            asynchronous = config.broker_role == "ASYNC_MASTER"
            ack_count = 1 if asynchronous else config.in_sync_replicas
            majority_of = config.total_replicas if config.majority_ack else 0
            # Who asked for answers without waiting gets them: the number is looked at when a send comes.
            copies_min = 1 if asynchronous else config.min_in_sync_replicas
            flushed = self._store.log.flushed if self._sync_flush else None
            if epoch == 0:
                self.sync = ConnectedSet(
                    self_id,
                    end=self._store.log.end,
                    confirmed=self._store.confirmed,
                    ack_count=ack_count,
                    majority_of=majority_of,
                    copies_min=copies_min,
                    now_ms=now_ms,
                    flushed=flushed,
                )
            else:
                self.sync = SyncSet(
                    self_id,
                    epoch=epoch,
                    epoch_start=epoch_start,
                    members=frozenset(members),
                    set_epoch=set_epoch,
                    end=self._store.log.end,
                    confirmed=self._store.confirmed,
                    all_ack=self.all_ack,
                    ack_count=ack_count,
                    not_catchup_ms=config.ha_not_catchup_ms,
                    now_ms=now_ms,
                    majority_of=majority_of,
                    copies_min=copies_min,
                    flushed=flushed,
                    entitled=lambda: self.entitled(),
                    eligible=lambda broker_id: self.eligible(broker_id),
                )
            self._replicated = 0
            self.role = Role.MASTER
            if propose is not None:
                self._role_tasks.spawn(self._propose_forever(self.sync), name="propose")
        self._publish()
        self._evaluate.set()

    def expect_master(self, *, rocketmq_peer: bool) -> None:
        """``rocketmq_peer``: whether the master may be a real RocketMQ broker, for the next ``become_slave``.

        A Controller of ours knows the HA address of keelmq brokers only; whoever has it from there need not
        ask. See ``ha.slave.Follower`` for what is different with the other kind.
        """
        self.foreign_master = rocketmq_peer

    async def become_slave(self, self_id: int, epoch: int, master_ha_address: str | None) -> None:
        """Follow the master of ``epoch``; None: wait until its HA address is known (call again with it).

        Epoch 0: there is no Controller, and the master speaks the classic protocol.
        """
        classic = epoch == 0
        follower = self._follower
        if follower is None or (follower.broker_id, follower.classic) != (self_id, classic):
            await self._leave()
            follower = Follower(
                self._env, self._store, self._config, self_id, self._credentials, classic=classic
            )
            follower.on_agreed = self.on_agreed
            self._follower = follower
            self.role = Role.SLAVE
        follower.epoch = epoch
        follower.rocketmq_peer = self.foreign_master
        follower.follow(master_ha_address)

    async def become_fenced(self) -> None:
        """Neither master nor slave: no acks, no appends, answers waiting for replication stay unanswered."""
        await self._leave()

    async def _leave(self) -> None:
        self.role = Role.FENCED
        self.sync = None
        follower, self._follower = self._follower, None
        if follower is not None:
            # Before the first await: whoever changes roles may already have noted where the log ends.
            follower.halt()
        for link in [*self._links.values(), *self._strangers]:
            link.close()
        self._links.clear()
        self._strangers.clear()
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
            self._confirm_timer = None
        await self._role_tasks.cancel()
        if follower is not None:
            await follower.stop()

    # What others ask

    @property
    def replicated(self) -> int:
        """Answers for records ending at or below this offset may leave. Only a master's moves."""
        return self._replicated

    @property
    def all_ack(self) -> bool:
        """Whether this broker, as master, waits for every member of the SyncStateSet."""
        config = self._config
        asynchronous = config.broker_role == "ASYNC_MASTER"
        return config.all_ack_in_sync_state_set and not asynchronous and not config.majority_ack

    @property
    def follows(self) -> bool:
        """Whether this slave's link to its master works."""
        return self._follower is not None and self._follower.state is State.FOLLOWING

    @property
    def agreed(self) -> bool:
        """Whether this slave's log is known to go on in its master's, on the link there is."""
        return self._follower is not None and self._follower.agreed

    @property
    def members(self) -> frozenset[int]:
        return self.sync.members if self.sync is not None else frozenset()

    @property
    def set_epoch(self) -> int:
        return self.sync.set_epoch if self.sync is not None else 0

    @property
    def epoch(self) -> int:
        """The epoch this broker is master or slave in; 0 while fenced."""
        if self.sync is not None:
            return self.sync.epoch
        return self._follower.epoch if self._follower is not None else 0

    @property
    def settled(self) -> int | None:
        """The epoch whose master's log ours is, or is a piece of; 0 without Controllers, None while it is of
        another one perhaps, and may still be cut."""
        if self.sync is not None:
            return self.sync.epoch
        return self._follower.settled if self._follower is not None else None

    @property
    def needs_reseed(self) -> str | None:
        """Why this slave's log cannot be continued from its master's, or None."""
        return self._follower.needs_reseed if self._follower is not None else None

    @property
    def unproven(self) -> str | None:
        """Why this slave and its master do not believe each other, or None."""
        return self._follower.unproven if self._follower is not None else None

    def renewed(self) -> None:
        """``entitled`` says yes again: what waited for that is confirmed and answered now."""
        if self.sync is not None:
            self.sync.renewed()
            self._publish()

    def on_eligible(self, broker_id: int) -> None:
        """``eligible`` may say yes now for this slave: it can join without waiting for its next report."""
        if self.sync is not None:
            self.sync.on_eligible(broker_id, self._env.monotonic_ms())
            self._evaluate.set()

    @property
    def candidates(self) -> frozenset[int]:
        """Every other broker that the Controllers may elect, as far as this master knows: members, and slaves
        that it proposed or is about to propose."""
        if self.sync is None:
            return frozenset()
        return (self.sync.members | self.sync.proposed) - {self.sync.self_id}

    @property
    def rocketmq_slaves(self) -> frozenset[int]:
        """Connected slaves that are real RocketMQ brokers: they never ask for this master's tables."""
        return frozenset(broker_id for broker_id, link in self._links.items() if not link.prompt)

    def vouched(self) -> bool:
        """Whether this is a master to which every member acknowledged all there was a moment ago. That says
        what a lease says, also while no Controller is there to grant one (docs/decisions/0005-lease.md)."""
        return self.sync is not None and self.sync.vouched(self._env.monotonic_ms(), self._vouch_ms)

    def refuse(self) -> Refused | None:
        """The answer to a write that could not be confirmed, or None.

        Either the lease ended and not every member is there, or fewer members than minInSyncReplicas, or than
        a majority in majority mode, are in sync.
        """
        sync = self.sync
        if sync is None:
            return None
        if not self.entitled() and not self.vouched():
            return Refused(NO_LEASE, 14)
        needed = self._config.min_in_sync_replicas
        if self._config.majority_ack:
            needed = max(needed, sync.needed)
        if len(sync.members) < needed:
            return Refused(f"in-sync replicas not enough: {len(sync.members)} of {needed}", 1)
        return None

    def adopt(
        self, members: frozenset[int] | set[int], set_epoch: int, asked_ms: float | None = None
    ) -> None:
        """Take the Controller's view if newer. ``asked_ms``: when it was asked for (``Env.monotonic_ms``)."""
        if self.sync is None:
            return
        self.sync.adopt(frozenset(members), set_epoch, asked_ms)
        self._publish()
        self._evaluate.set()

    def slaves(self) -> list[dict[str, Any]]:
        """One entry a connected slave: ``id``, ``address``, ``ackOffset`` and ``lagBytes`` (null before its
        report)."""
        end = self._store.log.end
        return [
            {
                "id": broker_id,
                "address": link.address,
                "ackOffset": link.end if link.end >= 0 else None,
                "lagBytes": end - link.end if link.end >= 0 else None,
                "learner": link.learner,
            }
            for broker_id, link in sorted(self._links.items())
        ]

    def status(self) -> dict[str, Any]:
        """JSON-ready: ``role``, ``slaves``, for a slave ``following`` (state, master, reason), and
        ``turnedAway``: links that did not prove themselves, since the start."""
        following = self._follower.status() if self._follower is not None else None
        return {
            "role": self.role.value,
            "slaves": self.slaves(),
            "following": following,
            "turnedAway": self.turned_away_total,
        }

    # The master's links (ha.master.Host)

    def _accept(self) -> SlaveLink:
        config = self._config
        link: SlaveLink
        if isinstance(self.sync, ConnectedSet):
            self._numbers += 1
            link = ClassicLink(
                self._env,
                self._store,
                self,
                batch_bytes=config.ha_batch_bytes,
                segment_bytes=config.segment_bytes,
                number=self._numbers,
                from_last_file=config.sync_from_last_file,
                budget=self._budget,
                reader=self._log,
                credentials=self._credentials,
            )
        else:
            link = SlaveLink(
                self._env,
                self._store,
                self,
                batch_bytes=config.ha_batch_bytes,
                segment_bytes=config.segment_bytes,
                budget=self._budget,
                reader=self._log,
                credentials=self._credentials,
            )
        if len(self._strangers) >= STRANGERS_MAX:
            # The oldest one has had the most time to say who it is; one that has proven it is none.
            strangers = [stranger for stranger in self._strangers if stranger.proven is None]
            (strangers or list(self._strangers))[0].close("too many connections without a handshake")
        self._strangers[link] = None
        return link

    def elsewhere(self, offset: int, link: SlaveLink) -> bool:
        """See ``master.Host``."""
        return any(other.end > offset for other in self._links.values() if other is not link)

    def greeted(self, link: SlaveLink) -> None:
        """``link`` said who it is: it takes the place of a former connection of the same broker.

        Also of one that works: a broker ends its link before it makes another, so a second one means that the
        first is a leftover whose end has not reached us, or that two say one name. Were the first to stay
        while it answers, a liar that came first would keep the true broker out for ever; this way the true
        one, which tries again, comes back. What the former one acknowledged is forgotten (``connected``):
        nothing is confirmed until the new one reported how far *it* is. Proven is proven, though: a link
        without a proof takes no place of one that has it.
        """
        assert self.sync is not None
        former = self._links.get(link.broker_id)
        if former is not None and former.proven is not None and link.proven is None:
            raise PeerError(f"broker {link.broker_id} is connected and has proven itself, this link has not")
        self._strangers.pop(link, None)
        if former is not None:
            del self._links[link.broker_id]
            former.close("the same broker connected again")
        self._links[link.broker_id] = link
        now_ms = self._env.monotonic_ms()
        for hook in self.on_connected:
            hook(link.broker_id, link.prompt)
        self.sync.connected(link.broker_id, now_ms, learner=link.learner, prompt=link.prompt)
        log.info("slave %d at %s follows this master", link.broker_id, link.address)

    def turned_away(self, link: SlaveLink, why: str) -> None:
        """Say so in the log, once each ``TELL_MS``: a port scan must not fill it."""
        self.turned_away_total += 1
        now_ms = self._env.monotonic_ms()
        if self._told_ms >= 0 and now_ms - self._told_ms < TELL_MS:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        log.warning("HA connection of %s turned away: %s%s", link.address, why, more)
        self._told_ms, self._untold = now_ms, 0

    def acked(self, link: SlaveLink) -> None:
        """``link`` reported how far its slave is."""
        if self.sync is None or self._links.get(link.broker_id) is not link:
            return
        self.sync.acked(link.broker_id, link.end, self._env.monotonic_ms())
        self._publish()
        if self._propose is not None and self.sync.wanted(self._env.monotonic_ms()) != self.sync.members:
            self._evaluate.set()

    def ended(self, link: SlaveLink) -> None:
        """``link`` is gone: its slave leaves the SyncStateSet at once, not when a timer notices."""
        self._strangers.pop(link, None)
        if self._links.get(link.broker_id) is link:
            del self._links[link.broker_id]
            log.info(
                "the HA link of slave %d at %s ended, acknowledged %d", link.broker_id, link.address, link.end
            )
            if self.sync is not None:
                self.sync.disconnected(link.broker_id)
                self._evaluate.set()

    def _appended(self, end: int) -> None:
        if self.sync is None:
            return
        self.sync.appended(end)
        self._publish()
        if self._sync_flush:
            self._store.sync_to(end)
        if self._links and not self._pump_soon:
            # Everything appended in this turn of the loop goes out together.
            self._pump_soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _flushed(self, flushed: int) -> None:
        if self.sync is not None and self._sync_flush:
            self.sync.flushed(flushed)
            self._publish()

    def _pump(self) -> None:
        self._pump_soon = False
        self._log.turn(list(self._links.values()))

    def _publish(self) -> None:
        """Tell the store, those who wait for replication, and soon the slaves, what is new."""
        sync = self.sync
        if sync is None:
            return
        if sync.confirmed > self._store.confirmed:
            self._store.confirm(sync.confirmed)
        if sync.replicated > self._replicated:
            self._replicated = sync.replicated
            for hook in self.on_replicated:
                hook(sync.replicated)
        if self._confirm_timer is None and self._links:
            self._confirm_timer = asyncio.get_running_loop().call_later(CONFIRM_PUSH_S, self._push_confirmed)

    def _push_confirmed(self) -> None:
        self._confirm_timer = None
        if self.sync is None:
            return
        for link in list(self._links.values()):
            if 0 <= link.sent_confirmed < self.sync.confirmed:
                link.heartbeat()

    # Time

    def _tick_s(self) -> float:
        config = self._config
        shortest_ms = min(
            config.check_sync_state_set_ms,
            config.ha_heartbeat_ms / 2,
            config.ha_housekeeping_ms / 4,
            config.ha_not_catchup_ms / 4,
        )
        return max(shortest_ms, 10.0) / 1000

    def _tick(self) -> None:
        now_ms = self._env.monotonic_ms()
        late_ms = now_ms - self._ticked_ms - self._tick_s() * 1000
        self._ticked_ms = now_ms
        for link in [*self._links.values(), *self._strangers]:
            silence_ms = patience_ms(self._config, rocketmq_peer=not link.prompt)
            link.last_read_ms = excused_ms(link.last_read_ms, late_ms, silence_ms, now_ms)
            if now_ms - link.last_read_ms > silence_ms:
                link.close(f"silent for {silence_ms} ms")
            elif now_ms - link.last_write_ms >= self._config.ha_heartbeat_ms:
                link.heartbeat()
        if self.sync is not None:
            self.sync.tick(now_ms)
            self._publish()
            self._evaluate.set()

    async def _propose_forever(self, sync: SyncSet) -> None:
        """One proposal at a time, for as long as the wanted set differs from the Controller's."""
        backoff = Backoff(self._env.random, 50, 1000)
        while True:
            await self._evaluate.wait()
            self._evaluate.clear()
            proposal = sync.propose(self._env.monotonic_ms())
            propose = self._propose
            if proposal is None or propose is None:
                continue
            wanted = sorted(proposal.members)
            try:
                answer = await propose(proposal.members, proposal.base)
            except Unknown as error:
                log.warning("SyncStateSet %s proposed, outcome unknown: %s", wanted, error)
                sync.unknown(proposal)
            except (MqError, OSError) as error:
                log.warning("SyncStateSet %s not proposed: %s", wanted, error)
                sync.refused(proposal, self._env.monotonic_ms())
            except Exception:
                # Not foreseen; but without proposals the next slave to die would hold every answer for good.
                log.exception("SyncStateSet %s proposed, outcome unknown", wanted)
                sync.unknown(proposal)
            else:
                # The view may have told us of it before the answer came.
                if answer is not None and (
                    sync.adopt(*answer) or answer[1] == sync.set_epoch != proposal.base
                ):
                    log.info("SyncStateSet is %s", sorted(sync.members))
                    backoff.reset()
                    self._publish()
                    self._evaluate.set()
                    continue
                log.warning("SyncStateSet %s was refused", wanted)
                sync.refused(proposal, self._env.monotonic_ms())
            self._publish()
            await asyncio.sleep(backoff.next_s())
            self._evaluate.set()
