"""Whose is a topic that is read? The one rule for retry and dead-letter topics, of ACL 1.0 and 2.0."""

from __future__ import annotations

from model.message import DLQ_PREFIX, RETRY_PREFIX
from model.pop import normal_topic

Owner = tuple[bool, str]
"""Is it a group, and its name."""


def owners_of(topic: str, asking: str | None = None) -> list[Owner]:
    """A right to each of these is a right to read ``topic``. ``asking``: the group it is read for.

    ``%RETRY%g`` and ``%DLQ%g`` are the group's. ``%RETRY%g_T`` and ``%RETRY%g+T``, the pop retry topics of g
    for T, have messages of T: read for g they take both. For another group nobody can tell where the name of
    the group ends: then all behind the prefix is one, as in the original.
    """
    if topic.startswith(DLQ_PREFIX):
        return [(True, topic.removeprefix(DLQ_PREFIX))]
    if not topic.startswith(RETRY_PREFIX):
        return [(False, topic)]
    popped = topic if not asking else normal_topic(topic, asking)
    if asking and popped != topic:
        return [(True, asking), *owners_of(popped, asking)]
    return [(True, group_name(topic))]


def group_name(name: str) -> str:
    """The group that a name says, be it that of its retry topic."""
    if not name.startswith(RETRY_PREFIX):
        return name
    return name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)
