"""What does a consumer tell brokers about its group and what it wants?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from model.message import java_hash

FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"
FROM_LAST: Final = "CONSUME_FROM_LAST_OFFSET"
FROM_TIME: Final = "CONSUME_FROM_TIMESTAMP"


class Sql(str):
    """What a consumer wants of a topic by a SQL92 expression over the properties of its messages, in place of
    tags: ``subscriptions={"Orders": Sql("amount > 100 AND region = 'eu'")}``. The brokers choose
    (``enablePropertyFilter``); an expression that they cannot read is a WARNING of the consumer.
    """

    __slots__ = ()


def kind_of(expression: str) -> str:
    """As RocketMQ calls kinds of expressions."""
    return "SQL92" if isinstance(expression, Sql) else "TAG"


def tags_of(expression: str) -> list[str]:
    """The tags of ``A||B``; empty for ``*``, and for SQL92."""
    if isinstance(expression, Sql):
        return []
    tags = [tag.strip() for tag in expression.split("||") if tag.strip()]
    return [] if tags == ["*"] else tags


def consumer_data(
    group: str, subscriptions: Mapping[str, str], version: int, *, begin: str
) -> dict[str, Any]:
    """A consumer's part of a heartbeat. ``version`` grows when the subscriptions change."""
    return {
        "consumeFromWhere": begin,
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": [java_hash(tag) for tag in tags_of(expression)],
                "expressionType": kind_of(expression),
                "subString": str(expression),
                "subVersion": version,
                "tagsSet": tags_of(expression),
                "topic": topic,
            }
            for topic, expression in subscriptions.items()
        ],
        "unitMode": False,
    }
