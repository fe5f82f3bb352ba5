"""The promise of ack policies and election rules together: whoever is elected has what was acknowledged.

The real ``AckPolicy`` acknowledges and the real ``ReplicaTable`` elects. A log is a list of epochs, one a
record: that in which it was written. Replicas register, join the SyncStateSet, leave it, are forgotten and
replaced, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.groups.commands import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBrokers,
    ElectMaster,
    RegisterBroker,
)
from controller.groups.elect import End
from controller.groups.group import Group
from controller.groups.table import ReplicaTable
from ha.master.ack_policy import AckPolicy, Wait
from model.ids import PhysicalOffset
from tests.plain import offsets

G = "broker-a"
REPLICAS_MAX = 5


@dataclass
class Replica:
    log: list[int] = field(default_factory=list)
    noted: int = 0  # the newest epoch it knows


class Cluster:
    """A group whose master sees every change of the SyncStateSet at once, and of its replicas only members:
    the fewest it can know."""

    def __init__(self, policy: AckPolicy) -> None:
        self.policy = policy
        self.table = ReplicaTable()
        self.replicas: dict[int, Replica] = {}
        self.acked: list[tuple[int, ...]] = []  # whole logs up to each acknowledged record
        self.start = 0  # of the master's epoch
        self.owed = 0  # what was acknowledged when the master learned of the set there is
        self.replicated = 0
        self.register()
        self.elect({1}, asks=1)

    @property
    def group(self) -> Group:
        return self.table.groups[G]

    @property
    def master(self) -> int | None:
        return self.group.master

    def register(self) -> None:
        if len(self.replicas) < REPLICAS_MAX:
            broker_id = self.table.next_id(G)
            self.table.apply(
                ApplyBrokerId(group=G, cluster="c", broker_id=broker_id, check_code=f"{broker_id};")
            )
            majority = self.policy.replicas if self.policy.wait is Wait.MAJORITY else 0
            command = RegisterBroker(
                group=G,
                cluster="c",
                broker_id=broker_id,
                address=f"{broker_id}",
                majority_of=majority,
                all_ack=self.policy.wait is Wait.ALL,
                timeout_ms=1500,
            )
            assert self.table.apply(command)["code"] == 0
            self.replicas[broker_id] = Replica()

    def append(self) -> None:
        if self.master is not None:
            self.replicas[self.master].log.append(self.group.epoch)

    def copy(self, broker_id: int, records: int) -> None:
        if self.master in (None, broker_id):
            return
        assert self.master is not None
        ours, theirs = self.replicas[broker_id], self.replicas[self.master].log
        same = next((i for i, (a, b) in enumerate(zip(ours.log, theirs, strict=False)) if a != b), None)
        same = min(len(ours.log), len(theirs)) if same is None else same
        ours.log = theirs[: max(same, min(len(theirs), same + records))]
        if len(ours.log) >= self.start:
            ours.noted = self.group.epoch

    def alter(self, members: set[int]) -> None:
        if self.master is None or self.master not in members:
            return
        group = self.group
        command = AlterSyncStateSet(
            group=G,
            master_id=self.master,
            master_epoch=group.epoch,
            members=tuple(sorted(members)),
            members_epoch=group.members_epoch,
            alive=tuple(self.replicas),
        )
        if self.table.apply(command)["code"] == 0:
            self.owed = self.replicated

    def join(self, broker_id: int) -> None:
        """As ``SyncSet`` proposes: it has what is confirmed, and what was owed when the set was learned."""
        replica, group = self.replicas[broker_id], self.group
        confirmed = min(len(self.replicas[m].log) for m in group.members)
        if replica.noted == group.epoch and len(replica.log) >= max(
            self.start, self.owed, min(confirmed, self.replicated)
        ):
            self.alter({*group.members, broker_id})

    def leave(self, broker_id: int) -> None:
        """In majority mode as ``SyncSet`` proposes: those that stay have what was answered."""
        stay = {*self.group.members} - {broker_id}
        if self.policy.wait is Wait.MAJORITY and any(self._lacks_answers(b) for b in stay - {self.master}):
            return
        self.alter(stay)

    def _lacks_answers(self, broker_id: int | None) -> bool:
        assert broker_id is not None
        replica = self.replicas[broker_id]
        return replica.noted != self.group.epoch or len(replica.log) < self.replicated

    def forget(self, broker_id: int) -> None:
        """An operator gave it up, and what only forgotten brokers have with it."""
        if len(self.replicas) == 1:
            return
        command = CleanBrokers(group=G, broker_ids=(broker_id,), alive=tuple({*self.replicas} - {broker_id}))
        assert self.table.apply(command)["code"] == 0
        del self.replicas[broker_id]
        self.owed = self.replicated
        self.acked = [
            one for one in self.acked if any(tuple(r.log[: len(one)]) == one for r in self.replicas.values())
        ]

    def acknowledge(self) -> None:
        master, group = self.master, self.group
        if master is None or len(group.members) < self.policy.members_to_write(len(group.members)):
            return
        own = len(self.replicas[master].log)
        slaves = [self.replicas[m] for m in group.members if m != master]
        ends = [
            len(s.log) if s.noted == group.epoch or self.policy.wait is not Wait.MAJORITY else -1
            for s in slaves
        ]
        slowest = min([own, *(len(s.log) for s in slaves)])
        _, replicated = self.policy.watermarks(
            PhysicalOffset(own),
            PhysicalOffset(slowest),
            offsets(e for e in ends if e >= 0),
            self.policy.copies(len(group.members)),
        )
        if replicated > self.replicated:
            self.replicated = replicated
            self.acked.append(tuple(self.replicas[master].log[:replicated]))

    def elect(self, alive: set[int], asks: int = -1) -> None:
        alive &= set(self.replicas)
        ends = {b: End(self.replicas[b].noted, len(self.replicas[b].log)) for b in alive}
        before, members = (self.group.epoch, self.master), set(self.group.members)
        command = ElectMaster(
            group=G,
            broker_id=asks,
            alive=tuple(sorted(alive)),
            answered=tuple(sorted(alive)),
            all_ack=self.policy.wait is Wait.ALL,
            ends=ends,
        )
        self.table.apply(command)
        master = self.master
        if master is None or (self.group.epoch, master) == before:
            return
        leader = self.replicas[master]
        self.start, leader.noted = len(leader.log), self.group.epoch
        self.replicated = min(self.replicated, self.start)
        for one in self.acked:
            if self.policy.wait is Wait.COUNT:
                # Of the members that live the furthest leads; that one of them has it is not promised.
                living = [self.replicas[b] for b in alive & members]
                if all(tuple(replica.log[: len(one)]) != one for replica in living):
                    continue
            assert tuple(leader.log[: len(one)]) == one, (
                f"{master} leads epoch {self.group.epoch} without an acknowledged record at {len(one) - 1}"
            )
        self.owed = self.replicated


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["append", "acknowledge"]), st.just(0), st.just(0)),
        st.tuples(st.sampled_from(["copy", "sync", "leave", "forget"]), st.integers(0, 4), st.integers(1, 3)),
        st.tuples(st.just("elect"), st.integers(0, 4), st.integers(1, 31)),
    ),
    max_size=60,
)
POLICIES = [
    AckPolicy(Wait.ALL),
    AckPolicy(Wait.ALL, copies_min=2),
    AckPolicy(Wait.COUNT, acks_min=2),
    *(AckPolicy(Wait.MAJORITY, replicas=replicas) for replicas in (1, 2, 3, 4, 5)),
]
Step = tuple[str, int, int]


def run(policy: AckPolicy, steps: list[Step]) -> Cluster:
    cluster = Cluster(policy)
    for what, who, amount in steps:
        ids = sorted(cluster.replicas)
        broker_id = ids[who % len(ids)]
        match what:
            case "register" | "append" | "acknowledge":
                getattr(cluster, what)()
            case "copy":
                cluster.copy(broker_id, amount)
            case "sync":
                cluster.copy(broker_id, 1000)
                if cluster.master is not None:
                    cluster.join(broker_id)
            case "leave":
                cluster.leave(broker_id)
            case "forget":
                cluster.forget(broker_id)
            case "elect":
                cluster.elect({one for at, one in enumerate(ids) if amount >> at & 1})
    return cluster


def grown(replicas: int) -> list[Step]:
    """A group of so many replicas, all of them members."""
    return [("register", 0, 0)] * (replicas - 1) + [("sync", at, 1) for at in range(1, replicas)]


WRITE: list[Step] = [("append", 0, 0), ("copy", 1, 1), ("acknowledge", 0, 0)]
"""A record on brokers 1 and 2, acknowledged if that is a majority."""


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.wait.value}-{p.replicas or p.acks_min}")
@given(size=st.integers(1, REPLICAS_MAX), steps=STEPS)
@settings(max_examples=200)
def test_whoever_is_elected_has_what_was_acknowledged(
    policy: AckPolicy, size: int, steps: list[Step]
) -> None:
    run(policy, [*grown(size), *steps])


MAJORITY_OF_3 = AckPolicy(Wait.MAJORITY, replicas=3)


def test_two_replicas_that_registered_since_do_not_outvote_those_that_acknowledged() -> None:
    cluster = run(MAJORITY_OF_3, [*grown(3), *WRITE, ("register", 0, 0), ("register", 0, 0)])
    assert len(cluster.acked) == 1
    cluster.elect({3, 4, 5})
    assert cluster.master is None, "three of five, and none of them has what 1 and 2 acknowledged"
    cluster.elect({2, 3, 4, 5})
    assert cluster.master == 2


def test_more_replicas_than_total_replicas_says_need_more_answers_than_a_majority() -> None:
    cluster = run(MAJORITY_OF_3, [*grown(5), ("leave", 3, 1), ("leave", 4, 1), *WRITE])
    assert len(cluster.acked) == 1, "the master knows three replicas, and two of them have it"
    cluster.elect({3, 4, 5})
    assert cluster.master is None
    cluster.elect({2, 3, 4, 5})
    assert cluster.master == 2


def test_the_replacement_of_a_dead_replica_has_no_word_until_it_has_caught_up() -> None:
    cluster = run(MAJORITY_OF_3, [*grown(3), *WRITE, ("forget", 1, 1), ("register", 0, 0)])
    assert sorted(cluster.replicas) == [1, 3, 4]
    cluster.elect({3, 4})
    assert cluster.master is None, "what 1 and 2 acknowledged is on neither"
    cluster = run(MAJORITY_OF_3, [*grown(3), *WRITE, ("forget", 1, 1), ("register", 0, 0), ("sync", 2, 1)])
    cluster.elect({3, 4})
    assert cluster.master == 4, "it stands for the one it replaced"


def test_a_replacement_that_joined_before_the_dead_one_was_forgotten_stands_for_it() -> None:
    """The new replica is in the set, then the old one is forgotten, then the master dies."""
    dead = [("leave", 1, 1), ("register", 0, 0), ("sync", 3, 1), ("forget", 1, 1)]
    cluster = run(MAJORITY_OF_3, [*grown(3), *WRITE, ("copy", 2, 5), *dead])
    assert (sorted(cluster.replicas), cluster.group.members) == ([1, 3, 4], [1, 3, 4])
    cluster.elect({3, 4})
    assert cluster.master in (3, 4)


def test_a_member_that_is_forgotten_stays_a_holder() -> None:
    """What it and the master acknowledged is on no other member."""
    cluster = run(MAJORITY_OF_3, [*grown(3), *WRITE, ("forget", 1, 1)])
    assert cluster.group.holders == [1, 2, 3]


def test_a_young_group_that_never_had_a_majority_in_sync_elects_by_a_majority() -> None:
    cluster = run(MAJORITY_OF_3, [("register", 0, 0), ("register", 0, 0)])
    cluster.elect({2, 3})
    assert cluster.master == 2
