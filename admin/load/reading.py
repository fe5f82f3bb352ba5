"""How fast do messages come out, and how long after they were planned? Every queue is read by itself."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from admin.load.latency import Latencies
from admin.load.sending import MARK, NAME
from client.consuming.pull import PullConsumer
from client.message import Queue, Received
from model.errors import MqError
from runtime.tasks import Tasks

HELD_MS: Final = 2000
AGAIN_S: Final = 0.2


@dataclass(slots=True)
class Read:
    """What was read. ``end_to_end``: from the planned time of a message of ``keelmq bench`` that was planned
    since this reading began until it was here, by the machines' clocks. ``problems``: pulls that failed."""

    messages: int = 0
    read_bytes: int = 0
    seconds: float = 0.0
    marked: int = 0
    problems: int = 0
    first_error: str = ""
    end_to_end: Latencies = field(default_factory=Latencies)

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "bytes": self.read_bytes,
            "seconds": round(self.seconds, 3),
            "rate": round(self.messages / self.seconds, 1) if self.seconds else 0.0,
            "endToEndMs": self.end_to_end.to_json(),
            "failedPulls": self.problems,
            "firstError": self.first_error or None,
        }


class Reading:
    """Reads a topic from its end, or its begin, until it is told to stop. Commits no offset."""

    def __init__(self, consumer: PullConsumer, topic: str, *, from_begin: bool = False) -> None:
        self.read = Read()
        self._consumer = consumer
        self._topic = topic
        self._from_begin = from_begin
        self._tasks = Tasks("bench")
        self._begun_ns = 0
        self._begun = 0.0
        self._at_end: set[Queue] = set()
        self._queues: list[Queue] = []
        self._moved = asyncio.Event()

    async def start(self) -> None:
        """Raises as PullConsumer does: the places to begin at are asked for before anything is sent."""
        self._queues = await self._consumer.queues(self._topic)
        ask = self._consumer.min_offset if self._from_begin else self._consumer.max_offset
        places = [await ask(queue) for queue in self._queues]
        self._begun_ns, self._begun = time.time_ns(), time.perf_counter()
        for queue, offset in zip(self._queues, places, strict=True):
            self._tasks.spawn(self._pull(queue, offset), name=str(queue))

    async def until_marked(self, wanted: int, timeout_s: float) -> None:
        """Wait until so many messages of this run are here, or the time is over."""
        await self._until(lambda: self.read.marked >= wanted, timeout_s)

    async def until_end(self, timeout_s: float) -> None:
        """Wait until every queue was read to its end, or the time is over."""
        await self._until(lambda: len(self._at_end) == len(self._queues), timeout_s)

    async def _until(self, reached: Callable[[], bool], timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not reached():
                    self._moved.clear()
                    await self._moved.wait()

    async def stop(self) -> Read:
        self.read.seconds = time.perf_counter() - self._begun if self._begun else 0.0
        await self._tasks.cancel()
        return self.read

    async def _pull(self, queue: Queue, offset: int) -> None:
        while True:
            try:
                pulled = await self._consumer.pull(queue, offset, suspend_ms=HELD_MS)
            except (MqError, OSError) as error:
                self.read.problems += 1
                self.read.first_error = self.read.first_error or str(error) or type(error).__name__
                await asyncio.sleep(AGAIN_S)  # a master that died has a successor soon
                continue
            now_ns = time.time_ns()
            for message in pulled.messages:
                self._take(message, now_ns)
            offset = pulled.next_offset
            if offset >= pulled.max_offset:
                self._at_end.add(queue)
            self._moved.set()

    def _take(self, message: Received, now_ns: int) -> None:
        self.read.messages += 1
        self.read.read_bytes += len(message.body)
        if len(message.body) < MARK.size:
            return
        name, planned_ns = MARK.unpack_from(message.body)
        if name == NAME and planned_ns >= self._begun_ns:
            self.read.marked += 1
            self.read.end_to_end.add(max(0.0, (now_ns - planned_ns) / 1e6))
