"""What stands in a queue, and how far is everybody?

QUERY_CONSUME_QUEUE (321), QUERY_CORRECTION_OFFSET (308), GET_BROKER_CONSUME_STATS (317),
INVOKE_BROKER_TO_GET_CONSUMER_STATUS (223), VIEW_BROKER_STATS_DATA (315).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.answers import dialect, strict
from broker.requests.consumers.offsets import stored_ms
from broker.state.clients import Client
from model.codes import Request, Response
from model.errors import MqError, Refused, Unknown
from model.topic import TopicConfig
from remoting import bodies
from remoting.bodies import Items, Members, ObjectKey, queue_key
from remoting.codec import Command
from remoting.headers import need, need_int, opt_bool
from remoting.service import Connection
from runtime.tasks import Tasks

LONG_MAX: Final = 2**63 - 1
STATUS_BYTES_MAX: Final = 256 << 10
STATUS: Final = bodies.Bound(STATUS_BYTES_MAX, tokens=40_000, slow=40 << 10)
"""What a client says of its queues: a map with object keys, of some 500 queues. Nobody chose this client."""
SAID_BYTES_MAX: Final = 4 << 20
"""Of what all consumers say that are asked at the same time; parsed, it takes ten times as much."""
QUESTIONS_MAX: Final = 16
"""Groups that are asked at the same time."""
QUESTION_BYTES: Final = 2 << 10
"""More than a question has."""
ASKED_NAME_CHARS_MAX: Final = 512
"""Longer than any topic; it is handed on to each consumer."""
ENTRIES_MAX: Final = 10_000
"""Of a queue in one answer; the original gives as many as were asked for."""
FILTER_CHARS_MAX: Final = 256 << 10
"""Of the groups that an answer leaves out."""
CLIENT_CALL_S: Final = 5.0
ASKED_AT_ONCE: Final = 64
"""Consumers of a group."""


class InspectionProcessor:
    """Answers 223, 308, 315, 317 and 321; nothing changes by them."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._tasks = Tasks("asking consumers")
        self._questions = 0
        self._said_bytes = 0

    async def queue_entries(self, connection: Connection, request: Command) -> Command:
        """``count`` entries of a queue from ``index`` on; with a group, its subscription as well."""
        context, ext = self._context, request.ext
        name, queue_id = need(ext, "topic"), need_int(ext, "queueId", 0)
        index, count = need_int(ext, "index"), need_int(ext, "count", 0)
        context.trust.need_seen(connection, request, name)
        queue = context.store.files.queues.get(name, queue_id)
        if queue is None:
            raise Refused(f"{queue_id}@{name} is not exist!", Response.SYSTEM_ERROR)
        least, most = queue.min_offset, queue.max_offset
        if not least <= index < most:
            return request.reply(remark=f"Index {index} of {queue_id}@{name} is not exist!")
        body: dict[str, Any] = {}
        group = ext.get("consumerGroup")
        if group:
            found = context.clients.subscription(group, name)
            if found is None:
                body["filterData"] = f"{group}@{name} is not online!"
            else:
                body["subscriptionData"] = found.to_json()
                kept = context.filters.get(group, name)
                text = bodies.dumps_dialect(None if kept is None else kept.to_json(), indent=True)
                body["filterData"] = text.decode()
        body |= {"maxQueueIndex": most, "minQueueIndex": least}
        async with context.turns.take(connection) as turn:
            entries = (
                {"eval": False, "physicOffset": offset, "physicSize": size, "tagsCode": tags_code}
                for _, offset, size, tags_code in queue.entries(
                    index, min(index + min(count, ENTRIES_MAX), most)
                )
            )
            return request.reply(body=await strict(turn, body | {"queueData": Items(entries)}))

    async def correction_offsets(self, connection: Connection, request: Command) -> Command:
        """Queue -> the least offset that a group holds of it; LONG_MAX where ``compareGroup`` is not so far.

        The original also deletes the offsets of ``filterGroups``; here they are left out, no more.
        """
        context = self._context
        name, compared = need(request.ext, "topic"), request.ext.get("compareGroup") or ""
        filtered = request.ext.get("filterGroups") or ""
        if len(filtered) > FILTER_CHARS_MAX:
            raise Refused(
                f"filterGroups has at most {FILTER_CHARS_MAX} characters", Response.INVALID_PARAMETER
            )
        left_out = set(filtered.split(","))
        least: dict[int, int] = {}
        async with context.turns.take(connection) as turn:
            for group in context.offsets.groups_of(name):
                for queue_id, offset in context.offsets.queues(group, name).items():
                    if group not in left_out and offset >= context.store.min_queue_offset(name, queue_id):
                        least[queue_id] = min(offset, least.get(queue_id, LONG_MAX))
                    await turn.breathe()
                await turn.breathe()
            for queue_id, offset in context.offsets.queues(compared, name).items():
                if least.get(queue_id, 0) > offset:
                    least[queue_id] = LONG_MAX
                await turn.breathe()
            table = Members((str(queue_id), least[queue_id]) for queue_id in sorted(least))
            return request.reply(body=await strict(turn, {"correctionOffsets": table}))

    async def all_consume_stats(self, connection: Connection, request: Command) -> Command:
        """Where each group is in each topic it has offsets of; GET_CONSUME_STATS (208) says it of one."""
        context = self._context
        only_ordered = opt_bool(request.ext, "isOrder")
        groups: list[tuple[str, list[tuple[str, int]]]] = []
        queues = 0
        async with context.turns.take(connection) as turn:
            queues = 0
            for group in list(context.groups.table):
                found = []
                for name in context.offsets.topics_of(group):
                    await turn.breathe()
                    topic = self._read(group, name, only_ordered=only_ordered)
                    if topic is None:
                        continue
                    queues += topic.write_queues
                    if queues > context.config.stats_queues_max:
                        raise Refused(
                            f"the groups have offsets of more than {context.config.stats_queues_max} queues"
                            " (maxQueuesInStats): ask about them one by one (GET_CONSUME_STATS)",
                            Response.SYSTEM_ERROR,
                        )
                    found.append((name, topic.write_queues))
                groups.append((group, found))
                await turn.breathe()
            # Down to one queue of one topic of one group, which is looked at when it is written.
            body = await dialect(turn, Members(self._all_places(groups)), depth=6)
        return request.reply(body=body)

    def _read(self, group: str, name: str, *, only_ordered: bool) -> TopicConfig | None:
        """A topic of which a group has offsets, if it is there and the group reads it."""
        topic = self._context.topics.get(name)
        if topic is None or (only_ordered and not topic.order):
            return None
        online = self._context.clients.consumers.get(group)
        reads = online is None or not online.subscriptions or name in online.subscriptions
        return topic if reads else None

    def _all_places(self, groups: list[tuple[str, list[tuple[str, int]]]]) -> Iterator[tuple[str, Any]]:
        behind = [0]
        yield "brokerAddr", self._context.config.address
        yield (
            "consumeStatsList",
            Items({group: Items(self._stats(group, topics, behind))} for group, topics in groups),
        )
        yield "totalDiff", behind[0]
        yield "totalInflightDiff", 0

    def _stats(
        self, group: str, topics: list[tuple[str, int]], behind: list[int]
    ) -> Iterator[dict[str, Any]]:
        for name, queues in topics:
            rate = self._context.stats.counters.tps("GROUP_GET_NUMS", f"{name}@{group}")
            yield {"consumeTps": rate, "offsetTable": Members(self._places(group, name, queues, behind))}

    def _places(
        self, group: str, name: str, queues: int, behind: list[int]
    ) -> Iterator[tuple[ObjectKey, dict[str, int]]]:
        """Where a group is in each queue; how far it is behind is added to ``behind``."""
        context = self._context
        for queue_id in range(queues):
            held = context.offsets.get(group, name, queue_id) or 0
            place = {
                "brokerOffset": max(0, context.store.max_queue_offset(name, queue_id)),
                "consumerOffset": held,
                "lastTimestamp": max(0, stored_ms(context, name, queue_id, held - 1)) if held else 0,
                "pullOffset": held,
            }
            behind[0] += place["brokerOffset"] - held
            yield queue_key(name, context.config.broker_name, queue_id), place

    async def consumer_status(self, connection: Connection, request: Command) -> Command:
        """What each consumer of a group (or the one named) says of its offsets; silent ones, and those that
        leave unread what they are sent, are left out."""
        topic, group = need(request.ext, "topic"), need(request.ext, "group")
        if len(topic) > ASKED_NAME_CHARS_MAX:
            raise Refused("no topic has so long a name", Response.INVALID_PARAMETER)
        named = (request.ext.get("clientAddr") or "").strip()
        online = self._context.clients.consumers.get(group)
        members = list(online.members.values()) if online is not None else []
        if not members:
            raise Refused(f"No Any Consumer online in the consumer group: [{group}]", Response.SYSTEM_ERROR)
        asked = [member for member in members if not named or member.client_id == named]
        if self._questions >= QUESTIONS_MAX:
            raise Refused(f"{QUESTIONS_MAX} groups are being asked: ask again", Response.SYSTEM_BUSY)
        self._questions += 1
        said: dict[str, bytes] = {}
        try:
            await self._ask_all(
                asked,
                Command(int(Request.GET_CONSUMER_STATUS_FROM_CLIENT), {"topic": topic, "group": group}),
                said,
            )
            async with self._context.turns.take(connection) as turn:
                table = {}
                for client_id, body in said.items():
                    table[client_id] = _positions(body)
                    await turn.pause()
                found = {client_id: places for client_id, places in table.items() if places is not None}
                return request.reply(body=await dialect(turn, {"consumerTable": found}))
        finally:
            self._questions -= 1
            self._said_bytes -= sum(map(len, said.values()))

    async def _ask_all(self, members: list[Client], question: Command, said: dict[str, bytes]) -> None:
        """Ask ``members``, a few at once; what each answered is put into ``said``, and counted.

        Raises Refused when all that is said has too many bytes."""
        left = iter(members)
        too_much = False

        async def ask_some() -> None:
            nonlocal too_much
            for member in left:
                body = await _asked(member, question)
                too_much = too_much or self._said_bytes + len(body or b"") > SAID_BYTES_MAX
                if too_much:
                    return
                if body is not None:
                    self._said_bytes += len(body) - len(said.get(member.client_id, b""))
                    said[member.client_id] = body

        few = range(min(ASKED_AT_ONCE, len(members)))
        await asyncio.gather(*(self._tasks.spawn(ask_some(), name="some") for _ in few))
        if too_much:
            raise Refused(
                f"consumers say more than {SAID_BYTES_MAX} bytes: ask one of them (clientAddr)",
                Response.SYSTEM_ERROR,
            )

    async def stats_of(self, connection: Connection, request: Command) -> Command:
        """Sum and rate of one counter over the last minute, hour and day."""
        name, key = need(request.ext, "statsName"), need(request.ext, "statsKey")
        found = self._context.stats.counters.spans(name, key)
        if found is None:
            raise Refused(f"The stats <{name}> <{key}> not exist", Response.SYSTEM_ERROR)
        minute, hour, day = ({"avgpt": 0.0, "sum": span.sum, "tps": round(span.tps, 2)} for span in found)
        return request.reply(body=bodies.dumps({"statsDay": day, "statsHour": hour, "statsMinute": minute}))


async def _asked(member: Client, question: Command) -> bytes | None:
    """What a consumer answers; None when it does not, or with too much."""
    try:
        member.connection.need_room(QUESTION_BYTES)
        answer = await member.connection.call(question, timeout_s=CLIENT_CALL_S)
    except (Unknown, ConnectionError, MqError):
        return None
    return answer.body if answer.code == 0 and len(answer.body) <= STATUS_BYTES_MAX else None


def _positions(body: bytes) -> Any:
    try:
        return bodies.loads_object(body, STATUS).get("messageQueueTable")
    except MqError:
        return None
