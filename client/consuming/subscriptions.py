"""What does a consumer tell brokers about its group and what it wants?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from model.message import java_hash


def tags_of(expression: str) -> list[str]:
    """The tags of ``A||B``; empty for ``*``."""
    tags = [tag.strip() for tag in expression.split("||") if tag.strip()]
    return [] if tags == ["*"] else tags


def consumer_data(
    group: str, subscriptions: Mapping[str, str], version: int, *, from_first: bool
) -> dict[str, Any]:
    """A consumer's part of a heartbeat. ``version`` grows when the subscriptions change."""
    begin = "CONSUME_FROM_FIRST_OFFSET" if from_first else "CONSUME_FROM_LAST_OFFSET"
    return {
        "consumeFromWhere": begin,
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [
            {
                "classFilterMode": False,
                "codeSet": [java_hash(tag) for tag in tags_of(expression)],
                "expressionType": "TAG",
                "subString": expression,
                "subVersion": version,
                "tagsSet": tags_of(expression),
                "topic": topic,
            }
            for topic, expression in subscriptions.items()
        ],
        "unitMode": False,
    }
