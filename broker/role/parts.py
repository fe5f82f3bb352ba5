"""What does every part of a broker's role work with?"""

from __future__ import annotations

from dataclasses import dataclass

from broker.state.current_role import CurrentRole
from ha.service import HaService
from model.config import BrokerConfig
from runtime.env import Env
from store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class RoleParts:
    """Of one replica of a group: where it runs, its keys, its log, its links, and the role it has now."""

    env: Env
    config: BrokerConfig
    store: MessageStore
    ha: HaService
    current: CurrentRole

    @property
    def name(self) -> str:
        """As log lines begin."""
        return self.config.broker_name
