"""Which queues may this consumer consume in order? Those whose lock their broker gave it, not long ago.

A broker keeps a lock for 60 s, for one member of the group. Each is asked by itself: that one does not answer
says nothing of what the others gave, and of its own locks only that they grow old.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from typing import Final

from client.consuming.pull import PullConsumer
from client.consuming.refused import Refusals
from client.message import NoMaster, Queue
from model.errors import MqError
from runtime.env import Env

log = logging.getLogger(__name__)

LOCK_S: Final = 20.0
"""They are asked for again so often."""
LIVES_MS: Final = 30_000.0
"""So long after it was asked for, a lock counts here (``ProcessQueue.isLockExpired`` of RocketMQ): this
member may have stood still, and the broker given the queue to another one."""


class Locks:
    """The locks of one consumer."""

    def __init__(self, env: Env, puller: PullConsumer, refusals: Refusals) -> None:
        self._env = env
        self._puller = puller
        self._refusals = refusals
        self._asked_ms: dict[Queue, float] = {}
        self._silent: set[str] = set()
        """Brokers that ``keep`` asks again."""
        self._given: set[Queue] = set()
        """Those given back, and not asked for anew: no renewal may take one again behind that."""
        self._under_way: dict[asyncio.Future[None], list[Queue]] = {}

    def holds(self, queue: Queue) -> bool:
        asked_ms = self._asked_ms.get(queue)
        return asked_ms is not None and self._env.monotonic_ms() < asked_ms + LIVES_MS

    async def ask(self, queues: Sequence[Queue], again_s: float, *, anew: bool = False) -> float:
        """Ask for the locks of ``queues``, all brokers side by side. How soon to ask again, in seconds:
        ``again_s`` or more where a broker did not answer, else 0. ``anew``: of queues that are not ours yet,
        what was given before counts no more."""
        if anew:
            for queue in queues:
                self._asked_ms.pop(queue, None)
                self._given.discard(queue)
        by_broker: dict[str, list[Queue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker_name, []).append(queue)
        waits_s = await asyncio.gather(*(self._ask(*asked, again_s) for asked in by_broker.items()))
        return max(waits_s, default=0.0)

    async def keep(self, ours: Collection[Queue], again_s: float) -> None:
        """Ask for the locks of ``ours``. A broker that does not answer is asked again after ``again_s`` or
        more, until it does: a lock does not live until the renewal after the next one."""
        brokers = dict.fromkeys(queue.broker_name for queue in ours)
        await asyncio.gather(*(self._keep(name, ours, again_s) for name in brokers))

    async def _keep(self, broker_name: str, ours: Collection[Queue], again_s: float) -> None:
        wait_s = await self._ask_of(broker_name, ours, again_s)
        if not wait_s or broker_name in self._silent:
            return
        self._silent.add(broker_name)
        try:
            while wait_s:
                await asyncio.sleep(wait_s)
                wait_s = await self._ask_of(broker_name, ours, again_s)
        finally:
            self._silent.discard(broker_name)

    async def _ask_of(self, broker_name: str, ours: Collection[Queue], again_s: float) -> float:
        queues = [queue for queue in ours if queue.broker_name == broker_name]
        return await self._ask(broker_name, queues, again_s) if queues else 0.0

    async def give_back(self, queue: Queue) -> None:
        """It is ours until the broker answers, or cannot: one that is broken off is done again. A broker that
        got a lock of it behind this would keep it from everybody for 60 s."""
        self._given.add(queue)
        while asked := [ended for ended, queues in self._under_way.items() if queue in queues]:
            await asyncio.wait(asked)
        if queue not in self._asked_ms:
            return
        try:
            address = await self._master(queue)
            await self._puller.unlock([queue], address)
        except (OSError, MqError) as error:
            group = self._puller.group
            log.info("consumer %s: unlock of %s: %s (it ends by itself after 60 s)", group, queue, error)
        self._asked_ms.pop(queue, None)

    async def _ask(self, broker_name: str, queues: list[Queue], again_s: float) -> float:
        what = f"locks at {broker_name}"
        asked_ms = self._env.monotonic_ms()
        try:
            address = await self._master(queues[0])
            queues = [queue for queue in queues if queue not in self._given]
            granted = await self._locked(queues, address) if queues else []
        except (OSError, MqError) as error:
            return self._refusals.on_error(what, error, again_s, needed=True)
        self._refusals.on_good(what)
        for queue in queues:
            self._asked_ms.pop(queue, None)
        self._asked_ms.update(dict.fromkeys(granted, asked_ms))
        return 0.0

    async def _locked(self, queues: list[Queue], address: str) -> list[Queue]:
        ended = asyncio.get_running_loop().create_future()
        self._under_way[ended] = queues
        try:
            return await self._puller.lock(queues, address)
        finally:
            del self._under_way[ended]
            ended.set_result(None)

    async def _master(self, queue: Queue) -> str:
        route = await self._puller.session.routes.get(queue.topic)
        address = route.master(queue.broker_name)
        if address is None:
            raise NoMaster(f"group {queue.broker_name} has no master")
        return address
