"""Where may a message of a topic go, also of one that nobody made yet?

A broker makes an unknown topic on its first message, as its default topic says. Until the NameServers know
it, a route made up from the default topic's stands for it.
"""

from __future__ import annotations

import asyncio
import logging

from client.message import NoRoute, Queue, RouteRefused
from client.routes import Route, Routes
from model.errors import MqError
from model.message import DLQ_PREFIX, RETRY_PREFIX
from model.topic import AUTO_CREATE_TOPIC
from runtime.tasks import Tasks

log = logging.getLogger(__name__)


class Targets:
    """The routes of one producer's topics. ``default_queues``: of a topic that a broker makes."""

    def __init__(self, routes: Routes, tasks: Tasks, default_queues: int) -> None:
        self._routes = routes
        self._tasks = tasks
        self._default_queues = default_queues
        self._provisional: dict[str, Route] = {}
        self._probing: set[str] = set()

    def known(self, topic: str) -> Route | None:
        """What is known of it by now, without a question."""
        return self._routes.cached(topic) or self._provisional.get(topic)

    def forget_made_up(self, topic: str) -> bool:
        """Whether its route was a made-up one; it is not any more."""
        return self._provisional.pop(topic, None) is not None

    async def route(self, topic: str) -> Route:
        cached = self._routes.cached(topic)
        if cached is not None:
            return cached
        provisional = self._provisional.get(topic)
        if provisional is not None:
            self._probe(topic)
            return provisional
        try:
            return await self._routes.get(topic)
        except NoRoute as missing:
            # The broker makes an unknown topic on its first message, as its default topic says.
            try:
                default = await self._routes.get(AUTO_CREATE_TOPIC)
            except NoRoute:
                default = Route(topic)
            except RouteRefused as error:
                text = f"{missing}, and its sender may not read the default topic either: {error}"
                raise NoRoute(text) from None
            if not default.writable:
                raise
            queues = tuple(
                Queue(topic, queue.broker_name, queue.queue_id)
                for queue in default.writable
                if queue.queue_id < self._queues_of_new(topic)
            )
            self._provisional[topic] = Route(topic, default.brokers, default.clusters, queues, queues)
            return self._provisional[topic]

    def _queues_of_new(self, topic: str) -> int:
        """How many queues a broker makes for a topic it does not know."""
        own = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
        return 1 if own else self._default_queues

    def _probe(self, topic: str) -> None:
        if topic not in self._probing:
            self._probing.add(topic)
            self._tasks.spawn(self._learn(topic), name=f"learn.{topic}")

    async def _learn(self, topic: str) -> None:
        try:
            await self._routes.refresh(topic)
            self._provisional.pop(topic, None)
        except MqError as error:
            log.debug("topic %s is not at the NameServers yet: %s", topic, error)
            await asyncio.sleep(0.05)
        finally:
            self._probing.discard(topic)
