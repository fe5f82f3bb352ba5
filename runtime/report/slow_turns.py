"""Which request held the event loop too long, and from which client? How long did answers take?

The lease, heartbeats and replication run on the same loop as clients' requests. Each step of a request is
timed (``remoting/transport/steps``); one of ``SLOW_MS`` or more is counted, and logged as far as the rate
limit lets it.

Under simulation the clock stands still while code runs, so nothing is ever slow there and a seed replays.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from model.codes import UNKNOWN, answer_label_of
from runtime.report.complaints import Complaints
from runtime.report.histogram import ANSWERS_S, RPC_MS, Histogram
from runtime.report.slow_requests import SlowRequests

SLOW_MS: Final = 20.0
KEPT: Final = 16
"""So many of the last ones are shown."""

log = logging.getLogger(__name__)


class Answers:
    """How long requests took until their answers, by the names of their codes and of the answers': there are
    about 100 of both."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, str], Histogram] = {}
        self._by_code: dict[tuple[str, int], Histogram] = {}  # the same, of answers' codes that are known

    def of(self, what: str, answer: int) -> Histogram:
        """Of requests with this answer."""
        found = self._by_code.get((what, answer))
        if found is not None:
            return found
        label = answer_label_of(answer)
        found = self._by.setdefault((what, label), Histogram(ANSWERS_S))
        if label != UNKNOWN:
            self._by_code[what, answer] = found
        return found

    def to_json(self) -> dict[str, Any]:
        """By request."""
        found: dict[str, Any] = {}
        for (what, _), seen in sorted(self._by.items()):
            one, other = seen.to_json(), found.get(what)
            if other is not None:
                one["counts"] = [sum(pair) for pair in zip(one["counts"], other["counts"], strict=True)]
                one["sum"] += other["sum"]
            found[what] = one
        return found

    def by_answer(self) -> list[dict[str, Any]]:
        """By request and answer, in ms and with the bounds of RocketMQ's own."""
        places = [ANSWERS_S.index(bound_ms / 1000) for bound_ms in RPC_MS]
        rows = []
        for (what, answer), seen in sorted(self._by.items()):
            told = seen.to_json()
            counts = [told["counts"][at] for at in (*places, -1)]
            names = {"request": what.lower(), "answer": answer}
            rows.append({**names, "bounds": list(RPC_MS), "counts": counts, "sum": told["sum"] * 1000})
        return rows


HELD: Final = frozenset({"KEELMQ_COPY_TABLES"})
"""Requests that wait on purpose and are answered like others: slaves ask for the tables' next change."""


class SlowTurns:
    """Counts and tells what held the loop, and what was answered late. ``now_ms``: a clock that counts while
    code runs. ``request_ms``: see ``SlowRequests``."""

    def __init__(self, name: str, now_ms: Callable[[], float], request_ms: float = 0) -> None:
        self.level = logging.WARNING  # of its lines
        self.total = 0
        self.worst_ms = 0.0
        self.by_what: Counter[str] = Counter()
        self.answers = Answers()
        self.requests = SlowRequests(name, now_ms, request_ms)
        self._name = name
        self.now_ms = now_ms
        self._last: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._complaints = Complaints(log, lambda: now_ms() / 1000)

    def note(self, took_ms: float, what: str, peer: str) -> None:
        """``what`` of ``peer`` took so long in one piece. Nothing happens below ``SLOW_MS``."""
        if took_ms < SLOW_MS:
            return
        self.total += 1
        self.worst_ms = max(self.worst_ms, took_ms)
        self.by_what[what] += 1
        self._last.append({"what": what, "from": peer, "ms": round(took_ms, 1)})
        self._complaints.warn(
            "%s: %s from %s held the event loop for %.0f ms",
            *(self._name, what, peer, took_ms),
            level=self.level,
        )

    def on_answered(self, request: str, client: str, took_s: float, answer: int = 0, times: int = 1) -> None:
        """A request has its answer, of this code; or so many have, together. ``request``: the name of its
        own."""
        self.answers.of(request, answer).observe(took_s, times)
        if took_s * 1000 >= self.requests.least_ms and request not in HELD:
            self.requests.note(request, client, took_s * 1000)

    def on_read(self, took_s: float, peer: str) -> None:
        """What one read of ``peer`` brought was handled."""
        if took_s * 1000 >= SLOW_MS:
            self.note(took_s * 1000, "one read", peer)

    def status(self) -> dict[str, Any]:
        """JSON-ready: how often, how long at worst, by what, and the last few."""
        return {
            "total": self.total,
            "worstMs": round(self.worst_ms, 1),
            "byWhat": dict(sorted(self.by_what.items())),
            "last": list(self._last),
        }

    def check_invariants(self) -> None:
        assert self.total == sum(self.by_what.values()), "each slow turn is counted under one name"
        assert (self.worst_ms >= SLOW_MS) == (self.total > 0), "what is counted was slow"
