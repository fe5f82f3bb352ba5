"""What does a consumer need to tell of the messages it got? A producer that has no other use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.trace import TRACE_GROUP, Tracer
from model.topic import GROUP_CHARS_MAX
from remoting.keys import Signer
from runtime.env import Env


class Tracing(NamedTuple):
    """Started before the consumer, stopped after it."""

    producer: Producer
    tracer: Tracer

    @classmethod
    def of(
        cls, env: Env, group: str, nameservers: Sequence[str], poll_ms: int, credentials: Signer | None
    ) -> Self:
        sending = SendOptions(poll_ms=poll_ms, credentials=credentials)
        producer = Producer(env, f"{TRACE_GROUP}-{group}"[:GROUP_CHARS_MAX], nameservers, sending)
        return cls(producer, Tracer(env, group, producer.send))

    async def start(self) -> None:
        await self.producer.start()
        self.tracer.start()

    async def stop(self) -> None:
        await self.tracer.stop()
        await self.producer.stop()
