"""What clients ask for besides sends and reads, on real processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from admin.local.cluster import LocalCluster
from chaos.drills.live.push_group import PushGroup
from chaos.drills.load import DrillLoad
from chaos.extras import Extras, Tables
from chaos.faults import ClockJump
from chaos.history import History
from chaos.scenarios.live_only import ClockDrift
from client.admin import AdminClient
from model.codes import Request
from remoting import bodies
from runtime.env import Env
from runtime.tasks import Tasks

SHOWN_S: Final = 60.0
"""How long a healed cluster may take to show what was answered."""
LOOK_S: Final = 1.0
ENDS_S: Final = 30.0
CLIENT: Final = 900
"""The number of its client's Env: those of the load are small."""


class LiveSite:
    """A cluster of processes. What was done to it is in its history."""

    def __init__(self, env: Env, cluster: LocalCluster, history: History) -> None:
        self._env, self._cluster, self._history = env, cluster, history
        self.group = cluster.layout.group_names[0]
        self.namesrv: Sequence[str] = [node.address for node in cluster.layout.namesrvs]

    def true_ms(self) -> int:
        return self._env.now_ms()

    def clocks_true(self) -> bool:
        return not any(self._history.happened(kind.name) for kind in (ClockJump, ClockDrift))

    async def tables(self) -> Mapping[str, Tables]:
        found = {}
        async with AdminClient(self._env, self.namesrv) as admin:
            for node in self._cluster.layout.broker_nodes:
                if node.group == self.group and self._cluster.is_running(node):
                    topics = await admin.session.call(node.address, Request.GET_ALL_TOPIC_CONFIG, {})
                    groups = await admin.session.call(
                        node.address, Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}
                    )
                    found[node.name] = Tables(
                        _names(topics.body, "topicConfigTable"), _names(groups.body, "subscriptionGroupTable")
                    )
        return found


def _names(body: bytes, table: str) -> set[str]:
    found = bodies.believed_object(body).get(table)
    return set(found) if isinstance(found, Mapping) else set()


class LiveExtras:
    """Asks from ``start`` on, if it is ``asked`` to at all; ``not_kept`` looks at the healed cluster."""

    def __init__(
        self,
        env_of: Callable[[int], Env],
        cluster: LocalCluster,
        load: DrillLoad,
        chance: random.Random,
        *,
        asked: bool,
    ) -> None:
        env = env_of(CLIENT)
        self._asked, self._load = asked, load
        self._site = LiveSite(env, cluster, load.history)
        self._extras = Extras(self._site, env, chance)
        self._group = PushGroup(env_of, self._site.namesrv, load.topic, random.Random(chance.getrandbits(64)))
        self._tasks = Tasks("extras")
        self._running: asyncio.Task[None] | None = None
        self._consuming: asyncio.Task[None] | None = None

    @property
    def done(self) -> Mapping[str, int]:
        """How often each kind was answered; ``extra.failed``: how often one was refused or not answered."""
        pushed = {"extra.pushed": len(self._group.handled), "extra.members": self._group.came}
        return dict(self._extras.done) | (pushed if self._asked else {})

    def start(self) -> None:
        if self._asked:
            self._running = self._tasks.spawn(self._extras.run(), name="ask")
            self._consuming = self._tasks.spawn(self._group.run(), name="push")

    async def not_kept(self) -> list[dict[str, Any]]:
        """Ask for no more, and wait until all that was answered shows, or long enough: what is missing then,
        as the checks tell it. ``unread`` says why that could not be seen."""
        if self._running is None:
            return []
        self._extras.stop()
        self._group.settle()
        await asyncio.wait([self._running], timeout=ENDS_S)
        until_ms = self._load.clock() + SHOWN_S * 1000
        while True:
            missing = await self._extras.look()
            late = self._group.not_handled(self._load.history, clocks_true=self._site.clocks_true())
            if not (missing or late) or self._load.clock() > until_ms:
                told = [] if self.unread else [{"checker": "extras", "text": text} for text in missing]
                return told + [{"checker": "pushed", "text": text} for text in late]
            await asyncio.sleep(LOOK_S)

    @property
    def unread(self) -> str | None:
        """Why nobody knows whether all was kept."""
        unread = self._extras.sight.unread
        return None if unread is None else f"what was asked for besides {unread}"

    def errors(self) -> list[dict[str, Any]]:
        """What ended the asking before its time, as the checks tell it."""
        told = []
        for task in (self._running, self._consuming):
            error = None if task is None or not task.done() or task.cancelled() else task.exception()
            if error is not None:
                told.append({"checker": "no_errors", "text": f"extras ended: {error!r}"})
        return told

    async def close(self) -> None:
        await self._tasks.cancel()
        if self._asked:
            await self._extras.close()
            await self._group.close()
