"""What do several runs of a plan come to? For the tables of ``drill matrix`` and ``drill campaign``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from chaos.drills.live.scenario import OURS
from chaos.drills.measure import judged_count, percentile
from chaos.scenarios.matrix import FAULT_OF, FLAPS

TWICE: Final = ("offset_reuse", "acknowledged_twice")
ORDER: Final = ("producer_order", "real_time_order", "dense_offsets")
KNOWN: Final = ("lost", "one_master_per_epoch", *TWICE, *ORDER)
SWITCHED: Final = (
    "disk_full",
    "no_descriptors",
    "slow_disk",
    "clock_jump",
    "upgrade",
    "clock_drift",
    "read_only_disk",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """``strikes``: faults of the runs' own kind that struck; ``missed``: those without a target. None: it is
    not known."""

    runs: int
    strikes: int
    missed: int
    refused: int
    unfinished: int
    acked: int
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
    def of(cls, results: Sequence[Mapping[str, Any]]) -> Counted:
        broken: Counter[str] = Counter()
        for result in results:
            broken.update(result.get("broken") or {})
        return cls(
            runs=len(results),
            strikes=sum(struck(one) for one in results),
            missed=sum(struck(one, "missed") for one in results),
            refused=_total(results, "refused"),
            unfinished=_total(results, "unfinished"),
            acked=_total(results, "acked"),
            lost=broken["lost"] if broken["lost"] or any(map(judged_count, results)) else None,
            order=sum(broken[name] for name in ORDER),
            twice=sum(broken[name] for name in TWICE),
            two_masters=broken["one_master_per_epoch"] if _asked_who_leads(results) else None,
            others=sum(count for name, count in broken.items() if name not in KNOWN),
            **_times(results),
        )


def _total(results: Iterable[Mapping[str, Any]], name: str) -> int:
    return sum(int(one.get(f"{name}_total", 0)) for one in results)


def _times(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What clients saw of them. ``rto``: over every strike and queue."""
    served = [one["availability"] for one in results if one.get("availability") is not None]
    stalls_ms = [drill.get("stall_ms") for one in results for drill in one["drills"]]
    outages_ms = sorted(time for one in results for time in one.get("rto_strikes_ms") or ())
    return {
        "availability": sum(served) / len(served) if served else None,
        "stall_ms": max((stall for stall in stalls_ms if stall is not None), default=None),
        "rto_p50_ms": percentile(outages_ms, 50),
        "rto_p99_ms": percentile(outages_ms, 99),
        "rto_max_ms": max(outages_ms, default=None),
    }


def pair(result: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and mode of a run."""
    _, _, both = str(result["scenario"]).partition("/")
    kind, _, mode = both.partition("/")
    return kind, mode


def struck(result: Mapping[str, Any], what: str = "done") -> int:
    """How often a run's own kind of fault struck. One that ends by a step of its own name is counted at its
    end, too, and an upgrade on the way back before the next. ``what``: ``missed`` of those that did not."""
    kind, _ = pair(result)
    fault = FAULT_OF.get(kind, kind)
    count = int(((result.get("faults") or {}).get(what) or {}).get(fault, 0))
    if kind == "flapping":
        return -(-count // FLAPS)
    return (count + 1) // 2 if fault in SWITCHED else count


def releases(results: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """How many runs each release has; those that never began have none."""
    return Counter(str(one["release"]) for one in results if one.get("release"))


def shown(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"


def ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:,.0f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _asked_who_leads(results: Iterable[Mapping[str, Any]]) -> bool:
    """Of RocketMQ only its Controllers are asked, who name one."""
    return any(one.get("target", OURS) == OURS for one in results)
