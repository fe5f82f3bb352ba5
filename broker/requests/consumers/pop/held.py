"""Which pops wait, for which group and queue, and which message wakes which of them?"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from broker.state.clients import Subscription
from model.pop import ALL_QUEUES, pop_retry_topic
from remoting.acl.gate import Pass
from remoting.codec import Command
from remoting.pop_headers import LookHeader, PopHeader
from remoting.service import Connection
from runtime.sizes import text_bytes

Key = tuple[str, str, int]
"""Topic, group, queue or ALL_QUEUES."""

DEADLINES_LEFT: Final = 64


@dataclass(slots=True, eq=False)
class HeldPop:
    """A pop that waits, or with a ``LookHeader`` a question whether there are messages."""

    connection: Connection
    request: Command
    header: PopHeader | LookHeader
    subscription: Subscription | None
    deadline_ms: float
    waits: bool = True
    passed: Pass | None = None

    @property
    def bytes(self) -> int:
        """About the memory that its texts and its subscription take."""
        header, subscription = self.header, self.subscription
        texts = text_bytes(header.attempt_id)
        if isinstance(header, PopHeader):
            texts += text_bytes(header.expression)
        return texts + (0 if subscription is None else subscription.bytes)

    @property
    def key(self) -> Key:
        return self.header.topic, self.header.group, max(self.header.queue_id, ALL_QUEUES)


class HeldPops:
    """All pops that wait, oldest first; pure.

    Holds: ``count`` is that of all keys, and of all connections together; ``bytes`` is what they take, about.
    Of those answered before their time few are remembered.
    """

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self._by_connection: dict[Connection, dict[HeldPop, None]] = {}
        self._waiting: dict[Key, deque[HeldPop]] = {}
        self._groups: dict[str, dict[tuple[str, str], set[int]]] = {}  # name of a topic -> who waits for it
        self._deadlines: list[tuple[float, int, HeldPop]] = []
        self._added = 0

    def add(self, held: HeldPop) -> None:
        held.waits = True
        waiting = self._waiting.get(held.key)
        if waiting is None:
            waiting = self._waiting[held.key] = deque()
            self._name(held.key, waits=True)
        waiting.append(held)
        self.count += 1
        self.bytes += held.bytes
        self._by_connection.setdefault(held.connection, {})[held] = None
        self._added += 1
        heapq.heappush(self._deadlines, (held.deadline_ms, self._added, held))

    def of(self, key: Key) -> int:
        """How many wait for it."""
        return len(self._waiting.get(key, ()))

    def of_connection(self, connection: Connection) -> int:
        """How many of its pops wait."""
        return len(self._by_connection.get(connection, ()))

    def waiting_keys(self) -> list[Key]:
        return list(self._waiting)

    def first(self, key: Key) -> HeldPop | None:
        waiting = self._waiting.get(key)
        return waiting[0] if waiting else None

    def are_woken_by(self, topic: str) -> bool:
        """Whether any wait for messages of this topic."""
        return topic in self._groups

    def woken_by(self, topic: str, queues: set[int]) -> Iterator[Key]:
        """What came to these queues may have become of use to whom: each key that waits for one of them, or
        for ``ALL_QUEUES`` if that is among them. Others may come and go meanwhile."""
        groups = self._groups.get(topic, {})
        for pair in list(groups):
            # A pop of one queue also takes what is in the retry topic, whatever queue it is in there.
            waits = groups.get(pair, set())
            for queue in sorted(waits & queues if pair[0] == topic else waits):
                yield *pair, queue

    def take(self, key: Key) -> HeldPop | None:
        """The oldest one; it waits no more."""
        waiting = self._waiting.get(key)
        if not waiting:
            return None
        held = waiting.popleft()
        self._gone(held, waiting)
        return held

    def overdue(self, now_ms: float) -> HeldPop | None:
        """The first whose time is over; it waits no more."""
        while self._deadlines and (self._deadlines[0][0] <= now_ms or not self._deadlines[0][2].waits):
            held = heapq.heappop(self._deadlines)[2]
            if held.waits:
                waiting = self._waiting[held.key]
                waiting.remove(held)
                self._gone(held, waiting)
                return held
        return None

    def drop(self, connection: Connection, most: int) -> bool:
        """Its pops wait no more, at most so many of them; whether there are others."""
        for held in list(islice(self._by_connection.get(connection, ()), most)):
            waiting = self._waiting[held.key]
            waiting.remove(held)
            self._gone(held, waiting)
        return connection in self._by_connection

    def next_deadline_ms(self) -> float | None:
        return self._deadlines[0][0] if self._deadlines else None

    def take_all(self) -> list[HeldPop]:
        found = [held for waiting in self._waiting.values() for held in waiting]
        for held in found:
            held.waits = False
        self._waiting.clear()
        self._groups.clear()
        self._deadlines.clear()
        self._by_connection.clear()
        self.count = self.bytes = 0
        return found

    def _gone(self, held: HeldPop, waiting: deque[HeldPop]) -> None:
        held.waits = False
        if not waiting:
            del self._waiting[held.key]
            self._name(held.key, waits=False)
        self.count -= 1
        self.bytes -= held.bytes
        mine = self._by_connection[held.connection]
        del mine[held]
        if not mine:
            del self._by_connection[held.connection]
        if len(self._deadlines) > 2 * self.count + DEADLINES_LEFT:
            # One that is over keeps its connection and its texts for as long as it might have waited.
            self._deadlines = [entry for entry in self._deadlines if entry[2].waits]
            heapq.heapify(self._deadlines)

    def _name(self, key: Key, *, waits: bool) -> None:
        topic, group, queue_id = key
        retries = [pop_retry_topic(topic, group, v2=v2) for v2 in (False, True)]
        for name in (topic, *retries):
            groups = self._groups.setdefault(name, {})
            queues = groups.setdefault((topic, group), set())
            if waits:
                queues.add(queue_id)
            else:
                queues.discard(queue_id)
            if not queues:
                del groups[topic, group]
            if not groups:
                del self._groups[name]

    def check_invariants(self) -> None:
        assert self.count == sum(map(len, self._waiting.values())), "each waits once"
        held_by = {held: connection for connection, mine in self._by_connection.items() for held in mine}
        assert held_by == {held: held.connection for waiting in self._waiting.values() for held in waiting}
        assert self.bytes == sum(held.bytes for waiting in self._waiting.values() for held in waiting)
        assert len(self._deadlines) <= 2 * self.count + DEADLINES_LEFT, "those that are over are forgotten"
        assert all(self._waiting.values()), "a key is known while one waits for it"
        waiting = {held[2].key for held in self._deadlines if held[2].waits}
        assert waiting == set(self._waiting), "each has a deadline"
