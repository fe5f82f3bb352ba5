"""Which parts is a broker made of, and in which order do they start, change roles and stop?

``Broker`` wires store, replication, processors and servers. ``lead``, ``follow`` and ``fence`` carry out what
``broker/role/manager`` (the Controller's word) decides; without a Controller a broker leads its group alone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.acting import Acting
from broker.requests.admin import AdminProcessor
from broker.requests.fast_path import FastPath
from broker.requests.heartbeats import ClientProcessor
from broker.requests.locks import LockProcessor
from broker.requests.offsets import OffsetProcessor
from broker.requests.pull import CHECK_S, PullProcessor
from broker.requests.query import QueryProcessor
from broker.requests.send import SendProcessor
from broker.requests.table import handlers
from broker.requests.tables import TableProcessor
from broker.requests.transactions import Transactions
from broker.role.group_address import GroupAddress
from broker.role.manager import RoleManager
from broker.role.registration import Registration
from broker.state.current_role import CurrentRole
from broker.state.files import ConfigFile
from broker.state.groups import Groups
from broker.state.offsets import OffsetTable
from broker.state.pending_acks import PendingAcks
from broker.state.role_state import Role, RoleState
from broker.state.topics import Topics
from broker.upkeep.delay import DelayOffsets, DelayService
from broker.upkeep.log_compare import LogCompare
from broker.upkeep.log_repair import LogRepair
from broker.upkeep.table_sync import MetadataSync
from ha.proposals import Propose
from ha.service import HaService
from model.codes import Request
from model.config import BrokerConfig
from model.errors import DiskError
from remoting.auth import read_credentials
from remoting.codec import Command
from remoting.service import Connection, Handler, RemotingClient, RemotingServer, unsupported
from runtime.env import Env
from runtime.tasks import Tasks, every
from runtime.turns import Turns
from store.message_store import MessageStore

log = logging.getLogger(__name__)

EXPIRE_S: Final = 10.0
RECENT_MS: Final = 600_000
DELAY_OFFSETS_WRITE_S: Final = 5.0
DRAIN_S: Final = 1.0  # at a stop: time for answers that wait for slaves or the disk
DRAIN_STEP_S: Final = 0.002
QUIET_S: Final = 0.5  # a client on a busy machine may take that long to send what it began before it knew
QUIET_AT_MOST_S: Final = 3.0
"""At a stop: clients that are told to go away need a moment; what they sent before is still answered."""


class Broker:
    """One broker. Public: ``store ha standing topics groups offsets role registration``."""

    def __init__(self, env: Env, config: BrokerConfig) -> None:
        self.env = env
        self.config = config
        self.store = MessageStore(env, config, controller_mode=config.enable_controller_mode)
        self.ha = HaService(env, self.store, config)
        self.role_state = CurrentRole()
        self.topics = Topics(config, env.now_ms)
        self.groups = Groups(config, env.now_ms)
        self.offsets = OffsetTable(env.now_ms)
        self.delays = DelayOffsets(env.now_ms)
        self.pending_acks = PendingAcks(
            env,
            config,
            replicated=lambda: self.ha.replicated,
            flushed=lambda: self.store.log.flushed,
            sync_to=self.store.sync_to,
        )
        self.context = BrokerContext(
            env,
            config,
            self.store,
            self.ha,
            self.role_state,
            self.topics,
            self.groups,
            self.offsets,
            self.pending_acks,
        )
        self._credentials = self.context.credentials = read_credentials(
            env.disk, config.peer_credentials_file
        )
        self.client = RemotingClient(
            env,
            f"broker {config.broker_name}",
            handler=self._handle_asked,
            on_close=self._link_lost,
            credentials=self._credentials,
        )
        self.role = RoleManager(env, config, self.store, self.ha, self.client, self)
        self.registration = Registration(
            env,
            config,
            self.client,
            self.topics.to_text,
            lambda: self.role.registration_id,
            entitled=lambda: (
                self.role.lease.holds()
                or (self.role_state.refuse() is None and self.ha.acked_by_all_recently())
            ),
            listening=lambda: self.group_address.listening,
        )
        self.sender = SendProcessor(self.context)
        self._pulls = PullProcessor(self.context)
        self._clients = ClientProcessor(self.context)
        self._admin = AdminProcessor(self.context, self.delays)
        self._delay = DelayService(self.context, self.delays, self.sender)
        self._transactions = Transactions(self.context, self.sender)
        self.metadata = MetadataSync(self.context, self.delays, self.client)
        self.acting = Acting(self.context, self.client, self.registration.member_ids, lambda: self.ha.follows)
        self.repair = LogRepair(self.context, self.client, self.registration.members)
        self.compare = LogCompare(self.context, self.client, self.repair)
        self.handlers = dict(
            handlers(
                send=self.sender,
                pull=self._pulls,
                offsets=OffsetProcessor(self.context),
                query=QueryProcessor(self.context),
                clients=self._clients,
                locks=LockProcessor(self.context),
                tables=TableProcessor(self.context),
                admin=self._admin,
                transactions=self._transactions,
            )
        )
        self.handlers[int(Request.NOTIFY_BROKER_ROLE_CHANGED)] = self._role_changed
        self.handlers[int(Request.READ_LOG_RANGE)] = self.repair.read
        self.handlers[int(Request.KEELMQ_LOG_DIGESTS)] = self.compare.digests
        self._asked: dict[int, Handler] = {int(Request.CONTROLLER_ELECT_MASTER): self._hand_over}
        self.handlers[int(Request.KEELMQ_COPY_TABLES)] = self.context.copies.question
        self.hot = FastPath(
            config, self.store, self.topics, self.pending_acks, self.context.stats, self._refuse_hot
        )
        self._admin.on_config.append(self.hot.forget_routes)
        self.server = self._make_server(f"broker {config.broker_name}")
        self.group_address = GroupAddress(
            env,
            config,
            self._make_server,
            refuses=self._refuse_hot,
            sure=lambda: self.role.lease.holds() or self.ha.acked_by_all_recently(),
            on_change=self.registration.soon,
        )
        self.port = 0
        self._tasks = Tasks(f"broker {config.broker_name}")
        self._master_tasks = Tasks(f"broker {config.broker_name} master")
        self._file_tasks = Tasks(f"broker {config.broker_name} files")
        directory = f"{config.store_path}/config"
        offsets_s = config.flush_offsets_ms / 1000
        writing = Turns(env.monotonic_ms)
        self._files = {
            "topics": ConfigFile(
                env,
                f"{directory}/topics.json",
                lambda: self.topics.to_text(indent=True),
                self._file_tasks,
                prepare=lambda slice_: self.topics.text.prepare(slice_, indent=True),
                turns=writing,
            ),
            "groups": ConfigFile(
                env,
                f"{directory}/subscriptionGroup.json",
                lambda: self.groups.to_text(indent=True),
                self._file_tasks,
                prepare=lambda slice_: self.groups.text.prepare(slice_, indent=True),
                turns=writing,
            ),
            "offsets": ConfigFile(
                env,
                f"{directory}/consumerOffset.json",
                lambda: self.offsets.to_text(indent=True),
                self._file_tasks,
                delay_s=offsets_s,
                prepare=lambda slice_: self.offsets.prepare(slice_, indent=True),
                turns=writing,
            ),
            "delays": ConfigFile(
                env,
                f"{directory}/delayOffset.json",
                self.delays.to_json,
                self._file_tasks,
                delay_s=DELAY_OFFSETS_WRITE_S,
            ),
        }
        self._loaded = False
        self._started = False
        self._stopping = False

    # Life

    async def start(self) -> None:
        """Recover the store, listen, take a role. Raises OSError, DiskError, ConfigError, all undone."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        await self.store.open()
        self._load_tables()
        self._wire()
        await self.ha.start()
        self._tasks.spawn(every(CHECK_S, self._tick, what="looking at held pulls"), name="tick")
        self._tasks.spawn(every(EXPIRE_S, self._clients.expire, what="closing silent clients"), name="expire")
        self._tasks.spawn(self.metadata.run(), name="metadata")
        self._tasks.spawn(self.repair.run(), name="repair")
        self._tasks.spawn(self.compare.run(), name="compare")
        self._tasks.spawn(self.acting.run(), name="acting")
        self.port = await self.server.start(self.config.bind_address, self.config.listen_port)
        if self.config.fast_port_enable and self.config.listen_port > 2:
            await self.server.start(self.config.bind_address, self.config.listen_port - 2)
        await self.role.start()
        await self.registration.start()
        self._started = True

    async def stop(self) -> None:
        """Orderly and idempotent: answers leave, tables and log are flushed, files closed."""
        if self._stopping:
            return
        self._stopping = True
        transfer_target = self._transfer_target() if self.role_state.is_master else None
        # No more writes, while replication goes on until the answers under way have left: the successor then
        # has all of them, and is elected as soon as the Controllers see this broker hang up.
        self.group_address.hold(True)
        role_state = self.role_state
        # Neither fenced nor going away yet: slaves copy what consumers committed from a master that answers.
        role_state.handing_over = True
        if not await self._drained(transfer_target, DRAIN_S):
            transfer_target = (
                self._transfer_target() if transfer_target is not None else None
            )  # the first one stalled
        # Nobody connects anew from here on: a connection not yet accepted when a port closes is cut off with
        # what was sent on it.
        self.server.stop_accepting()
        self.server.go_away()
        role_state.set(replace(role_state.state, role="fenced", master_address=None))
        # One that lacks what was answered must not be named: an election asks who has most.
        if transfer_target is not None and (self._end_of(transfer_target) or 0) >= self.ha.replicated:
            await self.role.step_down_for(transfer_target)
        self.group_address.leave()
        await self.role.stop()
        # Slaves too slow to wait for: the sender shall know that its message is stored here, and only that.
        self.pending_acks.give_up()
        await self.registration.stop()
        self._pulls.release_all()
        await self._master_tasks.cancel()
        await self._tasks.cancel()
        if self._started:
            await self.server.dismiss(QUIET_S, QUIET_AT_MOST_S)
        await self.server.stop()
        await self.group_address.stop()
        self.pending_acks.drop()
        await self.client.close()
        await self.ha.stop()
        for file in self._files.values() if self._loaded else ():
            try:
                await file.flush()
            except OSError as error:
                log.error("cannot write %s at the stop: %s", file.path, error)
        await self._file_tasks.cancel()
        await self.store.close()

    def _load_tables(self) -> None:
        files = self._files
        try:
            fresh_topics = self.topics.boot(files["topics"].load())
            fresh_groups = self.groups.boot(files["groups"].load())
            self.offsets.load(files["offsets"].load())
            self.delays.load(files["delays"].load())
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DiskError(f"a table in {self.config.store_path}/config is not one: {error!r}") from error
        config = self.config
        lost = [file for file in files.values() if file.lost is not None]
        if lost and config.start_with_damaged_tables:
            for file in lost:
                log.error("beginning without %s: %s", file.path, file.lost)
                file.found()
        elif lost and not config.enable_controller_mode and config.broker_role != "SLAVE":
            raise DiskError(
                f"{lost[0].lost}; nobody is there to copy it from: put a copy in its place, or begin without"
                " it by startWithDamagedTables=true"
            )
        self._loaded = True
        self.topics.on_change.append(lambda names: files["topics"].changed())
        self.groups.on_change.append(files["groups"].changed)
        self.offsets.on_change.append(files["offsets"].changed)
        self.delays.on_change.append(files["delays"].changed)
        if fresh_topics:
            files["topics"].changed()
        if fresh_groups:
            files["groups"].changed()

    def _wire(self) -> None:
        self.ha.on_replicated.append(self.pending_acks.replicated)
        self.store.on_flush.append(self.pending_acks.flushed)
        self.store.on_broken.append(self._broken)
        self.store.on_arrive.append(self._arrived)
        self.role.on_change.append(self.registration.soon)
        self.role.on_change.append(self.acting.soon)
        self.role.on_no_ha_address.append(self.registration.soon)
        self.topics.on_change.append(lambda names: self.registration.soon())
        self.registration.on_master.append(self.role.ha_address_of)
        self.metadata.on_copied.append(self._copied)
        copies, offsets = self.context.copies, self.offsets
        self.ha.eligible = copies.ready
        self.ha.on_connected.append(copies.on_connected)
        copies.add("topics", self.topics.changed_since)
        copies.add("groups", self.groups.changed_since)
        copies.add("offsets", lambda known: (offsets.changed_since(known), offsets.mark), gathered=True)
        copies.add("delays", lambda known: (self.delays.to_json(), 0), gathered=True)
        self.topics.on_change.append(lambda names: copies.changed("topics"))
        self.groups.on_change.append(lambda: copies.changed("groups"))
        offsets.on_change.append(lambda: copies.changed("offsets"))
        self.delays.on_change.append(lambda: copies.changed("delays"))

    def _make_server(self, name: str) -> RemotingServer:
        return RemotingServer(
            self.env,
            name,
            self._handle,
            fast=self.hot,
            on_close=self._closed,
            credentials=self._credentials,
            frame_bytes_max=self.config.frame_bytes_max,
            idle_s=self.config.server_channel_max_idle_s,
        )

    async def _drained(self, transfer_target: int | None, timeout_s: float) -> bool:
        """Wait until all answers left and ``transfer_target`` has the whole log, and what consumers
        committed before; whether in time. Nothing may be taken any more."""
        tables = self.context.copies.hurry()
        for _ in range(max(int(timeout_s / DRAIN_STEP_S), 1)):
            if not len(self.pending_acks) and (
                transfer_target is None or self._has_all(transfer_target, tables)
            ):
                return True
            await asyncio.sleep(DRAIN_STEP_S)
        return False

    # Roles

    async def lead(
        self,
        broker_id: int,
        epoch: int,
        members: frozenset[int],
        set_epoch: int,
        propose: Propose | None,
    ) -> None:
        """Become master of ``epoch``, or learn that we stay master in a new one.

        Without a Controller ``epoch`` is 0 and the log gets no epochs. Raises DiskError.
        """
        if self._stopping:
            return
        again = self.role_state.is_master
        if not again:
            self.store.truncate_partial_tail()
            self.store.rebuild_queue_offsets()
        last = self.store.epochs.last
        if epoch > 0 and (last is None or last.epoch < epoch):
            self.store.epochs.append(epoch, self.store.log.end)
        await self.ha.become_master(broker_id, epoch, members, set_epoch, propose)
        if self._stopping:
            return
        self.topics.widen(self._recent_queues())
        self.topics.set_epoch(epoch)
        self.groups.set_epoch(epoch)
        self.offsets.take_kept()
        cut = self.offsets.clamp(self.store.next_offset)
        if cut:
            log.warning("%d consumer offsets lay beyond the end of their queues and were cut back", cut)
        self.role_state.set(RoleState("master", broker_id, epoch, self.config.address))
        self.compare.soon()
        if not again:
            self._pulls.release_all()
            self._master_tasks.spawn(self._delay.run(), name="delay")
            self._master_tasks.spawn(self._transactions.run(), name="transactions")
            self.env.events.add("promoted", epoch=epoch)
            log.info("broker %s is master of epoch %d", self.config.broker_name, epoch)
            await self.group_address.open()
        else:
            self.group_address.hold(False)  # what a handover in the former epoch held back

    def announce(self, epoch: int) -> None:
        """See ``role_host.RoleHost``."""
        self.topics.set_epoch(epoch)  # which registers

    async def follow(
        self, broker_id: int, epoch: int, master_address: str | None, master_ha_address: str | None
    ) -> None:
        """Become slave of ``master_address``; addresses not known yet are None."""
        if self._stopping:
            return
        await self._step_down("slave", broker_id, epoch, master_address)
        await self.ha.become_slave(broker_id, epoch, master_ha_address)
        self.metadata.soon()
        self.repair.soon()
        self.compare.soon()

    async def fence(self) -> None:
        """Neither master nor slave: the lease ended, or nobody said yet what we are."""
        await self._step_down("fenced", self.role_state.broker_id, self.role_state.epoch, None)
        await self.ha.become_fenced()

    async def _step_down(self, role: Role, broker_id: int, epoch: int, master_address: str | None) -> None:
        was_master = self.role_state.is_master
        # First of all nothing more is taken or answered OK, then the rest may take its time.
        self.group_address.hold(True)
        self.role_state.set(RoleState(role, broker_id, epoch, master_address))
        if was_master:
            self.pending_acks.drop()
            self.env.events.add("demoted", epoch=epoch)
            log.warning("broker %s is not master any more", self.config.broker_name)
            await self._master_tasks.cancel()
            self.context.locks.clear()
        self._pulls.release_all()
        self.group_address.leave()

    async def drain(self, transfer_target: int, timeout_s: float) -> bool:
        """See ``role_host.RoleHost``."""
        self.role_state.handing_over = True
        self.group_address.hold(True)
        return await self._drained(transfer_target, timeout_s)

    def resume(self) -> None:
        """Take writes again, if still master, and not about to stop."""
        if self._stopping:
            return
        self.role_state.handing_over = False
        self.group_address.hold(False)

    def lacks(self) -> str | None:
        """See ``role_host.RoleHost``."""
        lost = [file.lost for file in self._files.values() if file.lost is not None]
        if self.store.epochs.doubt is not None:
            lost.append(self.store.epochs.doubt)
        return "; ".join(lost) if lost else None

    def _copied(self) -> None:
        """All tables are the master's: none is lost any more."""
        for file in self._files.values():
            file.found()

    def _has_all(self, slave: int, tables: int) -> bool:
        return self._end_of(slave) == self.store.log.end and self.context.copies.has(slave, tables)

    def _end_of(self, slave: int) -> int | None:
        return next((s["ackOffset"] for s in self.ha.slaves() if s["id"] == slave), None)

    def _transfer_target(self) -> int | None:
        """The slave of the SyncStateSet that is furthest, the one with the smallest id among equals."""
        able = [s for s in self.ha.slaves() if s["id"] in self.ha.members and s["ackOffset"] is not None]
        return min(able, key=lambda s: (-s["ackOffset"], s["id"]))["id"] if able else None

    def _recent_queues(self) -> list[tuple[str, int]]:
        """Queues whose newest message is at most ``RECENT_MS`` older than the newest of all.

        A topic missing from the table is one of these when its master died before handing the table on; one
        that was deleted must not come back, nor an older one: it was, before a broker remembered that.
        """
        store = self.store
        newest = {
            queue: store.queue_store_time(*queue, store.max_queue_offset(*queue) - 1) or 0
            for queue in store.queues()
        }
        since_ms = max(newest.values(), default=0) - RECENT_MS
        return [
            queue
            for queue, stored_ms in newest.items()
            if stored_ms >= since_ms and not self.topics.was_deleted(*queue, store.max_queue_offset(*queue))
        ]

    def _arrived(self, topic: str, queue_id: int, max_offset: int, tags_code: int) -> None:
        """A record was dispatched. One the former master stored may be of a topic it never handed on."""
        known = self.topics.get(topic)
        if (
            self.role_state.is_master
            and (known is None or queue_id >= max(known.read_queues, known.write_queues))
            and not self.topics.was_deleted(topic, queue_id, max_offset)
        ):
            self.topics.widen([(topic, queue_id)])

    def _broken(self, error: BaseException) -> None:
        """The disk failed for good: what waits may not be there."""
        log.error("the store is broken: %s", error)
        self.pending_acks.drop()

    # Serving

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        handler = self.handlers.get(request.code)
        if handler is None:
            raise unsupported(request)
        return await handler(connection, request)

    async def _handle_asked(self, connection: Connection, request: Command) -> Command | None:
        """Requests on connections this broker made itself: from Controllers and NameServers."""
        handler = self._asked.get(request.code)
        if handler is not None:
            return await handler(connection, request)
        return await self._handle(connection, request)

    async def _hand_over(self, connection: Connection, request: Command) -> Command:
        end = await self.role.hand_over_to(request)
        return request.reply(ext={"maxOffset": str(end)})

    async def _role_changed(self, connection: Connection, request: Command) -> Command | None:
        await self.role.notice(request, connection.address)
        return None if request.is_oneway else request.reply()

    def _link_lost(self, connection: Connection) -> None:
        self.role.lost(connection.address)
        self.registration.lost(connection.address)

    def _refuse_hot(self) -> bool:
        return (
            self.role_state.refuse() is not None
            or self._stopping
            or self.store.writable is not None
            or self.ha.refuse() is not None
        )

    def _closed(self, connection: Connection) -> None:
        self.pending_acks.forget(connection)
        self._clients.closed(connection)

    async def _tick(self) -> None:
        await self._pulls.check()
        self.context.stats.tick(self.env.monotonic_ms())

    # What is shown

    def status(self) -> dict[str, Any]:
        role_state, store = self.role_state, self.store
        return {
            "role": role_state.role,
            "brokerId": role_state.broker_id,
            "group": self.config.broker_name,
            "cluster": self.config.cluster_name,
            "address": self.config.address,
            "groupAddress": self.group_address.status(),
            "haAddress": self.config.ha_address,
            "epoch": role_state.epoch,
            "syncStateSet": sorted(self.ha.members),
            "syncStateSetEpoch": self.ha.set_epoch,
            "minOffset": store.log.min_offset,
            "maxOffset": store.log.end,
            "confirmOffset": store.confirmed,
            "flushedOffset": store.log.flushed,
            "dispatchedOffset": store.dispatched,
            "slaves": self.ha.slaves(),
            "turnedAway": self.ha.turned_away_total,
            "tableCopies": self.context.copies.status(),
            "master": role_state.master_address,
            "acting": role_state.acting,
            "putTotal": self.context.stats.put_total,
            "getTotal": self.context.stats.get_total,
            "parked": len(self.pending_acks),
            "heldPulls": self._pulls.held,
            "connections": len(self.server.connections),
            "writable": store.writable,
            "damaged": [item.to_json() | {"lost": len(item.lost)} for item in store.damage.ranges],
            "repaired": store.repairer.repaired,
            "compared": {"passes": self.compare.passes, "undecided": self.compare.undecided},
            "scrub": {
                "at": store.scrub.at,
                "passes": store.scrub.passes,
                "found": store.scrub.damaged_found,
                "unreadable": store.scrub.unreadable,
            },
            "life": self.role.status(),
            "registered": self.registration.status(),
            "events": self.env.events.to_json(),
            "eventTotals": dict(self.env.events.totals),
        }

    def health(self) -> str | None:
        """None, or why this broker cannot do its work now."""
        if not self._started or self._stopping:
            return "not started" if not self._started else "stopping"
        if self.store.writable is not None:
            return self.store.writable
        if self.role_state.role == "fenced":
            return f"fenced: {self.role.reason or 'no role from the Controller'}"
        if self.ha.needs_reseed is not None:
            return f"needs a re-seed: {self.ha.needs_reseed}"
        if self.ha.unproven is not None:
            return f"does not follow its master: {self.ha.unproven}"
        return None
