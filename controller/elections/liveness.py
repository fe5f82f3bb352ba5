"""Which brokers are alive, as far as this Controller has heard?

A broker's session is the newest connection its heartbeats came on. The end of that connection is the end of
the broker, at once; the end of an older one means nothing, nor does what it still brings, because after a cut
the network delivers what it had kept. Once the newest has ended, a heartbeat on an older one counts again.
Silence ends a session after the timeout the broker itself asked for. Times
are monotonic milliseconds, given by the caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Final

from controller.groups.elect import PRIORITY_LAST, End

DEFAULT_TIMEOUT_MS: Final = 10_000
TIMEOUT_MIN_MS: Final = 100
TIMEOUT_MAX_MS: Final = 600_000

SILENT_SHARE: Final = 0.5
"""Of the heartbeat timeout, which is at least five heartbeats: some are missing, and its leases still run."""
HEARD_SHARE: Final = 0.25

FORGOTTEN_MS: Final = 3_600_000
"""After so long a silence nothing of a broker is kept: ids are never given twice, so they would add up."""

ENDS_A_BROKER: Final = 8
"""Ends of sessions that are kept for each broker, on average: each heartbeat puts an end off."""

Broker = tuple[str, int]
"""(name of the group, broker id)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a broker says of itself (BROKER_HEARTBEAT). Offsets in bytes, -1 = not said. ``session``: the
    number of the connection; a newer one has a higher one."""

    session: int
    at_ms: float
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    cluster: str = ""
    address: str = ""
    ha_address: str = ""
    epoch: int = -1
    max_offset: int = -1
    confirm_offset: int = -1
    priority: int = PRIORITY_LAST
    leases: bool = False  # acts as master with a lease only (keelmq)
    all_ack: bool = False  # as master, waits for every member of its SyncStateSet

    @property
    def end(self) -> End:
        return End(self.epoch, self.max_offset, self.priority)

    @property
    def until_ms(self) -> float:
        return self.at_ms + self.timeout_ms


@dataclass(frozen=True, slots=True)
class Heard:
    """How long ago a Controller heard its last heartbeat, and which timeout that broker has, in ms."""

    controller: str
    age_ms: float
    timeout_ms: int


def looks_for_another(silent_ms: float, timeout_ms: int) -> bool:
    """Whether a leader that heard no broker for ``silent_ms`` asks the others. ``timeout_ms``: of the broker
    it heard last; ``TIMEOUT_MIN_MS`` where it never heard one."""
    return silent_ms >= timeout_ms * SILENT_SHARE


def successor(silent_ms: float, others: Iterable[Heard]) -> str | None:
    """The Controller that a leader without a heartbeat for ``silent_ms`` gives way to; None = it leads on."""
    able = [
        other
        for other in others
        if silent_ms >= other.timeout_ms * SILENT_SHARE and other.age_ms <= other.timeout_ms * HEARD_SHARE
    ]
    return min(able, key=lambda other: (other.age_ms, other.controller)).controller if able else None


@dataclass(frozen=True, slots=True)
class Reach:
    """How many brokers a Controller hears: of one group, and of all. ``timeout_ms``: the longest timeout of
    those of the group."""

    controller: str
    of_group: int
    of_all: int
    timeout_ms: int


def hears_more(mine: Reach, led_ms: float, others: Iterable[Reach]) -> str | None:
    """The Controller that a leader gives way to which can elect nobody in a group; None = it leads on.

    It hears more of the group, and more of all brokers, so that no other group is the worse for it. The
    leader counts whom it heard within ``SILENT_SHARE`` of a timeout, the others within ``HEARD_SHARE``: so
    with each step the leader hears more, and nobody is asked back while the links stay as they are.
    """
    able = [
        other
        for other in others
        if other.of_group > mine.of_group
        and other.of_all > mine.of_all
        and led_ms >= other.timeout_ms * SILENT_SHARE
    ]
    best = min(able, key=lambda other: (-other.of_group, -other.of_all, other.controller), default=None)
    return None if best is None else best.controller


class Liveness:
    """What heartbeats and closed connections say.

    In: ``heartbeat``, ``closed``, ``lead``. Out: the brokers lost, ``alive``, ``presumed_alive``, ``ends``,
    ``last``. Holds: only the newest heartbeat of a broker's newest connection counts, in whichever order
    connections end; an older connection counts again when the newest has ended.
    """

    def __init__(self) -> None:
        self.last: Heartbeat | None = None
        """The one heard last, of whichever broker."""
        self._beats: dict[Broker, Heartbeat] = {}
        self._ids: dict[str, set[int]] = {}  # of each group, so that asking for one does not look at all
        self._over: set[Broker] = set()  # sessions that ended: by close or by expiry
        self._closed: set[Broker] = set()
        self._leading_since_ms: float | None = None
        self._ends: list[tuple[float, Broker]] = []
        """A heap of when sessions end. Those that were put off, or are over, stay until they are met."""
        self._timeouts: Counter[int] = Counter()  # how many brokers have each

    def lead(self, now_ms: float) -> None:
        """From now on this Controller decides. What it has not heard, the former leader may have; or it could
        hear nothing, because its process stood still."""
        self._leading_since_ms = now_ms

    def heartbeat(self, group: str, broker_id: int, beat: Heartbeat) -> bool:
        """Note a heartbeat; whether the broker was not alive before."""
        broker = (group, broker_id)
        self.last = beat
        known = self._beats.get(broker)
        fresh = known is None or broker in self._over
        if known is not None and not fresh and beat.session < known.session:
            return False
        self._set(broker, beat)
        self._ids.setdefault(group, set()).add(broker_id)
        self._over.discard(broker)
        self._note_end(broker, beat.until_ms)
        self._closed.discard(broker)
        return fresh

    def closed(self, session: int) -> list[Broker]:
        """The connection of ``session`` ended: the brokers that are lost by it."""
        lost = [b for b, beat in self._beats.items() if beat.session == session and b not in self._over]
        self._over.update(lost)
        self._closed.update(b for b, beat in self._beats.items() if beat.session == session)
        return sorted(lost)

    def expired(self, now_ms: float) -> list[Broker]:
        """The brokers that became silent for too long since the last call. Forgets those that have been for
        ``FORGOTTEN_MS``."""
        for broker in [b for b in self._over if self._beats[b].until_ms < now_ms - FORGOTTEN_MS]:
            self.forget(*broker)
        lost = []
        while (until_ms := self.next_expiry_ms()) is not None and until_ms < now_ms:
            _, broker = heappop(self._ends)
            self._over.add(broker)
            lost.append(broker)
        return sorted(lost)

    def next_expiry_ms(self) -> float | None:
        """When, without further heartbeats, the next broker expires. It is asked at each step of the
        elections: among 20,000 brokers it costs what it does among three."""
        while self._ends and not self._is_end(*self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def _is_end(self, until_ms: float, broker: Broker) -> bool:
        beat = self._beats.get(broker)
        return beat is not None and beat.until_ms == until_ms and broker not in self._over

    def _note_end(self, broker: Broker, until_ms: float) -> None:
        heappush(self._ends, (until_ms, broker))
        if len(self._ends) > ENDS_A_BROKER * len(self._beats):
            self._ends = [(beat.until_ms, b) for b, beat in self._beats.items() if b not in self._over]
            heapify(self._ends)

    def _set(self, broker: Broker, beat: Heartbeat | None) -> None:
        known = self._beats.get(broker)
        if known is not None:
            self._timeouts[known.timeout_ms] -= 1
            if not self._timeouts[known.timeout_ms]:
                del self._timeouts[known.timeout_ms]
        if beat is None:
            self._beats.pop(broker, None)
        else:
            self._beats[broker] = beat
            self._timeouts[beat.timeout_ms] += 1

    def is_alive(self, group: str, broker_id: int, now_ms: float) -> bool:
        """Whether its session is open and recent."""
        broker = (group, broker_id)
        beat = self._beats.get(broker)
        return beat is not None and broker not in self._closed and now_ms <= beat.until_ms

    def is_presumed_alive(self, group: str, broker_id: int, now_ms: float) -> bool:
        """Alive, or silent without this leader having listened long enough to call it dead."""
        if self.is_alive(group, broker_id, now_ms):
            return True
        return (group, broker_id) not in self._closed and now_ms <= self.presumed_until_ms(group, broker_id)

    def may_live(self, group: str, broker_id: int, now_ms: float) -> bool:
        """Whether it was not silent for long enough to be dead: the end of a connection proves no death."""
        beat = self._beats.get((group, broker_id))
        if beat is not None and now_ms <= beat.until_ms:
            return True
        return now_ms <= self.presumed_until_ms(group, broker_id)

    def presumed_until_ms(self, group: str, broker_id: int) -> float:
        """Until when silence is no answer, because this leader has not listened for long."""
        if self._leading_since_ms is None:
            return float("-inf")
        return self._leading_since_ms + self.grace_ms(group, broker_id)

    def grace_ms(self, group: str, broker_id: int) -> int:
        """After this long, silence is an answer for a new leader too: the broker's own heartbeat timeout,
        or, of a broker never heard, the longest timeout in use."""
        known = self._beats.get((group, broker_id))
        if known is not None:
            return known.timeout_ms
        return max(self._timeouts, default=DEFAULT_TIMEOUT_MS)

    def connection_closed(self, group: str, broker_id: int) -> bool:
        """Whether its connection ended, rather than that it fell silent."""
        return (group, broker_id) in self._closed

    def lives_elsewhere(self, group: str, broker_id: int, address: str, now_ms: float) -> str | None:
        """Where a living broker has this id at another address than ``address``: two processes with one
        identity, one store being a copy of the other's."""
        beat = self._beats.get((group, broker_id))
        if beat is None or beat.address == address or not self.is_alive(group, broker_id, now_ms):
            return None
        return beat.address

    def alive(self, group: str, now_ms: float) -> list[int]:
        """Ids of the group's brokers that are alive, sorted."""
        return sorted(i for i in self._ids.get(group, ()) if self.is_alive(group, i, now_ms))

    def reach(self, controller: str, group: str, share: float, now_ms: float) -> Reach:
        """Of the brokers heard within this share of their timeouts."""
        heard = [b for b, beat in self._beats.items() if now_ms <= beat.at_ms + beat.timeout_ms * share]
        timeouts = [self._beats[broker].timeout_ms for broker in heard if broker[0] == group]
        return Reach(controller, len(timeouts), len(heard), max(timeouts, default=0))

    def presumed_alive(self, group: str, broker_ids: Iterable[int], now_ms: float) -> list[int]:
        """Those of ``broker_ids`` that must not be taken for dead, sorted."""
        return sorted(i for i in broker_ids if self.is_presumed_alive(group, i, now_ms))

    def timeouts_ms(self, group: str, broker_ids: Iterable[int]) -> list[int]:
        """The heartbeat timeouts of those of ``broker_ids`` that were ever heard."""
        beats = (self.newest(group, broker_id) for broker_id in broker_ids)
        return [beat.timeout_ms for beat in beats if beat is not None]

    def newest(self, group: str, broker_id: int) -> Heartbeat | None:
        return self._beats.get((group, broker_id))

    def told_end(self, group: str, broker_id: int, epoch: int, max_offset: int) -> None:
        """The broker was asked how far its log reaches."""
        beat = self._beats.get((group, broker_id))
        if beat is not None:
            self._beats[group, broker_id] = replace(beat, epoch=epoch, max_offset=max_offset)

    def ends(self, group: str) -> dict[int, End]:
        """How far the logs of the group's brokers reach, as last heard."""
        return {i: self._beats[group, i].end for i in sorted(self._ids.get(group, ()))}

    def __len__(self) -> int:
        """Brokers there is anything known of."""
        return len(self._beats)

    def knows(self, group: str, broker_id: int) -> bool:
        return (group, broker_id) in self._beats

    def forget(self, group: str, broker_id: int) -> None:
        """The broker was removed from its group, or silent for very long."""
        broker = (group, broker_id)
        self._set(broker, None)
        ids = self._ids.get(group, set())
        ids.discard(broker_id)
        if not ids:
            self._ids.pop(group, None)
        self._over.discard(broker)
        self._closed.discard(broker)
