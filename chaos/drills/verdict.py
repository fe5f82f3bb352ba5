"""What does a result of a drill come to? One answer for pages, JUnit, tables and comparisons.

A result tells the same more than once: by check, by count, by drill, by queue. Where its parts contradict one
another the worst of them wins.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Struct, field

from chaos.drills.measure import PROMISES, NotThatKind, unjudged

BROKEN: Final = "broken"
UNFINISHED: Final = "unfinished"
NOT_JUDGED: Final = "not judged"
IN_PART: Final = "held, in part"
HELD: Final = "held"
ORDER: Final = "order_violations"
_ORDERS: Final = ("producer_order", "real_time_order", "dense_offsets")
Result = Mapping[str, Any]


def read_result(path: Path) -> Any:
    """What a file holds. Raises OSError, and ValueError for what is no JSON, or has a number that is
    none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
    except RecursionError:
        raise NotThatKind("it is nested too deep") from None


def _no_number(text: str) -> NoReturn:
    raise NotThatKind(f"{text} is no number")


class _Violation(Struct):
    checker: str
    text: str


class _Refused(Struct):
    fault: str
    reason: str


class _Faults(Struct):
    done: dict[str, int] = field(default_factory=dict)
    missed: dict[str, int] = field(default_factory=dict)
    refused: list[_Refused] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class _Stopped(Struct):
    at_ms: float
    last: dict[str, list[str]]


class _Drill(Struct):
    unfinished: str | None = None
    violations: list[_Violation] | None = None


class _Shape(Struct):
    """The members that readers go down into."""

    drills: list[_Drill]
    faults: _Faults | None = None
    violations: list[_Violation] | None = None
    broken: dict[str, int] | None = None
    checks: dict[str, str] | None = None
    stopped: _Stopped | None = None
    lied: list[str] | None = None
    per_queue: list[dict[str, Any]] | None = None


def check_shape(result: Any) -> None:
    """Raises KeyError without drills, and ValueError that names the member that is of another kind."""
    if isinstance(result, dict) and "drills" not in result:
        raise KeyError("drills")
    try:
        msgspec.convert(result, _Shape)
    except msgspec.ValidationError as error:
        raise NotThatKind(str(error)) from None


def broken(result: Result) -> Counter[str]:
    """How often each promise was broken; of those that were."""
    counts = Counter({name: len(texts) for name, texts in said(result).items()})
    counts |= Counter(result.get("broken") or {})
    counts |= Counter({"no_errors": len((result.get("faults") or {}).get("errors") or ())})
    counts |= Counter({name: 1 for name, told in (result.get("checks") or {}).items() if told == BROKEN})
    counts |= Counter({name: _counted(result, name) for name in PROMISES})
    if result.get("stopped") and not +counts:
        counts["stopped"] = 1  # it was left where a promise was broken
    return +counts


def _counted(result: Result, name: str) -> int:
    """Of one promise: in all, by queue, or by drill."""
    of_queues = sum(int(queue.get(name) or 0) for queue in result.get("per_queue") or ())
    of_drills = sum(int(drill.get(name) or 0) for drill in result["drills"])
    return max(int(result.get(f"{name}_total") or 0), of_queues, of_drills)


def others(result: Result) -> int:
    """How many promises were broken besides losses; those of order, which are counted by check and in all,
    once."""
    counts = broken(result)
    of_order = max(counts.pop(ORDER, 0), sum(counts.pop(name, 0) for name in _ORDERS))
    return counts.total() - counts["lost"] + of_order


def said(result: Result) -> dict[str, list[str]]:
    """What was told of broken promises, by check."""
    told = [*(result.get("violations") or ())]
    for drill in result["drills"] if not told else ():
        told += drill.get("violations") or ()
    texts: dict[str, list[str]] = {}
    for one in told:
        texts.setdefault(str(one["checker"]), []).append(str(one["text"]))
    return texts


def ends(result: Result) -> list[str]:
    """Why it says nothing of promises, or of some: a drill that came to no end, nothing that was
    acknowledged, no fault that struck."""
    if own := [str(drill["unfinished"]) for drill in result["drills"] if drill.get("unfinished")]:
        return own
    bug = result.get("bug")
    reasons = (
        (not result["drills"], "no drill was carried out"),
        (result.get("unfinished_total"), "it came to no end"),
        (result.get("acked_total") == 0, "nothing was acknowledged"),
        (_all_missed(result.get("faults") or {}), "no fault struck"),
        (bug and not broken(result), f"the planted bug {bug} was not found"),
    )
    return [why for so, why in reasons if so][:1]


def _all_missed(faults: Mapping[str, Any]) -> bool:
    return bool(faults.get("missed")) and not any((faults.get("done") or {}).values())


def word(result: Result) -> str:
    if broken(result):
        return BROKEN
    if ends(result):
        return UNFINISHED
    if unjudged(result):
        return NOT_JUDGED
    return IN_PART if result.get("refused_total") or result.get("untried") else HELD
