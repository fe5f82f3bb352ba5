"""The promise of controller.raft on real sockets and files: kill, restart, damage, full disks."""

import errno
import os
from pathlib import Path

import pytest

from controller.raft.calls import StateMachine
from controller.raft.raft import ApplyFailed, NotLeader, Raft
from controller.raft.timing import RaftConfig
from model.errors import ConfigError, DiskError, Refused, Unknown
from runtime.os_env import OsDisk, OsEnv
from tests.fakes.controller.raft_live import CONFIG, Group, Member, numbers, run
from tests.fakes.controller.raft_sim import wait_for


def test_all_members_apply_the_same_commands(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        await group.propose(*numbers(1, 200))
        await group.all_hold(*numbers(1, 200))
        follower = await group.follower()
        with pytest.raises(NotLeader) as refused:
            await follower.raft.propose(b"x")
        assert refused.value.code == 2007
        assert refused.value.leader_id == (await group.leader()).name
        assert follower.raft.leader_id == (await group.leader()).name

    run(tmp_path, main)


def test_the_leader_is_killed_and_restarted_again_and_again(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        done: list[bytes] = []
        for turn in range(4):
            new = numbers(turn * 30 + 1, turn * 30 + 30)
            await group.propose(*new)
            done += new
            killed = group.kill((await group.leader()).name)
            await group.propose(b"without %d" % turn)
            done.append(b"without %d" % turn)
            await group.start(killed.name)
        await group.all_hold(*done)
        assert any((tmp_path / name / "raft.snapshot").exists() for name in group.addresses)

    run(tmp_path, main)


def test_the_whole_group_is_killed_and_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        await group.propose(*numbers(1, 60))
        term = (await group.leader()).raft.term
        for name in list(group.members):
            group.kill(name)
        await group.start()
        await group.propose(b"after")
        assert (await group.leader()).raft.term > term
        await group.all_hold(*numbers(1, 60), b"after")

    run(tmp_path, main)


def test_a_single_member_is_a_group_too(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        await group.propose(*numbers(1, 120))
        group.kill("n0")
        await group.start()
        await group.propose(b"after")
        await group.all_hold(*numbers(1, 120), b"after")

    run(tmp_path, main, count=1)


def test_a_stopping_leader_hands_over(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        await group.propose(b"one")
        leader = await group.leader()
        others = [m for m in group.members.values() if m is not leader]
        await leader.raft.stop()
        assert any(m.raft.is_leader for m in others)
        del group.members[leader.name]
        await group.propose(b"two")
        await leader.raft.stop()

    run(tmp_path, main)


def test_a_poison_command_fails_for_its_caller_only(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        leader = await group.leader()
        with pytest.raises(ApplyFailed, match="poison"):
            await leader.raft.propose(b"poison", 10)
        with pytest.raises(Refused, match="at most"):
            await leader.raft.propose(bytes(2 << 20))
        await group.propose(b"good")
        await group.all_hold(b"good")

    run(tmp_path, main)


def test_a_leader_without_majority_answers_unknown_and_stops_leading(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        leader = await group.leader()
        for name in [name for name in group.members if name != leader.name]:
            group.kill(name)
        with pytest.raises(Unknown):
            await leader.raft.propose(b"alone", 10)
        await wait_for(lambda: not leader.raft.is_leader)
        with pytest.raises(NotLeader):
            await leader.raft.barrier()
        assert "no leader among the Controllers" in (leader.raft.health() or "")

    run(tmp_path, main)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_leader_whose_disk_refuses_steps_down_and_comes_back_after_a_restart(
    tmp_path: Path, error: int
) -> None:
    async def main(group: Group) -> None:
        await group.start()
        await group.propose(b"before")
        leader = await group.leader()
        leader.disk.error = error
        with pytest.raises(Unknown, match="takes no part any more"):
            await leader.raft.propose(b"refused", 10)
        assert os.strerror(error) in str(leader.raft.health())
        assert not leader.raft.is_leader
        del group.members[leader.name]
        await group.propose(b"after")
        await leader.raft.stop()
        await group.start(leader.name)
        await group.all_hold(b"before", b"after")

    run(tmp_path, main)


def test_a_follower_whose_disk_refuses_leaves_the_others_working(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        follower = await group.follower()
        follower.disk.error = errno.EIO
        await group.propose(*numbers(1, 5))
        await wait_for(lambda: follower.raft.health() is not None)
        assert "takes no part any more" in str(follower.raft.health())

    run(tmp_path, main)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_damage_is_refused_with_advice_and_the_advice_works(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        for number in range(8):
            await group.propose(*numbers(number * 10 + 1, number * 10 + 10))
        await group.all_hold(*numbers(1, 80))
        name = (await group.follower()).name
        for file, at in (("raft.journal", 40), ("raft.snapshot", 60)):
            group.kill(name)
            flip(tmp_path / name / file, at)
            with pytest.raises(DiskError, match="remove its directory and start it again"):
                await group.start(name)
            for each in (tmp_path / name).iterdir():
                each.unlink()
            await group.start(name)
            await group.all_hold(*numbers(1, 80))
        assert (await group.leader()).raft.health() is None

    run(tmp_path, main)


def test_a_missing_journal_or_snapshot_is_refused(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        await group.propose(*numbers(1, 120))
        await group.all_hold(*numbers(1, 120))
        for name, file in (("n0", "raft.journal"), ("n1", "raft.snapshot")):
            group.kill(name)
            (tmp_path / name / file).unlink()
            with pytest.raises(DiskError, match="is gone"):
                await group.start(name)

    run(tmp_path, main)


def test_a_directory_serves_one_process(tmp_path: Path) -> None:
    class Held(OsDisk):
        def lock(self, path: str) -> "NoLock":  # type: ignore[override]
            raise BlockingIOError(path)

    class NoLock:
        def release(self) -> None:
            """Never taken."""

    async def main(group: Group) -> None:
        member = Member(group, "n0", str(tmp_path / "x"))
        member.raft._directory._disk = Held()
        with pytest.raises(DiskError, match="in use by another process"):
            await member.raft.start()

    run(tmp_path, main, count=1)


def test_configuration_that_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    def make(node: str, config: RaftConfig) -> None:
        machine = StateMachine(bytes, bytes, lambda _: None)
        Raft(OsEnv(), node, {"n0": "127.0.0.1:1"}, str(tmp_path), machine, config=config)

    with pytest.raises(ConfigError, match="n5 is not among"):
        make("n5", CONFIG)
    with pytest.raises(ConfigError, match="raftElectionMinMs"):
        make("n0", RaftConfig(append_ms=100, election_min_ms=200, election_max_ms=300))


def test_changes_of_leadership_are_told(tmp_path: Path) -> None:
    async def main(group: Group) -> None:
        await group.start()
        leader = await group.leader()
        other = await group.follower()
        seen: list[tuple[str | None, bool]] = []
        other.raft.on_change.append(lambda: seen.append((other.raft.leader_id, other.raft.is_leader)))
        group.kill(leader.name)
        new = await group.leader()
        await wait_for(lambda: seen and seen[-1] == (new.name, other is new))

    run(tmp_path, main)
