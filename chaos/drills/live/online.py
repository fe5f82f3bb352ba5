"""Is a promise broken already? A live history is checked while it grows: a run stops where something broke,
and what each server did last is still known."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from admin.local.cluster import LocalCluster
from chaos.checks import Evidence, Promised, check_so_far
from chaos.checks.liveness import Group
from chaos.checks.violation import Violation
from chaos.drills.live.disks import lied
from chaos.drills.measure import VIOLATIONS_SHOWN
from chaos.history import Happened, History, Observed
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

LOOK_S: Final = 1.0
SHARE: Final = 0.05
"""Of the time may be computed: the longer a history, the rarer the looks."""
LATE_MS: Final = 2000.0
"""A fault is noted when it was made, what a server says when it was asked: neither later than this."""
EVENTS: Final = 15
LOG_LINES: Final = 5
DRILL: Final = "drill"
"""Stands for what happened to no server of its own: links that healed, a group that is full."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Where a run was stopped, and why. ``last``: by server, the last that happened to it and the last lines
    of its log."""

    at_ms: float
    violations: Sequence[dict[str, Any]]
    last: Mapping[str, Sequence[str]]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Watch:
    """Looks at one history. ``group``: whose writes are to be answered; None: that is not asked."""

    def __init__(
        self,
        env: Env,
        cluster: LocalCluster,
        history: History,
        clock: Callable[[], float],
        group: Group | None,
        *,
        power_failures: bool = False,
    ) -> None:
        self._env, self._cluster, self._history, self._clock = env, cluster, history, clock
        self._group = group
        self._power_failures = power_failures

    async def broken(self) -> Stopped:
        """Returns once a promise is broken, and never while all hold."""
        wait_s = LOOK_S
        while True:
            await asyncio.sleep(wait_s)
            begun_ms = self._env.monotonic_ms()
            found = await self._env.offload(partial(check_so_far, self._evidence()))
            if found:
                return self._stopped(found)
            wait_s = max(LOOK_S, (self._env.monotonic_ms() - begun_ms) / 1000 / SHARE)

    def _evidence(self) -> Evidence:
        until_ms = self._clock() - LATE_MS
        group = None if self._group is None else replace(self._group, until_ms=until_ms)
        return Evidence(
            History(self._history.events),
            power_failures=self._power_failures,
            group=group,
            forgiven=Promised(lied=bool(lied(self._history.events))),
        )

    def _stopped(self, found: Sequence[Violation]) -> Stopped:
        told = [violation.to_json() for violation in found[:VIOLATIONS_SHOWN]]
        nodes = self._cluster.layout.nodes
        last = {node.name: [*self._events(node.name), *self._log(node.name)] for node in nodes}
        return Stopped(round(self._clock(), 1), told, {DRILL: self._events(""), **last})

    def _events(self, name: str) -> list[str]:
        own = [e for e in self._history.events if isinstance(e, Happened | Observed) and e.node == name]
        lines = [e.line().strip() for e in own if isinstance(e, Happened)][-EVENTS:]
        seen = next((e for e in reversed(own) if isinstance(e, Observed)), None)
        if seen is not None:
            said = f"{seen.role}, epoch {seen.epoch}, confirmed {seen.confirmed} of {seen.end} bytes"
            lines.append(f"{seen.at_ms:.1f} ms  {name} says: {said}")
        return lines

    def _log(self, name: str) -> list[str]:
        try:
            text = self._cluster.log_tail(self._cluster.layout.node(name))
        except OSError as error:
            return [f"its log cannot be read: {error}"]
        return text.splitlines()[-LOG_LINES:]


async def unless_broken(
    work: Coroutine[Any, Any, str | None], watch: Watch | None
) -> tuple[str | None, Stopped | None]:
    """What ``work`` returns, if nothing breaks meanwhile; else it is cancelled, and what broke is told.
    Without a ``watch`` nothing is looked at; one that ends by an error is logged, and the work goes on."""
    if watch is None:
        return await work, None
    tasks = Tasks("run", on_error=lambda error: None)  # it is raised or logged below
    striking, looking = tasks.spawn(work, name="plan"), tasks.spawn(watch.broken(), name="watch")
    try:
        await asyncio.wait({striking, looking}, return_when=asyncio.FIRST_COMPLETED)
        if looking.done() and looking.exception() is None:
            return None, looking.result()
        if looking.done():
            log.error("the history is looked at no more until the run ends", exc_info=looking.exception())
        return await striking, None
    finally:
        await tasks.cancel()
