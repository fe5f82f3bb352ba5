"""What happened when, as a page draws it: acknowledgements, latency, gaps, faults, roles. From a history.

All times are ms of the history's clock, which begins with the load.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import Any, Final

from chaos.drills import asked
from chaos.drills.measure import percentile
from chaos.faults import kind_of
from chaos.history import (
    CONTROLLER_ROLE,
    ENDED_FAULT,
    GOES_ON,
    LAUNCHED,
    Happened,
    History,
    Observed,
    Send,
)

BIN_MS: Final = 20.0
GAP_MS: Final = 50.0
"""A time without any acknowledgement that is worth a mark."""
WINDOW_MS: Final = 100.0
_WIDTH: Final = int(WINDOW_MS // BIN_MS)
SILENT_MS: Final = 1500.0
"""A server that said nothing for so long has no role that anybody knows."""
AGAIN: Final = ("restart", LAUNCHED)
RENEWS: Final = ("leave", "replace")
"""An operator has a server begin anew: that it is ended for it is no strike of its own, and it is back when
it is started."""
ONE_BY_ONE: Final = ("rolling_change", "upgrade")
"""An operator restarts one server after the other: each of them is a strike, that it begins is none."""
OPERATED: Final = (*RENEWS, *ONE_BY_ONE, "hand_over")
CLOCK_JUMP: Final = "clock_jump"
OFF: Final[Mapping[str, tuple[str, object]]] = {
    "slow_network": ("extra_ms", 0),
    "slow_disk": ("extra_ms", 0),
    "disk_full": ("full", False),
    "lying_sync": ("lying", False),
    "no_descriptors": ("lacking", False),
    "memory_limit": ("lacking", False),
    "read_only_disk": ("read_only", False),
    "clock_drift": ("rate", 1),
}
"""What is switched off by a step of its own name: with which field. A clock that jumped is right again when
its jumps add up to nothing."""
_ENDS: Final = ("kill", "stop", "power_fail")
ENDED_BY: Final[Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(_ENDS, AGAIN),
    "pause": ("resume", *_ENDS, *AGAIN),
    **dict.fromkeys(("isolate", "cut", "partition", "slow_network"), ("heal",)),
    **dict.fromkeys(
        ("lose_packets", "double_packets", "reorder_packets", "narrow_links", "toxic"), ("heal",)
    ),
    **dict.fromkeys(("lying_sync", "no_descriptors", "memory_limit"), _ENDS),
    **dict.fromkeys(("wipe", "lost_log", "torn_write"), AGAIN),
    **dict.fromkeys(RENEWS, AGAIN),
}
ENDS: Final[Mapping[str, Sequence[str]]] = {
    name: ((name,) if name in {*OFF, CLOCK_JUMP} else ()) + tuple(ENDED_BY.get(name, ()))
    for name in (*ENDED_BY, *OFF, CLOCK_JUMP)
}
"""What ends a fault, besides ``fault_ended``; ``heal`` does so wherever it struck, all else on the same
server."""
REPAIRS: Final = frozenset({"restart", LAUNCHED, "resume", "heal", "look", "join", ENDED_FAULT})
AFTER_MS: Final = 5000.0
"""So long after its end a fault is held responsible."""


def timeline(history: History, until_ms: float) -> dict[str, Any]:
    """``acks``, ``latency_max_ms``, ``asked`` (sends that were under way, however short): by bins of
    ``bin_ms``; ``latency_p50_ms`` and ``latency_p99_ms``: a send without an answer counts with the time that
    it was waited for; ``gaps``: [from, to] in which somebody asked and nobody was answered, to the load's
    end; ``faults``: name, node, from, to; ``roles``: node, role, epoch, from,
    to; ``controllers``: node, role, term, from, to."""
    every = history.sends()
    sends = [send for send in every if send.outcome == "ok" and send.ended_ms is not None]
    ended = sorted(send.ended_ms for send in sends if send.ended_ms is not None)
    until_ms = max([until_ms, *ended[-1:]])
    acks = [0] * (int(until_ms // BIN_MS) + 1)
    slowest = [0.0] * len(acks)
    waited = []
    for send in sends:
        assert send.ended_ms is not None, "chosen above"
        place, took_ms = int(send.ended_ms // BIN_MS), send.ended_ms - send.invoked_ms
        acks[place] += 1
        slowest[place] = max(slowest[place], round(took_ms, 1))
        waited.append(round(took_ms, 1))
    unanswered = [send for send in every if send.outcome == "unknown" and send.invoked_ms < until_ms]
    waited += [round((send.ended_ms or until_ms) - send.invoked_ms, 1) for send in unanswered]
    waited.sort()
    return {
        "bin_ms": BIN_MS,
        "until_ms": round(until_ms, 1),
        "acks": acks,
        "asked": _under_way(every, len(acks)),
        "latency_max_ms": slowest,
        "latency_p50_ms": percentile(waited, 50),
        "latency_p99_ms": percentile(waited, 99),
        "gaps": [[round(a, 1), round(b, 1)] for a, b in _unanswered(history, until_ms) if b - a >= GAP_MS],
        "faults": _faults(history, until_ms),
        "roles": _roles(history.observed(), until_ms),
        "controllers": _controllers(history.happened(CONTROLLER_ROLE), until_ms),
    }


def _under_way(sends: Sequence[Send], bins: int) -> list[int]:
    """How many sends each bin has a part of."""
    steps = [0] * (bins + 1)
    for send in sends:
        first = int(send.invoked_ms // BIN_MS)
        if first < bins:
            steps[first] += 1
            last = bins - 1 if send.ended_ms is None else int(send.ended_ms // BIN_MS)
            steps[min(last, bins - 1) + 1] -= 1
    return list(accumulate(steps[:-1]))


def _unanswered(history: History, until_ms: float) -> Iterator[asked.Span]:
    """When no queue answered, until then."""
    return ((a, min(b, until_ms)) for a, b in asked.over_all(history) if a < until_ms)


def availability(told: Mapping[str, Any]) -> float | None:
    """The share of windows of WINDOW_MS that were served, of those in which a send was under way, from each
    fault on until AFTER_MS after its end or the first acknowledgement after that, whichever is later, and to
    the end of an outage that has begun by then: how long the waits between two faults are changes nothing,
    and no outage is cut. ``told``: a ``timeline``. None without a fault."""
    return _share(told, _while_faults_act(told))


def windows(told: Mapping[str, Any]) -> int:
    """Of how many windows ``availability`` is the share."""
    return sum(_served(told, at) is not None for at in _while_faults_act(told))


def _while_faults_act(told: Mapping[str, Any]) -> set[int]:
    acks, whole = told["acks"], len(told["acks"]) // _WIDTH
    chosen: set[int] = set()
    for fault in told["faults"]:
        ended = int(-(-fault["to_ms"] // BIN_MS))  # bins before it may hold acknowledgements of before
        again_ms = _next_ack(acks, ended) * BIN_MS
        first = int(fault["from_ms"] // WINDOW_MS)
        end_ms = max(fault["to_ms"] + AFTER_MS, again_ms)
        # What had begun by then is counted to its end: one answer behind the mend is no recovery.
        end_ms = max(end_ms, _next_ack(acks, int(end_ms // BIN_MS)) * BIN_MS)
        last = int(end_ms // WINDOW_MS)
        # The last window may be cut short by the load's end.
        chosen.update(range(first, min(last, whole)))
    return chosen


def _next_ack(acks: Sequence[int], since: int) -> int:
    """The first bin from there on with an acknowledgement; behind the last, none has."""
    return next((at for at in range(since, len(acks)) if acks[at]), len(acks))


def availability_before(told: Mapping[str, Any]) -> float | None:
    """The share of served windows before the first fault; None: no window, or no fault."""
    first_ms = min((fault["from_ms"] for fault in told["faults"]), default=0.0)
    return _share(told, range(int(first_ms // WINDOW_MS)))


def _share(told: Mapping[str, Any], windows: Iterable[int]) -> float | None:
    served = [one for at in windows if (one := _served(told, at)) is not None]
    return round(sum(served) / len(served), 4) if served else None


def _served(told: Mapping[str, Any], window: int) -> bool | None:
    """Whether something was acknowledged within WINDOW_MS of when a send was first under way in that window;
    None: none was. Of a timeline without ``asked`` (commit bb5892a6 and before) one counts as under way from
    its begin on."""
    first, under_way = window * _WIDTH, told.get("asked")
    if under_way is not None:
        waits = (at for at in range(first, first + _WIDTH) if under_way[at])
        if (begun := next(waits, None)) is None:
            return None
        first = begun
    return any(told["acks"][first : first + _WIDTH])


def strikes_ms(told: Mapping[str, Any]) -> list[float]:
    """When faults began, each moment once. What a plan does to a server on which it goes on, until AFTER_MS
    after the end of what it did before, is a part of that strike. ``told``: a ``timeline``."""
    parts = {fault.get("by") for fault in told["faults"]}
    begun: set[float] = set()
    ends_ms: dict[str, float] = {}
    for fault in told["faults"]:
        if fault["fault"] in parts:
            continue
        node, since_ms = fault["node"], fault["from_ms"]
        if not (fault.get("goes_on") and since_ms <= ends_ms.get(node, -inf) + AFTER_MS):
            begun.add(since_ms)
        ends_ms[node] = max(ends_ms.get(node, -inf), fault["to_ms"])
    return sorted(begun)


def _faults(history: History, until_ms: float) -> list[dict[str, Any]]:
    """Spans of what was broken. One that lasts until it is mended and was not, lasts to the load's end. What
    an operator did to a server on the way has ``by``: in the course of which fault. ``goes_on``: the plan
    meant whom it had struck before."""
    struck, roles = _struck(history), history.observed()
    clocks_ms: Counter[str] = Counter()
    found = []
    for at, event in enumerate(struck):
        if event.name == CLOCK_JUMP:
            clocks_ms[event.node] += int(event.fields.get("by_ms", 0))
        right_again = event.name == CLOCK_JUMP and not clocks_ms[event.node]
        by = event.fields.get("by")
        if event.name in REPAIRS or right_again or by in RENEWS or _is_an_end(event):
            continue
        if event.name in OPERATED and _came_to_nothing(event, struck[at + 1 :], roles):
            continue
        until = next((later.at_ms for later in _enders(event, struck[at + 1 :])), None)
        if until is None:
            until = until_ms if event.name in ENDS else event.at_ms
        until = max(event.at_ms, min(until, until_ms))  # what is mended in the end may be started later
        span = {
            "fault": event.name,
            "node": event.node,
            "from_ms": event.at_ms,
            "to_ms": min(until, until_ms),
        }
        span |= {GOES_ON: True} if event.fields.get(GOES_ON) else {}
        found.append(span | ({"by": by} if by in ONE_BY_ONE else {}))
    return found


def _struck(history: History) -> list[Happened]:
    """Faults and what ends them, by time. Where launches are noted, a restart that was only asked for ends
    nothing."""
    launches = any(event.name == LAUNCHED for event in history.happened())
    told = [
        event
        for event in history.happened()
        if event.name in (ENDED_FAULT, LAUNCHED) or kind_of(event.name) is not None
    ]
    return sorted((e for e in told if not launches or e.name != "restart"), key=lambda event: event.at_ms)


def _enders(fault: Happened, later: Sequence[Happened]) -> Iterator[Happened]:
    """What ends a fault. A server that begins anew, and that was ended for it, is back when it is started:
    that the operator is done says less."""
    begun = fault.name not in RENEWS
    for event in later:
        begun |= event.node == fault.node and event.fields.get("by") == fault.name
        unsaid = (event.name == LAUNCHED and not begun) or (event.name == ENDED_FAULT and begun)
        if _ends(fault, event) and not (fault.name in RENEWS and unsaid):
            yield event


def _came_to_nothing(fault: Happened, later: Sequence[Happened], roles: Sequence[Observed]) -> bool:
    """Whether what an operator was to do was refused before a server was touched: no ``by`` of it, and of a
    handover no other epoch, comes before its end."""
    for event in later:
        if event.fields.get("by") == fault.name:
            return False
        if event.name == ENDED_FAULT and _ends(fault, event):
            epochs = [seen.epoch for seen in roles if seen.at_ms <= event.at_ms]
            before = [seen.epoch for seen in roles if seen.at_ms <= fault.at_ms]
            moved = fault.name == "hand_over" and max(epochs, default=0) > max(before, default=0)
            return bool(event.fields.get("refused")) and not moved
    return False


def _is_an_end(event: Happened) -> bool:
    """A fault of a disk, a network, a process's limits or a clock that is switched off."""
    field, value = OFF.get(event.name, ("", None))
    return bool(field) and event.fields.get(field) == value


def _ends(fault: Happened, later: Happened) -> bool:
    if later.name == ENDED_FAULT:
        return later.node == fault.node and later.fields.get("fault") == fault.name
    here = later.node == fault.node or later.name == "heal"
    return here and later.name in ENDS.get(fault.name, ())


def _roles(observed: Sequence[Observed], until_ms: float) -> list[dict[str, Any]]:
    """Spans in which a broker said the same of itself."""
    spans: dict[str, list[dict[str, Any]]] = {}
    for seen in sorted(observed, key=lambda one: one.at_ms):
        own = spans.setdefault(seen.node, [])
        last = own[-1] if own else None
        same = last is not None and (last["role"], last["epoch"]) == (seen.role, seen.epoch)
        if last is not None and same and seen.at_ms - last["to_ms"] < SILENT_MS:
            last["to_ms"] = seen.at_ms
            continue
        if last is not None and seen.at_ms - last["to_ms"] < SILENT_MS:
            last["to_ms"] = seen.at_ms
        own.append(
            {
                "node": seen.node,
                "role": seen.role,
                "epoch": seen.epoch,
                "from_ms": seen.at_ms,
                "to_ms": seen.at_ms,
            }
        )
    return [
        {**span, "to_ms": min(span["to_ms"], until_ms)}
        for node in sorted(spans)
        for span in spans[node]
        if span["from_ms"] < until_ms
    ]


def _controllers(told: Sequence[Happened], until_ms: float) -> list[dict[str, Any]]:
    """Spans in which a Controller led or followed; it is told when that changes."""
    spans = []
    for at, event in enumerate(told):
        until = next((later.at_ms for later in told[at + 1 :] if later.node == event.node), until_ms)
        if event.fields["role"] != "silent" and event.at_ms < until_ms:
            times = {"from_ms": event.at_ms, "to_ms": min(until, until_ms)}
            spans.append(
                {"node": event.node, "role": event.fields["role"], "term": event.fields["term"], **times}
            )
    return sorted(spans, key=lambda one: str(one["node"]))
