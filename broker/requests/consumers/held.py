"""Which pulls wait, for which queue, and which records do they want?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from broker.state.clients import Subscription
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting.acl.gate import Pass
from remoting.codec import Command
from remoting.headers import PullHeader
from remoting.service import Connection

Queue = tuple[str, int]

PLACE_BYTES: Final = 100
"""Of a tag in the count of those waited for."""


@dataclass(slots=True, eq=False)
class Held:
    """A pull that waits. ``header`` is what ``PullHeader.kept`` leaves: a client may make the rest very
    long."""

    connection: Connection
    request: Command
    header: PullHeader
    subscription: Subscription
    topic: TopicConfig
    group: SubscriptionGroupConfig
    offset: int  # the queue offset it waits for
    deadline_ms: float
    check_ms: float
    passed: Pass | None = None

    @property
    def queue(self) -> Queue:
        return self.header.topic, self.header.queue_id


@dataclass(slots=True)
class _Waiting:
    """The pulls of one queue. ``codes`` counts those that want a tag, ``all`` those that want everything."""

    pulls: dict[Held, None] = field(default_factory=dict)
    codes: Counter[int] = field(default_factory=Counter)
    all: int = 0

    def forget(self, codes: frozenset[int]) -> None:
        """A pull that wants these does not wait any more."""
        self.all -= not codes
        for code in codes:
            self.codes[code] -= 1
            if not self.codes[code]:
                del self.codes[code]


class HeldPulls:
    """All pulls that wait, oldest first; pure.

    Holds: ``count`` is that of all queues, and of all connections together; ``bytes`` what the subscriptions
    take, about: one that many pulls share counts once, its tags' places in ``codes`` for each.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.by_connection: Counter[Connection] = Counter()
        self._queues: dict[Queue, _Waiting] = {}
        self._shared: Counter[int] = Counter()  # by the id() of a subscription: how many pulls wait with it

    def queues(self) -> list[Queue]:
        return list(self._queues)

    def of(self, queue: Queue) -> list[Held]:
        """Those of one queue; who goes through them slowly asks of each whether it still waits (``has``)."""
        waiting = self._queues.get(queue)
        return [] if waiting is None else list(waiting.pulls)

    def has(self, held: Held) -> bool:
        waiting = self._queues.get(held.queue)
        return waiting is not None and held in waiting.pulls

    def waits_for(self, queue: Queue) -> bool:
        """Whether anybody does."""
        return queue in self._queues

    def add(self, held: Held) -> None:
        queue = held.queue
        waiting = self._queues.get(queue)
        if waiting is None:
            waiting = self._queues[queue] = _Waiting()
        waiting.pulls[held] = None
        codes = held.subscription.codes
        waiting.codes.update(codes)
        waiting.all += not codes
        self.count += 1
        self._shared[id(held.subscription)] += 1
        self.bytes += PLACE_BYTES * len(codes)
        if self._shared[id(held.subscription)] == 1:
            self.bytes += held.subscription.bytes
        self.by_connection[held.connection] += 1

    def wanted(self, queue: Queue, tags_code: int) -> bool:
        """Whether a pull waits for a record of this tag; costs the same however many wait."""
        waiting = self._queues.get(queue)
        return waiting is not None and (waiting.all > 0 or tags_code in waiting.codes)

    def remove(self, held: Held) -> bool:
        """It waits no more; whether it did. Costs the same however many wait."""
        queue, subscription = held.queue, held.subscription
        waiting = self._queues.get(queue)
        if waiting is None or held not in waiting.pulls:
            return False
        if len(waiting.pulls) == 1:
            del self._queues[queue]
        else:
            del waiting.pulls[held]
            waiting.forget(subscription.codes)
        self.count -= 1
        self.bytes -= PLACE_BYTES * len(subscription.codes)
        self._shared[id(subscription)] -= 1
        if not self._shared[id(subscription)]:
            del self._shared[id(subscription)]
            self.bytes -= subscription.bytes
        self.by_connection[held.connection] -= 1
        if not self.by_connection[held.connection]:
            del self.by_connection[held.connection]
        return True

    def resubscribe(self, held: Held, subscription: Subscription) -> None:
        """Its group has come to want something else."""
        waited = self.remove(held)
        held.subscription = subscription
        if waited:
            self.add(held)

    def take_all(self) -> list[Held]:
        """Every one; none of them waits any more."""
        found = [held for waiting in self._queues.values() for held in waiting.pulls]
        self._queues.clear()
        self._shared.clear()
        self.by_connection.clear()
        self.count = self.bytes = 0
        return found

    def check_invariants(self) -> None:
        found = [held for waiting in self._queues.values() for held in waiting.pulls]
        assert self.count == len(found), "each waits once"
        assert self.by_connection == Counter(held.connection for held in found), "each is of one connection"
        each = {id(held.subscription): held.subscription.bytes for held in found}
        places = PLACE_BYTES * sum(len(held.subscription.codes) for held in found)
        assert self.bytes == sum(each.values()) + places, "each subscription counts once"
        for queue, waiting in self._queues.items():
            assert waiting.pulls, "a queue is known while one waits for it"
            assert {held.queue for held in waiting.pulls} == {queue}
            wanted = Counter(code for held in waiting.pulls for code in held.subscription.codes)
            assert waiting.codes == wanted, "what is wanted is what those want that wait"
            assert waiting.all == sum(not held.subscription.codes for held in waiting.pulls)
