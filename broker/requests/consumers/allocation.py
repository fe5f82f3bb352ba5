"""Which queues of a topic is one client of a group told to consume? Pure.

Strategies and their names: Apache RocketMQ 5.x, ``AllocateMessageQueueAveragely`` (AVG) and ``...ByCircle``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from model.pop import ALL_QUEUES

Queue = tuple[str, int]
"""Broker and queue."""
Strategy = Callable[[Sequence[Queue], Sequence[str], str], list[Queue]]


def average(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """Contiguous runs; the first clients take one more."""
    if me not in clients or not queues:
        return []
    index = clients.index(me)
    share, rest = divmod(len(queues), len(clients))
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (1 if index < rest else 0)])


def by_circle(queues: Sequence[Queue], clients: Sequence[str], me: str) -> list[Queue]:
    """One after the other, as cards are dealt."""
    if me not in clients:
        return []
    return list(queues[clients.index(me) :: len(clients)])


STRATEGIES: Final[dict[str, Strategy]] = {"AVG": average, "AVG_BY_CIRCLE": by_circle}


def for_pop(
    strategy: Strategy, queues: Sequence[Queue], clients: Sequence[str], me: str, share: int
) -> list[Queue]:
    """The queues a client pops; each is shared with ``share`` clients that follow it, with 0 or less with
    all. All queues of a broker are one that is named -1."""
    if share <= 0 or share >= len(clients) - 1:
        return [(broker, ALL_QUEUES) for broker in dict.fromkeys(broker for broker, _ in queues)]
    if me not in clients:
        return []
    index = clients.index(me)
    if len(clients) > len(queues):
        return [queues[index % len(queues)]] if queues else []
    neighbours = [clients[(index + ahead) % len(clients)] for ahead in range(share + 1)]
    return list(dict.fromkeys(queue for one in neighbours for queue in strategy(queues, clients, one)))
