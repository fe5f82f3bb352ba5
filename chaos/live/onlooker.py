"""What do the servers of a live cluster say of themselves, all the time? For the faults, which look up roles,
and for the history, which the checks read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import aiohttp

from admin.local.cluster import LocalCluster
from admin.local.layout import Node
from chaos.history import CONTROLLER_ROLE, Happened, History, Observed, readable
from runtime.env import Env
from runtime.tasks import Tasks

LOOK_S: Final = 0.1
ANSWER_S: Final = 1.0
GONE_AFTER: Final = 3
"""Looks in vain after which a server's last words count no more."""

View = Mapping[str, Any]


class Onlooker:
    """Asks each server by itself: one that is paused or cut off keeps nobody from hearing the others."""

    def __init__(self, env: Env, cluster: LocalCluster, history: History, clock: Callable[[], float]) -> None:
        self._env, self._cluster, self._history, self._clock = env, cluster, history, clock
        self._begun_wall_ms = env.now_ms() - clock()
        self._tasks = Tasks("onlooker")
        self._said: set[str] = set()
        self._controllers: dict[str, tuple[str, int]] = {}
        self.views: dict[str, View] = {}

    def start(self) -> None:
        for node in self._cluster.layout.nodes:
            self._tasks.spawn(self._watch(node), name=node.name)

    async def stop(self) -> None:
        await self._tasks.cancel()

    def master(self, but: Collection[str] = ()) -> str | None:
        """The broker that acts as master in the newest epoch; ``but``: who does not count."""
        known = [(name, view) for name, view in self.views.items() if name not in but]
        masters = [(int(v.get("epoch") or 0), name) for name, v in known if v.get("role") == "master"]
        return max(masters)[1] if masters else None

    def slaves(self) -> list[str]:
        return [name for name, view in self.views.items() if view.get("role") == "slave"]

    def leader(self, but: Collection[str] = ()) -> str | None:
        """The NameServer whose Controller leads; ``but``: who does not count."""
        known = {n: view.get("controller") or {} for n, view in self.views.items() if n not in but}
        leaders = [(int(c.get("term") or 0), name) for name, c in known.items() if c.get("isLeader")]
        return max(leaders)[1] if leaders else None

    async def _watch(self, node: Node) -> None:
        in_vain = 0
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            while True:
                view = await self._cluster.look(http, node)
                in_vain = 0 if view is not None else in_vain + 1
                if view is not None:
                    self._note(node, view)
                    self.views[node.name] = view
                elif in_vain >= GONE_AFTER or not self._cluster.is_running(node):
                    self.views.pop(node.name, None)
                    if node.name in self._controllers:
                        self._led(node.name, "silent", 0)
                await asyncio.sleep(LOOK_S)

    def _note(self, node: Node, view: View) -> None:
        for event in (*(view.get("events") or ()), *((view.get("controller") or {}).get("events") or ())):
            if (told := f"{node.name} {event}") not in self._said:
                self._said.add(told)
                values = {key: value for key, value in event.items() if key not in ("event", "at_ms")}
                at_ms = round(event["at_ms"] - self._begun_wall_ms, 1)
                self._history.add(Happened(at_ms, node.name, event["event"], values))
        if controller := view.get("controller"):
            role = "leader" if controller.get("isLeader") else "follower"
            self._led(node.name, role, int(controller.get("term") or 0))
        if node.role == "broker":
            confirmed = int(view.get("confirmOffset") or 0)
            self._history.add(
                Observed(
                    round(self._clock(), 1),
                    node.name,
                    int(view["pid"]),
                    str(view.get("role")),
                    int(view.get("epoch") or 0),
                    readable(confirmed, int(view.get("dispatchedOffset", confirmed))),
                    int(view.get("maxOffset") or 0),
                )
            )

    def _led(self, name: str, role: str, term: int) -> None:
        """Note what a Controller is now, where that is another."""
        if self._controllers.get(name) != (role, term):
            self._controllers[name] = (role, term)
            values = {"role": role, "term": term}
            self._history.add(Happened(round(self._clock(), 1), name, CONTROLLER_ROLE, values))
