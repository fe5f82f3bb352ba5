"""Which role has this broker, and what is done to change it?

With ``enableControllerMode`` the Controllers decide. One task looks at their view each
``syncBrokerMetadataPeriod``, and at once when something hints at a change (a notice 1008, a lost connection).
``broker/role/machine`` says what the view asks for; it is carried out here. Level-triggered: a lost message
costs time and nothing else. While no Controller answers, the broker keeps its role. Without Controllers the
configuration gives the role (``broker/role/classic``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from broker.discovery.registration import NO_ID
from broker.membership.broker_id import LOST_HELP
from broker.membership.controllers import Controllers
from broker.membership.heartbeats import Heartbeats
from broker.membership.membership import UNKNOWN_TO_CONTROLLER, Membership, Superseded
from broker.membership.view import View
from broker.role.classic import ClassicRole
from broker.role.epochs import recorded_epoch
from broker.role.handover import Handover
from broker.role.host import Elected, RoleHost
from broker.role.lease import Lease
from broker.role.link_watch import LOOK_S, LinkWatch
from broker.role.machine import (
    Action,
    Adopt,
    AskAnew,
    CannotBecome,
    Event,
    Facts,
    Fence,
    Follow,
    IllegalEventError,
    Lead,
    RoleMachine,
    State,
    Stay,
)
from broker.role.parts import RoleParts
from broker.role.replacement_requester import ReplacementRequester
from broker.state.role_state import Role
from model.codes import Response
from model.errors import BrokenInvariantError, DiskError, MqError, Refused, Unknown
from model.ids import MASTER_ID, BrokerId, Epoch
from remoting.codec import Command
from remoting.headers import opt_int
from remoting.service import RemotingClient
from runtime.backoff import Backoff
from runtime.loops import level_triggered
from runtime.tasks import Tasks, every

log = logging.getLogger(__name__)

RETRY_FIRST_MS: Final = 50
STEP_DOWN_S: Final = 1.0  # at a stop: time for the Controllers to elect the transfer target
LEASE_FIRST_S: Final = 0.3  # a new master waits at most this long for its first lease before it serves
FORGET_S: Final = 1.0  # a new master waits at most this long for its disk to note that nothing is missing
OUR_MISTAKES: Final = (IllegalEventError, BrokenInvariantError)


class RoleManager:
    """Carries out what the machine decides.

    ``on_change`` hears every change of role, master or epoch, and that a lease is there again; the
    NameServers are to be told then. ``on_no_ha_address`` hears again and again that this slave does not know
    where its master replicates from; only a NameServer that the master has registered at can tell
    (``on_ha_address``).
    """

    def __init__(
        self,
        parts: RoleParts,
        client: RemotingClient,
        host: RoleHost,
    ) -> None:
        env, config = parts.env, parts.config
        self.reason: str | None = "no word from a Controller yet"
        self.on_change: list[Callable[[], None]] = []
        self.on_no_ha_address: list[Callable[[], None]] = []
        self.machine = RoleMachine(parts.current, LOST_HELP)
        self._parts = parts
        self._host = host
        self._classic = ClassicRole(parts, self.machine, host, lambda: self.over)  # without Controllers
        self._tasks = Tasks("role")
        self._stopping = False
        self._wake = asyncio.Event()
        self._changing = asyncio.Lock()
        self._controllers = Controllers(env, config, client)
        self._membership = Membership(env, config, parts.store, self._controllers)
        self._beats = Heartbeats(parts, self.machine, self._controllers, self._tasks)
        self._handover = Handover(
            config.broker_name, self.machine, host, self._beats.lease, self._tasks, self._beat
        )
        self._beats.on_lease = self._on_lease
        self._beats.on_no_lease = self._wake.set
        self._beats.on_back = self._tell_change

    def reconfigure(self) -> None:
        self._controllers.reconfigure()

    async def start(self) -> None:
        """Take up the work; returns before there is a role when Controllers decide.

        Raises ConfigError when the store's identity cannot be right, DiskError.
        """
        self._parts.store.on_broken.append(self._store_broke)
        self._parts.ha.on_broken.append(self._ha_broke)
        if not self._parts.config.enable_controller_mode:
            self._membership.broker_id = self._classic.broker_id
            self._changed(await self._classic.take_up())
            return
        await self._membership.start()
        requester = ReplacementRequester(
            self._parts, self.machine, self._host, self._controllers, self.lease, self._wake.set
        )
        conditions = self._parts.ha.conditions
        conditions.before_reseed = self._before_reseed
        lease = self.lease
        conditions.holds_lease = lease.holds
        # Where a broker outside of the set may be elected, members that acknowledge prove nothing.
        conditions.acks_replace_lease = lambda: not lease.required
        conditions.keeps_set = requester.keeps_set
        self._tasks.spawn(self._watch_view(), name="life")
        # A lease is 0.8 of the timeout: four questions fit into it.
        timeout_ms = self._parts.config.controller_heartbeat_timeout_ms
        period_s = min(self._parts.config.broker_heartbeat_ms, timeout_ms / 5) / 1000
        self._tasks.spawn(every(period_s, self._beat, what="the heartbeat"), name="heartbeat")
        watch = LinkWatch(self._parts.env.monotonic_ms, self._controllers.alive, self._linked)
        self._tasks.spawn(every(LOOK_S, watch.look, what="looking for lost replicas"), name="links")
        self.on_change.append(requester.on_change)
        self._tasks.spawn(requester.run(), name="replacement")

    def on_stopping(self) -> None:
        """The broker begins to stop: it takes up no role any more. The Controllers still see it as it was."""
        self._stopping = True

    async def stop(self) -> None:
        """No more heartbeats, no more changes of role; the Controllers see the connection end. Idempotent."""
        self.machine.on(Event.STOP)
        if self._store_broke in self._parts.store.on_broken:
            self._parts.store.on_broken.remove(self._store_broke)
            self._parts.ha.on_broken.remove(self._ha_broke)
        self._beats.cancel_timer()
        self._handover.forget()
        await self._tasks.cancel()
        await self._controllers.stop()
        if self._parts.config.enable_controller_mode:
            self._controllers.hang_up()

    # What others ask and tell

    @property
    def role(self) -> Role:
        return self.machine.role

    @property
    def broker_id(self) -> BrokerId | None:
        """The permanent id, None while there is none."""
        return self._membership.broker_id

    @property
    def over(self) -> bool:
        """No role is taken up any more: it stops, or broke."""
        return self._stopping or self.machine.over

    @property
    def epoch(self) -> Epoch:
        """That of the master this broker knows."""
        return self.machine.epoch

    @property
    def master_address(self) -> str | None:
        return self.machine.current.master_address

    @property
    def lease(self) -> Lease:
        return self._beats.lease

    @property
    def registration_id(self) -> int:
        """The id for the NameServers: 0 while master, the permanent one while slave, -1 while fenced."""
        if self.machine.is_master or self.machine.announced:
            return MASTER_ID
        return self.broker_id if self.role == "slave" and self.broker_id is not None else NO_ID

    async def notice(self, command: Command, address: str) -> None:
        """NOTIFY_BROKER_ROLE_CHANGED (1008): a hint to look at the Controllers' view now.

        The view itself is read from their leader: a forged notice moves nothing. ``address``: where this
        broker had connected to; a Controller that tells of an election leads, or did just now.
        """
        epoch = opt_int(command.ext, "masterEpoch", 0)
        if not command.ext.get("masterBrokerId") or epoch < self.epoch:
            return
        self._controllers.heard_of_election(address)
        if epoch > self.epoch:
            self._wake.set()

    async def hand_over(self, command: Command) -> int:
        """The Controllers' leader asks this master to step down (ELECT_MASTER): our log's end, all of it at
        the transfer target, bytes. Raises Refused."""
        try:
            await self._handover.begin(command)
        except OUR_MISTAKES as mistake:
            self._on_mistake(mistake)
            raise Refused("this broker fenced itself", Response.CONTROLLER_INVALID_MASTER) from mistake
        return self._parts.store.log.end

    async def hand_over_at_stop(self, transfer_target: BrokerId) -> None:
        """Have ``transfer_target`` elected: this broker is drained and about to stop. Best effort: on failure
        the closed connection triggers an election."""
        by_controllers = self._parts.config.enable_controller_mode
        if not by_controllers or self.broker_id is None or not self.machine.is_master:
            return
        self.lease.give_up()
        try:
            async with asyncio.timeout(STEP_DOWN_S):
                await self._controllers.elect(transfer_target, yields=self.broker_id, epoch=self.epoch)
        except (MqError, OSError) as error:
            log.info("%s stops without a handover: %s", self._parts.name, error)

    def on_connection_lost(self, address: str) -> None:
        """The connection to ``address`` ended; if the Controllers' leader was there, look for another one."""
        if address == self._controllers.leader:
            self._controllers.leader = None
            self._wake.set()
        if address in self._controllers.all() and self._beats.may_hurry():
            # Perhaps only the connection was lost: send a heartbeat before we are taken for dead.
            self._beat()

    def on_ha_address(self, master_address: str, ha_address: str) -> None:
        """A NameServer told the HA address of a master; RocketMQ's Controllers do not."""
        if not self._parts.config.enable_controller_mode:
            self._tasks.spawn(self._named(master_address, ha_address), name="classic master")
            return
        if self.machine.on_ha_hint(master_address, ha_address) and self.role == "slave":
            unknown = self.machine.ha_address is None and self.master_address == master_address
            if unknown or master_address == self._parts.config.group_address:
                self._wake.set()

    def status(self) -> dict[str, Any]:
        """JSON-ready. ``following``: the slave's state, see ``ha.slave.follower.State``."""
        return {
            "role": self.role,
            "brokerId": self.broker_id,
            "epoch": self.epoch,
            "master": self.master_address,
            "controller": self._controllers.leader,
            "registered": self._membership.registered,
            "reason": self.reason or self._parts.ha.needs_reseed,
            "lease": self._beats.status(),
            "following": self._parts.ha.status()["following"],
        }

    async def _named(self, master_address: str, ha_address: str) -> None:
        async with self._changing:
            await self._classic.on_named(master_address, ha_address)

    # With Controllers

    def _linked(self) -> set[BrokerId] | None:
        if not self.machine.is_master or self.broker_id is None:
            return None
        return {self.broker_id, *(slave["id"] for slave in self._parts.ha.slaves())}

    async def _watch_view(self) -> None:
        period_ms = self._parts.config.sync_broker_metadata_ms
        await level_triggered(
            self._look_or_fence,
            self._wake,
            period_ms / 1000,
            Backoff(self._parts.env.random, RETRY_FIRST_MS, period_ms),
            f"{self._parts.name}: looking at the Controllers' view",
            on_error=lambda error: self._note(str(error) or type(error).__name__),
            ended=lambda: self.machine.over,
        )

    async def _before_reseed(self) -> None:
        self.machine.on_lost()
        await self._membership.before_reseed()

    def _note(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("%s: %s", self._parts.name, reason)
        self.reason = reason

    async def _look_or_fence(self) -> None:
        try:
            await self._look()
        except OUR_MISTAKES as mistake:
            self._on_mistake(mistake)

    async def _look(self) -> None:
        """Read the Controllers' view and become what it says."""
        membership = self._membership
        try:
            view, registered = await membership.view(slave=self.role == "slave")
            if registered:
                await self._registered(await membership.id(), view)
            if view.master_id is None:
                lacks = self._host.lacks()
                if lacks is not None:
                    raise MqError(f"no master to copy from what was lost here: {lacks}")
                view = await self._elect(await membership.id(), view)
        except Superseded as error:
            if self.role != "fenced":
                await self._fence(str(error))
            await membership.on_superseded()
            raise
        except Refused as refused:
            if await membership.on_refused(refused, self._host.lacks()):
                self._wake.set()
            raise
        broker_id = await membership.id()
        await self._become(broker_id, view)
        if self.role == "slave":
            await membership.on_view(view)
            self._parts.current.old_disk = membership.old
        await membership.on_look()
        if self.role == "slave" and self.machine.ha_address is None:
            for hook in self.on_no_ha_address:
                hook()

    async def _registered(self, broker_id: BrokerId, view: View) -> None:
        self.machine.on_known(view.epoch)
        if not self.machine.over:
            self.machine.on(Event.REGISTERED)
        self._parts.current.registered_as, self._parts.current.old_disk = broker_id, self._membership.old
        # Before an election this broker must be known to be alive.
        if self._host.lacks() is None:
            await self._controllers.beat_leader(self._beats.fields(broker_id))

    async def _elect(self, broker_id: BrokerId, view: View) -> View:
        try:
            return await self._controllers.elect(broker_id)
        except Refused as refused:
            if refused.code in UNKNOWN_TO_CONTROLLER:
                raise
            action = self.machine.on_not_elected(view, refused.remark)
            if isinstance(action, Fence):
                await self._fence(action.reason)
            raise

    async def _become(self, broker_id: BrokerId, view: View) -> None:
        async with self._changing:
            self._parts.current.maintenance = view.maintenance
            self._parts.current.in_sync = broker_id in view.members
            if view.epoch > self.epoch and not self.over:
                self._parts.store.throttle.postpone()
            view, action = await self._decided(broker_id, view)
            match action:
                case Stay():
                    pass
                case CannotBecome(reason):
                    raise MqError(reason)
                case Fence(reason):
                    log.error("%s fences itself: %s", self._parts.name, reason)
                    self.reason = reason
                    await self._fence_now()
                    if self.machine.cannot_begin:
                        self._wake.set()  # it asks for another one now
                    return
                case Adopt(asked_ms):
                    self.machine.on_set(view.epoch, view.set_epoch, self._parts.env.monotonic_ms())
                    self._parts.ha.links.on_incarnations(view.incarnations)
                    self._parts.ha.adopt(view.members, view.set_epoch, asked_ms)
                case Lead(announce):
                    await self._lead(broker_id, view, announce=announce)
                case Follow(ha_address, rocketmq_peer):
                    self._parts.ha.expect_master(rocketmq_peer=rocketmq_peer)
                    address = view.master_address
                    self.machine.on_change()
                    await self._host.follow(broker_id, view.epoch, address, ha_address)
                    if not self.over:
                        self._changed(self.machine.on_follow(broker_id, view.epoch, address, ha_address))
            if view.epoch == self.epoch and not self.over:
                self.reason = None

    async def _decided(self, broker_id: BrokerId, view: View) -> tuple[View, Action]:
        """What the view asks for; or, where the Controllers had to be asked anew, what their answer does."""
        action = self.machine.decide(view, self._facts(broker_id))
        if isinstance(action, Lead) and self.machine.beginning.asks(
            view.epoch, self._parts.env.monotonic_ms()
        ):
            self.machine.on_cannot_begin()
            action = self.machine.decide(view, self._facts(broker_id))
        if isinstance(action, AskAnew):
            losses = self.machine.losses
            view = await self._ask_anew(broker_id, view)
            self.machine.on_examined(losses)
            action = self.machine.decide(view, self._facts(broker_id))
            if isinstance(action, AskAnew):
                if losses == self.machine.losses:
                    raise BrokenInvariantError("a broker that was examined is to be examined again")
                raise MqError("the log was put aside while the Controllers were asked: they are asked again")
        return view, action

    async def _ask_anew(self, broker_id: BrokerId, view: View) -> View:
        """The Controllers' decision, now that they hear what is here. Raises as ``Controllers.elect``."""
        log_epoch = recorded_epoch(self._parts.store)
        if self.machine.cannot_begin and self.epoch < view.epoch:
            log_epoch = min(log_epoch, Epoch(view.epoch - 1))  # noted perhaps, and never led
        return await self._controllers.elect(
            broker_id,
            restarted=True,
            log_epoch=log_epoch,
            suspect=self._membership.suspect,
            cannot_begin=self.machine.cannot_begin,
            epoch=view.epoch,
        )

    def _facts(self, broker_id: BrokerId) -> Facts:
        return Facts(
            broker_id,
            recorded_epoch(self._parts.store),
            suspect=self._membership.unclean or self._membership.suspect,
            must_copy=self._host.lacks(),
            leases_supported=bool(self.lease.supported),
            group_address=self._parts.config.group_address,
            stopping=self._stopping,
        )

    async def _lead(self, broker_id: BrokerId, view: View, *, announce: bool) -> None:
        if not self.machine.is_master:
            await self._parts.ha.become_fenced()
        await self._take_tables(broker_id, view)
        # Who cannot begin is perhaps to be replaced.
        try:
            self.machine.on_announced(announce)
            if announce:
                self._host.announce(view.epoch)
            await self._lead_now(broker_id, view)
        except Exception:
            self.machine.beginning.on_failed(view.epoch, self._parts.env.monotonic_ms())
            raise
        finally:
            self.machine.on_announced(False)
            if announce and not self.machine.is_master:
                self._tell_change()  # it came to nothing: the NameServers are to know

    async def _take_tables(self, broker_id: BrokerId, view: View) -> None:
        """A member that has them is waited for; a disk here that does not take them is not."""
        try:
            await self._host.take_tables(broker_id, view.epoch, view.table_sources)
        except (OSError, DiskError):
            self.machine.beginning.on_failed(view.epoch, self._parts.env.monotonic_ms())
            raise

    async def _lead_now(self, broker_id: BrokerId, view: View) -> None:
        self._beats.begin(view.epoch, lease_required=view.needs_lease)
        self._parts.ha.links.on_incarnations(view.incarnations)
        # Before it serves, so that no write is refused for want of a lease. Without an answer it serves all
        # the same, and asks again with each heartbeat.
        await self._beats.renew(broker_id, LEASE_FIRST_S)
        propose = partial(self._propose, broker_id, view.epoch)
        # Elected by Controllers that knew of the suspicion: what this log has is what the group has.
        async with asyncio.timeout(FORGET_S):  # a disk that hangs does not begin, either
            await self._membership.forget_suspicion()
        self.machine.on_change()
        await self._host.lead(Elected(broker_id, view.epoch, view.members, view.set_epoch, propose))
        if not self.over:
            self.machine.on_set(view.epoch, view.set_epoch, self._parts.env.monotonic_ms())
            self._changed(self.machine.on_lead(broker_id, view.epoch, self._parts.config.address))

    def _changed(self, new: bool) -> None:
        """The machine noted a role."""
        self._handover.forget()
        current = self.machine.current
        if current.role != "fenced":
            self.reason = None
        if not new:
            return
        log.info(
            "%s is %s in epoch %d, master %s",
            self._parts.name,
            current.role,
            current.epoch,
            current.master_address,
        )
        told = self._heard_as() if current.role != "fenced" else None
        if told is not None:
            self._beats.send_to_all(told)
        self._tell_change()

    def _tell_change(self) -> None:
        for hook in self.on_change:
            hook()

    async def _propose(
        self, broker_id: BrokerId, epoch: Epoch, members: frozenset[BrokerId], set_epoch: int
    ) -> tuple[frozenset[BrokerId], int] | None:
        try:
            incarnations = self._parts.ha.links.incarnations_of(members)
            answer = await self._controllers.alter(broker_id, epoch, members, set_epoch, incarnations)
        except Unknown:
            self._wake.set()  # the view tells what became of it
            raise
        if answer is None:
            self._wake.set()  # perhaps our set, epoch or role is not what it was
        else:
            self.machine.on_set(epoch, answer[1], self._parts.env.monotonic_ms())
        return answer

    def _heard_as(self) -> BrokerId | None:
        """By which id its heartbeats go out, or None while none may: only a living one is elected, or counted
        as having said how far its log is, so a broker that must copy something first sends none."""
        registered = self._membership.registered and self._host.lacks() is None
        return self.broker_id if registered else None

    def _beat(self) -> None:
        broker_id = self._heard_as()
        if broker_id is not None and not self.machine.over:
            self._beats.send(broker_id)

    def _on_lease(self, epoch: Epoch, term: int | None) -> None:
        # A leader that does not say its term may not be the one that elects.
        if term is not None:
            self._handover.on_lease(epoch)

    # The end of a store, or of a broker that is wrong about itself

    def _on_mistake(self, mistake: BaseException) -> None:
        """A wrong answer is worse than none: a move that no state allows ends this broker's roles."""
        self._broke("fenced until a restart: internal error", mistake)

    def _store_broke(self, error: BaseException) -> None:
        self._broke("the store is broken", error)

    def _ha_broke(self, error: BaseException) -> None:
        self._broke("replication is broken", error)

    def _broke(self, what: str, error: BaseException) -> None:
        """What failed for good must not lead, nor count as a replica: the Controllers hear of it at once."""
        if not self.machine.over:
            self.machine.on(Event.BREAK)
            self._controllers.hang_up()
            self._wake.set()
            reason = f"{what}: {str(error) or type(error).__name__}"
            self._note(reason)  # at once: a change that is being made may last
            self._tasks.spawn(self._fence(reason), name="fence")

    async def _fence(self, reason: str) -> None:
        async with self._changing:
            self._note(reason)
            await self._fence_now()

    async def _fence_now(self) -> None:
        self.machine.on_change()
        await self._host.fence()
        if self.machine.state is not State.STOPPED:
            self.machine.on_fence()
            self._changed(new=True)
