"""The promise to busy and old groups: docs/pain-points.md, rows B29 and B30."""

import pytest

from controller.raft.codec import Ack, AppendEntries
from controller.raft.node import Node
from runtime.env import read_file
from tests.fakes.controller.node import Lab, run
from tests.fakes.controller.raft_sim import Group, wait_for

COMPACT_ENTRIES = 100


def after(commands: int) -> tuple[int, int]:
    """Entries in the journal, and commands applied by a restart, when so many were decided."""
    group = Group(5, compact_entries=COMPACT_ENTRIES)
    found: list[int] = []

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        leader = await group.wait_leader()
        assert leader.raft is not None
        done = [await group.propose() for _ in range(commands)]
        assert all(done)
        assert leader.raft._directory.journal is not None
        found.append(len(leader.raft._directory.journal))
        for member in group.members.values():
            member.kill()
        for member in group.members.values():
            await member.start()
        await group.settle()
        await wait_for(lambda: len(leader.applied) > commands)
        found.append(leader.replayed)

    try:
        group.loop.run_until_complete(main())
        assert group.verdict() == {}
    finally:
        group.loop.close()
    return found[0], found[1]


@pytest.mark.sim
def test_b29_neither_the_journal_nor_a_restart_grows_with_what_was_ever_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for commands in (450, 1350):
        entries, replayed = after(commands)
        assert entries < 2 * COMPACT_ENTRIES
        assert replayed < 2 * COMPACT_ENTRIES
    monkeypatch.setattr(Node, "compact", lambda node: None)
    assert min(after(450)) > 2 * COMPACT_ENTRIES


def test_b30_commands_that_wait_together_share_a_sync_and_a_message() -> None:
    async def main() -> None:
        lab = Lab()
        term = await lab.lead()
        lab.node.received("b", Ack(term, lab.journal.last_index + 1, reset=False, success=True))
        lab.node.tick()
        lab.said.clear()

        def syncs() -> int:
            return read_file(lab.disk, lab.journal.path).count(b"KRB1")

        before = syncs()
        for number in range(500):
            lab.propose(b"%d" % number)
        lab.node.tick()
        to_b = [m for peer, m in lab.said if peer == "b" and isinstance(m, AppendEntries) and m.entries]
        assert syncs() - before == 1
        assert [len(message.entries) for message in to_b] == [500]
        lab.node.received("b", Ack(term, lab.journal.last_index + 1, reset=False, success=True))
        lab.node.tick()
        assert lab.results == [(b"%d" % number, None) for number in range(1, 501)]

    run(main)
