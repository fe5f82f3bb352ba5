"""When did nobody get an acknowledgement, and why? By what the demo saw and did.

A reason is given only where something was seen: the fault, the restart, or that the load's own process stood
still. All else is called unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from chaos.drills.measure import percentile

if TYPE_CHECKING:
    from cli.demo_run import Result

GAP_MS: Final = 50.0
RATES: Final = 10
"""At a low rate a gap is one in which so many messages should have been acknowledged."""
RESTART_MS: Final = 3000.0
"""What happens so soon after a restart is said to have happened while the broker came back."""
PARTS: Final = {"p50": 500, "p90": 900, "p99": 990, "p99.9": 999}


def latencies(result: Result) -> dict[str, float | None]:
    """ms from the beginning of a send to its acknowledgement; ``max`` is the slowest."""
    took = sorted(
        round(send.ended_ms - send.invoked_ms, 1)
        for send in result.history.sends()
        if send.outcome == "ok" and send.ended_ms is not None
    )
    found = {
        name: took[max(0, -(-len(took) * part // 1000) - 1)] if took else None for name, part in PARTS.items()
    }
    return found | {"max": percentile(took, 100)}


def dips(result: Result) -> list[dict[str, Any]]:
    """Each time of ``GAP_MS`` or more without an acknowledgement: ``from_ms``, ``ms``, ``why``, ``kind``."""
    least_ms = max(GAP_MS, RATES * 1000 / result.plan.rate)
    ends = pairwise(sorted(at for at in result.acks_ms if at <= result.stop_ms))
    found = []
    for begin, end in ends:
        if end - begin >= least_ms:
            kind, why = _reason(result, begin, end)
            found.append({"from_ms": round(begin, 1), "ms": round(end - begin, 1), "kind": kind, "why": why})
    return found


def _reason(result: Result, begin: float, end: float) -> tuple[str, str]:
    back = result.first_ack_ms if result.first_ack_ms is not None else end
    if begin <= back and end >= result.kill_ms:
        return "failover", f"the failover: {result.victim} was killed at {result.kill_ms / 1000:.2f} s"
    stood_ms = _overlap(result.stalls, begin, end)
    if stood_ms * 2 >= end - begin:
        return (
            "stall",
            f"the program that sends and counts stood still for {stood_ms:.0f} ms of it: it had no core",
        )
    if 0 <= begin - result.restart_ms <= RESTART_MS or begin <= result.restart_ms <= end:
        return (
            "restart",
            f"{result.victim} was started again at {result.restart_ms / 1000:.2f} s and came back",
        )
    return "unknown", "unknown: nothing was done to the cluster, and the program that sends ran"


def _overlap(spans: Sequence[tuple[float, float]], begin: float, end: float) -> float:
    return sum(max(0.0, min(end, until) - max(begin, since)) for since, until in spans)
