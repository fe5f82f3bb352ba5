"""What do the pulls of a consumer that come again and again need not work out anew?

A consumer asks for one queue thousands of times, in the same words but for three numbers. What the rules
found (``PullProcessor.tell``) is the same as long as all that they look at is: each of it is compared at each
pull, so that nothing has to tell of a change, and none is seen late.
"""

from __future__ import annotations

from typing import NamedTuple
from weakref import ref

from broker.context import BrokerContext
from broker.state.clients import ConsumerGroup, Subscription
from model.topic import SubscriptionGroupConfig, TopicConfig, is_system_group
from remoting.headers import PullHeader
from store.flow.reading import looked_at_max

Config = tuple[int, int, int]
"""What is read of the configuration, where each key may change while the broker runs."""


class Standing(NamedTuple):
    """What holds for each pull with one header but for its numbers. Versions are compared as objects: each
    change of a table makes a new one."""

    topics_version: object
    groups_version: object
    consumers: ref[ConsumerGroup]
    """Weak, as those below: what a client said is counted (``maxClientBytes``) while it is in its table."""
    model: str
    subscription: ref[Subscription]
    config: Config
    topic: ref[TopicConfig]
    group: ref[SubscriptionGroupConfig]
    first: int
    """Queue offset; see ``Topics.first_offset``."""
    most: tuple[int, int, int]
    """Entries looked at, messages and bytes of one answer."""
    commits: bool
    """Whether it says how far its group is, and may."""

    def found(
        self, context: BrokerContext, header: PullHeader
    ) -> tuple[Subscription, TopicConfig, SubscriptionGroupConfig] | None:
        """What the rules found, if they would find the same of ``header`` now."""
        consumers, config = context.clients.consumers.get(header.group), context.config
        if (
            consumers is None
            or self.consumers() is not consumers
            or context.topics.version is not self.topics_version
            or context.groups.version is not self.groups_version
            or consumers.message_model != self.model
            or config.broker_permission != self.config[0]
            or config.transfer_count_in_memory != self.config[1]
            or config.transfer_bytes_in_memory != self.config[2]
        ):
            return None
        subscription, topic, group = self.subscription(), self.topic(), self.group()
        if subscription is None or topic is None or group is None:
            return None
        if consumers.subscriptions.get(topic.name) is not subscription:
            return None
        return subscription, topic, group


def standing_of(
    context: BrokerContext,
    header: PullHeader,
    found: tuple[TopicConfig, SubscriptionGroupConfig, Subscription],
    most: tuple[int, int],
) -> Standing | None:
    """What the rules have just found of a pull that leaves its subscription to its group; None: its messages
    are chosen one by one, or its topic is in no table. ``most``: messages and bytes of one answer."""
    topic, group, subscription = found
    if subscription.chooses is not None or context.topics.get(header.topic) is not topic:
        return None
    consumers = context.clients.consumers[header.group]
    return Standing(
        context.topics.version,
        context.groups.version,
        ref(consumers),
        consumers.message_model,
        ref(subscription),
        config_of(context),
        ref(topic),
        ref(group),
        context.topics.first_offset(header.topic, header.queue_id),
        (looked_at_max(most[0], subscription.codes or None), *most),
        header.commits and not is_system_group(header.group),
    )


def config_of(context: BrokerContext) -> Config:
    config = context.config
    return config.broker_permission, config.transfer_count_in_memory, config.transfer_bytes_in_memory
