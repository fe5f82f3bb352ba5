"""Which role does a broker have without Controllers?

    brokerRole, but SLAVE   master of epoch 0, alone until classic slaves come
    brokerRole=SLAVE        slave with its configured id, of haMasterAddress or the master a NameServer names

Neither ever changes into the other. ``broker.role.manager`` says when; keys as in Apache RocketMQ 4.x and
5.x.
"""

from __future__ import annotations

from broker.role.host import Elected, RoleHost
from broker.state.role_state import Role
from model.config import BrokerConfig
from model.ids import MASTER_ID, NO_EPOCH, BrokerId


class ClassicRole:
    """The role the configuration gives. Calls raise what those of ``RoleHost`` do."""

    def __init__(self, config: BrokerConfig, host: RoleHost) -> None:
        self.role: Role = "slave" if config.broker_role == "SLAVE" else "master"
        self.broker_id = BrokerId(config.broker_id) if self.role == "slave" else MASTER_ID
        self._host = host
        self._configured = config.ha_master_address or None
        self._followed: tuple[str | None, str | None] = (None, None)  # (master's address, its HA address)

    async def take_up(self) -> None:
        """Lead; or follow the configured address. The master's own one, from which tables are copied, is
        known from a NameServer only."""
        if self.role == "master":
            await self._host.lead(Elected(MASTER_ID, NO_EPOCH, frozenset({MASTER_ID}), 0))
        else:
            await self._follow(None, self._configured)

    def replicates_from(self, ha_address: str) -> bool:
        """Whether this slave copies the log from there, or would from nowhere else."""
        return self._followed[1] == (self._configured or ha_address)

    async def named(self, master_address: str, ha_address: str) -> bool:
        """A NameServer named this slave's master: follow it; whether that is something new."""
        wanted = (master_address, self._configured or ha_address)
        if wanted == self._followed:
            return False
        await self._follow(*wanted)
        return True

    async def _follow(self, master_address: str | None, ha_address: str | None) -> None:
        await self._host.follow(self.broker_id, NO_EPOCH, master_address, ha_address)
        self._followed = (master_address, ha_address)
