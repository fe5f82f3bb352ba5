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
    from client.blocking import BlockingPopConsumer, BlockingProducer, BlockingPushConsumer
    from client.consuming.allocate import average, average_by_circle
    from client.consuming.consumer import ConsumeOptions, PushConsumer
    from client.consuming.pop.consumer import PopConsumer
    from client.consuming.pop.options import PopOptions
    from client.consuming.pull import PullConsumer, Pulled, PullStatus
    from client.consuming.subscriptions import Sql
    from client.message import Message, Queue, Received, SendFailed, SendResult, SendStatus, SendUnknown
    from client.sending.options import Gather, SendOptions
    from client.sending.producer import Producer
    from client.sending.request_reply import NoReply, Reply
    from client.sending.transactions import Decision, Transaction
    from client.session import Session
    from client.spans import OpenTelemetry
    from model.errors import MqError
    from remoting.auth import Credentials
    from runtime.os_env import OsEnv
    from runtime.tls.network import TlsNetwork
    from runtime.tls.state import TlsState

_HOMES: Final = {
    "AdminClient": "client.admin",
    "BlockingPopConsumer": "client.blocking",
    "BlockingProducer": "client.blocking",
    "BlockingPushConsumer": "client.blocking",
    "ConsumeOptions": "client.consuming.consumer",
    "Credentials": "remoting.auth",
    "Decision": "client.sending.transactions",
    "Gather": "client.sending.options",
    "Message": "client.message",
    "MqError": "model.errors",
    "NoReply": "client.sending.request_reply",
    "OpenTelemetry": "client.spans",
    "OsEnv": "runtime.os_env",
    "PopConsumer": "client.consuming.pop.consumer",
    "PopOptions": "client.consuming.pop.options",
    "Producer": "client.sending.producer",
    "PullConsumer": "client.consuming.pull",
    "PullStatus": "client.consuming.pull",
    "Pulled": "client.consuming.pull",
    "PushConsumer": "client.consuming.consumer",
    "Queue": "client.message",
    "Received": "client.message",
    "Reply": "client.sending.request_reply",
    "SendFailed": "client.message",
    "SendOptions": "client.sending.options",
    "SendResult": "client.message",
    "SendStatus": "client.message",
    "SendUnknown": "client.message",
    "Session": "client.session",
    "Sql": "client.consuming.subscriptions",
    "TlsNetwork": "runtime.tls.network",
    "TlsState": "runtime.tls.state",
    "Transaction": "client.sending.transactions",
    "average": "client.consuming.allocate",
    "average_by_circle": "client.consuming.allocate",
}

__all__ = [
    "AdminClient",
    "BlockingPopConsumer",
    "BlockingProducer",
    "BlockingPushConsumer",
    "ConsumeOptions",
    "Credentials",
    "Decision",
    "Gather",
    "Message",
    "MqError",
    "NoReply",
    "OpenTelemetry",
    "OsEnv",
    "PopConsumer",
    "PopOptions",
    "Producer",
    "PullConsumer",
    "PullStatus",
    "Pulled",
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
    "Sql",
    "TlsNetwork",
    "TlsState",
    "Transaction",
    "average",
    "average_by_circle",
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
