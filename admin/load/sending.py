"""How is load made? At a fixed rate, which does not wait for the system under test, or as fast as it goes.

At a fixed rate a send has its planned time, and its latency counts from there: a system that stands still for
a second delays all sends planned in that second, and each of them is counted (no "coordinated omission").
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from admin.load.latency import Latencies
from client.message import Message, SendFailed, SendResult, SendStatus, SendUnknown
from model.errors import MqError
from runtime.tasks import Tasks

MARK: Final = struct.Struct(">8sq")
"""How a body begins: our name, and the planned time in ns since 1970."""
NAME: Final = b"kq-bench"
DRAIN_S: Final = 10.0

Send = Callable[[Message], Awaitable[SendResult]]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to send. ``rate``: a second, None = as fast as it goes. Bodies have ``size_min`` to ``size_max``
    bytes, evenly spread."""

    topic: str
    seconds: float
    rate: float | None
    in_flight: int
    size_min: int
    size_max: int
    tag: str | None = None


@dataclass(slots=True)
class Sent:
    """What became of the sends. ``latency`` counts from the planned time, ``service`` from when the client
    was handed the message; without a rate both are the same. ``late``: how late the client was handed it.
    All end with the answer, or when the client gave up."""

    acknowledged: int = 0
    not_ok: int = 0
    failed: int = 0
    unknown: int = 0
    sent_bytes: int = 0
    seconds: float = 0.0
    latency: Latencies = field(default_factory=Latencies)
    service: Latencies = field(default_factory=Latencies)
    late: Latencies = field(default_factory=Latencies)
    first_error: str = ""

    @property
    def total(self) -> int:
        return self.acknowledged + self.failed + self.unknown

    def to_json(self) -> dict[str, Any]:
        return {
            "sent": self.total,
            "acknowledged": self.acknowledged,
            "notOk": self.not_ok,
            "failed": self.failed,
            "unknown": self.unknown,
            "bytes": self.sent_bytes,
            "seconds": round(self.seconds, 3),
            "rate": round(self.acknowledged / self.seconds, 1) if self.seconds else 0.0,
            "latencyMs": self.latency.to_json(),
            "serviceMs": self.service.to_json(),
            "lateMs": self.late.to_json(),
            "firstError": self.first_error or None,
        }


class Sending:
    """Carries out a plan; ``sent`` may be read at any time."""

    def __init__(self, plan: Plan, send: Send) -> None:
        self.plan = plan
        self.sent = Sent()
        self._send = send
        self._slots = asyncio.Semaphore(plan.in_flight)
        self._tasks = Tasks("bench")
        self._filler = random.randbytes(plan.size_max)
        self._begun = 0.0

    async def run(self) -> Sent:
        """Send for the plan's seconds, then wait ``DRAIN_S`` for answers; what is out then is unknown."""
        self._begun = time.perf_counter()
        try:
            if self.plan.rate is None:
                await self._as_fast_as_it_goes()
            else:
                await self._at_a_rate(self.plan.rate)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_S):
                    await self._tasks.join()
        finally:
            await self._tasks.cancel()
            self.sent.seconds = self.sent.seconds or self._spent_s()
        return self.sent

    async def _at_a_rate(self, rate: float) -> None:
        for number in range(int(rate * self.plan.seconds)):
            due_s = number / rate
            wait_s = due_s - self._spent_s()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            await self._slots.acquire()
            self._spawn(due_s)
        self.sent.seconds = max(self.plan.seconds, self._spent_s())

    async def _as_fast_as_it_goes(self) -> None:
        while self._spent_s() < self.plan.seconds:
            await self._slots.acquire()
            self._spawn(self._spent_s())
        self.sent.seconds = self._spent_s()

    def _spent_s(self) -> float:
        return time.perf_counter() - self._begun

    def _spawn(self, due_s: float) -> None:
        self._tasks.spawn(self._one(due_s), name="send")

    async def _one(self, due_s: float) -> None:
        sent = self.sent
        began_s = self._spent_s()
        message = Message(topic=self.plan.topic, body=self._body(began_s - due_s), tags=self.plan.tag)
        try:
            result = await self._send(message)
            sent.acknowledged += 1
            sent.not_ok += result.status is not SendStatus.SEND_OK
        except SendFailed as error:
            sent.failed += 1
            sent.first_error = sent.first_error or str(error)
        except (SendUnknown, MqError, OSError, asyncio.CancelledError) as error:
            sent.unknown += 1
            sent.first_error = sent.first_error or str(error) or "no answer before the end"
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self._slots.release()
        ended_s = self._spent_s()
        sent.sent_bytes += len(message.body)
        sent.latency.add((ended_s - due_s) * 1000)
        sent.service.add((ended_s - began_s) * 1000)
        sent.late.add((began_s - due_s) * 1000)

    def _body(self, late_s: float) -> bytes:
        size = random.randint(self.plan.size_min, self.plan.size_max)
        mark = MARK.pack(NAME, time.time_ns() - int(late_s * 1e9))
        return (mark + self._filler)[:size]
