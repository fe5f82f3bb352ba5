"""What does a broker without lite topics say of them?

POP_LITE_MESSAGE (200070), LITE_SUBSCRIPTION_CTL (200071), GET_BROKER_LITE_INFO (200074),
GET_PARENT_TOPIC_INFO (200075), GET_LITE_TOPIC_INFO (200076), GET_LITE_CLIENT_INFO (200077),
GET_LITE_GROUP_INFO (200078), TRIGGER_LITE_DISPATCH (200079).

A lite topic of RocketMQ 5.5 is a light queue below a topic whose ``message.type`` is LITE. Such topics cannot
be made here, so these requests are answered as the original answers where nobody has made one. No client can
subscribe: each is told that the quota of subscriptions is used up, as with ``maxLiteSubscriptionCount=0``.
"""

from __future__ import annotations

from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.answers import strict
from model.codes import Request, Response
from model.errors import Refused
from model.message import LMQ_PREFIX
from model.pop import MESSAGES_MAX
from model.topic import PERM_READ
from remoting import bodies
from remoting.codec import Command
from remoting.headers import need, need_int
from remoting.named import LITE_NAMES, lite_subscriptions_in
from remoting.request_bodies import request_object
from remoting.service import Connection

BOUND_TO: Final = "lite.bind.topic"
"""The attribute of a group that reads lite topics: of which topic."""
ADDS: Final = ("PARTIAL_ADD", "COMPLETE_ADD")


class LiteProcessor:
    """Answers 200070, 200071, and 200074 to 200079; nothing changes by them."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def pop(self, connection: Connection, request: Command) -> Command:
        """Nothing can be popped: no topic is one of lite topics."""
        ext, config = request.ext, self._context.config
        need(ext, "clientId")
        need(ext, "consumerGroup")
        name, count = need(ext, "topic"), need_int(ext, "maxMsgNum")
        need_int(ext, "invisibleTime")
        need_int(ext, "pollTime")
        if not config.broker_permission & PERM_READ:
            raise Refused(f"the broker[{config.broker_ip1}] pop message is forbidden", Response.NO_PERMISSION)
        if count > MESSAGES_MAX:
            text = f"the broker[{config.broker_ip1}] pop message's num is greater than {MESSAGES_MAX}"
            raise Refused(text, Response.INVALID_PARAMETER)
        found = self._context.topics.get(name)
        if found is None:
            raise Refused(f"topic [{name}] not exist, apply first please!", Response.TOPIC_NOT_EXIST)
        if not found.perm & PERM_READ:
            raise Refused(f"the topic [{name}] peeking message is forbidden", Response.NO_PERMISSION)
        raise Refused(f"the topic [{name}] message type not match", Response.INVALID_PARAMETER)

    async def subscribe(self, connection: Connection, request: Command) -> Command:
        """Whoever takes subscriptions away has none; there is no room for new ones."""
        if not request.body:
            raise Refused("Request body is null.", Response.ILLEGAL_OPERATION)
        wanted = lite_subscriptions_in(request_object(request))
        if not wanted:
            raise Refused("LiteSubscriptionCtlRequestBody is empty.", Response.ILLEGAL_OPERATION)
        for one in wanted:
            if not all(one[name].strip() for name in LITE_NAMES) or one["action"] not in ADDS:
                continue
            group = self._context.groups.table.get(one["group"])
            if group is None or not group.consume_enable:
                raise Refused("Consumer group is not allowed to consume.", Response.ILLEGAL_OPERATION)
            raise Refused("lite subscription quota exceeded 0", Response.LITE_SUBSCRIPTION_QUOTA_EXCEEDED)
        return request.reply()

    async def of_broker(self, connection: Connection, request: Command) -> Command:
        context = self._context
        bound: dict[str, list[str]] = {}
        topics: set[str] = set()
        light = 0
        async with context.turns.take(connection) as turn:
            for group in list(context.groups.table.values()):
                topic = group.attributes.get(BOUND_TO)
                if topic is not None:
                    bound.setdefault(topic, []).append(group.name)
                await turn.breathe()
            for name, _ in list(context.store.files.queues.table()):
                topics.add(name)
                light += name.startswith(LMQ_PREFIX)
                await turn.breathe()
            shown = {
                "cqTableSize": len(topics),
                "currentLmqNum": light,
                "eventMapSize": 0,
                "groupMeta": bound,
                "liteSubscriptionCount": 0,
                "maxLmqNum": context.config.lmq_queues_max,
                "offsetTableSize": context.offsets.pairs_used,
                "orderInfoCount": 0,
                "storeType": "default",
                "topicMeta": {},
            }
            return request.reply(body=await strict(turn, shown))

    async def of_topic(self, connection: Connection, request: Command) -> Command:
        """Answers 200075, 200076 and 200077: a topic has no lite topics below it."""
        named = "topic" if request.code == Request.GET_PARENT_TOPIC_INFO else "parentTopic"
        name = request.ext.get(named, "")
        if self._context.topics.get(name) is None:
            raise Refused(f"Topic [{name}] not exist.", Response.TOPIC_NOT_EXIST)
        raise Refused(f"Topic [{name}] type not match.", Response.INVALID_PARAMETER)

    async def of_group(self, connection: Connection, request: Command) -> Command:
        """How far the group is in lite topics, or in one: there is nothing it could lag behind."""
        group, topic = self._bound(request)
        lite = request.ext.get("liteTopic")
        shown: dict[str, Any] = {"earliestUnconsumedTimestamp": -1, "group": group, "parentTopic": topic}
        if lite:
            shown |= {"liteTopic": lite, "totalLagCount": -1}
        else:
            shown |= {"lagCountTopK": [], "lagTimestampTopK": [], "totalLagCount": 0}
        return request.reply(body=bodies.dumps(shown))

    async def dispatch(self, connection: Connection, request: Command) -> Command:
        """Tell the group's clients again what they have not read: nothing."""
        self._bound(request)
        return request.reply()

    def _bound(self, request: Command) -> tuple[str, str]:
        """The group, and the topic that its lite topics are below. Raises Refused."""
        name = need(request.ext, "group")
        group = self._context.groups.table.get(name)
        if group is None:
            raise Refused(f"Group [{name}] not exist.", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
        topic = group.attributes.get(BOUND_TO)
        if not topic:
            raise Refused(f"Group [{name}] is not a LITE group.", Response.INVALID_PARAMETER)
        return name, topic
