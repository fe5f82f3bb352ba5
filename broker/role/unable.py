"""How does a master that cannot serve get replaced? (``step_down.py`` says when it asks.)"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from broker.membership.controllers import Controllers
from broker.role.host import RoleHost
from broker.role.lease import Lease
from broker.role.machine import RoleMachine, State
from broker.role.parts import RoleParts
from broker.role.step_down import Facts, StepDown, Trouble
from model.errors import MqError, Refused
from model.ids import BrokerId, Epoch

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1


class Unable:
    """Looks at one master every LOOK_S. ``on_replaced`` hears that the Controllers have another one."""

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
        self._step_down = StepDown()
        parts.ha.conditions.keeps_set = self._keeps_set

    def _keeps_set(self) -> bool:
        can_ask = self._machine.state is State.LEADING and bool(self._lease.supported)
        return can_ask and self._step_down.keeps_set(self._machine.epoch, self._parts.env.monotonic_ms())

    async def look(self) -> None:
        """Ask for another master if that is due."""
        now_ms, epoch = self._parts.env.monotonic_ms, self._machine.epoch
        trouble = self._step_down.look(self._facts(), now_ms())
        if trouble is None:
            return
        name = self._parts.name
        try:
            await self._ask(trouble, self._machine.current.broker_id, epoch)
        except (MqError, OSError) as error:
            log.warning("%s: %s, and no other broker takes over: %s", name, trouble, error)
            self._step_down.on_refused(now_ms())
        else:
            log.warning("%s: %s, another broker is master", name, trouble)
            self._on_replaced()

    def _facts(self) -> Facts:
        store, ha = self._parts.store, self._parts.ha
        # Real Controllers grant no leases, and depose no master that lives.
        leads = self._machine.state is State.LEADING and bool(self._lease.supported)
        full = leads and store.writable is not None
        target = self._host.transfer_target() if full else None
        return Facts(leads, self._machine.epoch, leads and ha.cut_off, full, target)

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
