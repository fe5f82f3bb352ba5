"""Which message has this id, or this key? Every broker group of the topic is asked: keys do not say where."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from client.admin import AdminClient
from client.consuming.pull import parse_records
from client.message import Received
from model.codes import Request, Response
from model.errors import MqError, Refused
from model.message import parse_message_id

MOST: Final = 64
"""Matches of one broker in one answer; brokers give no more, the newest first."""
LONG_MAX: Final = 2**63 - 1

_Ask = Callable[[str, str], Awaitable[list[Received]]]


def in_log_order(message: Received) -> tuple[int, str, int]:
    """Sorts by time; within a millisecond a group's log has the order."""
    return message.store_timestamp_ms, message.queue.broker_name, message.physical_offset


@dataclass(frozen=True, slots=True)
class Found:
    """Messages, oldest first, and which broker groups did not say what they have."""

    messages: Sequence[Received]
    problems: Sequence[str] = ()


class Finder:
    """Asks the masters of a topic, or another member where there is no master: all show what is confirmed.

    Raises NoRoute; a group that cannot be asked is named in ``Found.problems``.
    """

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    async def by_key(self, topic: str, key: str, begin_ms: int = 0, end_ms: int = LONG_MAX) -> Found:
        """Messages whose keys name ``key``, or whose producer gave them the id ``key``."""
        found = await self._query(topic, key, begin_ms, end_ms)
        return Found([m for m in found.messages if key in m.keys or m.msg_id == key], found.problems)

    async def by_id(self, topic: str, msg_id: str) -> Found:
        """The message of an id, as the producer made it or as its broker did: the two look alike."""
        upper = msg_id.upper()
        by_producer = Found([])
        for name in dict.fromkeys((msg_id, upper)):  # a program may have made its own
            by_producer = await self._query(topic, name, 0, LONG_MAX, unique=True)
            if hits := [m for m in by_producer.messages if m.msg_id == name]:
                return Found(hits, by_producer.problems)
        try:
            _, offset = parse_message_id(upper)
        except ValueError:
            return Found([], by_producer.problems)
        return await self._at(topic, upper, offset)

    async def _at(self, topic: str, msg_id: str, offset: int) -> Found:
        """The address in an id is that of who was master then: any member that has the record will do."""

        async def ask(address: str, group: str) -> list[Received]:
            ext = {"offset": str(offset), "topic": topic}
            try:
                answer = await self._admin.session.call(address, Request.VIEW_MESSAGE_BY_ID, ext)
            except Refused as error:
                if error.code == Response.SYSTEM_ERROR:
                    return []  # no message begins there
                raise
            every = parse_records(answer.body, group)
            return [m for m in every if m.offset_msg_id == msg_id and m.stored_topic == topic]

        return await self._each(topic, ask)

    async def _query(
        self, topic: str, key: str, begin_ms: int, end_ms: int, *, unique: bool = False
    ) -> Found:
        header = {
            "topic": topic,
            "key": key,
            "maxNum": str(MOST),
            "beginTimestamp": str(begin_ms),
            "endTimestamp": str(end_ms),
            **({"_UNIQUE_KEY_QUERY": "true"} if unique else {}),
        }

        async def ask(address: str, group: str) -> list[Received]:
            try:
                answer = await self._admin.session.call(address, Request.QUERY_MESSAGE, header)
            except Refused as error:
                if error.code == Response.QUERY_NOT_FOUND:
                    return []
                raise
            return parse_records(answer.body, group)

        return await self._each(topic, ask)

    async def _each(self, topic: str, ask: _Ask) -> Found:
        problems: list[str] = []

        async def one(group: str, members: Sequence[str]) -> list[Received]:
            problem = "it has no broker"
            for address in members:
                try:
                    return await ask(address, group)
                except (MqError, OSError) as error:
                    problem = f"{address}: {error or type(error).__name__}"
            problems.append(f"{group} cannot be asked: {problem}")
            return []

        route = await self._admin.route(topic)
        asked = [one(group, list(members.values())) for group, members in route.brokers.items()]
        every = [message for messages in await asyncio.gather(*asked) for message in messages]
        every.sort(key=in_log_order)
        return Found(every, sorted(problems))
