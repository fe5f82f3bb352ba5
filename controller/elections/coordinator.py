"""How do the elections' decisions meet the world?

The shell of ``controller.elections.election``: it tells the decider what happened and what time it is, and
carries out what that returns. It decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from controller.elections import signals
from controller.elections.brokers import Brokers, Said
from controller.elections.election import ElectionDecider
from controller.elections.liveness import Broker, Heartbeat, Liveness
from controller.elections.preview import ElectionRequest
from controller.groups.commands import (
    Answer,
    ElectMaster,
    KeepToLeases,
)
from controller.groups.table import ReplicaTable
from controller.raft.raft import NotLeader, Raft
from model.config import ControllerConfig
from model.errors import MqError, Unknown
from runtime.backoff import Backoff
from runtime.env import Env
from runtime.loops import level_triggered
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

LEVELS: Final = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
STEP_MIN_MS: Final = 1.0
HOPE_LOOKS: Final = 50


class ElectionCoordinator:
    """Elections this Controller starts by itself, and those it is asked for.

    ``propose`` commits a command and returns the table's answer.
    """

    def __init__(
        self,
        env: Env,
        config: ControllerConfig,
        raft: Raft,
        table: ReplicaTable,
        live: Liveness,
        brokers: Brokers,
        propose: Callable[[ElectMaster | KeepToLeases], Awaitable[Answer]],
    ) -> None:
        self.state = ElectionDecider(config, table, live, env.random)
        self._env = env
        self._config = config
        self._raft = raft
        self._brokers = brokers
        self._table = table
        self._commit = propose
        self._tasks = Tasks(f"controller.{config.self_id}.elections")
        self._asks: dict[str, list[asyncio.Task[None]]] = {}
        self._noting: set[str] = set()
        self._replies: dict[int, asyncio.Future[Answer]] = {}
        self._tickets = 0
        self._wake = asyncio.Event()
        self._wake_ms = self._due_ms = float("inf")

    def start(self) -> None:
        self._raft.on_change.append(self._follow_raft)
        period_s = self._config.scan_not_active_ms / 1000
        backoff = Backoff(self._env.random, self._config.scan_not_active_ms, self._config.scan_not_active_ms)
        what = f"Controller {self._config.self_id}: elections"
        self._tasks.spawn(level_triggered(self._turn, self._wake, period_s, backoff, what), name="run")
        self._follow_raft()

    async def stop(self) -> None:
        await self._tasks.cancel()
        self._fail_requests(Unknown("this Controller stops"))

    # what happens

    def broker_back(self, group: str) -> None:
        """A broker that was not alive sent a heartbeat."""
        self._feed(signals.BrokerBack(group))

    def brokers_lost(self, brokers: list[Broker]) -> None:
        """Sessions ended."""
        self._feed(signals.SessionsEnded(tuple(brokers)))

    async def ready(self) -> None:
        """Return when this leader's table holds what former leaders committed. Raises NotLeader, Unknown."""
        self._follow_raft()
        if not self.state.mandate.decides:
            number = self.state.mandate.number
            await self._raft.settle()
            self._feed(signals.Settled(number))

    async def elect(self, group: str, request: ElectionRequest) -> Answer:
        """The election a broker or an operator asks for. Raises NotLeader, Unknown, Refused (not now)."""
        self._tickets += 1
        ticket = self._tickets
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._replies[ticket] = reply
        try:
            self._feed(signals.Requested(ticket, group, request))
            return await reply
        finally:
            self._replies.pop(ticket, None)

    def grant(self, group: str, broker_id: int, epoch: int, beat: Heartbeat) -> int:
        """The lease for the master of ``epoch``, in ms from the sending of its heartbeat; 0 = none."""
        self._follow_raft()
        now_ms, followed_ms = self._env.monotonic_ms(), self._raft.followed_ms()
        return self.state.grant(group, broker_id, epoch, beat, followed_ms, now_ms)

    def without_hope(self, after: str) -> str | None:
        """The first group behind this name, or else from the first name on, that has no master, and in which
        nobody would be elected whatever those that live answered. It looks at ``HOPE_LOOKS`` at most."""
        if not self.state.mandate.decides:
            return None
        now_ms, groups = self._env.monotonic_ms(), self._table.groups
        names = sorted((name <= after, name) for name, group in groups.items() if group.master is None)
        for _, name in names[:HOPE_LOOKS]:
            if self.state.preview.would_be_elected(name, groups[name], now_ms) is None:
                return name
        return None

    def keeps_to_leases(self, name: str, broker_id: int, epoch: int) -> None:
        """The master says that its members' word is not enough for it: note that for whoever elects next."""
        group = self._table.groups.get(name)
        if group is None or group.needs_lease or (group.master, group.epoch) != (broker_id, epoch):
            return
        if self._raft.is_leader and name not in self._noting:
            self._noting.add(name)
            command = KeepToLeases(group=name, master_id=broker_id, master_epoch=epoch)
            self._tasks.spawn(self._note(command), name=f"leases.{name}")

    async def _note(self, command: KeepToLeases) -> None:
        try:
            await self._commit(command)
        except MqError as error:
            log.info("Controller %s: %s says so again: %s", self._config.self_id, command.group, error)
        finally:
            self._noting.discard(command.group)

    # moving events, time and actions

    async def _turn(self) -> float:
        now_ms = self._env.monotonic_ms()
        late_ms = now_ms - self._due_ms
        self._due_ms = now_ms  # when this turn comes again is known at its end: nothing need wake it before
        if late_ms > self._config.raft_election_min_ms:
            self._feed(signals.StoodStill(late_ms))
        self._feed(signals.Tick())
        now_ms = self._env.monotonic_ms()
        self._due_ms = max(self._wake_ms, now_ms + STEP_MIN_MS)
        return (self._due_ms - now_ms) / 1000

    def _follow_raft(self) -> None:
        """The Raft leader or term may have changed, perhaps to or from this Controller."""
        leads, term, mandate = self._raft.is_leader, self._raft.term, self.state.mandate
        if (leads, term) != (mandate.is_raft_leader, mandate.term):
            self._step(signals.LeadershipChanged(leads, term))

    def _feed(self, event: signals.Event) -> None:
        self._follow_raft()
        self._step(event)

    def _step(self, event: signals.Event) -> None:
        now_ms = self._env.monotonic_ms()
        try:
            actions = self.state.step(event, now_ms)
        except Exception:
            # A mistake of ours; but without elections no group would ever be repaired.
            log.exception("Controller %s: the elections begin anew: %s", self._config.self_id, event)
            actions = self.state.abandon(now_ms)
            self._fail_requests(Unknown("the election failed"))
        for action in actions:
            self._carry_out(action)

    def _fail_requests(self, error: MqError) -> None:
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(error)

    def _carry_out(self, action: signals.Action) -> None:
        match action:
            case signals.WakeAt():
                self._wake_ms = action.at_ms
                if action.at_ms < self._due_ms:
                    self._wake.set()
            case signals.Settle():
                self._tasks.spawn(self._settle(action.number), name="settle")
            case signals.Ask():
                self._asks[action.group] = [
                    self._tasks.spawn(self._ask(action, i), name=f"ask.{action.group}.{i}")
                    for i in action.broker_ids
                ]
            case signals.StopAsking():
                for task in self._asks.pop(action.group, ()):
                    task.cancel()
            case signals.AskStepDown():
                self._tasks.spawn(self._step_down(action), name=f"step_down.{action.group}")
            case signals.Propose():
                self._tasks.spawn(self._propose(action.command), name=f"elect.{action.command.group}")
            case signals.Announce():
                self._brokers.announce(action.group)
            case signals.Reply():
                self._reply(action)
            case signals.Report():
                level, text = LEVELS[action.level], action.text
                log.log(level, "Controller %s: %s", self._config.self_id, text, exc_info=action.mistake)
                if action.event:
                    self._env.events.add(action.event, **action.fields)

    def _reply(self, action: signals.Reply) -> None:
        reply = self._replies.get(action.ticket)
        if reply is None or reply.done():
            return  # its connection ended meanwhile
        if isinstance(action.result, MqError):
            reply.set_exception(action.result)
        else:
            reply.set_result(action.result)

    # The decider waits for the outcome of each of these, so each tells it one; but a barrier that ended with
    # this Controller's lead tells none (the change of leader does), and nobody waits for what is cancelled.

    async def _settle(self, number: int) -> None:
        try:
            await self._raft.settle()
        except NotLeader:
            return
        except Exception as error:  # noqa: BLE001
            self._feed(signals.NotSettled(number, self._foreseen(error)))
        else:
            self._feed(signals.Settled(number))

    async def _ask(self, action: signals.Ask, broker_id: int) -> None:
        said = Said()
        try:
            said = await self._brokers.ask_end(action.group, broker_id, action.longest_s)
        except Exception as error:  # noqa: BLE001
            self._foreseen(error)
        name, number = action.group, action.inquiry
        told = said.end, said.following, said.full, said.reached
        self._feed(signals.Answered(name, number, broker_id, *told))

    async def _step_down(self, action: signals.AskStepDown) -> None:
        name, master = action.group, action.master
        try:
            done = await self._brokers.step_down(name, master, action.epoch, action.target, action.term)
        except Exception as error:  # noqa: BLE001
            self._feed(signals.SteppedDown(name, master, False, self._foreseen(error)))
        else:
            self._feed(signals.SteppedDown(name, master, done))

    async def _propose(self, command: ElectMaster) -> None:
        try:
            answer = await self._commit(command)
        except Exception as error:  # noqa: BLE001
            self._feed(
                signals.NotCommitted(command.group, self._foreseen(error), isinstance(error, NotLeader))
            )
        else:
            self._feed(signals.Committed(command.group, answer))

    def _foreseen(self, error: Exception) -> MqError:
        if isinstance(error, MqError):
            return error
        log.error("Controller %s: not foreseen", self._config.self_id, exc_info=error)
        return Unknown(f"{type(error).__name__}: {error}")
