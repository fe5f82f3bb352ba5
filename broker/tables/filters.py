"""Which expressions have consumer groups subscribed to, those that are gone since a day included?

``config/consumerFilter.json``: ``{"filterDataByTopic": {topic: {"groupFilterData": {group: entry},
"topic"}}}``, as the original keeps it. An entry lives (``deadTime`` 0) while a member of its group subscribes
to it. Each broker, master or slave, writes down what consumers tell itself: none copies it. Pulls do not need
it, they are answered as the living members of a group want it; operators are shown it (QUERY_CONSUME_QUEUE).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from broker.state.clients import TAG, Subscription
from model.sql92.bloom import BITS, HASHES, bit_positions
from remoting.bodies import Members, Raw

log = logging.getLogger(__name__)

KEPT_MS: Final = 24 * 3600 * 1000
"""A dead entry goes after this (the original's filterDataCleanTimeSpan)."""
UNSEEN_MS: Final = 30_000
"""A consumer that lived when the table was written is taken for dead since so long when it is read."""
FILTERS_MAX: Final = 10_000
TEXT_MAX: Final = 8 << 20
"""Characters of all entries: names and expressions. The file is written as a whole."""
EXPRESSION_MAX: Final = 32 << 10
CLEANED_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class FilterData:
    """What a group wants of a topic. ``version``: the client's, of its subscription."""

    group: str
    topic: str
    expression: str
    kind: str
    version: int
    born_ms: int
    dead_ms: int = 0
    positions: tuple[int, ...] = ()

    @property
    def is_dead(self) -> bool:
        return self.dead_ms >= self.born_ms

    @property
    def chars(self) -> int:
        return len(self.group) + len(self.topic) + len(self.expression) + len(self.kind)

    def died(self, now_ms: int) -> FilterData:
        return replace(self, dead_ms=max(now_ms, self.born_ms))

    def to_json(self) -> dict[str, Any]:
        return {
            "bloomFilterData": {"bitNum": BITS, "bitPos": Raw(str(list(self.positions)).replace(" ", ""))},
            "bornTime": self.born_ms,
            "clientVersion": self.version,
            "consumerGroup": self.group,
            "dead": self.is_dead,
            "deadTime": self.dead_ms,
            "expression": self.expression,
            "expressionType": self.kind,
            "topic": self.topic,
        }


class FilterTable:
    """By topic and group. Bounded: where ``FILTERS_MAX`` or ``TEXT_MAX`` is reached, the one that died first
    goes; if all live, no new one is kept. Pure: time comes in as ``now_ms``."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, FilterData]] = {}
        self._groups: dict[str, dict[str, FilterData]] = {}
        self._dead: OrderedDict[tuple[str, str], None] = OrderedDict()
        """(group, topic), the first to die first."""
        self._count = 0
        self._chars = 0
        self.on_change: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return self._count

    def get(self, group: str, topic: str) -> FilterData | None:
        return self._groups.get(group, {}).get(topic)

    def is_news(self, group: str, wanted: Mapping[str, Subscription]) -> bool:
        """Whether a heartbeat that wants this changes anything, as far as is known."""
        known = self._groups.get(group, {})
        for topic, subscription in wanted.items():
            if subscription.expression_type != TAG:
                data = known.get(topic)
                if data is None or subscription.version > data.version:
                    return True
                if subscription.version == data.version and data.is_dead:
                    return True
        return any(topic not in wanted and not data.is_dead for topic, data in known.items())

    def needs(self, group: str, subscription: Subscription) -> bool:
        """Whether ``take`` is to find out if its text is an expression."""
        if subscription.expression_type == TAG or len(subscription.expression) > EXPRESSION_MAX:
            return False
        known = self.get(group, subscription.topic)
        return known is None or (subscription.version > known.version and not _is_same(known, subscription))

    def take(self, group: str, subscription: Subscription, now_ms: int, *, wrong: bool = False) -> None:
        """A member of the group wants this; ``wrong``: its text is known to be no expression."""
        if subscription.expression_type != TAG and self._taken(group, subscription, now_ms, wrong):
            self._tell()

    def left(self, group: str, wanted: Collection[str] = ()) -> list[FilterData]:
        """What lives of the group, but for the topics it still wants."""
        known = self._groups.get(group, {})
        return [data for topic, data in known.items() if topic not in wanted and not data.is_dead]

    def died(self, data: FilterData, now_ms: int) -> None:
        """Its group does not want it any more; only of what lives."""
        self._put(data.died(now_ms))
        self._tell()

    def lives(self, group: str) -> bool:
        return any(not data.is_dead for data in self._groups.get(group, {}).values())

    def clean(self, now_ms: int) -> None:
        """Let go what has been dead for ``KEPT_MS``; not more than ``CLEANED_MAX`` at a time."""
        before = self._count
        while self._dead and self._count > before - CLEANED_MAX:
            data = self._at(next(iter(self._dead)))
            if now_ms - data.dead_ms < KEPT_MS:
                break
            self._remove(data)
        if self._count < before:
            self._tell()

    def load(self, stored: Mapping[str, Any] | None, now_ms: int) -> bool:
        """Take what was written; nobody lives yet. True when an entry did by then. All of it is left where it
        is no such table, and, as in the original, where bits of one are not of our filters."""
        try:
            found = [] if stored is None else list(_parse(stored))
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            log.warning("consumerFilter.json is begun anew: %r", error)
            return False
        for data in found:
            self._put(data if data.dead_ms else data.died(now_ms - UNSEEN_MS))
        for key in sorted(self._dead, key=lambda key: self._at(key).dead_ms):
            self._dead.move_to_end(key)
        return any(not data.dead_ms for data in found)

    def shown(self) -> dict[str, Any]:
        """The table as of this moment; each entry's text is made when it is written."""
        topics = [(topic, list(groups.values())) for topic, groups in self._topics.items()]
        return {"filterDataByTopic": Members(_shown(topics))}

    def check_invariants(self) -> None:
        entries = [data for groups in self._topics.values() for data in groups.values()]
        assert len(entries) == self._count <= FILTERS_MAX, "each is counted, and no more than may be"
        assert sum(data.chars for data in entries) == self._chars <= TEXT_MAX, "so are its characters"
        assert all(self.get(data.group, data.topic) is data for data in entries), "it is found by its group"
        assert sum(map(len, self._groups.values())) == self._count, "and no other one is"
        dead = {(data.group, data.topic) for data in entries if data.is_dead}
        assert dead == set(self._dead), "the dead are known"
        assert all(self._topics.values()), "no topic without an entry is kept"
        assert all(self._groups.values()), "nor a group"

    def _taken(self, group: str, subscription: Subscription, now_ms: int, wrong: bool) -> bool:
        known = self.get(group, subscription.topic)
        if known is not None and subscription.version <= known.version:
            if subscription.version < known.version or not known.is_dead:
                return False
            self._put(replace(known, dead_ms=0))
            return True
        if known is not None and _is_same(known, subscription):
            self._put(replace(known, dead_ms=0, version=subscription.version))
            return True
        if wrong or len(subscription.expression) > EXPRESSION_MAX or subscription.chooses is None:
            if known is not None:
                self._remove(known)
            return known is not None
        topic, kind = subscription.topic, subscription.expression_type
        positions = bit_positions(group, topic)
        return self._put(
            FilterData(
                group, topic, subscription.expression, kind, subscription.version, now_ms, 0, positions
            )
        )

    def _at(self, key: tuple[str, str]) -> FilterData:
        return self._groups[key[0]][key[1]]

    def _put(self, data: FilterData) -> bool:
        """Whether anything changed: there may be no room for it."""
        known = self.get(data.group, data.topic)
        if known is None or known.chars != data.chars:
            if known is not None:
                self._remove(known)
            if not self._has_room(data):
                return known is not None
            self._count += 1
            self._chars += data.chars
        self._topics.setdefault(data.topic, {})[data.group] = data
        self._groups.setdefault(data.group, {})[data.topic] = data
        key = (data.group, data.topic)
        if not data.is_dead:
            self._dead.pop(key, None)
        elif key not in self._dead:
            self._dead[key] = None
        return True

    def _has_room(self, data: FilterData) -> bool:
        while self._count >= FILTERS_MAX or self._chars + data.chars > TEXT_MAX:
            if not self._dead:
                log.debug("no room to keep the expression of %s for %s", data.group, data.topic)
                return False
            self._remove(self._at(next(iter(self._dead))))
        return True

    def _remove(self, data: FilterData) -> None:
        for table, key, within in (
            (self._topics, data.topic, data.group),
            (self._groups, data.group, data.topic),
        ):
            del table[key][within]
            if not table[key]:
                del table[key]
        self._dead.pop((data.group, data.topic), None)
        self._count -= 1
        self._chars -= data.chars

    def _tell(self) -> None:
        for hook in self.on_change:
            hook()


def _is_same(data: FilterData, subscription: Subscription) -> bool:
    return (data.expression, data.kind) == (subscription.expression, subscription.expression_type)


def _shown(topics: list[tuple[str, list[FilterData]]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for topic, entries in topics:
        yield topic, {"groupFilterData": Members(_entries(entries)), "topic": topic}


def _entries(entries: list[FilterData]) -> Iterator[tuple[str, dict[str, Any]]]:
    for data in entries:
        yield data.group, data.to_json()


def _parse(stored: Mapping[str, Any]) -> Iterator[FilterData]:
    """Raises ValueError, TypeError, AttributeError, OverflowError."""
    for topic, of_topic in (stored.get("filterDataByTopic") or {}).items():
        for group, raw in ((of_topic or {}).get("groupFilterData") or {}).items():
            if raw is not None:
                yield _entry(str(topic), str(group), raw)


def _entry(topic: str, group: str, raw: Mapping[str, Any]) -> FilterData:
    bloom = raw.get("bloomFilterData") or {}
    positions = tuple(int(position) for position in bloom.get("bitPos") or ())
    if bloom.get("bitNum") != BITS or len(positions) != HASHES:
        raise ValueError(f"{str(bloom)[:80]} is not of a bloom filter of {BITS} bits")
    return FilterData(
        group,
        topic,
        str(raw.get("expression") or ""),
        str(raw.get("expressionType") or ""),
        int(raw.get("clientVersion") or 0),
        int(raw.get("bornTime") or 0),
        int(raw.get("deadTime") or 0),
        positions,
    )
