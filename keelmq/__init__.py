"""The names that applications import: ``from keelmq import Producer, PushConsumer, Message``.

An installed keelmq holds every package under this one name (``keelmq.broker``, ``keelmq.store``), so that it
collides with no module of an application. In a checkout the packages stand at the top of the repository, and
the build moves them here (``hatch_build.py``). A name is imported when first used: a server pays nothing
for what clients need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from client.admin import AdminClient
    from client.consumer import ConsumeOptions, PushConsumer
    from client.message import Message, Queue, Received, SendFailed, SendResult, SendStatus, SendUnknown
    from client.producer import Producer, SendOptions
    from client.request_reply import NoReply, Reply
    from client.session import Session
    from model.errors import MqError
    from runtime.os_env import OsEnv

_HOMES: Final = {
    "AdminClient": "client.admin",
    "ConsumeOptions": "client.consumer",
    "Message": "client.message",
    "MqError": "model.errors",
    "NoReply": "client.request_reply",
    "OsEnv": "runtime.os_env",
    "Producer": "client.producer",
    "PushConsumer": "client.consumer",
    "Queue": "client.message",
    "Received": "client.message",
    "Reply": "client.request_reply",
    "SendFailed": "client.message",
    "SendOptions": "client.producer",
    "SendResult": "client.message",
    "SendStatus": "client.message",
    "SendUnknown": "client.message",
    "Session": "client.session",
}

__all__ = [
    "AdminClient",
    "ConsumeOptions",
    "Message",
    "MqError",
    "NoReply",
    "OsEnv",
    "Producer",
    "PushConsumer",
    "Queue",
    "Received",
    "Reply",
    "SendFailed",
    "SendOptions",
    "SendResult",
    "SendStatus",
    "SendUnknown",
    "Session",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from model.installed import (
        module_name,  # not above: Spark's workers import this package for its name alone
    )

    return getattr(importlib.import_module(module_name(home)), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
