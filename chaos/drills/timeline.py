"""What happened when, as a page draws it: acknowledgements, latency, gaps, faults, roles. From a history.

All times are ms of the history's clock, which begins with the load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from chaos.drills.measure import percentile
from chaos.faults import FAULTS
from chaos.history import Happened, History, Observed

BIN_MS: Final = 20.0
GAP_MS: Final = 50.0
"""A time without any acknowledgement that is worth a mark."""
WINDOW_MS: Final = 100.0
SILENT_MS: Final = 1500.0
"""A server that said nothing for so long has no role that anybody knows."""
AGAIN: Final = ("restart",)
ENDS: Final[Mapping[str, Sequence[str]]] = {
    "kill": AGAIN,
    "stop": AGAIN,
    "power_fail": AGAIN,
    "pause": ("resume", "kill"),
    **dict.fromkeys(("isolate", "cut", "partition"), ("heal",)),
    "slow_network": ("slow_network", "heal"),
    **dict.fromkeys(("lose_packets", "double_packets", "reorder_packets", "narrow_links"), ("heal",)),
    **{name: (name,) for name in ("slow_disk", "disk_full", "lying_sync")},
    "no_descriptors": ("no_descriptors", "kill", "stop", "power_fail"),
}
"""What ends a fault; ``heal`` does so wherever it struck, all else on the same server."""
REPAIRS: Final = frozenset({"restart", "resume", "heal", "look"})


def timeline(history: History, until_ms: float) -> dict[str, Any]:
    """``acks``, ``latency_max_ms``: by bins of ``bin_ms``; ``gaps``: [from, to] without an acknowledgement;
    ``faults``: name, node, from, to; ``roles``: node, role, epoch, from, to."""
    sends = [send for send in history.sends() if send.outcome == "ok" and send.ended_ms is not None]
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
    waited.sort()
    return {
        "bin_ms": BIN_MS,
        "until_ms": round(until_ms, 1),
        "acks": acks,
        "latency_max_ms": slowest,
        "latency_p50_ms": percentile(waited, 50),
        "latency_p99_ms": percentile(waited, 99),
        "gaps": [[round(a, 1), round(b, 1)] for a, b in pairwise([0.0, *ended]) if b - a >= GAP_MS],
        "faults": _faults(history, until_ms),
        "roles": _roles(history.observed(), until_ms),
    }


def availability(told: Mapping[str, Any]) -> float | None:
    """The share of windows of WINDOW_MS in which something was acknowledged, from the first fault on until
    the load's end. ``told``: a ``timeline``. None without a fault."""
    if not told["faults"]:
        return None
    begun = int(min(fault["from_ms"] for fault in told["faults"]) // BIN_MS)
    # The last window may be cut short by the load's end.
    acks, width = told["acks"][begun:], int(WINDOW_MS // BIN_MS)
    served = [any(acks[at : at + width]) for at in range(0, len(acks) - width + 1, width)]
    return round(sum(served) / len(served), 4) if served else None


def _faults(history: History, until_ms: float) -> list[dict[str, Any]]:
    struck = sorted((e for e in history.happened() if e.name in FAULTS), key=lambda event: event.at_ms)
    found = []
    for at, event in enumerate(struck):
        if event.name in REPAIRS or _is_an_end(event):
            continue
        until = next((later.at_ms for later in struck[at + 1 :] if _ends(event, later)), None)
        if event.name not in ENDS:
            until = event.at_ms
        found.append(
            {
                "fault": event.name,
                "node": event.node,
                "from_ms": event.at_ms,
                "to_ms": until_ms if until is None else until,
            }
        )
    return found


def _is_an_end(event: Happened) -> bool:
    """A fault of a disk or a network that is switched off."""
    switches = [event.fields.get(name) for name in ("full", "lying", "lacking")]
    return event.fields.get("extra_ms") == 0 or False in switches


def _ends(fault: Happened, later: Happened) -> bool:
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
