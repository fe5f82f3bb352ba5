"""The promise of controller.raft on disks that refuse one kind of call: what was answered stays, what was not
synced is not answered, and a member stops with a reason or goes on where that is safe."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from typing import Final

import pytest

from chaos.sim.disk import SimDisk
from chaos.sim.loop import Life
from controller.raft.codec import Ack, AppendEntries, RequestVote, Vote, decode_message
from controller.raft.disk.journal import Journal
from model.errors import DiskError
from tests.fakes.controller.raft_sim import Group, Member, wait_for
from tests.fakes.disk.crashing import machine
from tests.fakes.disk.refusing import JOURNAL, NEW_JOURNAL, NEW_SNAPSHOT, SNAPSHOT, Fault, RefusingDisk

pytestmark = pytest.mark.sim

COMPACT_ENTRIES: Final = 20

WRITE: Final = (("pwrite", errno.ENOSPC), ("pwrite", errno.EIO), ("sync", errno.EIO))
BESIDE: Final = (("open", errno.EMFILE), ("open", errno.ENFILE), ("open", errno.ENOSPC), *WRITE)
NAMES: Final = (("replace", errno.EIO), ("sync_dir", errno.EIO), ("sync_dir", errno.EMFILE))

Case = tuple[str, str, str, str, int, bool]
"""(what is being done, by whom, file, operation, error, whether the member goes on)."""

CASES: Final[list[Case]] = [
    *(
        (work, role, JOURNAL, operation, error, False)
        for work in ("append", "vote")
        for role in ("leader", "follower")
        for operation, error in WRITE
    ),
    *(
        ("compaction", role, NEW_SNAPSHOT, operation, error, True)
        for role in ("leader", "follower")
        for operation, error in (*BESIDE, *NAMES)
    ),
    *(
        ("compaction", role, NEW_JOURNAL, operation, error, (operation, error) in BESIDE)
        for role in ("leader", "follower")
        for operation, error in (*BESIDE, *NAMES)
    ),
    *(
        ("install", "follower", file, operation, error, False)
        for file in (NEW_SNAPSHOT, NEW_JOURNAL)
        for operation, error in (*BESIDE, *NAMES)
    ),
]


def named(case: Case) -> str:
    work, role, file, operation, error, _ = case
    return f"{work}-{role}-{file.removeprefix('raft.')}-{operation}-{errno.errorcode[error]}"


def played(main: Callable[[Group], Awaitable[None]], seed: int = 1) -> Group:
    group = Group(seed, compact_entries=COMPACT_ENTRIES)

    async def inside() -> None:
        await group.wait_leader()
        await proposed(group, 5)
        await wait_for(lambda: all(member.up for member in group.members.values()))
        await main(group)

    group.play(inside)
    return group


async def proposed(group: Group, count: int) -> None:
    """Have ``count`` commands acknowledged, by whoever leads."""
    wanted = len(group.acked) + count
    for _ in range(400):
        if len(group.acked) >= wanted:
            return
        if not await group.propose():
            await asyncio.sleep(0.05)
    raise TimeoutError(f"{wanted - len(group.acked)} of {count} commands are not acknowledged")


class Promises:
    """What a member said that it must still know after a power failure: its log as far as it counted for a
    majority, its term and its votes."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.term = 0
        self.votes: dict[int, str] = {}

    def listen(self, member: Member) -> None:
        assert member.raft is not None
        node = member.raft._node
        assert node is not None
        journal, outbox, send = node._journal, node._outbox, node._outbox._send

        def told(peer: str, body: bytes) -> bool:
            message = decode_message(body)
            if isinstance(message, AppendEntries | Ack | Vote | RequestVote):
                self.term = max(self.term, message.term)
            # A leader counts itself for all it sends.
            end = journal.last_index if isinstance(message, AppendEntries) else 0
            if isinstance(message, Ack) and message.success and not message.reset:
                end = message.next_index - 1
            if end:
                self.log = [(index, term) for _, index, term in journal[:] if index <= end]
            if isinstance(message, Vote) and message.granted:
                self.votes[message.term] = peer
            return bool(send(peer, body))

        outbox._send = told

    def broken(self, member: Member) -> list[str]:
        """What a member that just started does not know any more."""
        assert member.raft is not None
        journal = member.raft._directory.journal
        assert journal is not None
        held = {index: term for _, index, term in journal[:]}
        wrong = [f"entry {at}" for at, term in self.log if at >= min(held) and held.get(at) != term]
        if journal.getCurrentTerm() < self.term:
            wrong.append(f"term {self.term}")
        vote = self.votes.get(journal.getCurrentTerm())
        if vote not in (None, journal.getVotedForNodeId()):
            wrong.append(f"the vote for {vote}")
        return wrong


async def strike(group: Group, victim: Member, work: str, fault: Fault, promises: Promises) -> None:
    """Have ``victim`` do ``work`` while the fault stands, until the fault was met."""
    others = [member for member in group.members.values() if member is not victim]
    if work == "vote" and group.leader() is victim:
        # Cut off it hears nothing; healed it hears of a later term, and has to note it.
        for other in others:
            group.fabric.cut(victim.name, other.name)
            group.fabric.cut(other.name, victim.name)
        await wait_for(lambda: any(other.raft is not None and other.raft.is_leader for other in others))
        _fail(victim, fault)
        group.fabric.heal_all()
        await wait_for(lambda: fault.hits)
    elif work == "vote":
        leader = await group.wait_leader()
        _fail(victim, fault)
        leader.kill()
        await wait_for(lambda: fault.hits)
        await leader.start()
    elif work == "install":
        victim.kill()
        await proposed(group, 3 * COMPACT_ENTRIES)
        await victim.start()
        promises.listen(victim)
        _fail(victim, fault)
        await wait_for(lambda: fault.hits)
    else:
        _fail(victim, fault)
        for _ in range(4 * COMPACT_ENTRIES):
            if not fault.hits:
                await group.propose()
                await asyncio.sleep(0.01)
        assert fault.hits


def _fail(victim: Member, fault: Fault) -> None:
    assert victim.disk is not None, "it runs"
    victim.disk.fault = fault


async def chosen(group: Group, role: str) -> Member:
    leader = await group.wait_leader()
    if role == "leader":
        return leader
    return next(member for member in group.members.values() if member is not leader)


async def out_of_work(group: Group, victim: Member, reason: str) -> None:
    """It says why it stopped, holds nothing open, and the others go on."""
    assert victim.raft is not None
    assert victim.disk is not None
    health = str(victim.raft.health())
    assert "takes no part any more" in health
    assert reason in health
    assert (victim.raft.is_leader, victim.raft.leader_id, victim.raft.peers) == (False, None, [])
    assert victim.disk.descriptors == 0
    await proposed(group, 5)
    assert group.leader() is not victim


async def at_work(group: Group, victim: Member, reason: str) -> None:
    """It goes on with the journal it has, says what it cannot do, and does it when the disk lets it."""
    assert victim.raft is not None
    await proposed(group, 2 * COMPACT_ENTRIES)
    assert victim.raft.health() is None
    await wait_for(lambda: victim.applied[-1:] == group.acked[-1:])
    progress = victim.raft.progress
    assert progress is not None
    assert reason in str(progress.compaction_error)
    assert progress.journal_entries > 2 * COMPACT_ENTRIES
    assert victim.disk is not None
    assert victim.disk.descriptors == 1


async def compacted(victim: Member) -> None:
    assert victim.raft is not None
    assert victim.disk is not None
    victim.disk.fault = None

    def done() -> bool:
        progress = None if victim.raft is None else victim.raft.progress
        return (
            progress is not None
            and progress.compaction_error is None
            and progress.journal_entries <= COMPACT_ENTRIES
        )

    await wait_for(done)


async def rejoined(group: Group, victim: Member, promises: Promises, *, power: bool) -> None:
    """Restarted without the fault it is a member like the others; then all lose power, and hold the same."""
    victim.kill(power=power)
    await victim.start()
    assert promises.broken(victim) == []
    await wait_for(lambda: victim.up)
    await proposed(group, 3)
    await group.settle()
    for member in group.members.values():
        member.kill(power=True)
    await group.settle()


@pytest.mark.parametrize(
    "power", [pytest.param(False, marks=pytest.mark.more), True], ids=["killed", "powerless"]
)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_disk_that_refuses_costs_nothing_that_was_answered(case: Case, power: bool) -> None:
    work, role, file, operation, error, goes_on = case
    fault = Fault(operation, file, error)

    async def main(group: Group) -> None:
        victim = await chosen(group, role)
        promises = Promises()
        promises.listen(victim)
        await proposed(group, 3)
        await wait_for(lambda: promises.log)
        await strike(group, victim, work, fault, promises)
        if goes_on:
            await at_work(group, victim, os.strerror(error))
            if not power:
                await compacted(victim)
        else:
            await out_of_work(group, victim, os.strerror(error))
        await rejoined(group, victim, promises, power=power)

    group = played(main)
    assert group.verdict() == {}
    assert len(group.acked) > 10


def lost_after_a_failed_sync(seed: int = 1) -> dict[str, object]:
    """A leader and a follower whose sync failed hold a command; the third one never hears of it. The follower
    is started again, and then the leader is gone and all lose power."""

    async def main(group: Group) -> None:
        leader = await chosen(group, "leader")
        follower, third = (member for member in group.members.values() if member is not leader)
        for one, other in ((leader, third), (third, leader), (follower, third), (third, follower)):
            group.fabric.cut(one.name, other.name)
        fault = Fault("sync", JOURNAL, errno.EIO)
        _fail(follower, fault)
        answer = asyncio.ensure_future(group.propose())
        await wait_for(lambda: fault.hits)
        # Back before its leader gives up: there is no later write that would take the page along.
        follower.kill()
        await follower.start()
        assert await answer
        for member in group.members.values():
            member.kill(power=True)
        group.fabric.heal_all()
        await follower.start()
        await third.start()
        await wait_for(lambda: any(m.raft is not None and m.raft.is_leader for m in (follower, third)))
        await proposed(group, 3)
        await group.settle()

    return played(main, seed).verdict()


def test_what_a_failed_sync_left_in_memory_only_is_written_again_before_it_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lost_after_a_failed_sync(2) == {}
    # Without the second writing the start believes what only the page cache holds. Where half of the batch
    # reached the disk (seed 1) the cut costs the admission, so nothing is lost and the group waits.
    monkeypatch.setattr(Journal, "_write_again", lambda journal, data, last: None)
    assert any(what.startswith("lost on") for what in lost_after_a_failed_sync(2))


@pytest.mark.parametrize(
    ("operation", "file", "error"),
    [
        *(("open", file, error) for file in (JOURNAL, SNAPSHOT) for error in (errno.EMFILE, errno.EIO)),
        *((operation, JOURNAL, error) for operation, error in WRITE),
        ("sync_dir", "", errno.EIO),
        ("sync_dir", "", errno.EMFILE),
    ],
)
def test_a_start_the_disk_refuses_says_why_changes_nothing_and_leaves_nothing_open(
    operation: str, file: str, error: int
) -> None:
    async def main(group: Group) -> None:
        await proposed(group, 2 * COMPACT_ENTRIES)
        victim = await chosen(group, "follower")
        victim.kill()
        before = {path: victim.machine.content(path) for path in victim.machine.paths("/raft/raft.")}
        victim.fault = Fault(operation, file, error)
        with pytest.raises(DiskError, match=os.strerror(error)):
            await victim.start()
        assert victim.disk is not None
        assert victim.disk.descriptors == 0
        assert {path: victim.machine.content(path) for path in victim.machine.paths("/raft/raft.")} == before
        victim.fault = None
        await rejoined(group, victim, Promises(), power=False)

    assert played(main).verdict() == {}


def filled_and_freed(*, whole: bool, seed: int) -> Group:
    """Every member's disk (``whole``), or each follower's, is full for a while, and the leader is killed: who
    stands for election cannot write its term. Nobody is restarted but the killed one."""

    async def main(group: Group) -> None:
        leader = await chosen(group, "leader")
        full = [member for member in group.members.values() if whole or member is not leader]
        for member in full:
            member.machine.faults.full = True
        leader.kill()
        await asyncio.sleep(10)
        assert group.leader() is None
        stopped = [m for m in full if m.raft is not None]
        assert any("takes no part" in str(m.raft.health()) for m in stopped if m.raft is not None)
        for member in full:
            member.machine.faults.full = False
        await leader.start()
        await wait_for(lambda: all(member.up for member in group.members.values()))
        await proposed(group, 2 * COMPACT_ENTRIES)
        await group.settle()
        for member in group.members.values():
            member.kill(power=True)
        await group.settle()

    return played(main, seed)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("whole", [False, True], ids=["two", "three"])
def test_members_whose_disks_were_full_come_back_when_there_is_room(whole: bool, seed: int) -> None:
    group = filled_and_freed(whole=whole, seed=seed)
    assert group.verdict() == {}
    assert len(group.acked) > 2 * COMPACT_ENTRIES


def test_a_member_on_a_disk_that_stays_full_stays_out_and_does_not_disturb() -> None:
    async def main(group: Group) -> None:
        victim = await chosen(group, "follower")
        victim.machine.faults.full = True
        await proposed(group, 3)
        leader = await wait_for(group.leader)
        assert victim.raft is not None
        assert leader.raft is not None
        await wait_for(lambda: "takes no part" in str(victim.raft and victim.raft.health()))
        term = leader.raft.term
        for _ in range(10):
            await asyncio.sleep(1)
            assert "no space left" in str(victim.raft.health())
            assert victim.raft.peers == []
        assert (group.leader(), leader.raft.term) == (leader, term)
        assert victim.disk is not None
        assert victim.disk.descriptors == 0
        await victim.raft.stop()
        victim.machine.faults.full = False
        await asyncio.sleep(5)
        assert victim.disk.descriptors == 0, "stopped, it does not come back"
        victim.kill()

    played(main)


def test_a_member_that_came_back_has_the_state_of_its_log_and_nothing_else() -> None:
    """What it had applied before is applied once more to the state it began with."""

    async def main(group: Group) -> None:
        victim = await chosen(group, "follower")
        victim.machine.faults.full = True
        await proposed(group, 2)
        await wait_for(lambda: not victim.up)
        victim.machine.faults.full = False
        await wait_for(lambda: victim.up)
        await proposed(group, 2)
        await wait_for(lambda: victim.applied == group.acked)

    assert played(main).verdict() == {}


def test_a_disk_with_another_fault_is_left_alone_until_a_restart() -> None:
    async def main(group: Group) -> None:
        victim = await chosen(group, "follower")
        fault = Fault("pwrite", JOURNAL, errno.EIO)
        _fail(victim, fault)
        await proposed(group, 2)
        await wait_for(lambda: not victim.up)
        assert victim.disk is not None
        victim.disk.fault = None
        await asyncio.sleep(10)
        assert not victim.up
        await rejoined(group, victim, Promises(), power=False)

    assert played(main).verdict() == {}


def test_a_journal_that_cannot_be_replaced_is_what_it_was() -> None:
    on = machine()
    disk = RefusingDisk(SimDisk(on, Life("test", 0)), on)
    journal = Journal(disk, "/raft/raft.journal", "n0")
    for index in range(1, 13):
        journal.add(b"%d" % index, index, 2)
    before = journal[:]
    for operation, error in BESIDE:
        disk.fault = Fault(operation, NEW_JOURNAL, error)
        with pytest.raises(DiskError, match=os.strerror(error)):
            journal.deleteEntriesTo(5)
        assert disk.fault.hits == 1
        assert (journal.usable, journal[:], journal.dirty) == (True, before, True)
        assert on.paths("/raft/") == ["/raft/raft.journal"]
    disk.fault = None
    journal.sync()
    journal.close()
    assert Journal(disk, "/raft/raft.journal", "n0")[:] == before
