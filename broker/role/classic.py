"""Which role does a broker have without Controllers, and how does it take it up?

    brokerRole, but SLAVE   master of epoch 0, alone until classic slaves come
    brokerRole=SLAVE        slave with its configured id, of haMasterAddress or the master a NameServer names

Neither ever changes into the other. ``broker.role.manager`` says when; keys as in Apache RocketMQ 4.x and
5.x.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.role.host import Elected, RoleHost
from broker.role.machine import RoleMachine, State
from broker.role.parts import RoleParts
from broker.state.role_state import Role
from model.ids import MASTER_ID, NO_EPOCH, BrokerId


class ClassicRole:
    """The role the configuration gives. Calls raise what those of ``RoleHost`` do. ``over``: no role is taken
    up any more."""

    def __init__(
        self, parts: RoleParts, machine: RoleMachine, host: RoleHost, over: Callable[[], bool]
    ) -> None:
        config = parts.config
        self.role: Role = "slave" if config.broker_role == "SLAVE" else "master"
        self.broker_id = BrokerId(config.broker_id) if self.role == "slave" else MASTER_ID
        self._parts = parts
        self._machine = machine
        self._host = host
        self._over = over
        self._configured = config.ha_master_address or None
        self._followed: tuple[str | None, str | None] = (None, None)  # (master's address, its HA address)

    async def take_up(self) -> bool:
        """Lead; or follow the configured address. The master's own one, from which tables are copied, is
        known from a NameServer only. Returns whether the role is new."""
        machine, store = self._machine, self._parts.store
        # Before the first byte that no epoch will tell from others at its place.
        store.epochs.leave(store.truncate_partial_tail())
        machine.on_change()
        if self.role == "master":
            await self._host.lead(Elected(MASTER_ID, NO_EPOCH, frozenset({MASTER_ID}), 0))
            return machine.on_lead(self.broker_id, NO_EPOCH, self._parts.config.address)
        await self._follow(None, self._configured)
        return machine.on_follow(self.broker_id, NO_EPOCH, None, None)

    async def on_named(self, master_address: str, ha_address: str) -> None:
        """A NameServer named this slave's master: follow it, if that is something new."""
        if self._machine.state is not State.FOLLOWING:
            return
        wanted = (master_address, self._configured or ha_address)
        # NameServers may disagree: a working link is not left because another one says so.
        elsewhere = self._parts.ha.follows and self._followed[1] != wanted[1]
        if elsewhere or wanted == self._followed:
            return
        await self._follow(*wanted)
        if not self._over():
            # Not ``on_change``: there is nothing to register, and an answer may name another master.
            self._machine.on_follow(self.broker_id, NO_EPOCH, master_address, ha_address)

    async def _follow(self, master_address: str | None, ha_address: str | None) -> None:
        await self._host.follow(self.broker_id, NO_EPOCH, master_address, ha_address)
        self._followed = (master_address, ha_address)
