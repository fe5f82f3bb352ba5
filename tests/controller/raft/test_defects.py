"""Defects of PySyncObj that no other test repeats: docs/raft.md lists them all."""

import asyncio
import contextlib
import errno
import os
import socket
import threading
from functools import partial
from typing import Any

import pytest

from chaos.bugs import planted
from controller.raft.codec import decode_snapshot
from controller.raft.disk.journal import Journal
from controller.raft.library import library
from tests.fakes.controller.node import Lab, run
from tests.fakes.controller.raft_sim import Group, wait_for
from tests.fakes.controller.strangers import SECRET, End, Stranger, frame, members
from tests.fakes.disk.crashing import CrashingDisk, machine


def read_of_a_paused_leader(seed: int) -> int:
    """How many stale reads a leader answers that was paused until another one had committed."""
    group = Group(seed)

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        old = await group.wait_leader()
        assert await wait_for(lambda: all(m.up for m in group.members.values()))
        assert await group.propose()
        assert old.life is not None
        assert old.raft is not None
        group.loop.pause(old.life)
        others = [m for m in group.members.values() if m is not old]
        new = await wait_for(lambda: next((m for m in others if m.raft and m.raft.is_leader), None))
        assert new.raft is not None
        assert await group.inside(new, partial(new.raft.propose, b"behind its back"))

        async def read() -> bool:
            assert old.raft is not None
            await old.raft.barrier(1.0)
            group.stale_reads += b"behind its back" not in old.applied
            return True

        waiting = asyncio.ensure_future(group.inside(old, read))
        await asyncio.sleep(0.05)
        group.loop.resume(old.life)
        await waiting
        await group.settle()

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()
    return group.stale_reads


@pytest.mark.sim
def test_a_leader_that_was_paused_answers_no_read_that_waited_for_it() -> None:
    assert [read_of_a_paused_leader(seed) for seed in range(4)] == [0] * 4
    with planted("controller_reads_from_memory"):
        assert sum(read_of_a_paused_leader(seed) for seed in range(4)) > 0


async def test_a_member_that_ran_out_of_descriptors_listens_on() -> None:
    end = End("n1", members(), SECRET)
    await end.transport.start()
    held: list[int] = []  # filled one by one, so it has them all when the call below fails
    knocking = [socket.socket() for _ in range(5)]
    port = int(end.transport.addresses["n1"].rpartition(":")[2])
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
            held.extend(iter(partial(os.dup, knocking[0].fileno()), -1))
        for one in knocking:
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(("127.0.0.1", port))
        await asyncio.sleep(0.3)
    finally:
        for descriptor in held:
            os.close(descriptor)
        for one in knocking:
            one.close()
    try:
        member = await Stranger.to(end)
        key, _ = await asyncio.wait_for(member.shake(end, SECRET), 20)
        member.writer.write(frame(key, 1, b"through"))
        await wait_for(lambda: end.heard == [("n0", b"through")])
        member.writer.close()
    finally:
        await end.transport.stop()


async def test_a_name_that_takes_long_to_resolve_holds_up_nobody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = threading.Event()
    resolve = socket.getaddrinfo
    asked = threading.Event()

    def slow(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "n2.invalid":
            asked.set()
            found.wait(30)
        return resolve(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    addresses = {**members(), "n2": "n2.invalid:9000"}
    one, two = End("n0", addresses, SECRET), End("n1", addresses, SECRET)
    try:
        await two.transport.start()
        await one.transport.start()
        await wait_for(lambda: asked.is_set() and one.ups and two.ups)
        assert one.transport.send("n1", b"meanwhile")
        await wait_for(lambda: two.heard == [("n0", b"meanwhile")])
        assert not found.is_set()
    finally:
        found.set()
        await one.transport.stop()
        await two.transport.stop()


def test_a_commit_index_is_not_kept_so_it_cannot_be_ahead_of_the_entries() -> None:
    async def main() -> None:
        lab = Lab("")
        await asyncio.sleep(1)
        lab.node.tick()
        for number in range(5):
            lab.propose(b"%d" % number)
        lab.node.tick()
        assert lab.node.commit_index > 5
        assert Journal(lab.disk, "/raft/raft.journal", "a").getRaftCommitIndex() == 1

    run(main)


def test_entries_and_files_beyond_32_bits_are_kept() -> None:
    journal = Journal(CrashingDisk(machine()), "/raft/raft.journal", "a")
    journal.reset([(b"a", 2**40, 2**35), (b"b", 2**40 + 1, 2**35)])
    journal.add(b"c", 2**40 + 2, 2**36)
    journal.setCurrentTerm(2**36, "b")
    journal.sync()
    again = Journal(journal._disk, "/raft/raft.journal", "a")
    assert again[:] == journal[:]
    assert (again.getCurrentTerm(), again.last_index) == (2**36, 2**40 + 2)


def test_the_library_has_no_way_to_files_processes_chance_or_pickle() -> None:
    for name in ("pickle", "os", "time"):
        assert getattr(library, name) is None
    assert library.random.random() == 0.0

    async def main() -> None:
        assert library.monotonicTime() == asyncio.get_running_loop().time()
        assert Lab().node.conf.useFork is False

    run(main)


def test_state_is_what_the_owner_names_and_nothing_is_kept_beside_it() -> None:
    async def main() -> None:
        lab = Lab("", compact_entries=10)
        await asyncio.sleep(1)
        lab.node.tick()
        for number in range(30):
            lab.propose(b"%d" % number)
            lab.node.tick()
        assert lab.stored
        state = decode_snapshot(lab.stored[-1]).state
        assert state.split(b"\n") == lab.applied[: state.count(b"\n") + 1]

    run(main)
