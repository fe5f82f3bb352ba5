"""What does a run say of every promise: held, broken, or not judged?"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from chaos import extensions, faults
from chaos.checks.all import CHECKERS
from chaos.drills.live.disks import lied
from chaos.drills.live.stores import CHECKER
from chaos.drills.verdict import BROKEN, HELD, NOT_JUDGED
from chaos.scenarios.live_only import Join

if TYPE_CHECKING:  # which import clients: pages are made without
    from chaos.drills.live.extras import LiveExtras
    from chaos.drills.load import DrillLoad
    from chaos.live.outcome import Outcome
    from chaos.scenarios.plan import Plan

NO_FAULT: Final = (faults.Look, faults.Heal, faults.Restart, faults.Resume, faults.Snapshot, Join)
"""What breaks nothing."""
CONSUMED: Final = "consumed"
EXTRAS: Final = "extras"
PUSHED: Final = "pushed"
BESIDE: Final = (CONSUMED, EXTRAS, PUSHED, CHECKER)
"""What is not seen in a history: by asking the healed cluster, and its stores after."""


def asked_beside(load: DrillLoad, extras: LiveExtras, plan: Plan, *, full: bool) -> list[str]:
    """What was asked of clients, once nothing is sent any more. ``full``: the group was whole."""
    asked = {
        CONSUMED: load.consumes and not lied(load.history.events),
        EXTRAS: plan.extras and extras.unread is None,
        PUSHED: plan.extras,
    }
    return [name for name, was in asked.items() if was and full]


def words(judged: Collection[str], broken: Mapping[str, int]) -> dict[str, str]:
    """By check, of all that there are. ``judged``: those that had what they look at."""
    every = dict.fromkeys([*CHECKERS, *BESIDE, *extensions.checks(), *broken])
    return {name: BROKEN if broken.get(name) else HELD if name in judged else NOT_JUDGED for name in every}


def told(checks: Mapping[str, str]) -> str:
    """In one line."""
    silent = [name for name, word in checks.items() if word == NOT_JUDGED]
    held = sum(word == HELD for word in checks.values())
    return f"{held} promises held" + (f"; not judged: {', '.join(silent)}" if silent else "")


def never_struck(plan: Plan, outcome: Outcome) -> list[str]:
    """Kinds of a story's faults that found no target, or nothing to change, each time: what the story says of
    them was not tried. A swarm has no story."""
    breaks = {step.fault.name for step in plan.steps if not isinstance(step.fault, NO_FAULT)}
    never = [name for name in breaks if outcome.missed[name] and not outcome.done[name]]
    return [] if plan.swarm else sorted(never)


def proves_nothing(plan: Plan, outcome: Outcome, acked: int) -> str | None:
    """Why a run says nothing of promises: nothing was acknowledged, or nothing of what the plan breaks was
    broken; None: it does."""
    if acked == 0:
        return "nothing was acknowledged"
    breaks = {step.fault.name for step in plan.steps if not isinstance(step.fault, NO_FAULT)}
    if not breaks or any(outcome.done[name] for name in breaks):
        return None
    if outcome.refused:
        return f"no fault could be carried out: {outcome.refused[0]['reason']}"
    return "no fault struck: nobody held the role that it names, or there was nothing to change"
