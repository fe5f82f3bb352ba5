"""Which parts is a broker made of, and in which order do they start?

``Broker`` wires store, replication, processors and servers. ``broker/role/changes`` carries out what
``broker/role/manager`` decides; ``broker/stopping`` is the way down.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final

from broker import stopping
from broker.acl.requests import AclProcessor, access_of
from broker.acl.signed_path import SignedPath
from broker.context import BrokerContext, Trust
from broker.discovery.group_address import GroupAddress
from broker.discovery.registration import Registration, changes_of
from broker.membership.view import TableSource
from broker.processors import Processors
from broker.requests.consumers.fast_pull import FastReads
from broker.requests.consumers.pull import CHECK_S
from broker.requests.fast_path import FastPath
from broker.role.changes import RoleChanges
from broker.role.host import Elected
from broker.role.manager import RoleManager
from broker.role.parts import RoleParts
from broker.state.current_role import CurrentRole
from broker.state.pending_acks import PendingAcks
from broker.status import status_of
from broker.tables.groups import Groups
from broker.tables.offsets import OffsetTable
from broker.tables.pairs import PairCount
from broker.tables.table_files import TableFiles
from broker.tables.topics import Topics
from broker.timers.progress import TimerProgress
from broker.upkeep.delay import DelayOffsets
from broker.upkeep.services import Upkeep
from ha.service import HaService
from model.codes import Request
from model.config import BrokerConfig
from model.ids import BrokerId, Epoch
from remoting.acl.control import own_credentials
from remoting.codec import Command
from remoting.service import (
    BufferHandler,
    Connection,
    Guard,
    Limits,
    RemotingClient,
    RemotingServer,
    unsupported,
)
from runtime.env import Env
from runtime.tasks import Tasks, every
from store.message_store import MessageStore

log = logging.getLogger(__name__)

ASKED: Final = Limits(frame_bytes_max=128 << 20)
"""Of whom this broker chose to ask: all tables of a master at their limits are 35 MB."""
EXPIRE_S: Final = 10.0
LOST_MS: Final = 10_000.0  # a slave without a link to its master for longer does not do its work


class Broker:
    """One broker. ``context`` has its store, replication and tables."""

    def __init__(self, env: Env, config: BrokerConfig) -> None:
        self.context = _context(env, config)
        self.started = False
        self.port = 0
        name = f"broker {config.broker_name}"
        self.tasks = Tasks(name)
        credentials, signing = own_credentials(env, config)
        guard = _guard_of(env, config, self.pending_acks)
        self.acl = access_of(env, config, guard, credentials)
        self.context.trust = Trust(credentials, self.acl.directory, self.acl.gate)
        self.client = RemotingClient(
            env, name, handler=self._handle_asked, on_close=self._link_lost, credentials=signing, limits=ASKED
        )
        parts = RoleParts(env, config, self.store, self.ha, self.role_state)
        self.role = RoleManager(parts, self.client, self)
        self.registration = Registration(
            env,
            config,
            self.client,
            self.topics.to_text,
            lambda: self.role.registration_id,
            is_sole_master=lambda: self._is_sole_master(needs_role=True),
            listening=lambda: self.group_address.listening,
            changes=changes_of(self.topics),
        )
        delays, timed = DelayOffsets(env.now_ms), TimerProgress(env.now_ms)
        self.processors = Processors(self.context, delays, timed)
        guard.starts.bodies.need_message = self.processors.sender.need_body
        self.tables = TableFiles(self.context, delays, timed)
        self.upkeep = Upkeep(self.context, self.tables, self.client, self.registration)
        context, acl = self.context, AclProcessor(self.context, self.acl, self.client)
        self.processors.answer(self.upkeep, self._role_changed, acl, self.client)

        def make_server(server_name: str) -> RemotingServer:
            return RemotingServer(
                env,
                server_name,
                self._handle,
                fast=self._fast(fast, guard),
                on_close=self._closed,
                credentials=credentials,
                guard=guard,
            )

        self.fast = fast = FastPath(
            config, self.store, self.topics, self.pending_acks, self.context.stats, self._refuse_fast
        )
        self.processors.configuration.on_change += [fast.forget_routes, self._reconfigure]
        self.server = make_server(name)
        self.group_address = GroupAddress(
            env,
            config,
            make_server,
            refuses=self._refuse_fast,
            is_sole_master=self._is_sole_master,
            on_change=self.registration.soon,
        )
        self.roles = RoleChanges(
            context, self.processors, self.upkeep, self.tables, self.group_address, lambda: self.role.over
        )

    # The parts by name

    @property
    def env(self) -> Env:
        return self.context.env

    @property
    def config(self) -> BrokerConfig:
        return self.context.config

    @property
    def store(self) -> MessageStore:
        return self.context.store

    @property
    def ha(self) -> HaService:
        return self.context.ha

    @property
    def role_state(self) -> CurrentRole:
        return self.context.role_state

    @property
    def topics(self) -> Topics:
        return self.context.topics

    @property
    def groups(self) -> Groups:
        return self.context.groups

    @property
    def offsets(self) -> OffsetTable:
        return self.context.offsets

    @property
    def delays(self) -> DelayOffsets:
        return self.tables.delays

    @property
    def pending_acks(self) -> PendingAcks:
        return self.context.pending_acks

    # Life

    async def start(self) -> None:
        """Recover the store, listen, take a role. Raises OSError, DiskError, ConfigError, all undone."""
        try:
            await self._start()
        except BaseException:
            self.store.start_failed()
            await self.stop()
            raise

    async def _start(self) -> None:
        config = self.config
        await self.store.open()
        self.tables.load()
        self.acl.load(self.tasks)
        self.acl.add_configured()
        self._wire()
        await self.ha.start()
        clients = self.processors.clients
        self.tasks.spawn(every(CHECK_S, self._tick, what="looking at held pulls"), name="tick")
        self.tasks.spawn(every(EXPIRE_S, clients.expire, what="closing silent clients"), name="expire")
        self.upkeep.start(self.tasks)
        self.port = await self.server.start(config.bind_address, config.listen_port)
        if config.fast_port_enable and config.listen_port > 2:
            await self.server.start(config.bind_address, config.listen_port - 2)
        log.info("plain sends take the path: %s", self.fast.describe())
        await self.role.start()
        await self.registration.start()
        self.started = True

    async def stop(self) -> None:
        """Orderly and idempotent: answers leave, tables and log are flushed, files closed."""
        if not self.roles.stopping:
            self.roles.stopping = True
            await stopping.stop(self)

    def _wire(self) -> None:
        upkeep, registration, role = self.upkeep, self.registration, self.role
        self.ha.on_replicated.append(self.pending_acks.on_replicated)
        self.store.on_flush.append(self.pending_acks.on_flushed)
        self.store.on_broken.append(self._broken)
        role.on_change.append(registration.soon)
        role.on_change.append(upkeep.acting.soon)
        role.on_no_ha_address.append(registration.soon)
        self.topics.on_change.append(lambda names: self._topics_changed())
        registration.on_master.append(role.on_ha_address)

    def _topics_changed(self) -> None:
        """A slave's table is in no route: what it copied is registered with the next period."""
        if self.role_state.is_master:
            self.registration.soon()

    # What the role manager asks (``broker.role.host.RoleHost``)

    async def lead(self, elected: Elected) -> None:
        await self.roles.lead(elected)
        self.check_invariants()

    async def take_tables(self, broker_id: BrokerId, epoch: Epoch, sources: Sequence[TableSource]) -> None:
        await self.roles.take_tables(broker_id, epoch, sources)

    def announce(self, epoch: Epoch) -> None:
        self.roles.announce(epoch)

    async def follow(
        self, broker_id: BrokerId, epoch: Epoch, master_address: str | None, master_ha_address: str | None
    ) -> None:
        await self.roles.follow(broker_id, epoch, master_address, master_ha_address)

    async def fence(self) -> None:
        await self.roles.fence()
        self.check_invariants()

    async def drain(self, transfer_target: BrokerId, timeout_s: float) -> bool:
        return await self.roles.drain(transfer_target, timeout_s)

    def transfer_target(self) -> BrokerId | None:
        return self.roles.transfer_target()

    def resume(self) -> None:
        self.roles.resume()

    def lacks(self) -> str | None:
        return self.roles.lacks()

    # Serving

    def _fast(self, sends: FastPath, guard: Guard) -> BufferHandler:
        if guard.gate is None:
            return FastReads(sends, self.processors.pulls, guard, self.context)
        return SignedPath(sends, guard.gate, self.config.frame_bytes_max)

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        handler = self.processors.handlers.get(request.code)
        if handler is None:
            raise unsupported(request)
        return await handler(connection, request)

    async def _handle_asked(self, connection: Connection, request: Command) -> Command | None:
        """Requests on connections this broker made itself: from Controllers and NameServers."""
        if request.code == Request.CONTROLLER_ELECT_MASTER:
            end = await self.role.hand_over(request)
            return request.reply(ext={"maxOffset": str(end)})
        return await self._handle(connection, request)

    async def _role_changed(self, connection: Connection, request: Command) -> Command | None:
        await self.role.notice(request, connection.address)
        return None if request.is_oneway else request.reply()

    def _link_lost(self, connection: Connection) -> None:
        self.role.on_connection_lost(connection.address)
        self.registration.lost(connection.address)

    def _is_sole_master(self, *, needs_role: bool = False) -> bool:
        """Whether no other master can be there now: it has a lease, or every member acknowledged a moment
        ago. ``needs_role``: the latter counts only while this broker takes writes."""
        if self.role.lease.holds():
            return True
        return not (needs_role and self.role_state.refuse()) and self.ha.acked_by_all_recently()

    def _refuse_fast(self) -> bool:
        context = self.context  # asked for each read: no property on the way
        return (
            not context.role_state.takes_writes
            or self.roles.stopping
            or context.store.why_not_writable is not None
            or context.ha.refuse() is not None
        )

    def _broken(self, error: BaseException) -> None:
        """The disk failed for good: what waits may not be there."""
        log.error("%s: the store is broken: %s", self.config.broker_name, error)
        self.pending_acks.drop()

    def _reconfigure(self) -> None:
        """Live keys changed: what does not read them each time hears of it."""
        self.pending_acks.reconfigure(self.config)
        self.ha.reconfigure()
        self.registration.reconfigure()
        self.role.reconfigure()

    def _closed(self, connection: Connection) -> None:
        self.pending_acks.forget(connection)
        self.context.turns.forget(connection)
        self.context.effort.forget(connection)
        self.processors.clients.closed(connection)
        self.processors.pops.closed(connection)

    async def _tick(self) -> None:
        await self.processors.pulls.check()
        self.processors.pops.tick()
        now_ms = self.env.monotonic_ms()
        self.context.stats.tick(now_ms)
        self.context.pending_acks.waits.tick(now_ms)

    # What is shown

    def status(self) -> dict[str, Any]:
        return status_of(self)

    def health(self) -> str | None:
        """None, or why this broker cannot do its work now."""
        if not self.started or self.roles.stopping:
            return "not started" if not self.started else "stopping"
        if self.store.why_not_writable is not None:
            return self.store.why_not_writable
        if self.role_state.role == "fenced":
            return f"fenced: {self.role.reason or 'no role from the Controller'}"
        if self.ha.needs_reseed is not None:
            return f"needs a re-seed: {self.ha.needs_reseed}"
        if self.ha.unproven is not None:
            return f"does not follow its master: {self.ha.unproven}"
        lost = self.ha.lost(LOST_MS)
        if lost is not None and self.role.reason is not None:
            return f"{lost}; {self.role.reason}"
        return lost

    def ready(self) -> str | None:
        """None, or why another broker of the group is not to be stopped yet: a slave may be well, and lack
        what the others have."""
        config, role = self.context.config, self.role_state
        why = self.health()
        if why is not None or role.role != "slave":
            return why
        if config.enable_controller_mode and not config.async_learner and not role.in_sync:
            return "not in the SyncStateSet yet"
        # For a moment a SyncStateSet names a broker that was stopped and started within it.
        if self.ha.verified_epoch != role.epoch:
            return f"does not follow its master in epoch {role.epoch} yet"
        return None

    def check_invariants(self) -> None:
        """Raise if what this broker shows and what it does are two things."""
        role, ha = self.role_state, self.ha
        if role.is_master and not role.handing_over and role.epoch > 0:
            assert ha.epoch in (0, role.epoch), f"master of epoch {role.epoch}, replicates in {ha.epoch}"
        if role.role == "fenced":
            assert not len(self.pending_acks) or self.roles.stopping, "a fenced broker acknowledges nothing"


def _guard_of(env: Env, config: BrokerConfig, pending_acks: PendingAcks) -> Guard:
    guard = Guard(f"broker {config.broker_name}", Limits.of(config), env.monotonic_ms)
    pending_acks.slow, pending_acks.made = guard.slow.requests, guard.made
    return guard


def _context(env: Env, config: BrokerConfig) -> BrokerContext:
    store = MessageStore(env, config, controller_mode=config.enable_controller_mode)
    ha = HaService(env, store, config)
    topics = Topics(config, env.now_ms)
    pairs = PairCount(lambda: config.offset_pairs_max, topics.queues_of)
    return BrokerContext(
        env,
        config,
        store,
        ha,
        CurrentRole(),
        topics,
        Groups(config, env.now_ms),
        OffsetTable(env.now_ms, pairs),
        PendingAcks(
            env,
            config,
            replicated=lambda: ha.replicated,
            flushed=lambda: store.log.flushed,
            sync_to=store.sync_to,
        ),
    )
