"""What do several runs of a plan come to? For the tables of ``drill matrix`` and ``drill campaign``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.drills.live.names import OURS
from chaos.drills.live.results import Result, available, judged, outages_ms, struck
from chaos.drills.measure import percentile

TWICE: Final = ("offset_reuse", "acknowledged_twice")
"""The first finds what the second does, and what was read: both are one offset given twice."""
ORDER: Final = ("producer_order", "real_time_order", "dense_offsets")
KNOWN: Final = ("lost", "one_master_per_epoch", *TWICE, *ORDER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """``strikes``: faults of the runs' own kind that struck; ``missed``: those without a target. ``judged``:
    strikes of runs that were judged for losses, ``acked`` what was acknowledged in them, and ``unjudged`` in
    the others: of these nobody can say what is lost. None: it is not known."""

    runs: int
    strikes: int
    judged: int
    missed: int
    refused: int
    unfinished: int
    acked: int
    unjudged: int
    lost: int | None
    order: int
    twice: int
    two_masters: int | None
    others: int
    availability: float | None
    stall_ms: float | None
    rto_p50_ms: float | None
    rto_p99_ms: float | None
    rto_max_ms: float | None

    @classmethod
    def of(cls, results: Sequence[Result]) -> Counted:
        broken: Counter[str] = Counter()
        for result in results:
            broken.update(result.get("broken") or {})
        read_back = [one for one in results if judged(one)]
        return cls(
            runs=len(results),
            strikes=sum(struck(one) for one in results),
            judged=sum(struck(one) for one in read_back),
            missed=sum(struck(one, "missed") for one in results),
            refused=_total(results, "refused"),
            unfinished=_total(results, "unfinished"),
            acked=_total(read_back, "acked"),
            unjudged=_total(results, "acked") - _total(read_back, "acked"),
            lost=broken["lost"] if broken["lost"] or read_back else None,
            order=sum(broken[name] for name in ORDER),
            twice=sum(map(_twice, results)),
            two_masters=broken["one_master_per_epoch"] if _asked_who_leads(results) else None,
            others=broken.total() - sum(broken[name] for name in KNOWN),
            **_times(results),
        )


def _twice(result: Result) -> int:
    broken = result.get("broken") or {}
    return max(int(broken.get(name, 0)) for name in TWICE)


def _total(results: Iterable[Result], name: str) -> int:
    return sum(int(one.get(f"{name}_total", 0)) for one in results)


def _times(results: Sequence[Result]) -> dict[str, float | None]:
    """What clients saw of them. ``rto``: over every strike and queue."""
    served = [share for share in map(available, results) if share is not None]
    stalls_ms = [drill.get("stall_ms") for one in results for drill in one["drills"]]
    times_ms = sorted(time for one in results for time in outages_ms(one))
    return {
        "availability": sum(served) / len(served) if served else None,
        "stall_ms": max((stall for stall in stalls_ms if stall is not None), default=None),
        "rto_p50_ms": percentile(times_ms, 50),
        "rto_p99_ms": percentile(times_ms, 99),
        "rto_max_ms": max(times_ms, default=None),
    }


def shown(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.0f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _asked_who_leads(results: Iterable[Result]) -> bool:
    """Of RocketMQ only its Controllers are asked, who name one."""
    return any(one.get("target", OURS) == OURS for one in results)
