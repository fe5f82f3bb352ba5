"""The well-behaved client: it sends and pulls at a calm pace, keeps what was acknowledged, and measures."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Any, Final, Self

from client.consuming.pull import PullConsumer
from client.message import Message, Queue, SendResult, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.errors import MqError
from runtime.env import Env
from tests.fuzz.hostile.draws import GROUP, TOPIC

SENDS_PER_S: Final = 20.0
PULLS_PER_S: Final = 5.0
QUEUES: Final = 4
SEND_TIMEOUT_S: Final = 30.0
SLOW_MS: Final = 1000.0
SLOW_MAX: Final = 50


class Phase:
    """What was measured under one name, ms."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sends_ms: list[float] = []
        self.pulls_ms: list[float] = []
        self.failed: list[str] = []
        self.slow: list[dict[str, Any]] = []
        """Sends that stood: how each ended, and each of its attempts. A time alone does not tell what held
        it."""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "sends": len(self.sends_ms),
            "sendMs": spread(self.sends_ms),
            "pulls": len(self.pulls_ms),
            "pullMs": spread(self.pulls_ms),
            "failed": len(self.failed),
            "failedFirst": self.failed[:5],
            "slow": self.slow[:SLOW_MAX],
        }

    def sent(self, took_ms: float, result: SendResult) -> None:
        self.sends_ms.append(took_ms)
        if took_ms >= SLOW_MS:
            attempts = [
                {"outcome": one.outcome, "ms": round(one.took_ms), "said": one.detail[:200]}
                for one in result.attempts
            ]
            self.slow.append({"ms": round(took_ms), "status": result.status.name, "attempts": attempts})


def spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)

    return {"p50": at(0.5), "p99": at(0.99), "p999": at(0.999), "max": round(ordered[-1], 1)}


class Neighbour:
    """``acked``: keys of acknowledged messages by queue. Use ``run`` as a task, and change ``phase``."""

    def __init__(self, env: Env, namesrv: list[str]) -> None:
        self._env = env
        self._namesrv = namesrv
        self._producer = Producer(env, GROUP, namesrv, options=SendOptions(timeout_s=SEND_TIMEOUT_S))
        self._consumer = PullConsumer(env, GROUP, namesrv)
        self.phase = Phase("warm-up")
        self.acked: dict[Queue, list[str]] = {}
        self.pulled = 0
        self._sent = 0

    async def __aenter__(self) -> Self:
        """Ready once the topic exists and a first message is acknowledged."""
        await self._producer.start()
        await self._consumer.start()
        await self._send(None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._producer.stop()
        await self._consumer.stop()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._send_forever())
            group.create_task(self._pull_forever())

    async def _send_forever(self) -> None:
        while True:
            queues = sorted(await self._producer.queues(TOPIC), key=lambda queue: queue.queue_id)
            for queue in queues:
                began = time.monotonic()
                await self._send(queue)
                await asyncio.sleep(max(0.0, 1 / SENDS_PER_S - (time.monotonic() - began)))

    async def _send(self, queue: Queue | None) -> None:
        phase, began = self.phase, time.monotonic()
        self._sent += 1
        key = f"normal-{self._sent:08d}"
        message = Message(topic=TOPIC, body=key.encode() * 8, keys=[key])
        try:
            result = await self._producer.send(message, queue=queue)
        except (MqError, OSError) as error:
            phase.failed.append(f"send: {error}"[:300])
            return
        phase.sent((time.monotonic() - began) * 1000, result)
        if result.status is SendStatus.SEND_OK:
            self.acked.setdefault(result.queue, []).append(key)

    async def _pull_forever(self) -> None:
        offsets: dict[Queue, int] = {}
        while True:
            for queue in list(self.acked):
                await asyncio.sleep(1 / PULLS_PER_S)
                phase, began = self.phase, time.monotonic()
                try:
                    pulled = await self._consumer.pull(queue, offsets.get(queue, 0))
                except (MqError, OSError) as error:
                    phase.failed.append(f"pull: {error}"[:300])
                    continue
                phase.pulls_ms.append((time.monotonic() - began) * 1000)
                offsets[queue] = pulled.next_offset
                self.pulled += len(pulled.messages)

    async def lost(self) -> list[str]:
        """Keys that were acknowledged and cannot be read."""
        missing: list[str] = []
        for queue, keys in self.acked.items():
            found = {key for message in await self._consumer.read_all(queue) for key in message.keys}
            missing += [key for key in keys if key not in found]
        return missing
