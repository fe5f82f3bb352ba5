"""Which topics, groups and queues does a body name? The gate and the handlers ask the same functions.

What a handler applies is what a right was asked for: a list is a list of objects, and a name is text. All
raise PeerError on a body that is none.
"""

from __future__ import annotations

from typing import Any, Final

from model.codes import Request
from model.errors import PeerError

Raw = dict[str, Any]


def groups_in(code: int, data: Raw) -> list[Raw]:
    """The configurations of a 200, which is one, or a 225, which is a list of them."""
    one = code == Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
    found = [data] if one else _objects(data, "groupConfigList")
    for config in found:
        text(config, "groupName")
    return found


def topics_in(data: Raw) -> list[Raw]:
    """The configurations of a 18."""
    found = _objects(data, "topicConfigList")
    for config in found:
        text(config, "topicName")
    return found


def consumers_in(data: Raw) -> list[Raw]:
    """Of a heartbeat; each with its groupName, and subscriptionDataSet of objects with a topic."""
    found = _objects(data, "consumerDataSet")
    for consumer in found:
        text(consumer, "groupName")
        for subscription in subscriptions_in(consumer):
            text(subscription, "topic")
    return found


def subscriptions_in(consumer: Raw) -> list[Raw]:
    return _objects(consumer, "subscriptionDataSet")


def queues_in(data: Raw) -> list[Raw]:
    """Of a lock (41) or unlock (42)."""
    text(data, "consumerGroup")
    found = _objects(data, "mqSet")
    for queue in found:
        text(queue, "topic")
    return found


def acks_in(data: Raw) -> list[Raw]:
    """Of a batch of acknowledgements (200151)."""
    return _objects(data, "acks")


LITE_NAMES: Final = ("clientId", "group", "topic")


def lite_subscriptions_in(data: Raw) -> list[Raw]:
    """Of a 200071; each with its action and ``LITE_NAMES``, of which one that is not there is empty."""
    found = [{**dict.fromkeys(LITE_NAMES, ""), **one} for one in _objects(data, "subscriptionSet")]
    for one in found:
        for name in ("action", *LITE_NAMES):
            text(one, name)
    return found


def text(data: Raw, *names: str) -> str:
    """The first of ``names`` that is there."""
    found = data.get(names[0])
    if type(found) is str:  # most by far, and a heartbeat has thousands
        return found
    value = next((data[name] for name in names if name in data), None)
    if not isinstance(value, str):
        raise PeerError(f"{names[0]} is no text")
    return value


def _objects(data: Raw, name: str) -> list[Raw]:
    """Nothing where there is no such list."""
    value = data.get(name)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise PeerError(f"{name} is no list of objects")
    return value
