"""How are topics and consumer groups made, listed and deleted from outside?

Topics: 17, 18, 215, 21, 351. Groups: 200, 225, 207, 201, 352.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeVar

from broker.context import BrokerContext
from broker.requests.answers import gathered, strict
from broker.requests.consumers.offsets import need_own_group
from broker.tables.topics import QUEUES_MAX
from model.attributes import TOPIC_ATTRIBUTES, altered
from model.codes import Response
from model.errors import PeerError, Refused
from model.message import LMQ_PREFIX
from model.topic import SubscriptionGroupConfig, TopicConfig, group_name_error, topic_name_error
from remoting import bodies
from remoting.codec import Command
from remoting.headers import MASTER_ONLY, need, need_int, opt_bool, opt_int
from remoting.named import groups_in, topics_in
from remoting.request_bodies import request_object
from remoting.service import Connection
from runtime.turns import Slice

T = TypeVar("T")

PUT_AT_ONCE: Final = 64
"""Topics or groups that change in one go; each has its place found in the order of all."""
GROUP_BYTES_MAX: Final = 64 << 10
"""Of one group's text."""
ATTRIBUTES_CHARS_MAX: Final = 32 << 10
_EMPTY_VERSION: Final = {"counter": 0, "stateVersion": 0, "timestamp": 0}


class TableProcessor:
    """Answers the requests that change or list the two tables.

    A change is answered when the in-sync slaves have it: a failover right after the answer keeps it.
    """

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        # The answers that list all, until the next change.
        self._all_topics: bytes | None = None
        self._all_groups: bytes | None = None
        context.topics.on_change.append(lambda names: self._forget_topics())
        context.groups.on_change.append(self._forget_groups)

    def _forget_topics(self) -> None:
        self._all_topics = None

    def _forget_groups(self) -> None:
        self._all_groups = None

    # Topics

    async def put_topic(self, connection: Connection, request: Command) -> Command:
        self._need_change()
        ext = request.ext
        topic = TopicConfig(
            need(ext, "topic"),
            need_int(ext, "readQueueNums", 0, QUEUES_MAX),
            need_int(ext, "writeQueueNums", 0, QUEUES_MAX),
            need_int(ext, "perm", 0, 15),
            opt_int(ext, "topicSysFlag", 0),
            opt_bool(ext, "order"),
            ext.get("topicFilterType") or "SINGLE_TAG",
        )
        held = self._context.topics.get(topic.name)
        changes = _parse_changes(ext.get("attributes") or "")
        topic.attributes = altered(held.attributes if held else None, changes, TOPIC_ATTRIBUTES)
        topic.others = held.others if held else {}  # the header has no room for them
        self._check_topic(topic.name)
        self._context.topics.put(topic)
        await self._context.copies.wait_for_copies("topics")
        return request.reply()

    async def put_topics(self, connection: Connection, request: Command) -> Command:
        """All of them or, where one is refused, none: each is looked at before the first is made. When this
        broker may change nothing any more while they are made (its lease ends), those made stay, and the
        refusal says how many; the same request again makes the rest."""
        self._need_change()
        async with self._context.turns.take(connection) as turn:
            raws = _raws(lambda: topics_in(request_object(request)))
            topics = await gathered(turn, raws, self._topic)
        if topics:
            await self._put_in_slices(topics, self._context.topics.put)
            await self._context.copies.wait_for_copies("topics")
        return request.reply()

    def _topic(self, raw: Any) -> TopicConfig:
        try:
            topic = TopicConfig.from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"topicConfigList: {error!r}", Response.INVALID_PARAMETER) from None
        self._check_topic(topic.name)
        if not 0 <= topic.read_queues <= QUEUES_MAX or not 0 <= topic.write_queues <= QUEUES_MAX:
            raise Refused(f"{topic.name}: at most {QUEUES_MAX} queues", Response.INVALID_PARAMETER)
        held = self._context.topics.get(topic.name)
        topic.attributes = altered(held.attributes if held else None, topic.attributes, TOPIC_ATTRIBUTES)
        return topic

    async def _put_in_slices(self, entries: list[T], put: Callable[..., object]) -> None:
        """Whoever asked may leave meanwhile: what has begun ends all the same, unless the role does. Raises
        Refused; after the first ones, with their number."""
        slice_ = Slice(self._context.env.monotonic_ms)
        for at in range(0, len(entries), PUT_AT_ONCE):
            refused = self._context.copies.refuse()
            if refused is not None:
                done = f"; {at} of {len(entries)} were made before" if at else ""
                raise Refused(refused.remark + done, refused.code)
            put(*entries[at : at + PUT_AT_ONCE])
            await slice_.breathe()

    async def delete_topic(self, connection: Connection, request: Command) -> Command:
        if self._context.role_state.role == "slave" and not opt_bool(request.ext, MASTER_ONLY):
            # The original's tools send it to the slaves, too, and the original's slaves take it. Ours copy
            # the master's tables: what it deleted goes here as well, and what only a slave was told has no
            # effect. Ours ask masters only: one that an old route took for the master refuses.
            need(request.ext, "topic")
            return request.reply()
        self._need_change()
        name = need(request.ext, "topic")
        if name in self._context.topics.system:
            raise Refused(f"The topic[{name}] is conflict with system topic.", Response.INVALID_PARAMETER)
        store = self._context.store
        held = self._context.topics.get(name)
        queues = set()
        async with self._context.turns.take(connection) as turn:
            # One whose first message is not confirmed yet is not among those of the store.
            for queue_id in range(max(held.read_queues, held.write_queues) if held else 0):
                if store.next_offset(name, queue_id):
                    queues.add(queue_id)
                await turn.breathe()
        self._need_change()
        store.append_waiting()
        queues |= set(store.queues_of(name)) | self._context.topics.starts.get(name, {}).keys()
        noted = self._context.topics.starts.get(name, {})
        ends = {q: max(store.max_queue_offset(name, q), noted.get(q, 0)) for q in sorted(queues)}
        self._context.topics.delete(
            name, ends, {queue_id: store.next_offset(name, queue_id) for queue_id in ends}
        )
        slice_ = Slice(self._context.env.monotonic_ms)
        for group in self._context.offsets.groups_of(name):
            self._context.offsets.drop(group, name)
            await slice_.breathe()
        await self._context.copies.wait_for_copies("topics", "offsets")
        return request.reply()

    async def all_topics(self, connection: Connection, request: Command) -> Command:
        topics = self._context.topics
        async with self._context.turns.take(connection) as turn:
            count, body = len(topics.table), self._all_topics
            if body is None:
                await topics.prepare(turn)
                count, mark = len(topics.table), topics.mark
                shown = {
                    **topics.to_text(),
                    "mappingDataVersion": _EMPTY_VERSION,
                    "topicQueueMappingDetailMap": {},
                    "topicQueueMappingInfoMap": {},
                }
                body = await strict(turn, shown)
                if topics.mark == mark:
                    self._all_topics = body
            return request.reply(ext={"totalTopicNum": str(count)}, body=body)

    async def one_topic(self, connection: Connection, request: Command) -> Command:
        name = need(request.ext, "topic")
        topic = self._context.topics.get(name)
        if topic is None:
            raise Refused(f"No topic in this broker. topic: {name}", Response.TOPIC_NOT_EXIST)
        return request.reply(body=bodies.dumps(topic.to_json()))

    def _check_topic(self, name: str) -> None:
        problem = topic_name_error(name)
        if problem is not None:
            raise Refused(problem, Response.INVALID_PARAMETER)
        if name in self._context.topics.system or name.startswith(LMQ_PREFIX):
            raise Refused(f"The topic[{name}] is conflict with system topic.", Response.INVALID_PARAMETER)

    # Groups

    async def put_group(self, connection: Connection, request: Command) -> Command:
        self._need_change()
        if len(request.body) > GROUP_BYTES_MAX:
            text = f"a subscription group has at most {GROUP_BYTES_MAX} bytes"
            raise Refused(text, Response.INVALID_PARAMETER)
        raws = _raws(lambda: groups_in(request.code, request_object(request)))
        self._context.groups.put(*map(self._group, raws))
        await self._context.copies.wait_for_copies("groups")
        return request.reply()

    async def put_groups(self, connection: Connection, request: Command) -> Command:
        """As ``put_topics``."""
        self._need_change()
        async with self._context.turns.take(connection) as turn:
            raws = _raws(lambda: groups_in(request.code, request_object(request)))
            groups = await gathered(turn, raws, self._group)
        if groups:
            await self._put_in_slices(groups, self._context.groups.put)
            await self._context.copies.wait_for_copies("groups")
        return request.reply()

    async def delete_group(self, connection: Connection, request: Command) -> Command:
        self._need_change()
        name = need(request.ext, "groupName")
        need_own_group(name)
        self._context.groups.delete(name)
        if opt_bool(request.ext, "cleanOffset"):
            slice_ = Slice(self._context.env.monotonic_ms)
            for topic in self._context.offsets.topics_of(name):
                self._context.offsets.drop(name, topic)
                await slice_.breathe()
        await self._context.copies.wait_for_copies("groups", "offsets")
        return request.reply()

    async def all_groups(self, connection: Connection, request: Command) -> Command:
        groups = self._context.groups
        async with self._context.turns.take(connection) as turn:
            body = self._all_groups
            if body is None:
                await groups.prepare(turn)
                mark = groups.mark
                body = await strict(turn, groups.to_text())
                if groups.mark == mark:
                    self._all_groups = body
            return request.reply(body=body)

    async def one_group(self, connection: Connection, request: Command) -> Command:
        """As RocketMQ, it makes the group where groups are made at all: the proxy asks before a new group's
        consumer says a word."""
        name, groups = need(request.ext, "group"), self._context.groups
        may_make = self._context.copies.refuse() is None
        group = groups.find(name) if may_make else groups.table.get(name)
        if group is None:
            raise Refused(f"No group in this broker. group: {name}", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
        return request.reply(body=bodies.dumps(group.to_json()))

    def _group(self, raw: Any) -> SubscriptionGroupConfig:
        try:
            group = SubscriptionGroupConfig.from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"not a subscription group: {error!r}", Response.INVALID_PARAMETER) from None
        problem = group_name_error(group.name)
        if problem is not None:
            raise Refused(problem, Response.INVALID_PARAMETER)
        held = self._context.groups.table.get(group.name)
        return dataclasses.replace(
            group,
            retry_queues=max(0, min(group.retry_queues, QUEUES_MAX)),
            attributes=altered(held.attributes if held else None, group.attributes, None),
        )

    def _need_change(self) -> None:
        """Raises Refused where a change could not be kept: nothing is changed then."""
        refused = self._context.copies.refuse()
        if refused is not None:
            raise refused


def _raws(found: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Raises Refused."""
    try:
        return found()
    except PeerError as error:
        raise Refused(str(error), Response.INVALID_PARAMETER) from None


def _parse_changes(text: str) -> dict[str, str]:
    """``+name=value,-name`` as mqadmin sends it for a topic. Raises Refused, with the words of the original's
    ``AttributeParser``."""
    if len(text) > ATTRIBUTES_CHARS_MAX:
        raise Refused(
            f"attributes have at most {ATTRIBUTES_CHARS_MAX} characters", Response.INVALID_PARAMETER
        )
    found = {}
    for change in filter(None, (part.strip() for part in text.split(","))):
        name, separator, value = change.partition("=")
        if separator and "+" not in name:
            raise Refused(f"add/alter attribute format is wrong: {name}", Response.SYSTEM_ERROR)
        if not separator and "-" not in name:
            raise Refused(f"delete attribute format is wrong: {name}", Response.SYSTEM_ERROR)
        if name in found:
            raise Refused(f"key duplication: {name}", Response.SYSTEM_ERROR)
        found[name] = value
    return found
