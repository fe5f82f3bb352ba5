"""Which states can be reached, and is a promise broken in one? Breadth first: a trace is a shortest."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from chaos.model.begin import begin
from chaos.model.invariants import broken
from chaos.model.masters import advanced
from chaos.model.moves import Move, moves
from chaos.model.rules import AS_KEELMQ, Rules
from chaos.model.world import Setting, World


@dataclass(frozen=True, slots=True)
class Violation:
    """``trace``: what happened, step by step, from the beginning."""

    text: str
    trace: tuple[str, ...]


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
    first = begin(setting)
    known = {_key(first): (0, "")}
    waiting = deque([(first, 0)])
    transitions = depth = 0
    while waiting:
        if len(known) >= states_max or stop():
            return Explored(len(known), transitions, depth, False, None)
        world, depth = waiting.popleft()
        at = _key(world)
        for move in moves(setting, rules, world):
            transitions += 1
            after = _settled(setting, rules, move)
            text = broken(setting, world, after, move.leads)
            if text is not None:
                trace = (*_trace(known, at), move.text)
                return Explored(len(known), transitions, depth + 1, False, Violation(text, trace))
            key = _key(after)
            if key not in known:
                known[key] = (at, move.text)
                waiting.append((after, depth + 1))
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
            after = _settled(setting, rules, move)
            steps += 1
            trace.append(move.text)
            text = broken(setting, world, after, move.leads)
            if text is not None:
                if best is None or len(trace) < len(best.trace):
                    best = Violation(text, tuple(trace))
                break
            world = after
        deepest = max(deepest, len(trace))
    return Explored(0, steps, deepest, False, best)


def _settled(setting: Setting, rules: Rules, move: Move) -> World:
    return advanced(setting, rules, move.world, move.leads) if move.leads else move.world


def _key(world: World) -> int:
    """Two states of one key are taken for one: of 2**61 keys, among a million states, that happens with a
    chance of less than one in a million."""
    return hash(world)


def _trace(known: dict[int, tuple[int, str]], key: int) -> tuple[str, ...]:
    steps = []
    while known[key][1]:
        key, text = known[key]
        steps.append(text)
    return tuple(reversed(steps))
