"""Which queues does one consumer of a group take? Pure: every consumer computes the same split by itself."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


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
