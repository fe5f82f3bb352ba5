"""What did a drill cost, and was a promise broken? From the history of the sends, and what the servers told.

``rto_ms`` is the worst queue's time from its last acknowledgement before the fault to its first one by the
new master; where the old master was asked to go, and served on until it had stepped down, from the last one
it gave: the time its clients were without acknowledgements. ``since_request_ms`` is the worst queue's time
from the fault, or the request, to the new master's first acknowledgement. Where the master stays, ``rto_ms``
is the longest gap between two acknowledgements of a queue after the fault.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from chaos.checks import messages, order
from chaos.checks.violation import Violation
from chaos.drills import asked
from chaos.history import History, Invoke, Ok, Read, Send
from client.message import Queue

if TYPE_CHECKING:
    from chaos.worlds.live import Timeline, Victim  # which starts processes: results are read without

MOVES_MASTER: Final = frozenset(
    {"kill-master", "stop-master", "freeze-master", "handover", "kill-leader-and-master"}
)
ORDERLY: Final = frozenset({"stop-master", "handover"})
"""The old master serves on for a while: the outage begins with its last acknowledgement."""
VIOLATIONS_SHOWN: Final = 20
PROMISES: Final[Mapping[str, str]] = {
    "lost": "lost",
    "phantom": "phantom",
    "duplicates": "duplicated",
    "order_violations": "out of order",
    "offset_reuse": "offsets reused",
    "acknowledged_twice": "offsets acknowledged twice",
    "read_then_gone": "read, then gone",
}
"""What counts as a broken promise, and how it is told."""
OF_READING: Final = frozenset({"lost", "read_then_gone"})
"""Promises that are judged only where everything could be read back."""
COUNTS: Final = ("acked", "unknown", "failed", *PROMISES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault that happened: to whom, when (ms of the history's clock), and what the servers did about it.

    Acknowledgements later than ``until_ms`` are not part of the failover.
    """

    scenario: str
    victim: Victim
    fault_ms: float
    until_ms: float
    timeline: Timeline

    @property
    def moves(self) -> bool:
        """Whether another broker has to become master."""
        return self.scenario in MOVES_MASTER


@dataclass(slots=True)
class Drill:
    """What one drill measured; times in ms since the fault, None = did not happen in time."""

    rto_ms: float | None = None
    since_request_ms: float | None = None
    noticed_ms: float | None = None
    elected_ms: float | None = None
    promoted_ms: float | None = None
    routed_ms: float | None = None
    leader_ms: float | None = None
    first_ack_ms: float | None = None
    acked: int = 0
    unknown: int = 0
    failed: int = 0
    lost: int = 0
    phantom: int = 0
    duplicates: int = 0
    order_violations: int = 0
    offset_reuse: int = 0
    acknowledged_twice: int = 0
    read_then_gone: int = 0
    judged: bool = False
    """Whether losses could be told: the group was full, and could be read back."""
    victim: str = ""
    rto_queues_ms: list[float | None] = field(default_factory=list)
    stall_ms: float | None = None
    full_again_ms: float | None = None
    read_back: int = 0
    unfinished: str | None = None
    violations: list[dict[str, Any]] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    """Of a drill with a plan: the checks that had what they look at."""

    @property
    def violated(self) -> bool:
        return any(getattr(self, name) for name in PROMISES)


class NotThatKind(ValueError):
    """A member of a result is of another kind than readers take it for; says which."""


def why_no_result(error: Exception) -> str:
    """Of what reading a file raised that is no result of a drill: in words, without what the file holds."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not text"
    if isinstance(error, KeyError):
        return f"it has no {error.args[0]}"
    if isinstance(error, json.JSONDecodeError | OSError | NotThatKind):
        return str(error)
    return f"a part of it is of another kind ({type(error).__name__})"


def judged_count(result: Mapping[str, Any]) -> int:
    """Of how many of its drills a result says whether anything was lost."""
    drills: Sequence[Mapping[str, Any]] = result["drills"]
    if result.get("lied"):
        return 0
    if result.get("campaign"):  # judged once, over everything
        return len(drills) if result.get("judged", result.get("unfinished") is None) else 0
    return sum(bool(one.get("judged", one.get("unfinished") is None)) for one in drills)


def unjudged(result: Mapping[str, Any]) -> frozenset[str]:
    """The promises of which a result says nothing: its zeros are no zeros."""
    if result.get("lied"):
        return frozenset(PROMISES) - {"phantom"}
    drills = result["drills"]
    return frozenset() if drills and judged_count(result) == len(drills) else OF_READING


def why_unjudged(result: Mapping[str, Any]) -> str | None:
    """None: nothing else speaks for it than what its drills say."""
    if liars := result.get("lied"):
        return f"not judged for losses, as the disk of {', '.join(map(str, liars))} lied and lost power"
    return "not judged for losses" if unjudged(result) else None


def measure(drill: Drill, history: History, queues: Sequence[Queue], strike: Strike) -> None:
    """Fill in the times."""
    acks = [event for event in history.events if isinstance(event, Ok)]
    of_queue = [
        [ack for ack in acks if ack.queue == queue and ack.at_ms <= strike.until_ms] for queue in queues
    ]
    stalls = [longest_gap([ack.at_ms for ack in own], strike.fault_ms, strike.until_ms) for own in of_queue]
    drill.stall_ms = max(stalls, default=None)
    drill.rto_queues_ms = list(stalls)
    if strike.moves:
        orderly = strike.scenario in ORDERLY
        drill.rto_queues_ms = [
            rto(own, strike.fault_ms, strike.victim.master, orderly=orderly) for own in of_queue
        ]
        drill.since_request_ms = _since_request(of_queue, strike)
    found = [time for time in drill.rto_queues_ms if time is not None]
    drill.rto_ms = max(found) if len(found) == len(queues) else None
    drill.first_ack_ms = _first_ack(acks, strike)
    for name, value in asdict(strike.timeline).items():
        setattr(drill, name, value)


def _since_request(of_queue: Sequence[Sequence[Ok]], strike: Strike) -> float | None:
    """From the fault to the last queue's first acknowledgement by another master."""
    firsts = [_by_another(own, strike.fault_ms, strike.victim.master)[:1] for own in of_queue]
    if not all(firsts):
        return None
    return round(max(first for (first,) in firsts) - strike.fault_ms, 1)


def _first_ack(acks: Sequence[Ok], strike: Strike) -> float | None:
    later = [
        ack.at_ms
        for ack in acks
        if ack.at_ms > strike.fault_ms and not (strike.moves and ack.address == strike.victim.master)
    ]
    return round(min(later) - strike.fault_ms, 1) if later else None


def rto(acks: Sequence[Ok], fault_ms: float, old_master: str, *, orderly: bool) -> float | None:
    """Last acknowledgement before the outage to the first one by another master than the old."""
    after = _by_another(acks, fault_ms, old_master)
    # An answer a killed master gave in its last moment may be read after the fault: it ends no outage.
    begins_ms = min(after, default=fault_ms) if orderly else fault_ms
    before = [
        ack.at_ms for ack in acks if ack.at_ms <= begins_ms and (not orderly or ack.address == old_master)
    ]
    return round(min(after) - max(before, default=fault_ms), 1) if after else None


def _by_another(acks: Sequence[Ok], fault_ms: float, old_master: str) -> list[float]:
    """When another master than the old acknowledged, in order of time."""
    return sorted(ack.at_ms for ack in acks if ack.at_ms > fault_ms and ack.address != old_master)


def longest_gap(times_ms: Sequence[float], fault_ms: float, until_ms: float) -> float:
    """The longest time without an acknowledgement between the last one before the fault and ``until_ms``."""
    before = max((at for at in times_ms if at <= fault_ms), default=fault_ms)
    marks = [before, *sorted(at for at in times_ms if fault_ms < at <= until_ms), until_ms]
    return round(max(b - a for a, b in pairwise(marks)), 1)


def outages(history: History, strikes_ms: Sequence[float], until_ms: float) -> list[float]:
    """After each strike, to the next one, the longest outage of each queue that was asked meanwhile: strike
    by strike."""
    spans = asked.by_queue(history).values()
    marks = [*(at for at in strikes_ms if at < until_ms), until_ms]
    found = (asked.longest(own, at, end) for at, end in pairwise(marks) for own in spans)
    return [time for time in found if time is not None]


def by_queue(
    clients: History, every: History, strikes_ms: Sequence[float], until_ms: float, *, judged: bool
) -> list[dict[str, Any]]:
    """RTO and RPO of each queue: over the strikes the longest times in which ``clients`` asked it and were
    not answered, and how many messages of ``every`` client were acknowledged and are gone: their sums are
    what ``judge`` counts. Not ``judged``: that cannot be said."""
    found = []
    marks = [*(at for at in strikes_ms if at < until_ms), until_ms]
    lost, spans = gone(every) if judged else {}, asked.by_queue(clients)
    for queue, acked in sorted(_answered(every).items(), key=lambda one: str(one[0])):
        times = (asked.longest(spans.get(queue, ()), at, end) for at, end in pairwise(marks))
        outages_ms = sorted(time for time in times if time is not None)
        found.append(
            {
                "queue": str(queue),
                "acked": acked,
                "lost": lost.get(queue, 0) if judged else None,
                "rto_p50_ms": percentile(outages_ms, 50),
                "rto_p99_ms": percentile(outages_ms, 99),
                "rto_max_ms": max(outages_ms, default=None),
            }
        )
    return found


def gone(history: History) -> Mapping[Queue, int]:
    """Acknowledged messages that the last reading lacks, by queue: as ``messages.lost`` counts them."""
    return Counter(send.queue for send, _ in messages.lacking(history.sends(), history.reads(final=True)))


def _answered(history: History) -> Mapping[Queue, int]:
    """How many sends to each queue were acknowledged; of one that was only sent to, none."""
    acked: Counter[Queue] = Counter()
    for event in history.events:
        if isinstance(event, Invoke | Ok):
            acked[event.queue] += isinstance(event, Ok)
    return acked


def judge(drill: Drill, history: History, *, full: bool = True) -> None:
    """Count outcomes and broken promises.

    ``full``: the group was whole when everything was read back. Else what could not be read may lie where
    nobody leads, or beyond what is confirmed: it is told with the reason in ``unfinished``, and is no loss.
    """
    sends = history.sends()
    for send in sends:
        if send.outcome == "ok":
            drill.acked += 1
        elif send.outcome == "fail":
            drill.failed += 1
        else:
            drill.unknown += 1
    final, early = history.reads(final=True), history.reads(final=False)
    drill.read_back = len(final)
    if not full:
        _not_full(drill, sends, final)
    # A reading that failed is said elsewhere; an empty one that did not has lost all.
    drill.judged = read_back = full and (bool(final) or drill.unfinished is None)
    found: dict[str, list[Violation]] = {
        "lost": list(messages.lost(sends, final)) if read_back else [],
        "phantom": list(messages.phantom(sends, history.reads())),
        "duplicates": list(messages.duplicates(sends, final)),
        "order_violations": [
            *order.producer_order(sends),
            *order.real_time_order(sends),
            *order.dense_offsets(final),
        ],
        "offset_reuse": list(order.offset_reuse(sends, history.reads())),
        "acknowledged_twice": list(order.acknowledged_twice(sends)),
        "read_then_gone": list(messages.read_then_gone(early, final)) if read_back else [],
    }
    for name, violations in found.items():
        setattr(drill, name, len(violations))
    everything = [violation.to_json() for violations in found.values() for violation in violations]
    drill.violations = everything[:VIOLATIONS_SHOWN]


def _not_full(drill: Drill, sends: Sequence[Send], final: Sequence[Read]) -> None:
    """Neither lost nor fine: say how many acknowledged messages nobody could show."""
    drill.unfinished = drill.unfinished or "the group is not full"
    missing = len(list(messages.lost(sends, final)))
    if final and missing:
        drill.unfinished += f"; {missing} acknowledged messages could not be read"


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Nearest rank: a value that was really measured."""
    if not ordered:
        return None
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
