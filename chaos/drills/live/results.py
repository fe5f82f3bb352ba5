"""What does the kept result of one run say? Of its own release's, and of earlier ones'.

What an earlier release counted otherwise is counted anew from what it kept: availability from the bins of
acknowledgements and the spans of faults, RTO from the outages between the moments that it took for strikes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from chaos.drills import verdict
from chaos.drills.live.names import OURS, SWITCH
from chaos.drills.measure import judged_count, why_no_result
from chaos.drills.timeline import availability, strikes_ms
from chaos.history import GOES_ON
from chaos.scenarios.matrix import FAULT_OF, KINDS, plan
from model.errors import ConfigError

Result = Mapping[str, Any]
NAME: Final = "matrix/{}/{}"
"""Of a run's scenario: kind and mode."""
MARKS: Final = "strikes_ms"
"""The member with the moments that ``rto_strikes_ms`` belongs to: results before 2026-11-29 have none."""


def read(directory: Path) -> list[dict[str, Any]]:
    """Every result of a directory. Raises ConfigError for a file that is none."""
    return [read_one(path) for path in sorted(directory.glob("*.json"))]


def read_one(path: Path) -> dict[str, Any]:
    """Raises ConfigError for what is no result."""
    try:
        data = verdict.read_result(path)
        verdict.check_shape(data)
        return {**data, "scenario": str(data["scenario"]), "drills": list(data["drills"])}
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise ConfigError(f"{path} is no result of a drill: {why_no_result(error)}") from None


def pair(result: Result) -> tuple[str, str]:
    """Kind and mode of a run."""
    _, _, both = str(result["scenario"]).partition("/")
    kind, _, mode = both.partition("/")
    return kind, mode


def name_of(kind: str, mode: str, target: str = OURS, links: str = SWITCH) -> str:
    """How the runs of a kind, a mode, a system and a means are called, without the seed."""
    return f"{target}-{kind}-{mode}" + (f"-{links}" if links != SWITCH else "")


def row_name(result: Result) -> str:
    kind, mode = pair(result)
    return name_of(kind, mode, str(result.get("target", OURS)), str(result.get("links", SWITCH)))


def broke(result: Result) -> bool:
    """Whether a promise was broken."""
    return bool(verdict.broken(result))


def finished(result: Result) -> bool:
    return not verdict.ends(result)


def judged(result: Result) -> bool:
    """Whether it says of each acknowledged message whether that is lost."""
    return bool(result["drills"]) and judged_count(result) == len(result["drills"])


def counts(result: Result) -> bool:
    """Whether its strikes say something: it came to its end and was judged, or a promise was broken."""
    return broke(result) or (finished(result) and judged(result))


def struck(result: Result, what: str = "done") -> int:
    """How often a run's own kind of fault struck. ``what``: ``missed`` of those that did not."""
    kind, _ = pair(result)
    fault = FAULT_OF.get(kind, kind)
    count = int(((result.get("faults") or {}).get(what) or {}).get(fault, 0))
    return -(-count // _steps_each(kind))


@cache
def _steps_each(kind: str) -> int:
    """How many steps of its own fault a strike of a kind has: of a full disk that it is full and no more, of
    an upgrade, from the second strike on, the way back, too."""
    if kind not in KINDS:
        return 1
    name = FAULT_OF.get(kind, kind)
    two, three = (sum(s.fault.name == name for s in plan(kind, "default", 1, n).steps) for n in (2, 3))
    return three - two


def releases(results: Iterable[Result]) -> Counter[str]:
    """How many runs each release has; those that never began have none."""
    return Counter(str(one["release"]) for one in results if one.get("release"))


def available(result: Result) -> float | None:
    """As ``timeline.availability`` has it now."""
    told = result.get("timeline") or {}
    return availability(told) if told.get("acks") and told.get("faults") else result.get("availability")


def outages_ms(result: Result) -> Sequence[float]:
    """Of each strike and queue the longest time without an acknowledgement. Where a part of a strike was
    taken for one of its own, the longest of both."""
    kept = list(result.get("rto_strikes_ms") or ())
    told = result.get("timeline") or {}
    if MARKS in result or not told.get("faults"):
        return kept
    marks = [at for at in strikes_ms(told) if at < told["until_ms"]]
    if not marks or len(kept) % len(marks):
        return kept
    begins, queues = _begins(result, told), len(kept) // len(marks)
    firsts = [at for at, mark in enumerate(marks) if mark in begins]
    return [
        max(kept[first * queues + queue : last * queues : queues])
        for first, last in pairwise([*firsts, len(marks)])
        for queue in range(queues)
    ]


def _begins(result: Result, told: Mapping[str, Any]) -> Sequence[float]:
    """When strikes began, of a result that does not say which faults went on with one: of a fault that its
    plan has for servers hit before only, that is what it was for."""
    steps = (result.get("plan") or {}).get("steps") or ()
    free = {step["fault"] for step in steps if not str(step.get("target", "")).startswith("=")}
    parts = {step["fault"] for step in steps} - free
    return strikes_ms(
        {"faults": [{**one, GOES_ON: one["fault"] in parts and not one.get("by")} for one in told["faults"]]}
    )
