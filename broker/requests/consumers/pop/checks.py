"""May this group pop from this topic, and may it ask for so much? Codes and words are the original's."""

from __future__ import annotations

from typing import Final

from broker.context import BrokerContext
from broker.requests.consumers.choosing import need_filter
from broker.requests.consumers.offsets import need_own_group
from broker.state.clients import ALL, TAG, Subscription, too_long
from model.codes import Response
from model.errors import Refused
from model.pop import MESSAGES_MAX, pop_retry_topic
from model.topic import PERM_READ, TopicConfig
from runtime.sizes import text_bytes
from store.files.consume_queue import is_queue_name

CHANCES: Final = 100
"""Where a look begins is drawn from so many, as in the original, and whether it begins with the retries."""


def need_count(context: BrokerContext, count: int) -> None:
    """Raises Refused."""
    ip = context.config.broker_ip1
    if count > MESSAGES_MAX:
        text = f"the broker[{ip}] pop message's num is greater than {MESSAGES_MAX}"
        raise Refused(text, Response.INVALID_PARAMETER)
    if count < 1:
        raise Refused(f"the broker[{ip}] pop message's num is less than 1", Response.INVALID_PARAMETER)


def need_invisible(context: BrokerContext, invisible_ms: int) -> None:
    """Raises Refused. The original's timers refuse the checkpoint of a longer one: nothing is popped
    there."""
    most = context.config.invisible_ms_max
    if not 0 <= invisible_ms <= most:
        raise Refused(
            f"invisibleTime={invisible_ms} is not between 0 and {most} (maxInvisibleTimeMillis)",
            Response.INVALID_PARAMETER,
        )


def need_retry_topic(context: BrokerContext, topic: str, group: str) -> None:
    """Raises Refused unless the messages of the group have a place to come back to: its queue is a folder."""
    name = pop_retry_topic(topic, group, v2=context.config.retry_topic_v2)
    if not is_queue_name(name, 0):
        raise Refused(
            f"the pop retry topic {name[:40]}... would have too long a name: {len(name)} characters",
            Response.INVALID_PARAMETER,
        )


def need_readable(context: BrokerContext, group: str, topic: str, queue_id: int, what: str) -> TopicConfig:
    """The topic, if the group may read it. Raises Refused; ``what`` is forbidden without a permission."""
    config = context.config
    if not config.broker_permission & PERM_READ:
        raise Refused(f"the broker[{config.broker_ip1}] {what}", Response.NO_PERMISSION)
    found = context.topics.get(topic)
    if found is None:
        raise Refused(f"topic[{topic}] not exist, apply first please!", Response.TOPIC_NOT_EXIST)
    if not found.perm & PERM_READ:
        raise Refused(f"the topic[{topic}] peeking message is forbidden", Response.NO_PERMISSION)
    if queue_id >= found.read_queues:
        raise Refused(_illegal_queue(queue_id, found, group), Response.INVALID_PARAMETER)
    config_of_group = context.groups.find(group)
    if config_of_group is None:
        raise Refused(f"subscription group [{group}] does not exist", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
    if not config_of_group.consume_enable:
        raise Refused(f"subscription group no permission, {group}", Response.NO_PERMISSION)
    if not context.groups.may_read(group, topic):
        raise Refused(f"the consumer group[{group}] is forbidden for topic[{topic}]", Response.NO_PERMISSION)
    return found


def need_group(context: BrokerContext, group: str) -> None:
    """Raises Refused unless offsets and checkpoints of the group may be made: each name costs memory, and
    the progress of the broker's own groups says what the broker has done."""
    need_own_group(group)
    if context.groups.find(group) is None:
        raise Refused(f"subscription group [{group}] does not exist", Response.SUBSCRIPTION_GROUP_NOT_EXIST)


def need_queue(context: BrokerContext, topic: str, queue_id: int, group: str) -> None:
    """Raises Refused unless the topic has such a queue: for what was popped of it."""
    found = context.topics.get(topic)
    if found is None:
        raise Refused(f"topic[{topic}] not exist, apply first please!", Response.TOPIC_NOT_EXIST)
    if not 0 <= queue_id < found.read_queues:
        raise Refused(_illegal_queue(queue_id, found, group), Response.MESSAGE_ILLEGAL)


def need_subscription(context: BrokerContext, topic: str, expression: str, kind: str) -> Subscription:
    """What a pop wants of its topic. Raises Refused."""
    if text_bytes(expression) > context.config.subscription_bytes_max:
        raise too_long(context.config.subscription_bytes_max)
    try:
        found = Subscription.of(topic, expression or ALL, kind or TAG)
    except ValueError:
        raise Refused(
            "parse the consumer's subscription failed", Response.SUBSCRIPTION_PARSE_FAILED
        ) from None
    need_filter(context.config, found)
    return found


def readable(context: BrokerContext, name: str) -> list[int]:
    """The queues of a topic that hold anything: of the others there may be 65,535, and nothing to pop."""
    topic = context.topics.get(name)
    return [q for q in context.store.queues_of(name) if q < topic.read_queues] if topic is not None else []


def from_chance(context: BrokerContext, queues: list[int], chance: int) -> list[int]:
    """All of them, in the order of a look that may begin at any: far behind what it finds it does not look.
    ``chance``: one of ``CHANCES``; more queues take another one."""
    count = len(queues)
    at = chance % max(1, count) if count <= CHANCES else context.env.random.randrange(count)
    return queues[at:] + queues[:at]


def _illegal_queue(queue_id: int, topic: TopicConfig, group: str) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.name}]"
        f" topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{group}]"
    )
