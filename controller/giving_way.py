"""Does the Controllers' leader hear the brokers it decides about, and if not, does another Controller?

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
    TIMEOUT_MAX_MS,
    TIMEOUT_MIN_MS,
    Heard,
    Liveness,
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
PERIOD_MS: Final = 100.0


class GivingWay:
    """The shell of ``successor``: it listens, asks and has Raft hand over.

    ``addresses``: id -> request port of each Controller.
    """

    def __init__(
        self,
        env: Env,
        config: ControllerConfig,
        raft: Raft,
        live: Liveness,
        client: RemotingClient,
        addresses: Callable[[], dict[str, str]],
    ) -> None:
        self._env = env
        self._id = config.self_id
        self._answer_s = config.raft_election_min_ms / 1000
        self._raft = raft
        self._live = live
        self._client = client
        self._addresses = addresses
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
        age_ms = self._env.monotonic_ms() - last.at_ms
        return {"heardAgeMs": str(round(age_ms)), "heardTimeoutMs": str(last.timeout_ms)}

    async def _turn(self) -> None:
        now_ms = self._env.monotonic_ms()
        if self._raft.term != self._term or not self._raft.is_leader:
            self._term, self._leads_since_ms = self._raft.term, now_ms
            return
        last = self._live.last
        timeout_ms = TIMEOUT_MIN_MS if last is None else last.timeout_ms
        if looks_for_another(self._silent_ms(), timeout_ms):
            await self._give_way()

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
        try:
            await self._raft.transfer(to)
        except MqError as error:
            log.info("Controller %s leads on: %s", self._id, error)

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
