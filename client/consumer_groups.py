"""What do operators ask about consumer groups? Which there are, who is in them, and how far they are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from client.admin import AdminClient, ConsumeStats, consume_stats_of, queue_of
from client.checking import need_group
from client.message import NoMaster, Queue
from model.codes import Request, Response
from model.errors import MqError, Refused
from model.message import RETRY_PREFIX
from model.topic import SubscriptionGroupConfig
from remoting import bodies

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer that is online; ``version`` is the number its SDK sends."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class Online:
    """The members of a group, and what they subscribe to: topic to expression."""

    members: tuple[Member, ...] = ()
    subscriptions: tuple[tuple[str, str], ...] = ()


class ConsumerGroups:
    """Asks every master of the cluster: a group's state is spread over them. Raises as AdminClient does."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def names(self) -> list[str]:
        """Every group that a master knows."""

        async def ask(address: str) -> list[str]:
            answer = await self._call(address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {})
            return [str(name) for name in answer.get("subscriptionGroupTable") or {}]

        return sorted({name for names in await self._each(ask) for name in names})

    async def online(self, group: str) -> Online:
        """Who is connected; nobody when every master says that the group is not online."""

        async def ask(address: str) -> dict[str, Any]:
            try:
                return await self._call(
                    address, Request.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": group}
                )
            except Refused as error:
                if error.code == Response.CONSUMER_NOT_ONLINE:
                    return {}
                raise

        members: dict[str, Member] = {}
        subscriptions: dict[str, str] = {}
        for answer in await self._each(ask):
            for one in answer.get("connectionSet") or []:
                member = Member(
                    str(one["clientId"]), str(one["clientAddr"]), str(one["language"]), int(one["version"])
                )
                members[member.client_id] = member
            for topic, one in (answer.get("subscriptionTable") or {}).items():
                subscriptions[str(topic)] = str(one.get("subString") or "*")
        return Online(tuple(members[i] for i in sorted(members)), tuple(sorted(subscriptions.items())))

    async def lag(self, group: str, topic: str = "") -> list[ConsumeStats]:
        """How far the group is in every queue it ever read, or in those of ``topic``."""
        header = {"consumerGroup": group, **({"topic": topic} if topic else {})}

        async def ask(address: str) -> list[ConsumeStats]:
            answer = await self._call(address, Request.GET_CONSUME_STATS, header)
            return [consume_stats_of(k, v) for k, v in (answer.get("offsetTable") or {}).items()]

        return sorted((s for found in await self._each(ask) for s in found), key=lambda s: s.queue)

    async def reset(self, group: str, topic: str, queue: Queue, offset: int) -> None:
        """Set the group's offset of one queue, back or forward. Members hear of it with their next pull, or
        commit: within a minute."""
        address = (await self._masters()).get(queue.broker_name)
        if address is None:
            raise Refused(f"{queue.broker_name} has no master now", Response.SYSTEM_ERROR)
        header = {
            "topic": topic,
            "group": group,
            "queueId": str(queue.queue_id),
            "offset": str(offset),
            "timestamp": "0",
            "isForce": "true",
        }
        await self._call(address, Request.INVOKE_BROKER_TO_RESET_OFFSET, header)

    async def readers(self, group: str, members: Sequence[Member]) -> dict[Queue, str]:
        """Which member reads each queue, as the members themselves say; one that does not say is left out."""
        masters = list((await self._masters()).values())

        async def ask(member: Member) -> list[Queue]:
            header = {"consumerGroup": group, "clientId": member.client_id, "jstackEnable": "false"}
            for address in masters:
                try:
                    answer = await self._call(address, Request.GET_CONSUMER_RUNNING_INFO, header)
                    return [queue_of(key) for key in answer.get("mqTable") or {}]
                except (MqError, OSError) as error:
                    # Connected to another master, frozen, or a client that does not know the question.
                    log.debug("%s says at %s: %s", member.client_id, address, error)
            return []

        found = await asyncio.gather(*(ask(member) for member in members))
        return {queue: m.client_id for m, queues in zip(members, found, strict=True) for queue in queues}

    async def create(self, config: SubscriptionGroupConfig) -> list[str]:
        """Have every master take ``config``; the broker groups that did. Raises ValueError for a name that no
        master takes, and NoMaster, with nothing made, when a broker group has none."""
        need_group(config.name)
        info = await self._admin.cluster_info()
        for name, members in info.brokers.items():
            if 0 not in members:
                raise NoMaster(f"group {name} has no master")
        body = bodies.dumps(config.to_json())
        for members in info.brokers.values():
            code = Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._admin.session.call(members[0], code, body=body)
        return list(info.brokers)

    async def delete(self, group: str) -> None:
        """Forget the group and its offsets at every master, and its retry topic. Raises NoMaster, with
        nothing deleted, when a broker group has none."""
        info = await self._admin.cluster_info()
        for name, members in info.brokers.items():
            if 0 not in members:
                raise NoMaster(f"group {name} has no master")
        for members in info.brokers.values():
            header = {"groupName": group, "cleanOffset": "true"}
            await self._call(members[0], Request.DELETE_SUBSCRIPTIONGROUP, header)
        if f"{RETRY_PREFIX}{group}" in await self._admin.topics():
            await self._admin.delete_topic(f"{RETRY_PREFIX}{group}")

    async def _masters(self) -> dict[str, str]:
        info = await self._admin.cluster_info()
        return {name: members[0] for name, members in info.brokers.items() if 0 in members}

    async def _each(self, ask: Callable[[str], Awaitable[T]]) -> list[T]:
        return [await ask(address) for address in (await self._masters()).values()]

    async def _call(self, address: str, code: Request, header: dict[str, str]) -> dict[Any, Any]:
        answer = await self._admin.session.call(address, code, header)
        found = bodies.loads(answer.body, bodies.BELIEVED) if answer.body else {}
        return found if isinstance(found, dict) else {}
