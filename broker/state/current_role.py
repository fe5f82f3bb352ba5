"""Which role has this broker right now, and may it take a write?

Holds the one ``RoleState`` that every processor reads. ``broker/roles`` sets it: with Controllers as
``broker/role/manager`` decides, without them as the configuration says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from broker.state.role_state import Role, RoleState
from model.codes import Response
from model.errors import Refused

HANDING_OVER: Final = "service not available now: this master hands over to another broker"


class CurrentRole:
    """The role, and what a broker does beside it. ``on_change`` hears every change of role or epoch."""

    def __init__(self) -> None:
        self.state = RoleState()
        self.acting = False  # a slave that serves consumers in place of a master that is not there
        self.on_change: list[Callable[[], None]] = []
        self._taking = asyncio.Event()
        self._taking.set()

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def broker_id(self) -> int:
        return self.state.broker_id

    @property
    def epoch(self) -> int:
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
        return not self._taking.is_set()

    @handing_over.setter
    def handing_over(self, value: bool) -> None:
        if value:
            self._taking.clear()
        else:
            self._taking.set()

    async def handed_over(self, timeout_s: float) -> None:
        """Return when no handover is under way any more, or after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._taking.wait()
        except TimeoutError:
            pass

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
            if self._taking.is_set():
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
