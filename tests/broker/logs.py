"""What tests write to the log of a broker that runs, and read of it."""

from __future__ import annotations

from broker.service import Broker
from store.files.record import NewMessage


def put(broker: Broker, *texts: str) -> None:
    host = broker.context.store_host
    broker.store.put(
        [NewMessage("T", 0, 0, 0, 1, host, host, 0, 0, text.encode() * 50, "") for text in texts]
    )


def log_of(broker: Broker) -> bytes:
    found = b""
    while data := broker.store.log.read(broker.store.log.min_offset + len(found), 1 << 20):
        found += data
    return found
