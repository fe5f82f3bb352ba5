"""How do workloads talk to a cluster? Through two small interfaces; here over this project's client.

The same adapters serve the simulated and the live world, and a real RocketMQ cluster, as all speak one wire.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from client.consuming.consumer import PullConsumer
from client.message import Message, Queue, SendFailed, SendStatus, SendUnknown
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.errors import Unknown
from model.message import parse_message_id
from runtime.env import Env


def body_crc(body: bytes) -> int:
    """The checksum histories and audit ledgers carry."""
    return zlib.crc32(body) & 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class Acked:
    """Where an acknowledged message lies, and who said so."""

    queue: Queue
    queue_offset: int
    physical_offset: int
    address: str = ""
    unknown_attempts: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """A message that was read."""

    key: str
    queue: Queue
    queue_offset: int
    body_crc: int


class Sender(Protocol):
    async def send(self, key: str, queue: Queue, body: bytes) -> Acked:
        """Raises SendFailed (not stored), SendUnknown (perhaps stored)."""


class Reader(Protocol):
    async def read(self, queue: Queue, offset: int, *, wait_ms: int = 0) -> tuple[list[Seen], int]:
        """Messages from ``offset`` on and the offset to go on from. Raises MqError or OSError."""

    async def read_all(self, queue: Queue) -> list[Seen]:
        """All that the queue holds now. Raises MqError or OSError."""


class ClientSender:
    """A ``Producer``: an attempt whose outcome is unknown is not repeated, so no key can be stored twice.

    Several workloads may share one; its producer group is ``GID_`` and ``name``.
    """

    def __init__(
        self, env: Env, name: str, namesrv: Sequence[str], *, timeout_s: float = 10.0, poll_ms: int = 1000
    ) -> None:
        self.producer = Producer(
            env,
            f"GID_{name}",
            namesrv,
            options=SendOptions(timeout_s=timeout_s, unknown_retries=0, poll_ms=poll_ms),
        )

    async def start(self) -> None:
        await self.producer.start()

    async def stop(self) -> None:
        await self.producer.stop()

    async def send(self, key: str, queue: Queue, body: bytes) -> Acked:
        message = Message(topic=queue.topic, body=body, keys=[key], properties={"UNIQ_KEY": key})
        result = await self.producer.send(message, queue=queue)
        if result.status is not SendStatus.SEND_OK:
            raise SendUnknown(f"answered {result.status.name}", result.attempts)
        _, physical_offset = parse_message_id(result.offset_msg_id)
        unknown = sum(attempt.outcome == "unknown" for attempt in result.attempts)
        address = result.attempts[-1].address if result.attempts else ""
        return Acked(result.queue, result.queue_offset, physical_offset, address, unknown)


class ClientReader:
    """A ``PullConsumer`` of one group."""

    def __init__(self, env: Env, name: str, namesrv: Sequence[str], *, poll_ms: int = 1000) -> None:
        self.consumer = PullConsumer(env, f"GID_{name}", namesrv, poll_ms=poll_ms)

    async def start(self) -> None:
        await self.consumer.start()

    async def stop(self) -> None:
        await self.consumer.stop()

    async def read(self, queue: Queue, offset: int, *, wait_ms: int = 0) -> tuple[list[Seen], int]:
        pulled = await self.consumer.pull(queue, offset, suspend_ms=wait_ms)
        return [
            Seen(message.msg_id, message.queue, message.queue_offset, body_crc(message.body))
            for message in pulled.messages
        ], pulled.next_offset

    async def read_all(self, queue: Queue) -> list[Seen]:
        return [
            Seen(message.msg_id, message.queue, message.queue_offset, body_crc(message.body))
            for message in await self.consumer.read_all(queue)
        ]


__all__ = ["Acked", "ClientReader", "ClientSender", "Reader", "Seen", "SendFailed", "Sender", "Unknown"]
