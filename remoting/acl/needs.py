"""What does a request need, in the words of ACL 1.0 and of ACL 2.0?

    plain_needs   RocketMQ's ``PlainAccessResource.parse`` (5.2.0)
    needs         RocketMQ's ``DefaultAuthorizationContextBuilder`` (5.5.0): a rule of its own for what
                  clients ask often, else the annotations of the request's header (``annotated``)

Beyond the original: what it lets every signed client do although it changes the cluster needs a right here,
too (UPDATE_BROKER_CONFIG, subscription groups, lists of topics), LITE_PULL_MESSAGE what a pull needs, and
CLONE_GROUP_OFFSET a right to the group it copies from, too. BATCH_ACK_MESSAGE and QUERY_ASSIGNMENT, which
the original leaves open, need what an ack needs; what asks about lite topics what asking about a topic and a
group needs. A reply (324, 325) needs nothing where clients send it, to
the reply topic of the cluster; to another topic what a send needs. Whoever reads a retry or dead-letter topic
needs its group, whatever group it says it is (``model/acl/owners``); with ACL 1.0 locks need what a heartbeat
needs. A body says here what it says to its handler (``remoting/named``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

from model.acl import plain
from model.acl.owners import group_name, owners_of
from model.acl.plain import Perm
from model.acl.policies import Need, denied
from model.codes import Request
from model.errors import PeerError
from model.message import RETRY_PREFIX, reply_topic
from remoting.acl.annotated import ANNOTATED
from remoting.auth import PEER_CODES
from remoting.codec import Command
from remoting.named import (
    acks_in,
    consumers_in,
    groups_in,
    lite_subscriptions_in,
    queues_in,
    subscriptions_in,
    text,
    topics_in,
)
from remoting.request_bodies import request_object

T = TypeVar("T")

NEEDS_MAX: Final = 2048
"""A request that names more topics and groups is refused before a right is looked at."""
TOO_MUCH: Final = f"a request names at most {NEEDS_MAX} topics and groups"
LIST_CHARS_MAX: Final = 256 << 10
"""Of a list in a header; so many names of the greatest length a topic has."""

SETTINGS: Final = frozenset(
    {
        Request.GET_BROKER_CONFIG,
        Request.GET_NAMESRV_CONFIG,
        Request.GET_CONTROLLER_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_CONFIG,
        Request.GET_BROKER_CLUSTER_ACL_INFO,
        Request.GET_COLD_DATA_FLOW_CTR_INFO,
        Request.GET_BROKER_LITE_INFO,
    }
)
"""What the original leaves open to every user although it shows settings, accounts and names of groups."""

_GET_SUB: Final = ("Sub", "Get")
_UPDATE: Final = ("Update",)
_GET: Final = ("Get",)

_SENDS: Final = {
    Request.SEND_MESSAGE: "topic",
    Request.SEND_MESSAGE_V2: "b",
    Request.SEND_BATCH_MESSAGE: "b",
}
_REPLIES: Final = {Request.SEND_REPLY_MESSAGE: "topic", Request.SEND_REPLY_MESSAGE_V2: "b"}
_READ_FOR_A_GROUP: Final = frozenset(
    {
        Request.PULL_MESSAGE,
        Request.LITE_PULL_MESSAGE,
        Request.UPDATE_CONSUMER_OFFSET,
        Request.POP_MESSAGE,
        Request.ACK_MESSAGE,
        Request.CHANGE_MESSAGE_INVISIBLETIME,
        Request.PEEK_MESSAGE,
        Request.NOTIFICATION,
        Request.POLLING_INFO,
        Request.POP_LITE_MESSAGE,
    }
)


# ACL 1.0


def plain_needs(request: Command, cluster: str) -> list[plain.Need]:
    """As ``needs``."""
    return _bounded(_plain_needs(request, cluster))


def _plain_needs(request: Command, cluster: str) -> Iterator[plain.Need]:
    ext, code = request.ext, request.code
    if code in _SENDS:
        yield from plain_sends_to(ext.get(_SENDS[Request(code)]))
    elif code in _REPLIES:
        topic = ext.get(_REPLIES[Request(code)])
        yield from () if topic == reply_topic(cluster) else _plain_topic(topic, Perm.PUB)
    elif code in _READ_FOR_A_GROUP:
        yield from _plain_read(ext.get("topic"), ext.get("consumerGroup"))
    elif code in _PLAIN:
        yield from _PLAIN[code](request)


def plain_reads(topic: str | None, asking: str | None = None, perm: Perm = Perm.SUB) -> Iterator[plain.Need]:
    """What reading a topic takes; ``asking``: for this group."""
    if topic is not None:
        for is_group, name in owners_of(topic, asking):
            yield plain.Need(name, is_group, perm)


def _plain_read(topic: str | None, group: str | None) -> Iterator[plain.Need]:
    yield from plain_reads(topic, group)
    yield from _plain_group(group)


def _plain_topic(topic: str | None, perm: Perm) -> Iterator[plain.Need]:
    if topic is None:
        return
    # A permission for a group is one for its retry topic.
    yield plain.Need(topic.removeprefix(RETRY_PREFIX), _of_retry(topic), perm)


def plain_sends_to(topic: str | None) -> Iterator[plain.Need]:
    """Of a retry topic the original takes the group of the sender: that of any consumer's inner producer."""
    return _plain_group(topic) if _of_retry(topic) else _plain_topic(topic, Perm.PUB)


def _plain_group(group: str | None) -> Iterator[plain.Need]:
    if group is not None:
        yield plain.Need(group.removeprefix(RETRY_PREFIX), True, Perm.SUB)


def _plain_batch_ack(request: Command) -> Iterator[plain.Need]:
    for group, topic in _batch_acks(request):
        yield from _plain_read(topic, group)


def _plain_heartbeat(request: Command) -> Iterator[plain.Need]:
    for group, topics in _consumers(request):
        yield from _plain_group(group)
        for topic in topics:
            yield from plain_reads(topic, group)


def _plain_lock(request: Command) -> Iterator[plain.Need]:
    """The original asks for nothing: any account could keep the consumers of another from their queues."""
    group, topics = _locks(request)
    yield from _plain_group(group)
    for topic in topics:
        yield from plain_reads(topic, group)


_PLAIN: Final[dict[int, Callable[[Command], Iterator[plain.Need]]]] = {
    # The original of 5.2.0 knows no such request: any account could take back another one's messages.
    Request.RECALL_MESSAGE: lambda r: plain_sends_to(r.ext.get("topic")),
    Request.CONSUMER_SEND_MSG_BACK: lambda r: _plain_group(r.ext.get("group")),
    Request.BATCH_ACK_MESSAGE: _plain_batch_ack,
    Request.QUERY_ASSIGNMENT: lambda r: _plain_read(*_assignment_of(r)),
    Request.QUERY_MESSAGE: lambda r: plain_reads(r.ext.get("topic")),
    Request.UNREGISTER_CLIENT: lambda r: _plain_group(r.ext.get("consumerGroup")),
    Request.GET_CONSUMER_LIST_BY_GROUP: lambda r: _plain_group(r.ext.get("consumerGroup")),
    Request.HEART_BEAT: _plain_heartbeat,
    Request.LOCK_BATCH_MQ: _plain_lock,
    Request.UNLOCK_BATCH_MQ: _plain_lock,
}


# ACL 2.0


def needs(request: Command, cluster: str) -> list[Need]:
    """Each once. Raises Refused, also for a body that is none, and for more than ``NEEDS_MAX``."""
    return _bounded(_needs(request, cluster))


def _bounded(found: Iterable[T]) -> list[T]:
    kept: dict[T, None] = {}
    for need in found:
        kept[need] = None
        if len(kept) > NEEDS_MAX:
            raise denied(TOO_MUCH)
    return list(kept)


def _needs(request: Command, cluster: str) -> Iterator[Need]:
    own = _OWN.get(request.code)
    found: Iterator[Need]
    if request.code in _REPLIES:
        topic = request.ext.get(_REPLIES[Request(request.code)])
        found = iter(()) if topic == reply_topic(cluster) else sends_to(topic)
    elif own is not None:
        found = own(request)
    else:
        found = _annotated(request, cluster)
    first = list(islice(found, 1))
    yield from first
    yield from found
    if not first and request.code in PEER_CODES | SETTINGS:
        # What the original leaves open, or a request that leaves out what it is about.
        yield Need("Cluster", cluster, _GET if request.code in SETTINGS else _UPDATE)


def _annotated(request: Command, cluster: str) -> Iterator[Need]:
    row = ANNOTATED.get(request.code)
    if row is None:
        return
    kind, actions, fields = row
    named = [(name, of, splitter) for name, of, splitter in fields if name in request.ext]
    asking = next((request.ext[name] for name, of, _ in named if of == "Group"), None)
    if request.code == Request.CLONE_GROUP_OFFSET and "srcGroup" in request.ext:
        yield _group(request.ext["srcGroup"], *_GET)  # it copies how far that group is
    for name, of, splitter in named:
        for part in _parts(request.ext[name], splitter):
            if of == "Topic":
                yield from reads(part, asking, *actions)
            else:
                yield Need(of, part, actions)
    if not named and kind == "Cluster":
        yield Need("Cluster", cluster, actions)


def _parts(value: str, splitter: str) -> Iterable[str]:
    """The names in a field. Raises Refused."""
    if not splitter:
        return (value,)
    if len(value) > LIST_CHARS_MAX or value.count(splitter) > NEEDS_MAX:
        raise denied(TOO_MUCH)
    return filter(None, value.split(splitter))


def reads(topic: str | None, asking: str | None, *actions: str) -> Iterator[Need]:
    """What it takes to read a topic, or to see and change what is known of it; for the group ``asking``."""
    if topic is None:
        yield _topic(None, *actions)
        return
    for is_group, name in owners_of(topic, asking):
        yield (_group if is_group else _topic)(name, *actions)


def _read_for(topic: str | None, group: str | None, *actions: str) -> Iterator[Need]:
    yield from reads(topic, group, *actions)
    yield _group(group, *actions)


def _route(request: Command) -> Iterator[Need]:
    topic = request.ext.get("topic")
    yield _group(topic, *_GET_SUB) if _of_retry(topic) else _topic(topic, "Pub", "Sub", "Get")


def sends_to(topic: str | None) -> Iterator[Need]:
    """Retry topics alone are their group's: to the dead letters a send is one to any topic, as in the
    original."""
    yield _group(topic, "Sub") if _of_retry(topic) else _topic(topic, "Pub")


def _end(request: Command) -> Iterator[Need]:
    if request.ext.get("topic", "").strip():
        yield _topic(request.ext["topic"], "Pub")


def _of_group(*actions: str) -> Callable[[Command], Iterator[Need]]:
    return lambda r: _read_for(r.ext.get("topic"), r.ext.get("consumerGroup"), *actions)


def _batch_ack(request: Command) -> Iterator[Need]:
    for group, topic in _batch_acks(request):
        yield from _read_for(topic, group, "Sub")


def _heartbeat(request: Command) -> Iterator[Need]:
    for group, topics in _consumers(request):
        yield _group(group, "Sub")
        for topic in topics:
            yield from reads(topic, group, "Sub")


def _unregister(request: Command) -> Iterator[Need]:
    if request.ext.get("consumerGroup", "").strip():
        yield _group(request.ext["consumerGroup"], "Sub")


def _lock(request: Command) -> Iterator[Need]:
    group, topics = _locks(request)
    yield _group(group, "Sub")
    for topic in topics:
        yield from reads(topic, group, "Sub")


def _lite_subscriptions(request: Command) -> Iterator[Need]:
    data = _body(request)
    for one in _named(lambda: lite_subscriptions_in(data)):
        yield from _read_for(one["topic"], one["group"], "Sub")


def _lite(topic: str, *, group: bool = False) -> Callable[[Command], Iterator[Need]]:
    """A read of what is known of a topic, whose name is in that field, and of a group."""

    def asked(request: Command) -> Iterator[Need]:
        name = request.ext.get("group")
        yield from reads(request.ext.get(topic), name if group else None, "Get")
        if group:
            yield _group(name, "Get")

    return asked


def _groups(request: Command) -> Iterator[Need]:
    data = _body(request)
    for config in _named(lambda: groups_in(request.code, data)):
        yield _group(config["groupName"], "Create", "Update")


def _topics(request: Command) -> Iterator[Need]:
    data = _body(request)
    for config in _named(lambda: topics_in(data)):
        yield _topic(config["topicName"], "Create")


_OWN: Final[dict[int, Callable[[Command], Iterator[Need]]]] = {
    Request.GET_ROUTEINFO_BY_TOPIC: _route,
    **dict.fromkeys(_SENDS, lambda r: sends_to(r.ext.get(_SENDS[Request(r.code)]))),
    Request.RECALL_MESSAGE: lambda r: iter([_topic(r.ext.get("topic"), "Pub")]),
    Request.END_TRANSACTION: _end,
    Request.CONSUMER_SEND_MSG_BACK: lambda r: iter([_group(r.ext.get("group"), "Sub")]),
    Request.PULL_MESSAGE: _of_group("Sub"),
    Request.LITE_PULL_MESSAGE: _of_group("Sub"),
    Request.BATCH_ACK_MESSAGE: _batch_ack,
    Request.QUERY_ASSIGNMENT: lambda r: _read_for(*_assignment_of(r), "Sub"),
    Request.QUERY_MESSAGE: lambda r: reads(r.ext.get("topic"), None, *_GET_SUB),
    Request.HEART_BEAT: _heartbeat,
    Request.UNREGISTER_CLIENT: _unregister,
    Request.GET_CONSUMER_LIST_BY_GROUP: lambda r: iter([_group(r.ext.get("consumerGroup"), *_GET_SUB)]),
    Request.QUERY_CONSUMER_OFFSET: _of_group(*_GET_SUB),
    Request.UPDATE_CONSUMER_OFFSET: _of_group("Sub", "Update"),
    Request.LOCK_BATCH_MQ: _lock,
    Request.UNLOCK_BATCH_MQ: _lock,
    Request.POP_LITE_MESSAGE: _of_group("Sub"),
    Request.LITE_SUBSCRIPTION_CTL: _lite_subscriptions,
    Request.GET_PARENT_TOPIC_INFO: _lite("topic"),
    Request.GET_LITE_TOPIC_INFO: _lite("parentTopic"),
    Request.GET_LITE_CLIENT_INFO: _lite("parentTopic", group=True),
    Request.GET_LITE_GROUP_INFO: lambda r: iter([_group(r.ext.get("group"), "Get")]),
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _groups,
    Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _groups,
    Request.UPDATE_AND_CREATE_TOPIC_LIST: _topics,
}


def _of_retry(topic: str | None) -> bool:
    return topic is not None and topic.startswith(RETRY_PREFIX)


def _topic(name: str | None, *actions: str) -> Need:
    return Need("Topic", "null" if name is None else name, actions)


def _group(name: str | None, *actions: str) -> Need:
    return Need("Group", "null" if name is None else group_name(name), actions)


# Bodies


def _body(request: Command) -> dict[str, Any]:
    return _named(lambda: request_object(request))


def _named(found: Callable[[], T]) -> T:
    """Raises Refused with the original's words for a body that is none."""
    try:
        return found()
    except PeerError:
        raise denied("parse authorization context error.") from None


def _consumers(request: Command) -> Iterator[tuple[str, list[str]]]:
    """Groups of a heartbeat, with the topics each subscribes to."""
    data = _body(request)
    for consumer in _named(lambda: consumers_in(data)):
        yield consumer["groupName"], [subscription["topic"] for subscription in subscriptions_in(consumer)]


def _batch_acks(request: Command) -> Iterator[tuple[str, str]]:
    """Group and topic of each pop that messages are acknowledged of."""
    data = _body(request)
    pairs = _named(lambda: [(text(a, "c", "consumerGroup"), text(a, "t", "topic")) for a in acks_in(data)])
    yield from dict.fromkeys(pairs)


def _locks(request: Command) -> tuple[str, list[str]]:
    """Group and topics."""
    data = _body(request)
    queues = _named(lambda: queues_in(data))
    return data["consumerGroup"], list(dict.fromkeys(queue["topic"] for queue in queues))


def _assignment_of(request: Command) -> tuple[str, str]:
    """Topic and group."""
    data = _body(request)
    return _named(lambda: (text(data, "topic"), text(data, "consumerGroup")))
