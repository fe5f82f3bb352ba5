"""The elections' decider alone: a table that commits when it is told to, heartbeats, and time."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from controller.elections import signals
from controller.elections.election import ElectionDecider
from controller.elections.liveness import Heartbeat, Liveness
from controller.elections.preview import ElectionRequest
from controller.groups.commands import (
    NOBODY,
    AlterSyncStateSet,
    Answer,
    ApplyBrokerId,
    Command,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.group import Group
from controller.groups.table import ReplicaTable
from model.config import ControllerConfig
from model.errors import MqError

G = "g"


class Lab:
    """One Controller's elections. What they ask for is kept until the test answers it; after every step the
    promises of the state are checked."""

    def __init__(self, **config: str) -> None:
        self.config = ControllerConfig.from_mapping(
            {"controllerDLegerPeers": "n0-127.0.0.1:9878", "controllerDLegerSelfId": "n0", **config}
        )
        self.table = ReplicaTable()
        self.live = Liveness()
        self.state = ElectionDecider(self.config, self.table, self.live, random.Random(1))
        self.now_ms = 0.0
        self.wake_ms = 0.0
        self.sessions: dict[tuple[str, int], int] = {}
        self.session_count = 0
        self.settling: int | None = None
        self.asks: dict[str, signals.Ask] = {}
        self.said: set[tuple[str, int]] = set()
        self.drains: dict[str, signals.AskStepDown] = {}
        self.proposals: dict[str, ElectMaster] = {}
        self.open: set[int] = set()  # tickets
        self.replies: dict[int, Answer | MqError] = {}
        self.announced: list[tuple[str, int, int]] = []
        self.leases: dict[tuple[str, int, int], float] = {}  # group, broker, epoch -> until (ms)
        self.mistakes: list[str] | None = None  # a list: those of one group are noted there, and fail no test

    # what is the case

    def group(self, name: str = G) -> Group:
        return self.table.groups[name]

    def apply(self, command: Command) -> Answer:
        return msgspec.convert(self.table.apply(command), Answer)

    def make_group(self, ids: list[int], *, name: str = G, majority: bool = False) -> None:
        for broker_id in ids:
            code = f"b{broker_id}:1;1"
            self.apply(ApplyBrokerId(group=name, cluster="c", broker_id=broker_id, check_code=code))
            self.apply(
                RegisterBroker(
                    group=name,
                    cluster="c",
                    broker_id=broker_id,
                    address=f"b{broker_id}:1",
                    majority_of=len(ids) if majority else 0,
                )
            )

    def make_master(self, broker_id: int, members: list[int], name: str = G) -> None:
        self.apply(ElectMaster(group=name, broker_id=broker_id, alive=tuple(members)))
        self.alter(members, name)

    def alter(self, members: list[int], name: str = G) -> None:
        group = self.group(name)
        if group.master is not None:
            self.apply(
                AlterSyncStateSet(
                    group=name,
                    master_id=group.master,
                    master_epoch=group.epoch,
                    members=tuple(members),
                    members_epoch=group.members_epoch,
                    alive=tuple(members),
                )
            )

    # what happens

    def feed(self, event: signals.Event) -> list[signals.Action]:
        actions = self.state.step(event, self.now_ms)
        self.state.check_invariants()
        assert isinstance(actions[-1], signals.WakeAt), "every step says when to come again"
        for action in actions:
            self._note(action)
        return actions

    def _note(self, action: signals.Action) -> None:
        match action:
            case signals.WakeAt():
                self.wake_ms = action.at_ms
            case signals.Settle():
                self.settling = action.number
            case signals.Ask():
                self.asks[action.group] = action
                self.said = {key for key in self.said if key[0] != action.group}
            case signals.StopAsking():
                self.asks.pop(action.group, None)
            case signals.AskStepDown():
                self.drains[action.group] = action
            case signals.Propose():
                self._may_propose(action.command)
                self.proposals[action.command.group] = action.command
            case signals.Announce():
                group = self.group(action.group)
                assert group.master is not None, "there is somebody to announce"
                self.announced.append((action.group, group.master, group.epoch))
            case signals.Report() if action.mistake is not None:
                if self.mistakes is None:
                    raise action.mistake
                self.mistakes.append(action.text)
            case signals.Reply():
                assert action.ticket in self.open, "a request is answered once"
                self.open.discard(action.ticket)
                self.replies[action.ticket] = action.result

    def _may_propose(self, command: ElectMaster) -> None:
        name, group = command.group, self.table.groups.get(command.group)
        assert name not in self.proposals, "one proposal of a group at a time"
        # A living master asks to be replaced, as if it were dead.
        gives_up = group is not None and command.broker_id == group.master and not command.restarted
        if group is None or not (command.broker_id == NOBODY or gives_up):
            return  # if this Controller does not lead, Raft refuses it
        assert gives_up or self.state.mandate.is_raft_leader, "only the leader proposes"
        if group.master is not None and not gives_up:
            assert not self.live.is_alive(name, group.master, self.now_ms), "the master is alive"
        chosen = group.choice(command)
        for (of, holder, _), until_ms in self.leases.items():
            beat = self.live.newest(name, holder)
            waits_for_all = beat is not None and beat.all_ack and chosen in group.members
            if of == name and chosen not in (None, holder) and not waits_for_all:
                assert until_ms <= self.now_ms, f"the lease of {holder} lasts"

    def beat(self, broker_id: int, *, name: str = G, **says: Any) -> list[signals.Action]:
        if (name, broker_id) not in self.sessions:
            self.session_count += 1
            self.sessions[name, broker_id] = self.session_count
        beat = Heartbeat(
            session=self.sessions[name, broker_id],
            at_ms=self.now_ms,
            address=f"b{broker_id}:1",
            **{"timeout_ms": 3000, **says},
        )
        fresh = self.live.heartbeat(name, broker_id, beat)
        return self.feed(signals.BrokerBack(name)) if fresh else []

    def grant(self, broker_id: int, epoch: int, name: str = G) -> int:
        beat = self.live.newest(name, broker_id)
        if beat is None:
            return 0
        left_ms = self.state.grant(name, broker_id, epoch, beat, self.now_ms, self.now_ms)
        assert not (left_ms and name in self.state.elections), "an election under way may depose it"
        if left_ms:
            self.leases[name, broker_id, epoch] = self.now_ms + left_ms
        return left_ms

    def close(self, broker_id: int, name: str = G) -> list[signals.Action]:
        session = self.sessions.pop((name, broker_id), None)
        lost = [] if session is None else self.live.closed(session)
        return self.feed(signals.SessionsEnded(tuple(lost)))

    def lead(self, term: int) -> list[signals.Action]:
        return self.feed(signals.LeadershipChanged(True, term))

    def follow(self, term: int) -> list[signals.Action]:
        self.settling = None
        return self.feed(signals.LeadershipChanged(False, term))

    def settle(self, error: MqError | None = None) -> list[signals.Action]:
        number, self.settling = self.settling, None
        if number is None:
            return []
        return self.feed(signals.Settled(number) if error is None else signals.NotSettled(number, error))

    def answer(
        self, broker_id: int, end: tuple[int, int] | None, *, following: bool = False, name: str = G
    ) -> list[signals.Action]:
        ask = self.asks.get(name)
        if ask is None or broker_id not in ask.broker_ids or (name, broker_id) in self.said:
            return []
        self.said.add((name, broker_id))
        return self.feed(signals.Answered(name, ask.inquiry, broker_id, end, following))

    def commit(self, name: str = G) -> list[signals.Action]:
        command = self.proposals.pop(name, None)
        return [] if command is None else self.feed(signals.Committed(name, self.apply(command)))

    def fail(self, error: MqError, *, deposed: bool = False, applied: bool = False, name: str = G) -> None:
        """The proposal has no answer; ``applied``: it was committed nevertheless."""
        command = self.proposals.pop(name, None)
        if command is not None:
            if applied:
                self.apply(command)
            self.feed(signals.NotCommitted(name, error, deposed))

    def step_down(self, *, done: bool, error: MqError | None = None, name: str = G) -> list[signals.Action]:
        drain = self.drains.pop(name, None)
        if drain is None:
            return []
        if done:
            self.release(drain.master, name)
        return self.feed(signals.SteppedDown(name, drain.master, done, error))

    def release(self, broker_id: int, name: str = G) -> None:
        """It acts as master no more."""
        self.leases = {key: ms for key, ms in self.leases.items() if key[:2] != (name, broker_id)}

    def request(self, request: ElectionRequest, name: str = G) -> list[signals.Action]:
        ticket = len(self.open) + len(self.replies) + 1
        self.open.add(ticket)
        return self.feed(signals.Requested(ticket, name, request))

    def run_until(self, until_ms: float) -> list[tuple[float, list[signals.Action]]]:
        """Come again whenever the state wants to, up to that time."""
        seen = []
        while (at_ms := max(self.wake_ms, self.now_ms + 1)) <= until_ms:
            self.now_ms = at_ms
            seen.append((at_ms, self.feed(signals.Tick())))
        self.now_ms = max(self.now_ms, until_ms)
        return seen
