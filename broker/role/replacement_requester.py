"""How does a master that cannot serve get replaced? (``replacement.py`` says when it asks.)"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.membership.controllers import Controllers
from broker.role.host import RoleHost
from broker.role.lease import Lease
from broker.role.machine import RoleMachine, State
from broker.role.parts import RoleParts
from broker.role.replacement import MasterFacts, Replacement, Trouble
from model.errors import MqError, Refused
from model.ids import BrokerId, Epoch
from runtime.backoff import Backoff
from runtime.loops import UNTIL_WOKEN, level_triggered
from runtime.report.lasting import lasting

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
RETRY_MS: Final = 100


class ReplacementRequester:
    """Asks the Controllers for a replacement of this master; looks every LOOK_S whether that is due. A slave
    rests until ``on_change``: its role is another one.

    ``on_replaced`` hears that the Controllers have another one."""

    def __init__(
        self,
        parts: RoleParts,
        machine: RoleMachine,
        host: RoleHost,
        controllers: Controllers,
        lease: Lease,
        on_replaced: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._machine = machine
        self._host = host
        self._controllers = controllers
        self._lease = lease
        self._on_replaced = on_replaced
        self._replacement = Replacement()
        self._wake = asyncio.Event()
        self.on_change = self._wake.set

    def keeps_set(self) -> bool:
        """See ``SyncSet.keeps_set``. Perhaps asked before ``look`` finds the master cut off: so it notes the
        trouble, too."""
        can_ask = self._machine.state is State.LEADING and bool(self._lease.supported)
        return can_ask and self._replacement.keeps_set(self._machine.epoch, self._parts.env.monotonic_ms())

    @lasting
    async def run(self) -> None:
        """For ever."""
        retry = Backoff(self._parts.env.random, RETRY_MS, RETRY_MS)
        await level_triggered(self._look, self._wake, LOOK_S, retry, "looking whether it can serve")

    async def _look(self) -> float:
        await self.look()
        return LOOK_S if self._machine.is_master else UNTIL_WOKEN

    async def look(self) -> None:
        """Ask for another master if that is due."""
        now_ms, epoch = self._parts.env.monotonic_ms, self._machine.epoch
        trouble = self._replacement.look(self._facts(), now_ms())
        if trouble is None:
            return
        name = self._parts.name
        try:
            await self._ask(trouble, self._machine.current.broker_id, epoch)
        except (MqError, OSError) as error:
            log.warning("%s: %s, and no other broker takes over: %s", name, trouble, error)
            self._replacement.on_refused(now_ms())
        else:
            log.warning("%s: %s, another broker is master", name, trouble)
            self._on_replaced()

    def _facts(self) -> MasterFacts:
        store, ha = self._parts.store, self._parts.ha
        # RocketMQ Controllers grant no leases, and depose no master that lives.
        can_be_replaced = self._machine.state is State.LEADING and bool(self._lease.supported)
        full = can_be_replaced and store.why_not_writable is not None
        target = self._host.transfer_target() if full else None
        return MasterFacts(can_be_replaced, self._machine.epoch, can_be_replaced and ha.cut_off, full, target)

    async def _ask(self, trouble: Trouble, broker_id: BrokerId, epoch: Epoch) -> None:
        """Raises Refused, ConnectionError, Unknown: this broker is master still, as far as is known."""
        needed = self._parts.ha.copies_needed
        target = self._host.transfer_target() if trouble is Trouble.FULL else None
        # Only a look, so that a group that lost its slaves is not troubled by elections in vain.
        others = await self._controllers.alive() - {broker_id}
        if len(others) < needed:
            raise Refused(f"{len(others)} others are alive, an acknowledgement needs {needed} copies")
        view = await self._controllers.step_down(broker_id, epoch, needed, target)
        if view.master_id == broker_id:
            raise Refused("the Controllers leave it master")
