"""What is this broker in its group right now, and may it take a write?

One value, set by whoever decides (``broker/role/manager`` with a Controller, ``broker/service`` without),
read by every processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal

from model.errors import Refused

Role = Literal["master", "slave", "fenced"]

SYSTEM_BUSY: Final = 2
SERVICE_NOT_AVAILABLE: Final = 14
HANDING_OVER: Final = "service not available now: this master hands over to another broker"


class RoleState:
    """Role, id, epoch and the master's address; ``on_change`` hears every change of role or epoch."""

    def __init__(self) -> None:
        self.role: Role = "fenced"
        self.broker_id = -1
        self.epoch = 0
        self.master_address: str | None = None
        self._taking = asyncio.Event()
        self._taking.set()
        self.acting = False  # a slave that serves consumers in place of a master that is not there
        self.on_change: list[Callable[[], None]] = []

    @property
    def is_master(self) -> bool:
        return self.role == "master"

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

    def set(self, role: Role, *, broker_id: int, epoch: int, master_address: str | None) -> None:
        before = (self.role, self.broker_id, self.epoch, self.master_address)
        self.role = role
        self.handing_over = False
        if role != "slave":
            self.acting = False
        self.broker_id = broker_id
        self.epoch = epoch
        self.master_address = master_address
        if before != (role, broker_id, epoch, master_address):
            for hook in self.on_change:
                hook()

    def refuse(self) -> Refused | None:
        """Why a write cannot be taken, in the words the original uses, or None."""
        if self.role == "master":
            return Refused(HANDING_OVER, SERVICE_NOT_AVAILABLE) if self.handing_over else None
        if self.role == "slave":
            where = f" of {self.master_address}" if self.master_address else ""
            return Refused(f"[REJECTREQUEST]this broker is a slave{where}: send to the master", SYSTEM_BUSY)
        return Refused(
            "service not available now: this broker is fenced, it has no master", SERVICE_NOT_AVAILABLE
        )
