"""Which role has this broker right now, and may it take a write?

Holds the one ``RoleState`` of a broker. Processors read it, the role machine decides by it
(``broker/role/machine``), and ``broker/role/changes`` sets it in the middle of a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.state.role_state import Role, RoleState
from broker.state.underway import Underway, size_of
from model.codes import Response
from model.errors import Refused
from model.ids import BrokerId, Epoch, PhysicalOffset
from remoting.codec import Command
from runtime.turns import Shares

HANDING_OVER: Final = "service not available now: this master hands over to another broker"
HOLD_S: Final = 2.5  # below the 3 s after which a client of RocketMQ gives up a send (sendMsgTimeout)
HELD_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 << 20


class CurrentRole:
    """The role, and what a broker does beside it. ``on_change`` hears every change of role or epoch."""

    def __init__(self) -> None:
        self.state = RoleState()
        self.led_from = PhysicalOffset(0)
        """Where the log ended when this broker became master."""
        self.acting = False  # a slave that serves consumers in place of a master that is not there
        self.maintenance: frozenset[BrokerId] = frozenset()
        """Replicas that are not to lead, as the Controllers said last."""
        self.in_sync = False  # this broker is in the SyncStateSet, as the Controllers said last
        self.registered_as: BrokerId | None = None
        """The Controllers know this process under that id; None = it has not registered yet."""
        self.old_disk = False
        """The disk was put back to an older state of itself: what it says of the group may be old."""
        self.on_change: list[Callable[[], None]] = []
        self._handing_over = False
        self._held = Underway(HELD_MAX, HELD_BYTES_MAX)
        self._shares = Shares()

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def broker_id(self) -> BrokerId:
        return self.state.broker_id

    @property
    def epoch(self) -> Epoch:
        return self.state.epoch

    @property
    def master_address(self) -> str | None:
        return self.state.master_address

    @property
    def is_master(self) -> bool:
        return self.state.is_master

    @property
    def handing_over(self) -> bool:
        """Still master, but takes no more writes."""
        return self._handing_over

    @handing_over.setter
    def handing_over(self, value: bool) -> None:
        self._handing_over = value
        if value:
            self._shares.shut()
        else:
            self._shares.open()

    async def handed_over(self, request: Command) -> bool:
        """Wait until no handover is under way any more, ``HOLD_S`` at most; whether there was a wait.

        Those that waited go on in order, a share a turn. Beyond ``HELD_MAX`` and ``HELD_BYTES_MAX`` (headers
        and bodies) nobody waits.
        """
        if not self._handing_over:
            return False
        size_bytes = size_of(request)
        if not self._held.has_room(size_bytes):
            return False
        with self._held.hold(size_bytes):
            try:
                async with asyncio.timeout(HOLD_S):
                    await self._shares.take(size_bytes)
            except TimeoutError:
                pass
        return True

    @property
    def keeps_offsets(self) -> bool:
        """Whether consumers commit their offsets here."""
        return self.is_master or self.acting

    def set(self, state: RoleState) -> None:
        before, self.state = self.state, state
        self.handing_over = False
        if state.role != "slave":
            self.acting = False
        if before != state:
            for hook in self.on_change:
                hook()

    def refuse(self) -> Refused | None:
        """Why a write cannot be taken, in the words the original uses, or None."""
        role = self.state.role
        if role == "master":
            if not self._handing_over:
                return None
            return Refused(HANDING_OVER, Response.SERVICE_NOT_AVAILABLE)
        if role == "slave":
            where = f" of {self.master_address}" if self.master_address else ""
            text = f"[REJECTREQUEST]this broker is a slave{where}: send to the master"
            return Refused(text, Response.SYSTEM_BUSY)
        return Refused(
            "service not available now: this broker is fenced, it has no master",
            Response.SERVICE_NOT_AVAILABLE,
        )
