"""How does a broker become master, slave or neither, and how does it drain before another takes over?

``broker/role/manager`` decides when; this is its ``RoleHost``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from broker.context import BrokerContext
from broker.discovery.group_address import GroupAddress
from broker.membership.view import TableSource
from broker.processors import Processors
from broker.role.epochs import note_epoch
from broker.role.host import Elected
from broker.state.role_state import Role, RoleState
from broker.tables.table_files import TableFiles
from broker.upkeep.expired_queues import note_expired
from broker.upkeep.services import Upkeep
from broker.upkeep.topic_repair import TopicRepair
from ha.slave.own_log import forget_epochs
from model.ids import BrokerId, Epoch, PhysicalOffset
from runtime.tasks import Tasks
from runtime.turns import Slice

log = logging.getLogger(__name__)

DRAIN_STEP_S: Final = 0.002
PROBE_S: Final = 1.0  # a disk that takes no write for so long, and is not known to be slow, begins no epoch


class RoleChanges:
    """Implements ``broker.role.host.RoleHost``. No role is taken up any more when it is ``stopping``, or when
    ``over`` says so, also in the middle of a change: the store may have broken meanwhile."""

    def __init__(
        self,
        context: BrokerContext,
        processors: Processors,
        upkeep: Upkeep,
        tables: TableFiles,
        group_address: GroupAddress,
        over: Callable[[], bool],
    ) -> None:
        self.stopping = False
        self._leads = False  # from the beginning of ``lead`` on
        self._over = over
        self._context = context
        self._processors = processors
        self._upkeep = upkeep
        self._tables = tables
        self._group_address = group_address
        self._topic_repair = TopicRepair(context)
        self._tasks = Tasks(f"broker {context.config.broker_name} master")
        context.store.begin_queues(context.topics.starts)
        context.store.retention.before_expiry.append(self._before_expiry)

    @property
    def _ends(self) -> bool:
        return self.stopping or self._over()

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def lead(self, elected: Elected) -> None:
        """Become master of its epoch, or learn that we stay master in a new one. Raises DiskError, and
        TimeoutError where the disk hangs."""
        broker_id, epoch = elected.broker_id, elected.epoch
        again = self._context.role_state.is_master
        if epoch > 0 and not again:
            # Files are written on the loop below: on a disk that hangs that would end the heartbeats, too.
            await self._upkeep.table_sources.probe.answers(PROBE_S)
        if self._ends:
            return
        self._leads = True
        slice_ = Slice(self._context.env.monotonic_ms)
        if not again:
            self._context.store.truncate_partial_tail()
            # Of an epoch that would begin behind the end nothing is here; ours may begin before that place.
            forget_epochs(self._context.store, PhysicalOffset(self._context.store.log.end + 1))
            # Nobody appends: a former master's link has ended, and no send is taken before the role is set.
            await self._context.store.rebuild_queue_offsets_in_slices(slice_)
        # What grows with the tables comes before the role is any other: it is done in slices.
        if not again:
            await note_expired(self._context, self._context.store.log.min_offset, slice_)
        await self._topic_repair.look(slice_)
        cut = await self._context.offsets.clamp(self._context.store.next_offset, slice_)
        self._context.offsets.clamp_pops(self._context.store.log.end)
        if cut:
            log.warning("%d consumer offsets lay beyond the end of their queues and were cut back", cut)
        # What one of these says beyond the end was of messages that are lost: others get their offsets.
        self._tables.delays.clamp(self._context.store.next_offset)
        self._tables.timed.clamp(self._context.store.next_offset)
        if not again:
            await self._context.topics.clamp_ends(self._context.store.next_offset, slice_)
        if self._ends:
            return
        if not again:
            self._context.role_state.led_from = self._context.store.log.end
        if epoch > 0:
            # The last that can fail: an epoch that is noted counts as led, also after a restart.
            note_epoch(self._context.store, epoch)
        await self._context.ha.become_master(
            broker_id, epoch, elected.members, elected.set_epoch, elected.propose
        )
        if self._ends:
            return
        self._topic_repair.widen()
        self._context.topics.set_epoch(epoch)
        self._context.groups.set_epoch(epoch)
        self._context.offsets.take_held(self._context.store.next_offset)
        self._context.role_state.set(RoleState("master", broker_id, epoch, self._context.config.address))
        self._upkeep.compare.soon()
        if not again:
            self._processors.pulls.release_all()
            self._tasks.spawn(self._processors.delay.run(), name="delay")
            self._tasks.spawn(self._processors.timers.run(), name="timers")
            self._tasks.spawn(self._processors.transactions.run(), name="transactions")
            self._tasks.spawn(self._processors.pops.revive.run(), name="revive")
            self._context.env.events.add("promoted", epoch=epoch)
            log.info("broker %s is master of epoch %d", self._context.config.broker_name, epoch)
            await self._group_address.open()
        else:
            self._group_address.hold(False)  # what a handover in the former epoch held back

    async def _before_expiry(self, log_start: PhysicalOffset) -> None:
        if self._leads:
            slice_ = Slice(self._context.env.monotonic_ms)
            await note_expired(self._context, log_start, slice_, lambda: self._leads)

    async def take_tables(self, broker_id: BrokerId, epoch: Epoch, sources: Sequence[TableSource]) -> None:
        """See ``RoleHost``."""
        await self._upkeep.table_sources.take(broker_id, epoch, sources)

    def announce(self, epoch: Epoch) -> None:
        """See ``RoleHost``."""
        self._context.topics.set_epoch(epoch)  # which registers

    async def follow(
        self, broker_id: BrokerId, epoch: Epoch, master_address: str | None, master_ha_address: str | None
    ) -> None:
        """Become slave of ``master_address``; addresses not known yet are None."""
        if self._ends:
            return
        await self._leave_role("slave", broker_id, epoch, master_address)
        await self._context.ha.become_slave(broker_id, epoch, master_ha_address)
        self._upkeep.metadata.soon()
        self._upkeep.repair.soon()
        self._upkeep.compare.soon()

    async def fence(self) -> None:
        """See ``RoleHost``."""
        role_state = self._context.role_state
        await self._leave_role("fenced", role_state.broker_id, role_state.epoch, None)
        await self._context.ha.become_fenced()

    async def _leave_role(
        self, role: Role, broker_id: BrokerId, epoch: Epoch, master_address: str | None
    ) -> None:
        """Before this broker is a slave or fenced, whatever it was: nothing more is taken, what waits is
        dropped unanswered."""
        was_master = self._context.role_state.is_master
        # First of all nothing more is taken or answered OK, then the rest may take its time.
        self._group_address.hold(True)
        self._leads = False
        self._context.role_state.set(RoleState(role, broker_id, epoch, master_address))
        if was_master:
            self._context.pending_acks.drop()
            self._context.env.events.add("demoted", epoch=epoch)
            log.warning("broker %s is not master any more", self._context.config.broker_name)
            await self._tasks.cancel()
            self._context.locks.clear()
        self._processors.pulls.release_all()
        self._processors.pops.role_ended()
        self._group_address.leave()

    async def drain(self, transfer_target: BrokerId, timeout_s: float) -> bool:
        """See ``RoleHost``."""
        self._context.role_state.handing_over = True
        self._group_address.hold(True)
        return await self.wait_drained(transfer_target, timeout_s)

    def resume(self) -> None:
        """Take writes again, if still master, and neither broken nor about to stop."""
        if self._ends:
            return
        self._context.role_state.handing_over = False
        self._group_address.hold(False)

    def lacks(self) -> str | None:
        """See ``RoleHost``."""
        lost = self._tables.lost()
        if self._context.store.epochs.unreadable is not None:
            lost.append(self._context.store.epochs.unreadable)
        return "; ".join(lost) if lost else None

    async def wait_drained(self, transfer_target: BrokerId | None, timeout_s: float) -> bool:
        """Wait until all answers left and ``transfer_target`` has the whole log, and what consumers
        committed before; whether in time. Nothing may be taken any more."""
        tables = self._context.copies.hurry()
        for _ in range(max(int(timeout_s / DRAIN_STEP_S), 1)):
            if not len(self._context.pending_acks) and (
                transfer_target is None or self._has_all(transfer_target, tables)
            ):
                return True
            await asyncio.sleep(DRAIN_STEP_S)
        return False

    def _has_all(self, slave: BrokerId, tables: int) -> bool:
        return self.end_of(slave) == self._context.store.log.end and self._context.copies.has(slave, tables)

    def end_of(self, slave: BrokerId) -> PhysicalOffset | None:
        return next((s["ackOffset"] for s in self._context.ha.slaves() if s["id"] == slave), None)

    def transfer_target(self) -> BrokerId | None:
        """The slave of the SyncStateSet that is furthest, the one with the smallest id among equals; one in
        maintenance where there is no other."""
        ha, rest = self._context.ha, self._context.role_state.maintenance
        able = [s for s in ha.slaves() if s["id"] in ha.members and s["ackOffset"] is not None]
        able = [s for s in able if s["id"] not in rest] or able
        return min(able, key=lambda s: (-s["ackOffset"], s["id"]))["id"] if able else None
