"""The promise of model.attributes: the original's keys and values are taken, others are refused by name."""

from __future__ import annotations

import pytest

from model.attributes import TOPIC_ATTRIBUTES, altered
from model.errors import Refused


@pytest.mark.parametrize(
    ("held", "changes", "gives"),
    [
        (None, {"+message.type": "FIFO"}, {"message.type": "FIFO"}),
        (
            None,
            {"+reserve.time": "-1", "+queue.type": "SimpleCQ"},
            {"reserve.time": "-1", "queue.type": "SimpleCQ"},
        ),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY"}, {"message.type": "DELAY"}),
        (
            {"message.type": "FIFO", "queue.type": "SimpleCQ"},
            {"-message.type": ""},
            {"queue.type": "SimpleCQ"},
        ),
        ({"message.type": "FIFO"}, {}, {"message.type": "FIFO"}),
    ],
)
def test_what_a_change_gives(
    held: dict[str, str] | None, changes: dict[str, str], gives: dict[str, str]
) -> None:
    assert altered(held, changes, TOPIC_ATTRIBUTES) == gives


@pytest.mark.parametrize(
    ("held", "changes", "why"),
    [
        (None, {"+colour": "red"}, "unsupported key: colour"),
        (None, {"message.type": "FIFO"}, "is not \\+name or -name"),
        (None, {"+": "FIFO"}, "is not \\+name or -name"),
        (None, {"+a+b": "FIFO"}, "is not \\+name or -name"),
        (None, {"-message.type": ""}, "only add attribute is supported while creating topic"),
        (None, {"+message.type": "SLOW"}, "value is not in set"),
        (None, {"+reserve.time": "-2"}, "value is not in range"),
        (None, {"+reserve.time": "9" * 30}, "value is not in range"),
        (None, {"+reserve.time": "soon"}, "value is not in range"),
        (None, {"+queue.type": "BatchCQ"}, "not supported by keelmq"),
        ({}, {"-message.type": ""}, "attempt to delete a nonexistent key"),
        ({"queue.type": "SimpleCQ"}, {"+queue.type": "SimpleCQ"}, "unchangeable"),
        ({"message.type": "FIFO"}, {"+message.type": "DELAY", "-message.type": ""}, "alter duplication key"),
    ],
)
def test_what_is_refused(held: dict[str, str] | None, changes: dict[str, str], why: str) -> None:
    before = dict(held or {})
    with pytest.raises(Refused, match=why) as refused:
        altered(held, changes, TOPIC_ATTRIBUTES)
    assert refused.value.code == 1
    assert dict(held or {}) == before


def test_a_group_may_have_any_attribute() -> None:
    assert altered({"a": "1"}, {"-a": "", "+b": "2", "-c": ""}, None) == {"b": "2"}
