"""Topics and groups as they come from tables and requests."""

from __future__ import annotations

from typing import Any

import pytest

from model.topic import SubscriptionGroupConfig, TopicConfig


@pytest.mark.parametrize(
    "members",
    [
        {"topicName": True},
        {"topicName": {"a": 1}},
        {"topicName": "T", "perm": 2**31},
        {"topicName": "T", "perm": 1.5},
        {"topicName": "T", "readQueueNums": float("inf")},
        {"topicName": "T", "writeQueueNums": "1" * 5000},
        {"topicName": "T", "attributes": {"+a": 1}},
        {"topicName": "T", "attributes": [["a"]]},
        {"topicName": "T", "topicSysFlag": []},
    ],
)
def test_what_no_topic_can_be_is_not_taken_into_a_table(members: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        TopicConfig.from_json(members)


@pytest.mark.parametrize(
    "members",
    [{"groupName": True}, {"groupName": ["g"]}, {"groupName": "g", "brokerId": 2**70}, {"groupName": None}],
)
def test_what_no_group_can_be_is_not_taken_into_a_table(members: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        SubscriptionGroupConfig.from_json(members)


def test_numbers_that_are_texts_are_read_as_the_original_does() -> None:
    assert TopicConfig.from_json({"topicName": "T", "perm": "4"}).perm == 4
