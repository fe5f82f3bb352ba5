"""Is every message that a producer was told of there, and served?"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from client.consuming.pull import PullConsumer
from client.message import Message, Queue, SendStatus
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.errors import MqError
from runtime.os_env import OsEnv
from tests.interop.logs import messages_of
from tests.interop.mixed import GROUP, MixedCluster

TOPIC: Final = "MixedTopic"
QUEUES: Final = 4
READERS: Final = "mixed-readers"


class Load:
    """Sends one message after the other from a thread, and remembers what was acknowledged, and when."""

    def __init__(self, cluster: MixedCluster, per_second: float = 100.0) -> None:
        self.acked: dict[tuple[int, int], bytes] = {}
        self.doubled: list[tuple[int, int]] = []
        self.acked_at: list[float] = []
        self.failed: list[str] = []
        self._cluster = cluster
        self._pause_s = 1 / per_second
        self._stop = threading.Event()
        self._hold = threading.Event()
        self._held = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="load")
        self._error: BaseException | None = None

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is sent, and no send is on its way."""
        self._hold.set()
        try:
            assert self._held.wait(60), "a send is not over"
            yield
        finally:
            self._hold.clear()
            self._held.clear()

    def wait_for(self, count: int, timeout_s: float = 60.0) -> None:
        """Until ``count`` more messages are acknowledged."""
        wanted = len(self.acked) + count
        self._cluster.wait(
            f"{count} more acknowledged messages (failures: {self.failed[-3:]})",
            lambda: len(self.acked) >= wanted,
            timeout_s,
        )

    async def _run(self) -> None:
        try:
            async with Producer(
                OsEnv(), "mixed", self._cluster.namesrvs, options=SendOptions(poll_ms=500)
            ) as producer:
                number = 0
                while not self._stop.is_set():
                    if self._hold.is_set():
                        self._held.set()
                        await asyncio.sleep(self._pause_s)
                        continue
                    await self._one(producer, number)
                    number += 1
                    await asyncio.sleep(self._pause_s)
        except BaseException as error:
            self._error = error
            raise

    async def _one(self, producer: Producer, number: int) -> None:
        body = f"mixed {number} ".encode() * 20
        queue = Queue(TOPIC, GROUP, number % QUEUES)
        try:
            result = await producer.send(Message(topic=TOPIC, body=body), queue=queue)
        except MqError as error:
            self.failed.append(str(error))
            return
        if result.status is not SendStatus.SEND_OK:
            self.failed.append(str(result.status))
            return
        place = (result.queue.queue_id, result.queue_offset)
        if place in self.acked:
            self.doubled.append(place)
        self.acked[place] = body
        self.acked_at.append(time.monotonic())


def assert_nothing_acked_is_gone(cluster: MixedCluster, loads: Sequence[Load]) -> int:
    """Every acknowledged message lies in the logs at the place the producer was told; returns how many."""
    acked: dict[tuple[int, int], bytes] = {}
    for load in loads:
        assert not load.doubled, f"acknowledged twice with different messages: {load.doubled}"
        assert not acked.keys() & load.acked.keys()
        acked |= load.acked
    stored = messages_of(cluster.store(cluster.brokers[0]), TOPIC)
    gone = [place for place, body in acked.items() if stored.get(place) != body]
    assert not gone, f"{len(gone)} of {len(acked)} acknowledged messages are gone: {gone[:5]}"
    return len(acked)


def unserved(cluster: MixedCluster) -> list[tuple[int, int]]:
    """The places of acknowledged messages that a consumer does not get from the master, asked alone."""
    doubled = [place for load in cluster.loads for place in load.doubled]
    assert not doubled, f"acknowledged twice with different messages, one of which is gone: {doubled}"
    acked = {place: body for load in cluster.loads for place, body in load.acked.items()}

    async def read() -> dict[tuple[int, int], bytes]:
        async with PullConsumer(OsEnv(), READERS, cluster.namesrvs) as consumer:
            queues = await consumer.queues(TOPIC)
            found = [message for queue in queues for message in await consumer.read_all(queue)]
        return {(message.queue.queue_id, message.queue_offset): message.body for message in found}

    try:
        served = asyncio.run(read())
    except (OSError, MqError):
        return list(acked)
    return [place for place, body in acked.items() if served.get(place) != body]
