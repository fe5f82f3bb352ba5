"""Tests of the client under virtual time: no sockets, no waiting; and messages of a queue that is made up."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from chaos.sim.loop import SimLoop
from client.consuming.consume import Limits, QueueWorker
from client.consuming.pull import Pulled, PullStatus
from client.message import Queue, Received
from tests.client.servers import received

QUEUE = Queue("T", "broker-a", 0)


def virtually(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``work`` at once, however long it sleeps."""
    loop = SimLoop(1)
    try:
        loop.run_until_complete(work())
    finally:
        loop.close()
    assert loop.errors == []


async def cancelled_elsewhere() -> NoReturn:
    """What a listener awaits when a task of the program's own was cancelled."""
    future: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future
    raise AssertionError("not reached")


def message(offset: int) -> Received:
    return dataclasses.replace(received({}), queue_offset=offset, msg_id=str(offset))


class FakeQueue:
    """A queue of ``count`` messages, and what was given back of it. A pull takes a while."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.pull_s = 0.02
        self.moved: Pulled | None = None
        self.given_back: list[int] = []
        self.pulls: list[int] = []

    async def pull(self, at: int) -> Pulled:
        self.pulls.append(at)
        if self.pull_s:
            await asyncio.sleep(self.pull_s)
        if self.moved is not None:
            moved, self.moved = self.moved, None
            return moved
        if at >= self.count:
            return Pulled(PullStatus.NO_NEW, [], at, 0, self.count)
        return Pulled(PullStatus.FOUND, [message(at)], at + 1, 0, self.count)

    async def give_back(self, returned: Received) -> None:
        self.given_back.append(returned.queue_offset)

    def worker(
        self,
        listener: Callable[[list[Received]], Awaitable[bool | None]],
        *,
        orderly: bool = False,
        concurrency: int = 1,
        suspend_s: float = 1.0,
        allowed: Callable[[], bool] = lambda: True,
    ) -> QueueWorker:
        limits = Limits(concurrency, 1, 16, suspend_s=suspend_s)
        return QueueWorker(
            QUEUE,
            0,
            limits,
            orderly=orderly,
            pull=self.pull,
            listener=listener,
            give_back=self.give_back,
            allowed=allowed,
        )
