"""What do the pulls of a consumer that come again and again need not work out anew?

A consumer asks for one queue thousands of times, in the same words but for three numbers. What the rules
found (``PullProcessor.tell``) is the same as long as all that they look at is: each of it is compared at each
pull, so that nothing has to tell of a change, and none is seen late.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.context import BrokerContext
from broker.state.clients import ConsumerGroup, Subscription
from model.topic import SubscriptionGroupConfig, TopicConfig, is_system_group
from remoting.headers import PullHeader

Config = tuple[int, int, int]
"""What is read of the configuration, where each key may change while the broker runs."""


class Standing(NamedTuple):
    """What holds for each pull with one header but for its numbers. Versions are compared as objects: each
    change of a table makes a new one."""

    topics_version: object
    groups_version: object
    consumers: ConsumerGroup
    model: str
    subscription: Subscription
    config: Config
    topic: TopicConfig
    group: SubscriptionGroupConfig
    first: int
    """Queue offset; see ``Topics.first_offset``."""
    count_max: int
    bytes_max: int
    codes: frozenset[int] | None
    commits: bool
    """Whether it says how far its group is, and may."""

    def holds(self, context: BrokerContext, name: str) -> bool:
        """Whether the rules would find the same of the group ``name``."""
        consumers = self.consumers
        return (
            context.topics.version is self.topics_version
            and context.groups.version is self.groups_version
            and context.clients.consumers.get(name) is consumers
            and consumers.subscriptions.get(self.topic.name) is self.subscription
            and consumers.message_model == self.model
            and config_of(context) == self.config
        )


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
        consumers,
        consumers.message_model,
        subscription,
        config_of(context),
        topic,
        group,
        context.topics.first_offset(header.topic, header.queue_id),
        *most,
        subscription.codes or None,
        header.commits and not is_system_group(header.group),
    )


def config_of(context: BrokerContext) -> Config:
    config = context.config
    return config.broker_permission, config.transfer_count_in_memory, config.transfer_bytes_in_memory
