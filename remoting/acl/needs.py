"""What does a request need, in the words of ACL 1.0 and of ACL 2.0?

    plain_needs   RocketMQ's ``PlainAccessResource.parse`` (5.2.0)
    needs         RocketMQ's ``DefaultAuthorizationContextBuilder`` (5.5.0): a rule of its own for what
                  clients ask often, else the annotations of the request's header (``annotated``)

Beyond the original: what it lets every signed client do although it changes the cluster needs a right here,
too (UPDATE_BROKER_CONFIG, subscription groups, lists of topics; ``GUARDED``), and LITE_PULL_MESSAGE what a
pull needs. BATCH_ACK_MESSAGE and QUERY_ASSIGNMENT, which the original leaves open, need what an ack needs.
A reply (324, 325) needs nothing where clients send it, to a reply topic; to another topic what a send needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from model.acl import plain
from model.acl.plain import Perm
from model.acl.policies import Need, denied
from model.codes import Request
from model.errors import PeerError
from model.message import DLQ_PREFIX, REPLY_TOPIC_SUFFIX, RETRY_PREFIX
from remoting import bodies
from remoting.acl.annotated import ANNOTATED
from remoting.auth import PEER_CODES
from remoting.codec import Command

BODY_BYTES_MAX: Final = 2 << 20
"""A longer body is not looked into to find its topics and groups: refused."""

_READS: Final = frozenset(
    {
        Request.GET_BROKER_CONFIG,
        Request.GET_NAMESRV_CONFIG,
        Request.GET_CONTROLLER_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_INFO,
    }
)
GUARDED: Final = (PEER_CODES | _READS) - set(ANNOTATED)
"""What the original's annotations leave open, and what needs the cluster here."""
ADMIN_CODES: Final = PEER_CODES
"""ACL 1.0: what only an admin may ask for. The original names 17, 25, 200, 207 and 215 alone."""

_GET_SUB: Final = ("Sub", "Get")
_UPDATE: Final = ("Update",)
_GET: Final = ("Get",)


_OF_POPPED: Final = frozenset(
    {
        Request.POP_MESSAGE,
        Request.ACK_MESSAGE,
        Request.CHANGE_MESSAGE_INVISIBLETIME,
        Request.PEEK_MESSAGE,
        Request.NOTIFICATION,
        Request.POLLING_INFO,
    }
)
_PLAIN_POPS: Final = _OF_POPPED | {Request.BATCH_ACK_MESSAGE, Request.QUERY_ASSIGNMENT}


def admin_code(request: Command) -> int | None:
    return request.code if request.code in ADMIN_CODES else None


# ACL 1.0


def plain_needs(request: Command) -> Iterator[plain.Need]:
    """Raises Refused, PeerError on a body that is none."""
    ext, code = request.ext, request.code
    if code in (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2, Request.SEND_BATCH_MESSAGE):
        topic = ext.get("topic" if code == Request.SEND_MESSAGE else "b")
        if _of_retry(topic):
            # The original takes the group of the sender: that of any consumer's inner producer.
            yield from _plain_group(topic)
        else:
            yield from _plain_topic(topic, Perm.PUB)
    elif code in (Request.SEND_REPLY_MESSAGE, Request.SEND_REPLY_MESSAGE_V2):
        topic = ext.get("topic" if code == Request.SEND_REPLY_MESSAGE else "b")
        if not _of_replies(topic):
            yield from _plain_topic(topic, Perm.PUB)
    elif code == Request.CONSUMER_SEND_MSG_BACK:
        yield from _plain_group(ext.get("group"))
    elif code in (Request.PULL_MESSAGE, Request.LITE_PULL_MESSAGE, Request.UPDATE_CONSUMER_OFFSET):
        yield from _plain_topic(ext.get("topic"), Perm.SUB)
        yield from _plain_group(ext.get("consumerGroup"))
    elif code in _PLAIN_POPS:
        yield from _plain_pop(request)
    elif code == Request.QUERY_MESSAGE:
        yield from _plain_topic(ext.get("topic"), Perm.SUB)
    elif code in (Request.UNREGISTER_CLIENT, Request.GET_CONSUMER_LIST_BY_GROUP):
        yield from _plain_group(ext.get("consumerGroup"))
    elif code == Request.HEART_BEAT:
        for group, topics in _consumers(request):
            yield from _plain_group(group)
            for topic in topics:
                yield from _plain_topic(topic, Perm.SUB)


def _plain_pop(request: Command) -> Iterator[plain.Need]:
    """Of those that pop."""
    ext = request.ext
    if request.code == Request.BATCH_ACK_MESSAGE:
        for group, topic in _batch_acks(request):
            yield from _plain_topic(topic, Perm.SUB)
            yield from _plain_group(group)
    elif request.code == Request.QUERY_ASSIGNMENT:
        data = _body(request)
        yield from _plain_topic(_text(data.get("topic")), Perm.SUB)
        yield from _plain_group(_text(data.get("consumerGroup")))
    else:
        # Of a pop retry topic, %RETRY%group_topic, the group says all.
        if not _of_retry(ext.get("topic")):
            yield from _plain_topic(ext.get("topic"), Perm.SUB)
        yield from _plain_group(ext.get("consumerGroup"))


def _plain_topic(topic: str | None, perm: Perm) -> Iterator[plain.Need]:
    if topic is None:
        return
    if topic.startswith(RETRY_PREFIX):
        # A permission for a group is one for its retry topic.
        yield plain.Need(topic.removeprefix(RETRY_PREFIX), True, perm)
    else:
        yield plain.Need(topic, False, perm)


def _plain_group(group: str | None) -> Iterator[plain.Need]:
    if group is not None:
        yield plain.Need(group.removeprefix(RETRY_PREFIX), True, Perm.SUB)


# ACL 2.0


def needs(request: Command, cluster: str) -> list[Need]:
    """Raises Refused, PeerError on a body that is none."""
    own = _OWN.get(request.code)
    if own is not None:
        return list(own(request))
    row = ANNOTATED.get(request.code)
    if row is None:
        wanted = _GET if request.code in _READS else _UPDATE
        return [Need("Cluster", cluster, wanted)] if request.code in GUARDED else []
    kind, actions, fields = row
    if request.code in _OF_POPPED and _of_retry(request.ext.get("topic")):
        # A pop retry topic, %RETRY%group_topic, is the group's; the original takes all behind the prefix
        # for a group's name.
        return [_group(request.ext.get("consumerGroup"), *actions)]
    found = []
    for name, field_kind, splitter in fields:
        value = request.ext.get(name)
        if value is None:
            continue
        for part in filter(None, value.split(splitter)) if splitter else (value,):
            if field_kind == "Topic" and _of_retry(part):
                found.append(_group(part, *actions))
            else:
                found.append(Need(field_kind, part, actions))
    if not found and kind == "Cluster":
        found.append(Need("Cluster", cluster, actions))
    return found


def _route(request: Command) -> Iterator[Need]:
    topic = request.ext.get("topic")
    if _of_retry(topic):
        yield _group(topic, *_GET_SUB)
    else:
        yield _topic(topic, "Pub", "Sub", "Get")


def _send(topic_field: str) -> Callable[[Command], Iterator[Need]]:
    def found(request: Command) -> Iterator[Need]:
        topic = request.ext.get(topic_field)
        if _of_retry(topic):
            yield _group(topic, "Sub")
        else:
            yield _topic(topic, "Pub")

    return found


def _reply(topic_field: str) -> Callable[[Command], Iterator[Need]]:
    def found(request: Command) -> Iterator[Need]:
        if not _of_replies(request.ext.get(topic_field)):
            yield from _send(topic_field)(request)

    return found


def _end(request: Command) -> Iterator[Need]:
    if request.ext.get("topic", "").strip():
        yield _topic(request.ext["topic"], "Pub")


def _pull(request: Command) -> Iterator[Need]:
    if not _of_retry(request.ext.get("topic")):
        yield _topic(request.ext.get("topic"), "Sub")
    yield _group(request.ext.get("consumerGroup"), "Sub")


def _batch_ack(request: Command) -> Iterator[Need]:
    for group, topic in _batch_acks(request):
        if not _of_retry(topic):
            yield _topic(topic, "Sub")
        yield _group(group, "Sub")


def _assignment(request: Command) -> Iterator[Need]:
    data = _body(request)
    topic = _text(data.get("topic"))
    if not _of_retry(topic):
        yield _topic(topic, "Sub")
    yield _group(_text(data.get("consumerGroup")), "Sub")


def _offset(*actions: str) -> Callable[[Command], Iterator[Need]]:
    def found(request: Command) -> Iterator[Need]:
        if not _of_retry(request.ext.get("topic")):
            yield _topic(request.ext.get("topic"), *actions)
        yield _group(request.ext.get("consumerGroup"), *actions)

    return found


def _heartbeat(request: Command) -> Iterator[Need]:
    for group, topics in _consumers(request):
        yield _group(group, "Sub")
        yield from (_topic(topic, "Sub") for topic in topics if not _of_retry(topic))


def _unregister(request: Command) -> Iterator[Need]:
    if request.ext.get("consumerGroup", "").strip():
        yield _group(request.ext["consumerGroup"], "Sub")


def _lock(request: Command) -> Iterator[Need]:
    data = _body(request)
    yield _group(_text(data.get("consumerGroup")), "Sub")
    for queue in _list(data.get("mqSet")):
        topic = _text(queue.get("topic"))
        if not _of_retry(topic):
            yield _topic(topic, "Sub")


def _groups(request: Command) -> Iterator[Need]:
    """Of one group's configuration, or of many (``groupConfigList``)."""
    data = _body(request)
    for config in _list(data.get("groupConfigList")) or [data]:
        yield _group(_text(config.get("groupName")), "Create", "Update")


def _topics(request: Command) -> Iterator[Need]:
    for config in _list(_body(request).get("topicConfigList")):
        yield _topic(_text(config.get("topicName")), "Create")


_OWN: Final[dict[int, Callable[[Command], Iterator[Need]]]] = {
    Request.GET_ROUTEINFO_BY_TOPIC: _route,
    Request.SEND_MESSAGE: _send("topic"),
    Request.SEND_MESSAGE_V2: _send("b"),
    Request.SEND_BATCH_MESSAGE: _send("b"),
    Request.SEND_REPLY_MESSAGE: _reply("topic"),
    Request.SEND_REPLY_MESSAGE_V2: _reply("b"),
    Request.RECALL_MESSAGE: lambda request: iter([_topic(request.ext.get("topic"), "Pub")]),
    Request.END_TRANSACTION: _end,
    Request.CONSUMER_SEND_MSG_BACK: lambda request: iter([_group(request.ext.get("group"), "Sub")]),
    Request.PULL_MESSAGE: _pull,
    Request.LITE_PULL_MESSAGE: _pull,
    Request.BATCH_ACK_MESSAGE: _batch_ack,
    Request.QUERY_ASSIGNMENT: _assignment,
    Request.QUERY_MESSAGE: lambda request: iter([_topic(request.ext.get("topic"), *_GET_SUB)]),
    Request.HEART_BEAT: _heartbeat,
    Request.UNREGISTER_CLIENT: _unregister,
    Request.GET_CONSUMER_LIST_BY_GROUP: lambda r: iter([_group(r.ext.get("consumerGroup"), *_GET_SUB)]),
    Request.QUERY_CONSUMER_OFFSET: _offset(*_GET_SUB),
    Request.UPDATE_CONSUMER_OFFSET: _offset("Sub", "Update"),
    Request.LOCK_BATCH_MQ: _lock,
    Request.UNLOCK_BATCH_MQ: _lock,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _groups,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups,
    Request.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
}


def _of_retry(topic: str | None) -> bool:
    return topic is not None and topic.startswith(RETRY_PREFIX)


def _of_replies(topic: str | None) -> bool:
    return topic is not None and topic.endswith(REPLY_TOPIC_SUFFIX)


def _topic(name: str | None, *actions: str) -> Need:
    return Need("Topic", "null" if name is None else name, actions)


def _group(name: str | None, *actions: str) -> Need:
    if _of_retry(name):
        assert name is not None
        name = name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
    return Need("Group", "null" if name is None else name, actions)


# Bodies


def _body(request: Command) -> Mapping[str, Any]:
    if len(request.body) > BODY_BYTES_MAX:
        raise denied("parse authorization context error.")
    try:
        return bodies.loads_object(request.body)
    except PeerError:
        raise denied("parse authorization context error.") from None


def _consumers(request: Command) -> Iterator[tuple[str | None, list[str | None]]]:
    """Groups of a heartbeat, with the topics each subscribes to."""
    for consumer in _list(_body(request).get("consumerDataSet")):
        topics = [_text(sub.get("topic")) for sub in _list(consumer.get("subscriptionDataSet"))]
        yield _text(consumer.get("groupName")), topics


def _batch_acks(request: Command) -> Iterator[tuple[str | None, str | None]]:
    """Group and topic of each pop that messages are acknowledged of."""
    for ack in _list(_body(request).get("acks")):
        yield _text(ack.get("c", ack.get("consumerGroup"))), _text(ack.get("t", ack.get("topic")))


def _list(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
