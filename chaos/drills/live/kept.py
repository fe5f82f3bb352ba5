"""What do kept results come to for a command: its exit code, and the reasons under a table?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from admin.exits import DONE, FAILED, UNFINISHED, WARNINGS
from chaos.drills.live.names import OURS
from chaos.drills.live.results import Result, broke, finished, releases
from chaos.drills.measure import COUNTS, Drill

if TYPE_CHECKING:
    from chaos.drills.live.scenario import DrillSpec


def kept_code(result: Result) -> int:
    """The exit code of a result that a directory keeps: that of the run which left it."""
    if broke(result):
        return FAILED
    if not finished(result):
        return UNFINISHED
    return WARNINGS if result.get("refused_total") or result.get("untried") else DONE


def worse(one: int, other: int) -> int:
    order = (DONE, WARNINGS, UNFINISHED, FAILED)
    return max(one, other, key=order.index)


def never_began(spec: DrillSpec, error: Exception) -> dict[str, Any]:
    drill = Drill(unfinished=str(error))
    times = dict.fromkeys(("rto_p50_ms", "rto_p99_ms", "rto_max_ms"))
    return {
        **spec.to_json(),
        "drills": [asdict(drill)],
        **times,
        **{f"{name}_total": 0 for name in COUNTS},
        "unfinished_total": 1,
    }


def reasons(results: Sequence[Result]) -> list[str]:
    """Of which releases runs are, if of several; between which releases upgrades were, why faults were
    skipped, and runs did not finish."""
    skipped: Counter[str] = Counter()
    upgraded: Counter[str] = Counter()
    lines: list[str] = []
    for result in results:
        if result.get("upgraded"):
            upgraded["from {} to {}".format(*result["upgraded"])] += 1
        for one in (result.get("faults") or {}).get("refused", ()):
            skipped[f"{one['fault']}: {one['reason']}"] += 1
        for drill in result["drills"]:
            if drill.get("unfinished"):
                why = str(drill["unfinished"]).partition("\n")[0]
                of = "" if result.get("target", OURS) == OURS else f"{result['target']} "
                lines.append(f"- not finished, {of}{result['scenario']} seed {result['seed']}: {why}")
    lines = [f"- skipped {count} times, {reason}" for reason, count in sorted(skipped.items())] + lines
    lines = [f"- {count} runs upgraded {way}" for way, count in sorted(upgraded.items())] + lines
    java = sum(result.get("client", OURS) != OURS for result in results)
    if java:
        lines = [f"- in {java} of {len(results)} runs the official Java client sent and read", *lines]
    mixed = releases(results)
    if len(mixed) > 1:
        told = ", ".join(f"{release} ({count})" for release, count in sorted(mixed.items()))
        lines = [f"- the runs are of several releases: {told}", *lines]
    return lines
