"""Which role has this broker right now, and may it take a write?

Holds the one ``RoleState`` of a broker. Processors read it, the role machine decides by it
(``broker/role/machine``), and ``broker/role/changes`` sets it in the middle of a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from broker.state.role_state import Role, RoleState
from broker.state.underway import Underway, size_of
from model.codes import Response
from model.errors import Refused
from model.ids import BrokerId, Epoch, PhysicalOffset
from remoting.codec import Command
from remoting.service import Connection
from runtime.turns import Shares

HANDING_OVER: Final = "service not available now: this master hands over to another broker"
HOLD_S: Final = 2.5  # below the 3 s after which a client of RocketMQ gives up a send (sendMsgTimeout)
HELD_MAX: Final = 10_000
HELD_BYTES_MAX: Final = 64 << 20


class _Line:
    """What of one connection waits for a handover. ``is_held``: it is over, and the connection is not read
    before all of them have gone on."""

    __slots__ = ("count", "is_held")

    def __init__(self) -> None:
        self.count = 0
        self.is_held = False


class CurrentRole:
    """The role, and what a broker does beside it. ``on_change`` hears every change of role or epoch."""

    def __init__(self) -> None:
        self.state = RoleState()
        self.takes_writes = False
        """What ``refuse`` says no to: asked for each read of a producer."""
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
        self._lines: dict[Connection, _Line] = {}

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
        return self.state.role == "master"  # asked by each pull: one call less

    @property
    def handing_over(self) -> bool:
        """Still master, but takes no more writes."""
        return self._handing_over

    @handing_over.setter
    def handing_over(self, value: bool) -> None:
        self._handing_over = value
        self.takes_writes = self.refuse() is None
        if value:
            self._shares.shut()
            return
        for connection, line in self._lines.items():
            if not line.is_held:
                line.is_held = True
                connection.hold(True)  # what follows is read when they have gone on
        self._shares.open()

    async def handed_over(self, connection: Connection, request: Command) -> bool:
        """Wait until no handover is under way any more, ``HOLD_S`` at most; whether there was a wait.

        Those that waited go on in order, a share a turn, and before what their connection sends later. Beyond
        ``HELD_MAX`` and ``HELD_BYTES_MAX`` (headers and bodies) nobody waits.
        """
        if not self._handing_over and connection not in self._lines:
            return False
        size_bytes = size_of(request)
        if self._handing_over and not self._held.has_room(size_bytes):
            return False
        with self._held.hold(size_bytes), self._in_line(connection):
            try:
                async with asyncio.timeout(HOLD_S):
                    await self._shares.take(size_bytes, in_line=True)
            except TimeoutError:
                pass
        return True

    @contextmanager
    def _in_line(self, connection: Connection) -> Iterator[None]:
        """A request of ``connection`` waits within, and goes on at once behind."""
        line = self._lines.setdefault(connection, _Line())
        line.count += 1
        try:
            yield
        finally:
            line.count -= 1
            if not line.count:
                del self._lines[connection]
                if line.is_held:
                    connection.hold(False)

    @property
    def keeps_offsets(self) -> bool:
        """Whether consumers commit their offsets here."""
        return self.state.role == "master" or self.acting  # as ``is_master``

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
