"""How one log gets onto many brokers: the HA port, the master's slaves, the slave's master.

A facade. It holds the role, hands what happens to the deciders (``ha.master.sync_set``,
``ha.slave.follow``), and tells the store and the waiting answers what they decided.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ha.master.ack_policy import AckPolicy, Wait
from ha.master.connected_set import ConnectedSet
from ha.master.links import SlaveLinks
from ha.master.proposals import Proposals, Propose
from ha.master.replicas import Replicas
from ha.master.sync_set import Leadership, LogEnds, SyncSet
from ha.slave.follow import Master
from ha.slave.follower import Follower, State
from ha.slave.parts import Parts
from model.codes import Response
from model.config import BrokerConfig
from model.errors import BrokenInvariantError, MqError, Refused
from model.ids import NO_EPOCH, BrokerId, Epoch, PhysicalOffset
from model.leases import duration_ms
from runtime.backoff import Backoff
from runtime.env import Env, Listener
from runtime.loops import UNTIL_WOKEN, level_triggered
from runtime.tasks import Tasks

if TYPE_CHECKING:
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

RETRY_MS: Final = 100
NO_LEASE: Final = "service not available now: no word from the Controllers that this broker still is master"


class Role(enum.StrEnum):
    FENCED = "fenced"
    MASTER = "master"
    SLAVE = "slave"


async def _nothing_before() -> None:
    """Nobody else has to know of a log that is put aside."""


@dataclass(slots=True)
class Conditions:
    """What the rest of the broker decides for replication. Asked each time, so each may be replaced:
    ``broker.role.manager`` wires the lease and the set, ``broker.tables.table_files`` what is eligible.

    Before that, with Controllers (``of``), nothing is confirmed and no write is taken.
    """

    holds_lease: Callable[[], bool]
    """Whether no other master can be there now: ``broker.role.lease``; without Controllers always."""
    acks_replace_lease: Callable[[], bool]
    """Whether no other master can be there while every member acknowledges to this one: not where
    Controllers may elect a broker outside of the set."""
    eligible: Callable[[BrokerId], bool] = lambda broker_id: True
    """Whether a slave has all that a member of the SyncStateSet must have besides the log."""
    keeps_set: Callable[[], bool] = lambda: False
    """See ``SyncSet.keeps_set``."""
    before_reseed: Callable[[], Awaitable[None]] = _nothing_before
    """Awaited before a log is put aside (``autoReseed``), or cut that may be counted on. Raises MqError,
    OSError: not now."""

    @classmethod
    def of(cls, *, controllers: bool) -> Conditions:
        """What holds before anything is wired."""
        return cls(holds_lease=lambda: not controllers, acks_replace_lease=lambda: not controllers)


class HaService:
    """Replication of one broker's log. Roles change by ``become_master``, ``become_slave``,
    ``become_fenced``."""

    def __init__(self, env: Env, store: MessageStore, config: BrokerConfig) -> None:
        """Raises ConfigError: ``haSecretFile``."""
        self.replicated = PhysicalOffset(0)
        """Answers for records ending at or below this offset may leave. Only a master's moves."""
        self.on_replicated: list[Callable[[PhysicalOffset], None]] = []
        self.on_agreed: list[Callable[[], None]] = []
        """Hear that this slave's log is found to go on in its master's."""
        self.conditions = Conditions.of(controllers=config.enable_controller_mode)
        self.broken: str | None = None
        """The promise that was found broken: nothing is confirmed or answered any more until a restart."""
        self.on_broken: list[Callable[[BaseException], None]] = []
        """Hear of it: this broker must not lead, nor count as a replica."""
        self.links = SlaveLinks(env, store, config, self._slave_changed)
        self.next_master = Master(NO_EPOCH)
        self._env = env
        self._store = store
        self._config = config
        self._tasks = Tasks("ha")
        self._listener: Listener | None = None
        self._follower: Follower | None = None
        self._proposals: Proposals | None = None

    async def start(self) -> None:
        """Listen on the HA port. Raises OSError when it is taken."""
        self._listener = await self._env.ha_network.listen(
            self.links.accept, self._config.bind_address, self._config.ha_port
        )
        self._store.on_append.append(self._appended)
        self._store.on_flush.append(self._flushed)
        ticking = self.links.ticking
        ticking.begin()
        retry = Backoff(self._env.random, RETRY_MS, RETRY_MS)
        keeping = level_triggered(
            self._keep_house, ticking.wake, self._tick_s(), retry, "the HA housekeeping"
        )
        self._tasks.spawn(keeping, name="tick")

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

    @property
    def role(self) -> Role:
        if self.sync is not None:
            return Role.MASTER
        return Role.SLAVE if self._follower is not None else Role.FENCED

    @property
    def sync(self) -> Replicas | None:
        """The replicas of this master; None while it is none."""
        return self.links.replicas

    async def become_master(
        self,
        self_id: BrokerId,
        epoch: Epoch,
        members: frozenset[BrokerId] | set[BrokerId],
        set_epoch: int,
        propose: Propose | None,
    ) -> None:
        """Serve slaves as master of ``epoch``, whose entry the store's epoch file already has.

        A master elected again keeps its slaves' connections. ``propose`` None: the set stays. Epoch 0: there
        is no Controller, slaves speak the classic protocol and count while they are connected.
        """
        now_ms = self._env.monotonic_ms()
        last = self._store.epochs.last
        leadership = Leadership(
            epoch, last.start if last is not None else PhysicalOffset(0), frozenset(members), set_epoch
        )
        sync = self.sync
        if isinstance(sync, SyncSet) and sync.self_id == self_id and epoch:
            sync.on_elected(leadership, now_ms)
            self.links.on_elected_again()
        else:
            await self._leave()
            self.links.replicas = sync = self._replicas(self_id, leadership, now_ms)
            self.replicated = PhysicalOffset(0)
            self.links.ticking.rouse()
            if isinstance(sync, SyncSet):
                self._proposals = Proposals(self._env, sync, self._publish)
                self._proposals.start()
        if self._proposals is not None:
            self._proposals.propose = propose
        self._publish_and_propose()

    def _replicas(self, self_id: BrokerId, leadership: Leadership, now_ms: float) -> Replicas:
        log_, policy = self._store.log, AckPolicy.of(self._config, controllers=leadership.epoch != 0)
        if leadership.epoch == 0:
            return ConnectedSet(self_id, policy, log_.end, log_.flushed, self._store.confirmed)
        sync = SyncSet(
            self_id,
            leadership,
            LogEnds(log_.end, self._store.confirmed, log_.flushed),
            policy,
            not_catchup_ms=self._config.ha_not_catchup_ms,
            now_ms=now_ms,
            may_confirm=lambda all_must: (
                (all_must and self.conditions.acks_replace_lease()) or self.conditions.holds_lease()
            ),
            eligible=lambda broker_id: self.conditions.eligible(broker_id),
        )
        sync.keeps_set = lambda: self.conditions.keeps_set()
        return sync

    def expect_master(self, *, rocketmq_peer: bool) -> None:
        """``rocketmq_peer``: whether the master may be a RocketMQ broker, for the next ``become_slave``.

        A Controller of ours knows the HA address of keelmq brokers only: a master with such an address is one
        of ours. See ``ha.slave.follower.Follower`` for what is different with the other kind.
        """
        self.next_master = self.next_master._replace(rocketmq_peer=rocketmq_peer)

    async def become_slave(self, self_id: BrokerId, epoch: Epoch, master_ha_address: str | None) -> None:
        """Follow the master of ``epoch``; None: wait until its HA address is known (call again with it).

        Epoch 0: there is no Controller, and the master speaks the classic protocol.
        """
        classic = epoch == 0
        follower = self._follower
        if follower is None or (follower.broker_id, follower.classic) != (self_id, classic):
            await self._leave()
            parts = Parts(self._env, self._store, self._config)
            follower = Follower(parts, self_id, self.links.credentials, self._before_reseed, classic=classic)
            follower.on_agree = self.on_agreed
            self._follower = follower
        follower.follow(master_ha_address, self.next_master._replace(epoch=epoch))

    async def _before_reseed(self) -> None:
        await self.conditions.before_reseed()

    async def become_fenced(self) -> None:
        """Neither master nor slave: no acks, no appends, answers waiting for replication stay unanswered."""
        await self._leave()

    async def _leave(self) -> None:
        follower, self._follower = self._follower, None
        if follower is not None:
            # Before the first await: the role manager may already have noted where the log ends.
            follower.halt()
            self.next_master = self.next_master._replace(followed_rocketmq=follower.followed_rocketmq)
        self.links.close()
        proposals, self._proposals = self._proposals, None
        if proposals is not None:
            await proposals.stop()
        if follower is not None:
            await follower.stop()

    # What others ask

    @property
    def all_ack(self) -> bool:
        """Whether this broker, as master, waits for every member of the SyncStateSet."""
        return AckPolicy.of(self._config, controllers=True).wait is Wait.ALL

    @property
    def follows(self) -> bool:
        """Whether this slave's link to its master works."""
        return self._follower is not None and self._follower.state is State.FOLLOWING

    @property
    def agreed(self) -> bool:
        """Whether this slave's log is known to go on in its master's, on the link there is."""
        return self._follower is not None and self._follower.agreed

    @property
    def members(self) -> frozenset[BrokerId]:
        return self.sync.members if self.sync is not None else frozenset()

    @property
    def on_connected(self) -> list[Callable[[BrokerId, bool], None]]:
        """Hear each new link of a slave: its id, and whether it is a keelmq broker."""
        return self.links.on_connected

    @property
    def members_to_write(self) -> int:
        """Members, this master included, that the SyncStateSet has at least before a write is taken; 1 while
        it is none."""
        return self.sync.members_to_write if self.sync is not None else 1

    @property
    def copies_needed(self) -> int:
        """Copies without which this master tells no producer OK; 1 while it is none."""
        return self.sync.copies_needed if isinstance(self.sync, SyncSet) else 1

    @property
    def cut_off(self) -> bool:
        """Whether this master hears too few slaves to tell a producer OK."""
        return isinstance(self.sync, SyncSet) and self.sync.is_cut_off(self._env.monotonic_ms())

    @property
    def candidates(self) -> frozenset[BrokerId]:
        """Every other broker that the Controllers may elect, as far as this master knows: members, and slaves
        that join or are proposed."""
        return self.sync.candidates if self.sync is not None else frozenset()

    @property
    def rocketmq_slaves(self) -> frozenset[BrokerId]:
        """Connected slaves that are RocketMQ brokers: they never ask for this master's tables."""
        return frozenset(b for b, link in self.links.by_id.items() if not link.slave.answers_heartbeats)

    @property
    def set_epoch(self) -> int:
        return self.sync.set_epoch if self.sync is not None else 0

    @property
    def epoch(self) -> Epoch:
        """The epoch this broker is master or slave in; 0 while fenced."""
        if self.sync is not None:
            return self.sync.epoch
        return self._follower.master.epoch if self._follower is not None else NO_EPOCH

    @property
    def verified_epoch(self) -> Epoch | None:
        """Epoch in which this log is known to be a prefix of the master's; 0 without Controllers, None until
        verified."""
        if self.sync is not None:
            return self.sync.epoch
        return self._follower.verified_epoch if self._follower is not None else None

    @property
    def needs_reseed(self) -> str | None:
        """Why this slave's log cannot be continued from its master's, or None."""
        return self._follower.needs_reseed if self._follower is not None else None

    @property
    def unproven(self) -> str | None:
        """Why this slave and its master do not believe each other, or None."""
        return self._follower.unproven if self._follower is not None else None

    def lost(self, for_ms: float) -> str | None:
        """Why this slave has not followed its master for longer than that, or None."""
        return self._follower.lost(for_ms) if self._follower is not None else None

    @property
    def turned_away_total(self) -> int:
        """Links that did not prove themselves, since the start."""
        return self.links.turned_away.total

    def on_lease(self) -> None:
        """``holds_lease`` says yes again: what waited for that is confirmed and answered now."""
        if self.sync is not None:
            self.sync.on_lease()
            self._publish()

    def on_eligible(self, broker_id: BrokerId) -> None:
        """``eligible`` may say yes now for this slave: it can join without waiting for its next report."""
        if isinstance(self.sync, SyncSet):
            self.sync.on_eligible(broker_id, self._env.monotonic_ms())
            self._publish_and_propose()

    def reconfigure(self) -> None:
        """What of the configuration may change while this broker leads: ``minInSyncReplicas``, and what
        slaves may be sent a second."""
        self.links.reconfigure()
        if self.sync is not None:
            self.sync.on_copies_min(self._config.min_in_sync_replicas)
            self._publish_and_propose()

    def acked_by_all_recently(self) -> bool:
        """Whether this is a master to which every member acknowledged all there was a moment ago. That says
        what a lease says, also while no Controller is there to grant one (docs/decisions/0005-lease.md)."""
        if not self.conditions.acks_replace_lease():
            return False
        config = self._config
        within_ms = max(duration_ms(config.controller_heartbeat_timeout_ms), config.ha_heartbeat_ms * 1.5)
        return self.sync is not None and self.sync.acked_by_all_recently(self._env.monotonic_ms(), within_ms)

    def refuse(self) -> Refused | None:
        """The answer to a write that could not be confirmed, or None.

        A write is refused when a promise was found broken, when the lease ended and not every member is
        there, or when the set has fewer members than minInSyncReplicas or, in majority mode, a majority.
        """
        sync = self.links.replicas
        if sync is None:
            return None
        if self.broken is not None:
            return Refused(f"service not available now: {self.broken}", Response.SERVICE_NOT_AVAILABLE)
        if not self.conditions.holds_lease() and not self.acked_by_all_recently():
            return Refused(NO_LEASE, Response.SERVICE_NOT_AVAILABLE)
        if not sync.enough_members:
            text = f"in-sync replicas not enough: {len(sync.members)} of {sync.members_to_write}"
            return Refused(text, Response.SYSTEM_ERROR)
        return None

    def adopt(
        self, members: frozenset[BrokerId] | set[BrokerId], set_epoch: int, asked_ms: float | None = None
    ) -> None:
        """Take the Controllers' view if newer. ``asked_ms``: when it was asked for (``Env.monotonic_ms``)."""
        if isinstance(self.sync, SyncSet):
            self.sync.on_view(frozenset(members), set_epoch, asked_ms)
            self._publish_and_propose()

    def slaves(self) -> list[dict[str, Any]]:
        """One entry a connected slave: ``id``, ``address``, ``ackOffset`` and ``lagBytes`` (null before its
        report)."""
        return self.links.status(self._store.log.end)

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

    # What happens

    def _appended(self, end: PhysicalOffset) -> None:
        sync = self.links.replicas
        if sync is None:
            return
        sync.on_append(end)
        if (sync.confirmed, sync.replicated) != sync.evidence.told:
            self._publish()
        if self._config.flush_disk_type == "SYNC_FLUSH":
            self._store.sync_to(end)
        self.links.on_append(self._store.appended)

    def _flushed(self, flushed: PhysicalOffset) -> None:
        if self.sync is not None and self._config.flush_disk_type == "SYNC_FLUSH":
            self.sync.on_flush(flushed)
            self._publish()

    def _slave_changed(self, may_propose: bool) -> None:
        self._publish()
        if may_propose and self._proposals is not None:
            self._proposals.consider()

    def _publish_and_propose(self) -> None:
        self._publish()
        if self._proposals is not None:
            self._proposals.consider()

    def _publish(self) -> None:
        """Tell the store, the waiting answers, and soon the slaves, what is new."""
        sync, store = self.links.replicas, self._store
        if sync is None or self.broken is not None:
            return
        confirmed, replicated = sync.confirmed, sync.replicated
        more = confirmed > store.confirmed
        if not more and replicated <= self.replicated:
            return
        try:
            sync.check_invariants()
            sync.on_checked()
        except BrokenInvariantError as error:
            # A wrong answer is worse than none: no confirmation, no answer, no write from here on.
            self.broken = f"a promise of replication is broken: {error}"
            log.critical("broker %s: fenced until a restart: %s", self._config.broker_name, self.broken)
            self._env.events.add("invariant_broken", reason=str(error))
            for broke in self.on_broken:
                broke(MqError(self.broken))
            return
        if more:
            store.confirm(confirmed)
            self.links.on_confirm()
        if replicated > self.replicated:
            self.replicated = replicated
            for hook in self.on_replicated:
                hook(replicated)

    # Time

    async def _keep_house(self) -> float | None:
        self._tick()
        resting = self.links.ticking.resting = self.links.may_rest
        return UNTIL_WOKEN if resting else None

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
        self.links.on_tick(now_ms, self._tick_s() * 1000)
        if self.sync is not None:
            self.sync.on_tick(now_ms)
            self._publish_and_propose()
