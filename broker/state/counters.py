"""How much of each topic was stored, and read by each group, in the last minute, hour and day?

The original counts at each message; here a counter that is there anyway is looked at now and then, so that a
send pays nothing: where a queue ends says how many messages it took. Samples are kept as the original keeps
its snapshots: one in 10 s for a minute, one in 10 min for an hour, one in an hour for a day. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from runtime.turns import Slice

SPANS: Final = ((10_000, 7), (600_000, 7), (3_600_000, 25))
"""(ms between two samples, samples kept) of minute, hour and day; the first one is where a sum begins."""
KEYS_MAX: Final = 100_000
SILENT_MS: Final = 2 * 24 * 3_600_000
"""A counter that did not move for so long is forgotten."""


class Span(NamedTuple):
    """``sum``: what was counted; ``tps``: the same by second."""

    sum: int
    tps: float


_NOTHING: Final = Span(0, 0.0)


Ring = array  # of floats: when a sample was taken (ms), what the counter said, and so on, oldest first


def _rings() -> tuple[Ring[float], ...]:
    return tuple(array("d") for _ in SPANS)


@dataclass(slots=True)
class _Counter:
    """Takes about 1.2 KB, however long it is kept: there is one for each topic that each group reads."""

    total: int = 0
    moved_ms: float = 0.0
    rings: tuple[Ring[float], ...] = field(default_factory=_rings)

    def sample(self, now_ms: float) -> None:
        for (period_ms, kept), ring in zip(SPANS, self.rings, strict=True):
            if not ring or now_ms - ring[-2] >= period_ms:
                del ring[: max(0, len(ring) - 2 * (kept - 1))]
                ring.extend((now_ms, self.total))


class Counters:
    """Counters by (name, key), named as the original names them: TOPIC_PUT_NUMS by topic, GROUP_GET_NUMS by
    topic@group, BROKER_PUT_NUMS and BROKER_GET_NUMS by cluster."""

    def __init__(self) -> None:
        self._counters: dict[tuple[str, str], _Counter] = {}
        self._ends: dict[tuple[str, int], int] = {}  # of each queue, at the look before
        self._ends_now: dict[
            tuple[str, int], int
        ] = {}  # of those looked at since: one that is gone is left out
        self._looked = False  # all queues were looked at once

    def add(self, name: str, key: str, count: int, now_ms: float) -> None:
        """``count`` more of it."""
        counter = self._counters.get((name, key))
        if counter is None:
            if len(self._counters) >= KEYS_MAX:
                return
            counter = self._counters[name, key] = _Counter()
            counter.sample(now_ms)  # a sum begins at nothing
        counter.total += count
        counter.moved_ms = now_ms

    def got(self, key: str, messages: int, size_bytes: int, now_ms: float) -> None:
        """``add`` of what a group, in ``key`` behind its topic, was given."""
        counters = self._counters
        count, size = counters.get(("GROUP_GET_NUMS", key)), counters.get(("GROUP_GET_SIZE", key))
        if count is None or size is None:
            self.add("GROUP_GET_NUMS", key, messages, now_ms)
            self.add("GROUP_GET_SIZE", key, size_bytes, now_ms)
            return
        count.total += messages
        size.total += size_bytes
        count.moved_ms = size.moved_ms = now_ms

    def queue_end(self, topic: str, queue_id: int, end: int, now_ms: float) -> int:
        """Where a queue ends now (messages); so many are counted. One that is met first counts from there on,
        or from its begin when there was nothing of the topic at the look before."""
        key = (topic, queue_id)
        before = self._ends_now.get(key)
        if before is None:
            before = self._ends.get(key, 0 if self._looked else end)
        self._ends_now[key] = end
        if end > before:
            self.add("TOPIC_PUT_NUMS", topic, end - before, now_ms)
        return max(0, end - before)

    def sampled(self, now_ms: float) -> Iterator[None]:
        """Keep what the counters say now, one at a time: a hundred thousand take 150 ms. Done about every
        10 s, after all queues were looked at."""
        self._looked = True
        self._ends, self._ends_now = self._ends_now, {}
        for key in list(self._counters):
            counter = self._counters[key]
            if now_ms - counter.moved_ms > SILENT_MS:
                del self._counters[key]
            else:
                counter.sample(now_ms)
            yield

    def sample(self, now_ms: float) -> None:
        """``sampled``, all of it."""
        for _ in self.sampled(now_ms):
            pass

    def spans(self, name: str, key: str) -> tuple[Span, Span, Span] | None:
        """Minute, hour and day; None for a counter that never moved."""
        counter = self._counters.get((name, key))
        if counter is None:
            return None
        minute, hour, day = (_span(ring, counter.total) for ring in counter.rings)
        return minute, hour, day

    async def totals(self, names: Collection[str], slice_: Slice) -> dict[str, dict[str, int]]:
        """All counters of each name, by key, since each began to count; looked at in slices. Raises as
        ``slice_``."""
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for counter in list(self._counters):
            name, key = counter
            if name in found and (held := self._counters.get(counter)) is not None:
                found[name][key] = held.total
            await slice_.breathe()
        return found

    def tps(self, name: str, key: str) -> float:
        """By second over the last minute; 0 for a counter that never moved."""
        found = self.spans(name, key)
        return found[0].tps if found is not None else 0.0


def _span(ring: Ring[float], total: int) -> Span:
    """As the original: from the first sample kept to the last one."""
    if len(ring) < 4:
        return _NOTHING
    begin_ms, begin, end_ms, end = ring[0], int(ring[1]), ring[-2], int(ring[-1])
    return Span(end - begin, (end - begin) * 1000 / (end_ms - begin_ms))
