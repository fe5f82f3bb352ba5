"""What do the console's pages ask a cluster? The questions of the commands, a page of answers at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from admin.commands.messaging.consumer import BUILT_IN
from admin.commands.messaging.find import by_time
from admin.commands.messaging.message import CONSUMER_GROUP
from admin.commands.messaging.topic import topic_names
from admin.handover import HandedOver, hand_over
from admin.numbers import whole
from admin.top.look import Look, look
from client.admin import AdminClient, ConsumeStats, QueueStats, SyncState
from client.consumer_groups import ConsumerGroups, Online
from client.consuming.pull import PullConsumer
from client.finding import LONG_MAX, Finder, Found
from client.message import Queue, Received
from model.errors import MqError
from model.topic import TopicConfig, is_system_group
from remoting.keys import Signer
from runtime.env import Env

NAMES_EACH: Final = 25
"""Rows of a page of topics or groups."""
QUEUES_MAX: Final = 256
"""Queues on a page of one topic or group."""
MESSAGES_EACH: Final = 20


class NotThere(MqError):
    """The cluster has nothing of this name."""


@dataclass(frozen=True, slots=True)
class Names:
    """One page of names; ``page`` counts from 1 to ``pages``."""

    names: Sequence[str]
    page: int
    pages: int
    total: int


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """A topic's queues, what each broker group has of it, and the consumer groups that read it."""

    queues: Sequence[QueueStats]
    configs: dict[str, tuple[str, TopicConfig]]
    readers: Sequence[str]


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A consumer group: who is online, how far it is in each queue, which member reads it."""

    online: Online
    lag: Sequence[ConsumeStats]
    readers: dict[Queue, str]


@dataclass(frozen=True, slots=True)
class Browsed:
    """Messages of a queue from ``offset`` on; its readable ones are from ``first`` to before ``end``."""

    queue: Queue
    messages: Sequence[Received]
    offset: int
    first: int
    end: int


def page_of(every: Sequence[str], page: int, wanted: str = "") -> Names:
    """The page of those that have ``wanted`` in their names; one beyond the last is the last."""
    fit = [name for name in every if wanted.lower() in name.lower()]
    pages = max(1, -(-len(fit) // NAMES_EACH))
    page = min(max(1, page), pages)
    return Names(fit[(page - 1) * NAMES_EACH : page * NAMES_EACH], page, pages, len(fit))


class Cluster:
    """One cluster. Each question has clients of its own, so nothing of it stays. Raises as AdminClient does,
    and NotThere."""

    def __init__(
        self, env: Env, namesrv: Sequence[str], controllers: Sequence[str], key: Signer | None
    ) -> None:
        self.env = env
        self.namesrv = list(namesrv)
        self.controllers = list(controllers)
        self.key = key
        self._handing = asyncio.Lock()

    def _admin(self) -> AdminClient:
        return AdminClient(self.env, self.namesrv, credentials=self.key)

    def _consumer(self) -> PullConsumer:
        return PullConsumer(self.env, CONSUMER_GROUP, self.namesrv, credentials=self.key)

    async def look(self) -> Look:
        async with self._admin() as admin:
            return await look(admin, self.namesrv, self.controllers)

    async def topics(self, page: int, wanted: str, whole: bool) -> Names:
        async with self._admin() as admin:
            return page_of(await topic_names(admin, whole), page, wanted)

    async def topic(self, name: str) -> TopicSeen:
        async with self._admin() as admin:
            queues = await admin.topic_stats(name)
            readers = [group for group in await admin.groups_of(name) if group not in BUILT_IN]
            return TopicSeen(queues, await admin.topic_configs(name), readers)

    async def groups(self, page: int, wanted: str) -> tuple[Names, list[tuple[str, int, int]]]:
        """A page of names, and (name, members online, lag) of each."""
        async with self._admin() as admin:
            groups = ConsumerGroups(admin)
            every = [n for n in await groups.names() if not (is_system_group(n) or n in BUILT_IN)]
            names = page_of(every, page, wanted)
            rows = []
            for name in names.names:
                lag, online = await asyncio.gather(groups.lag(name), groups.online(name))
                rows.append((name, len(online.members), sum(stats.lag for stats in lag)))
            return names, rows

    async def group(self, name: str) -> GroupSeen:
        async with self._admin() as admin:
            groups = ConsumerGroups(admin)
            if name not in await groups.names():
                raise NotThere(f"there is no consumer group {name}")
            online = await groups.online(name)
            return GroupSeen(online, await groups.lag(name), await groups.readers(name, online.members))

    async def browse(self, topic: str, place: str, offset: int | None) -> Browsed:
        """``place``: BROKER-GROUP/QUEUE; "": the queue that got a message last. No ``offset``: the newest."""
        async with self._admin() as admin:
            every = await admin.topic_stats(topic)
        chosen = [s for s in every if not place or f"{s.queue.broker_name}/{s.queue.queue_id}" == place]
        if not chosen:
            raise NotThere(f"{topic} has no queue {place}".rstrip())
        stats = max(chosen, key=lambda one: (one.last_ms, one.max_offset))
        first, end = stats.min_offset, stats.max_offset
        at = max(first, end - MESSAGES_EACH) if offset is None else min(max(first, offset), end)
        if at >= end:
            return Browsed(stats.queue, [], at, first, end)
        async with self._consumer() as consumer:
            pulled = await consumer.pull(stats.queue, at, count_max=MESSAGES_EACH)
        return Browsed(stats.queue, pulled.messages, at, first, end)

    async def message(self, topic: str, place: str, offset: int) -> Received:
        group, _, text = place.rpartition("/")
        number = whole(text)
        if not group or number is None:
            raise NotThere(f"{topic} has no queue {place}")
        async with self._consumer() as consumer:
            pulled = await consumer.pull(Queue(topic, group, number), offset, count_max=1)
        if not pulled.messages or pulled.messages[0].queue_offset != offset:
            raise NotThere(f"{topic} has no message at {place}:{offset}: it may be deleted by now")
        return pulled.messages[0]

    async def by_key(self, topic: str, key: str) -> Found:
        async with self._admin() as admin:
            return await Finder(admin).by_key(topic, key, 0, LONG_MAX)

    async def by_id(self, topic: str, msg_id: str) -> Found:
        async with self._admin() as admin:
            return await Finder(admin).by_id(topic, msg_id)

    async def since(self, topic: str, begin_ms: int) -> Found:
        async with self._consumer() as consumer:
            return await by_time(consumer, topic, begin_ms, LONG_MAX, MESSAGES_EACH)

    async def state(self, group: str) -> SyncState:
        if not self.controllers:
            raise NotThere("the console was started without --controllers: it cannot hand over")
        async with self._admin() as admin:
            state = (await admin.sync_state(self.controllers, [group])).get(group)
        if state is None:
            raise NotThere(f"the Controllers know no group {group}")
        return state

    async def hand_over(self, group: str, target: int, seen: tuple[int, int]) -> HandedOver:
        """One at a time. Raises as ``admin.handover.hand_over``."""
        async with self._handing:
            async with self._admin() as admin:
                info = await admin.cluster_info()
            cluster = next((name for name, groups in info.clusters.items() if group in groups), None)
            if cluster is None:
                raise NotThere(f"the NameServers know no group {group}")
            return await hand_over(
                self.env,
                self.namesrv,
                self.controllers,
                cluster,
                group,
                target,
                seen=seen,
                credentials=self.key,
            )
