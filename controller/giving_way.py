"""Does the Controllers' leader hear the brokers it decides about, and if not, does another Controller?

A leader that can elect nobody in a group, as the link to one of its brokers is cut, gives way to a Controller
that hears more of the group, and more brokers at all (``hears_more``). It asks each second about one such
group, the next one each time.

A leader that hears no broker takes all of them for dead: it renews no lease and elects nobody. Raft sees
nothing of that while the Controllers hear each other. So it asks them how long ago they heard a broker
(request 1005 with ``brokersHeard``), and makes one that hears them the leader.

That it stays there follows from the shares: who gives way heard nobody for ``SILENT_SHARE`` of a heartbeat
timeout since it leads, and its successor heard one within ``HEARD_SHARE``. Brokers that died are silent for
all Controllers alike, so nobody gives way.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from controller.elections.liveness import (
    HEARD_SHARE,
    SILENT_SHARE,
    TIMEOUT_MAX_MS,
    TIMEOUT_MIN_MS,
    Heard,
    Liveness,
    Reach,
    hears_more,
    looks_for_another,
    successor,
)
from controller.raft.raft import Raft
from model.codes import Request, Response
from model.config import ControllerConfig
from model.errors import MqError
from remoting.codec import Command
from remoting.headers import opt_int
from remoting.service import RemotingClient
from runtime.env import Env
from runtime.tasks import Tasks, every

log = logging.getLogger(__name__)

ASK: Final = "brokersHeard"
OF_GROUP: Final = "heardOfGroup"
PERIOD_MS: Final = 100.0
STUCK_MS: Final = 1000.0


class GivingWay:
    """The shell of ``successor`` and ``hears_more``: it listens, asks and has Raft hand over.

    ``addresses``: id -> request port of each Controller. ``stuck``: the first group behind
    this name in which it can elect nobody.
    """

    def __init__(
        self,
        env: Env,
        config: ControllerConfig,
        raft: Raft,
        live: Liveness,
        client: RemotingClient,
        addresses: Callable[[], dict[str, str]],
        stuck: Callable[[str], str | None],
    ) -> None:
        self._env = env
        self._id = config.self_id
        self._answer_s = config.raft_election_min_ms / 1000
        self._raft = raft
        self._live = live
        self._client = client
        self._addresses = addresses
        self._stuck = stuck
        self._asked_of = ""
        self._look_ms = 0.0
        self._tasks = Tasks(f"controller.{config.self_id}.giving_way")
        self._term = -1
        self._leads_since_ms = 0.0

    def start(self) -> None:
        what = f"Controller {self._id}: whether it hears brokers"
        self._tasks.spawn(every(PERIOD_MS / 1000, self._turn, what=what), name="run")

    async def stop(self) -> None:
        await self._tasks.cancel()

    def told(self, request: Command) -> dict[str, str]:
        """What another Controller is answered that asks for it; a client hears nothing of it."""
        last = self._live.last
        if last is None or ASK not in request.ext:
            return {}
        now_ms = self._env.monotonic_ms()
        told = {"heardAgeMs": str(round(now_ms - last.at_ms)), "heardTimeoutMs": str(last.timeout_ms)}
        if OF_GROUP in request.ext:
            reach = self._live.reach(self._id, request.ext[OF_GROUP], HEARD_SHARE, now_ms)
            told |= {
                OF_GROUP: str(reach.of_group),
                "heardOfAll": str(reach.of_all),
                "groupTimeoutMs": str(reach.timeout_ms),
            }
        return told

    async def _turn(self) -> None:
        now_ms = self._env.monotonic_ms()
        if self._raft.term != self._term or not self._raft.is_leader:
            self._term, self._leads_since_ms = self._raft.term, now_ms
            return
        last = self._live.last
        timeout_ms = TIMEOUT_MIN_MS if last is None else last.timeout_ms
        if looks_for_another(self._silent_ms(), timeout_ms):
            await self._give_way()
        elif now_ms >= self._look_ms:
            self._look_ms = now_ms + STUCK_MS
            await self._help_one()

    def _silent_ms(self) -> float:
        last = self._live.last
        heard_ms = self._leads_since_ms if last is None else max(last.at_ms, self._leads_since_ms)
        return self._env.monotonic_ms() - heard_ms

    async def _give_way(self) -> None:
        others = [(node, at) for node, at in self._addresses().items() if node != self._id]
        tasks = [self._tasks.spawn(self._ask(node, at), name=f"ask.{node}") for node, at in others]
        answers = [await task for task in tasks]
        # What came meanwhile counts: heartbeats may have waited in front of this process.
        to = successor(self._silent_ms(), [heard for heard in answers if heard is not None])
        if to is None or not self._raft.is_leader:
            return
        log.warning(
            "Controller %s heard no broker for %.0f ms; %s hears them and is to lead",
            self._id,
            self._silent_ms(),
            to,
        )
        await self._hand_over(to)

    async def _help_one(self) -> None:
        """Ask about the next group in which this leader can elect nobody."""
        before, name = self._asked_of, self._stuck(self._asked_of)
        if name is None:
            return
        self._asked_of = name
        others = [(node, at) for node, at in self._addresses().items() if node != self._id]
        tasks = [
            self._tasks.spawn(self._ask_reach(node, at, name), name=f"ask.{node}") for node, at in others
        ]
        answers = [await task for task in tasks]
        now_ms = self._env.monotonic_ms()
        mine = self._live.reach(self._id, name, SILENT_SHARE, now_ms)
        led_ms = now_ms - self._leads_since_ms
        to = hears_more(mine, led_ms, [reach for reach in answers if reach is not None])
        if to is None or not self._raft.is_leader or self._stuck(before) != name:
            return
        log.warning(
            "Controller %s hears %d brokers of %s, and none of them may lead; %s hears more and is to lead",
            self._id,
            mine.of_group,
            name,
            to,
        )
        await self._hand_over(to)

    async def _hand_over(self, to: str) -> None:
        try:
            await self._raft.transfer(to)
        except MqError as error:
            log.info("Controller %s leads on: %s", self._id, error)

    async def _ask_reach(self, node: str, address: str, name: str) -> Reach | None:
        request = Command(Request.CONTROLLER_GET_METADATA_INFO, {ASK: "true", OF_GROUP: name})
        try:
            answer = await self._client.call(address, request, self._answer_s)
            found = [opt_int(answer.ext, key, -1) for key in (OF_GROUP, "heardOfAll", "groupTimeoutMs")]
        except (MqError, OSError) as error:
            log.debug("Controller %s does not say whom of %s it hears: %s", node, name, error)
            return None
        if answer.code != Response.SUCCESS or min(found) < 0 or found[2] > TIMEOUT_MAX_MS:
            return None
        return Reach(node, *found)

    async def _ask(self, node: str, address: str) -> Heard | None:
        asked_ms = self._env.monotonic_ms()
        request = Command(Request.CONTROLLER_GET_METADATA_INFO, {ASK: "true"})
        try:
            answer = await self._client.call(address, request, self._answer_s)
            age_ms = opt_int(answer.ext, "heardAgeMs", -1)
            timeout_ms = opt_int(answer.ext, "heardTimeoutMs", -1)
        except (MqError, OSError) as error:
            log.debug("Controller %s does not say whether it hears brokers: %s", node, error)
            return None
        if answer.code != Response.SUCCESS or age_ms < 0:
            return None
        if not TIMEOUT_MIN_MS <= timeout_ms <= TIMEOUT_MAX_MS:
            return None
        return Heard(node, age_ms + self._env.monotonic_ms() - asked_ms, timeout_ms)
