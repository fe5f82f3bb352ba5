"""Which queues does one consumer of a group take? Pure: every consumer computes the same split by itself.

All members of a group must split the same way. The ways are those of RocketMQ's
``AllocateMessageQueueAveragely`` and ``AllocateMessageQueueAveragelyByCircle``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from client.message import Queue

T = TypeVar("T")

Allocate = Callable[[Sequence[Queue], Sequence[str], str], list[Queue]]
"""Of the sorted queues of a topic, and the sorted client ids of a group: those of the client named last."""


def average(queues: Sequence[T], consumers: Sequence[str], me: str) -> list[T]:
    """RocketMQ's average allocation: contiguous runs, the first consumers take one more.

    Both sequences must be sorted the same way by all members. A consumer that is not listed gets nothing.
    """
    if me not in consumers or not queues:
        return []
    index = consumers.index(me)
    share, rest = divmod(len(queues), len(consumers))
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (1 if index < rest else 0)])


def average_by_circle(queues: Sequence[T], consumers: Sequence[str], me: str) -> list[T]:
    """RocketMQ's allocation by circle: the consumers take one queue each in turn, so that each has queues of
    each broker. Otherwise as ``average``.
    """
    if me not in consumers:
        return []
    return list(queues[consumers.index(me) :: len(consumers)])
