"""Which keys each server understands, what they mean and their defaults: one file a server.

The keys are RocketMQ's own names. Defaults that differ from the original carry ``was=`` and are listed in
``docs/defaults.md``.
"""

from model.config.broker import HEARTBEATS_MIN, BrokerConfig
from model.config.controller import ControllerConfig
from model.config.namesrv import NamesrvConfig
from model.config.server import PERIOD_MIN_MS, ServerConfig
from model.config.store import StoreConfig

__all__ = [
    "HEARTBEATS_MIN",
    "PERIOD_MIN_MS",
    "BrokerConfig",
    "ControllerConfig",
    "NamesrvConfig",
    "ServerConfig",
    "StoreConfig",
]
