"""How does a master hand over to another broker, and what if nobody takes over?

drain   no writes are taken; the transfer target gets the whole log, and what consumers committed
give up the lease ends, so that the target can be elected at once
wait    another role comes, or a lease is granted again, or RESUME_S pass: then writes are taken again
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.role.host import RoleHost
from broker.role.lease import Lease
from broker.role.machine import Event, RoleMachine, State
from model.codes import Response
from model.errors import Refused
from model.ids import BrokerId, Epoch
from remoting.codec import Command
from remoting.headers import need_int, opt_int
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

DRAIN_S: Final = 1.0  # the transfer target gets this long to catch up
RESUME_S: Final = 2.0  # a master that handed over and is still master then takes writes again
OUTCOME_S: Final = 0.02  # and asks so often whether that came to nothing


class Handover:
    """One master's handovers. ``heartbeat`` asks the Controllers for a lease: they grant one while they elect
    nobody."""

    def __init__(
        self,
        name: str,
        machine: RoleMachine,
        host: RoleHost,
        lease: Lease,
        tasks: Tasks,
        heartbeat: Callable[[], None],
    ) -> None:
        self._name = name
        self._machine = machine
        self._host = host
        self._lease = lease
        self._tasks = tasks
        self._heartbeat = heartbeat
        self._timer: asyncio.TimerHandle | None = None

    async def begin(self, command: Command) -> None:
        """Drain and give up the lease (ELECT_MASTER of the Controllers' leader). Writes are taken again on a
        change of role, on a new lease, or after ``RESUME_S``. Raises Refused: nothing changed, or no target.
        """
        target = BrokerId(need_int(command.ext, "brokerId", 0))
        epoch = Epoch(need_int(command.ext, "masterEpoch", 0))
        self._need_master(epoch)
        # The end of an earlier handover's wait must not reopen writes in the middle of this one.
        self.forget()
        self._machine.on(Event.HAND_OVER)
        drained = await self._host.drain(target, DRAIN_S)
        self._need_master(epoch, " any more")  # a successor has its own writes and lease
        if not drained:
            # No lease was granted during the drain, so the old one ends any moment; and the target of an
            # earlier handover may still come.
            self._resume_later(epoch)
            text = f"broker {target} does not have the whole log within {DRAIN_S:g} s"
            raise Refused(text, Response.CONTROLLER_ELECT_MASTER_FAILED)
        self._lease.give_up(opt_int(command.ext, "term", -1))
        self._resume_later(epoch)

    def on_lease(self, epoch: Epoch) -> None:
        """The leader that elects granted a lease of ``epoch``: nobody takes over."""
        if epoch == self._machine.epoch and self.forget():
            self._resume(epoch)

    def forget(self) -> bool:
        """End the wait; whether there was one."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        return timer is not None

    def _need_master(self, epoch: Epoch, more: str = "") -> None:
        if not self._machine.is_master or epoch != self._machine.epoch:
            raise Refused(f"not master of epoch {epoch}{more}", Response.CONTROLLER_INVALID_MASTER)

    def _resume_later(self, epoch: Epoch) -> None:
        self.forget()
        self._timer = asyncio.get_running_loop().call_later(RESUME_S, self._resume, epoch)
        self._tasks.spawn(self._ask_outcome(self._timer), name="outcome")

    async def _ask_outcome(self, waiting: asyncio.TimerHandle) -> None:
        while True:
            await asyncio.sleep(OUTCOME_S)
            if self._timer is not waiting:
                return
            self._heartbeat()

    def _resume(self, epoch: Epoch) -> None:
        self._timer = None
        if self._machine.state is State.HANDING_OVER and self._machine.epoch == epoch:
            log.warning("%s: nobody took over, it takes writes again", self._name)
            self._machine.on(Event.RESUME)
            self._host.resume()
