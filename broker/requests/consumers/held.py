"""Which pulls wait, for which queue, and which records do they want?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
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


@dataclass(slots=True)
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

    pulls: list[Held] = field(default_factory=list)
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
    """All pulls that wait; pure.

    Holds: ``count`` is that of all queues and of those looked at, and of all connections together; ``bytes``
    what the subscriptions take, about: one that many pulls share counts once, its tags' places in ``codes``
    for each.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.term = 0
        """Changes when all are let go: what is looked at since is not to wait again."""
        self.by_connection: Counter[Connection] = Counter()
        self._queues: dict[Queue, _Waiting] = {}
        self._looked_at: dict[int, tuple[Held, Subscription, _Waiting | None]] = {}
        """By id(): what it was counted with, and the pulls of its queue whose ``codes`` still know it."""
        self._shared: Counter[int] = Counter()  # by the id() of a subscription: how many pulls wait with it

    def queues(self) -> list[Queue]:
        return list(self._queues)

    def of(self, queue: Queue) -> list[Held]:
        waiting = self._queues.get(queue)
        return [] if waiting is None else waiting.pulls

    def add(self, held: Held) -> None:
        """It waits, or waits again."""
        self.ended(held)
        waiting = self._queues.setdefault(held.queue, _Waiting())
        waiting.pulls.append(held)
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

    def take(self, queue: Queue, which: Callable[[Held], bool] | None = None) -> list[Held]:
        """Those of one queue, or ``which`` of them, to be looked at: none of them is found any more. Each
        counts until it is ``ended`` or waits again: its place is nobody else's meanwhile. Until then a queue
        that others wait for may be ``wanted`` for it, too: each has its codes, which go one pull a step."""
        waiting = self._queues.get(queue)
        if waiting is None:
            return []
        taken = waiting.pulls if which is None else list(filter(which, waiting.pulls))
        all_of_them = len(taken) == len(waiting.pulls)
        known_to = None if all_of_them else waiting
        self._looked_at.update((id(held), (held, held.subscription, known_to)) for held in taken)
        if all_of_them:
            del self._queues[queue]
        elif taken:
            gone = set(map(id, taken))
            waiting.pulls = [held for held in waiting.pulls if id(held) not in gone]
        return taken

    def take_all(self) -> list[Held]:
        """Every one, and a new term."""
        self.term += 1
        found = [held for waiting in self._queues.values() for held in waiting.pulls]
        self._queues.clear()
        self._looked_at.clear()
        self._shared.clear()
        self.by_connection.clear()
        self.count = self.bytes = 0
        return found

    def ended(self, held: Held) -> None:
        """Of one that was taken: it counts no more. Nothing, for any other."""
        found = self._looked_at.pop(id(held), None)
        if found is None:
            return
        self.count -= 1
        if found[2] is not None:
            found[2].forget(found[1].codes)
        self._let_go(found[1])
        self.by_connection[held.connection] -= 1
        if not self.by_connection[held.connection]:
            del self.by_connection[held.connection]

    def _let_go(self, subscription: Subscription) -> None:
        self.bytes -= PLACE_BYTES * len(subscription.codes)
        self._shared[id(subscription)] -= 1
        if not self._shared[id(subscription)]:
            del self._shared[id(subscription)]
            self.bytes -= subscription.bytes

    def check_invariants(self) -> None:
        waits = sum(len(waiting.pulls) for waiting in self._queues.values())
        assert self.count == waits + len(self._looked_at), "each waits once, or is looked at"
        assert self.count == sum(self.by_connection.values()), "each is of one connection"
        found = [held.subscription for waiting in self._queues.values() for held in waiting.pulls]
        found += [subscription for _, subscription, _ in self._looked_at.values()]
        each = {id(subscription): subscription.bytes for subscription in found}
        places = PLACE_BYTES * sum(len(subscription.codes) for subscription in found)
        assert self.bytes == sum(each.values()) + places, "each subscription counts once"
        for waiting in self._queues.values():
            known = [held.subscription for held in waiting.pulls]
            known += [one for _, one, known_to in self._looked_at.values() if known_to is waiting]
            wanted = Counter(code for subscription in known for code in subscription.codes)
            assert waiting.codes == wanted, "what is wanted is what those want that wait or did"
            assert waiting.all == sum(not subscription.codes for subscription in known)
