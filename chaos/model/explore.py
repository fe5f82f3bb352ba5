"""Which states can be reached, and is a promise broken in one? Breadth first: a trace is a shortest."""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos.model.begin import begin, beginning
from chaos.model.invariants import broken
from chaos.model.parts.handovers import ended
from chaos.model.parts.masters import advanced
from chaos.model.parts.move import Move
from chaos.model.parts.moves import moves
from chaos.model.rules import AS_KEELMQ, Rules
from chaos.model.symmetry import key, standing_for_all
from chaos.model.words import told
from chaos.model.world import Setting, World

RECENT_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Violation:
    """``trace``: what happened, step by step, from the beginning, and what was promised in it. ``begins``:
    the initial state."""

    text: str
    trace: tuple[str, ...]
    begins: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explored:
    """``complete``: every state within the budget was visited; else ``depth`` tells how many steps deep all
    were, counted from the beginning."""

    states: int
    transitions: int
    depth: int
    complete: bool
    violation: Violation | None


def explore(
    setting: Setting,
    rules: Rules = AS_KEELMQ,
    *,
    states_max: int = 1_000_000,
    stop: Callable[[], bool] = lambda: False,
) -> Explored:
    """Visit every state once. Ends at a broken promise, at ``states_max``, or when ``stop()`` says so."""
    collecting = gc.isenabled()
    gc.disable()  # states are millions of tuples without cycles
    try:
        return _explore(setting, rules, states_max, stop)
    finally:
        if collecting:
            gc.enable()


def _explore(setting: Setting, rules: Rules, states_max: int, stop: Callable[[], bool]) -> Explored:
    first = begin(setting)
    start = key(first)
    known = {start: 0}
    waiting = deque([(first, start, 0)])
    recent: set[int] = set()
    transitions = depth = 0
    while waiting:
        if len(known) >= states_max or stop():
            return Explored(len(known), transitions, depth, False, None)
        world, at, depth = waiting.popleft()
        for move in moves(setting, rules, world):
            transitions += 1
            after = _settled(setting, rules, world, move)
            if broken(setting, world, after, move.leads) is not None:
                violation = _violation(setting, rules, first, _path(known, at))
                return Explored(len(known), transitions, depth + 1, False, violation)
            exactly = hash(after)
            if exactly in recent:
                continue  # most steps lead to a state that was just seen, under the same names
            if len(recent) >= RECENT_MAX:
                recent.clear()
            recent.add(exactly)
            reached, same = standing_for_all(
                after
            )  # ids are given in order: who has none yet keeps its place
            if reached not in known:
                known[reached] = at
                waiting.append((after if setting.start == "joins" else same, reached, depth + 1))
    return Explored(len(known), transitions, depth, True, None)


def walk(
    setting: Setting,
    rules: Rules,
    seed: int,
    *,
    walks: int,
    steps_max: int = 120,
    stop: Callable[[], bool] = lambda: False,
) -> Explored:
    """Random walks: far deeper than breadth first reaches, and complete in nothing. Returns the shortest
    violation found."""
    rng = random.Random(seed)
    steps = deepest = 0
    best: Violation | None = None
    for _ in range(walks):
        if stop():
            break
        world = begin(setting)
        trace: list[str] = []
        while len(trace) < steps_max and (able := list(moves(setting, rules, world))):
            move = rng.choice(able)
            after = _settled(setting, rules, world, move)
            steps += 1
            trace.append(_said(move, world, after))
            text = broken(setting, world, after, move.leads)
            if text is not None:
                if best is None or len(trace) < len(best.trace):
                    best = Violation(text, tuple(trace), tuple(beginning(setting)))
                break
            world = after
        deepest = max(deepest, len(trace))
    return Explored(0, steps, deepest, False, best)


def _settled(setting: Setting, rules: Rules, before: World, move: Move) -> World:
    after = advanced(setting, rules, move.world, move.leads) if move.leads else move.world
    if after.handover is not None:
        after = ended(before, after)
    if (
        not rules.answers_are_committed
        and after.table != before.table
        and after.left.leaders == before.left.leaders
    ):
        return after._replace(previous=before.table)
    return after


def _said(move: Move, before: World, after: World) -> str:
    """The step, and what clients were promised in it: they were answered OK, or read it."""
    acked = sorted(after.acked - before.acked)
    read = sorted(after.read - before.read - after.acked)
    changes = sorted(after.answered - before.answered)
    said = [f"{told(record, at)} is answered OK" for at, record in acked]
    said += [f"{told(record, at)} may be read" for at, record in read]
    said += [f"change {change} of the tables is answered OK" for change in changes]
    return f"{move.text}; {'; '.join(said)}" if said else move.text


def _path(known: dict[int, int], at: int) -> list[int]:
    """The keys from the beginning to ``at``, without the first."""
    keys = []
    while known[at]:
        keys.append(at)
        at = known[at]
    return keys[::-1]


def _violation(setting: Setting, rules: Rules, world: World, path: list[int]) -> Violation:
    """The steps that lead along these keys to a state in which one more breaks a promise. Only keys are
    remembered: a step is looked for again."""
    texts = []
    for wanted in path:
        for move in moves(setting, rules, world):
            after = _settled(setting, rules, world, move)
            if key(after) == wanted:
                texts.append(_said(move, world, after))
                world = after
                break
        else:
            raise AssertionError(f"no step leads on after: {texts}")
    for move in moves(setting, rules, world):
        after = _settled(setting, rules, world, move)
        text = broken(setting, world, after, move.leads)
        if text is not None:
            trace = (*texts, _said(move, world, after))
            return Violation(text, trace, tuple(beginning(setting)))
    raise AssertionError(f"no step breaks a promise after: {texts}")
