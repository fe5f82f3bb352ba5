"""What everything on the slave's side works with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from model.config import BrokerConfig
from runtime.env import Env

if TYPE_CHECKING:
    from store.message_store import MessageStore


class Parts(NamedTuple):
    """One broker's environment, store and configuration."""

    env: Env
    store: MessageStore
    config: BrokerConfig
