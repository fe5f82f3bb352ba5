"""The promise of ``keelmq controller replace``: a new machine takes a lost one's place, and it says so."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from admin.commands import server
from admin.commands.controllers import replace
from admin.exits import UNFINISHED, USAGE
from admin.exits import run as run_command
from admin.host.serve import plan
from admin.local.cluster import LocalCluster
from cli.main import command
from client.admin import AdminClient
from controller.service import Controller
from model.errors import Refused, Unknown
from remoting.auth import Credentials
from runtime.os_env import OsEnv
from tests.fakes.controller.live import World, run
from tests.fakes.controller.raft_sim import wait_for
from tests.ports import free_ports


async def follower(world: World) -> str:
    await wait_for(lambda: all(c.health() is None for c in world.running.values()))
    leader = world.leader()
    return next(name for name, controller in world.running.items() if controller is not leader)


def moved(world: World, name: str, ports: list[int]) -> Controller:
    """The Controller ``name`` on a new machine: other ports, an empty directory."""
    addresses = {**world.addresses, name: f"127.0.0.1:{ports[0]}"}
    raft = dict(part.split("-", 1) for part in world.values["raftPeers"].split(";"))
    raft[name] = f"127.0.0.1:{ports[1]}"
    return world.make(
        name,
        controllerDLegerPeers=";".join(f"{node}-{address}" for node, address in addresses.items()),
        raftPeers=";".join(f"{node}-{address}" for node, address in raft.items()),
        controllerStorePath=str(world.root / "new"),
    )


async def led_by(admin: AdminClient, at: list[str], name: str) -> tuple[str, str]:
    """A transfer whose end nobody saw, as in an election, is asked for again, as an operator does."""
    for _ in range(20):
        try:
            return await admin.transfer_leadership(at, name)
        except (Refused, Unknown) as error:
            if isinstance(error, Refused) and "outcome not known" not in error.remark:
                raise
            await asyncio.sleep(0.2)
    raise AssertionError(f"{name} did not come to lead")


def test_a_new_machine_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        old = await follower(world)
        await world.kill(old)
        ports = free_ports(2)
        address, raft = (f"127.0.0.1:{port}" for port in ports)
        at = [world.leader_address()]
        assert await replace._replace(at, old, address, raft, None) == (1, raft)
        new = world.running["new"] = moved(world, old, ports)
        await new.start()
        await wait_for(lambda: new.health() is None)
        for controller in world.running.values():
            assert f"{old}:{address};" in controller._metadata()["peers"]
            assert controller.status()["replaced"] == {old: {"incarnation": 1, "address": address}}
        again = world.running["again"] = world.make(old)
        await again.start()
        await asyncio.sleep(1)
        await wait_for(lambda: again.raft.peers == [] and again.health() is not None)
        await wait_for(lambda: new.health() is None)
        # It leads like any other, and is found where it is.
        async with AdminClient(OsEnv(), at) as admin:
            assert await led_by(admin, at, old) == (old, address)

    run(tmp_path, main, count=3)


def test_what_cannot_be_replaced_is_said_and_changes_nothing(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        old = await follower(world)
        (port,) = free_ports(1)
        at, new = [world.leader_address()], f"127.0.0.1:{port}"
        leader = world.leader()
        assert leader is not None
        for wanted, address, why in (
            (leader.raft.node_id, new, "leads: make another one leader first"),
            ("n9", new, "n9 is not another member"),
            (old, "10.0.0.9:1", "raftSecretFile is needed"),
            (old, "nowhere", "expected host:port"),
        ):
            with pytest.raises(replace.CannotReplace, match=why):
                await replace._replace(at, wanted, address, None, None)
        await world.kill(old)
        (other,) = set(world.running) - {leader.raft.node_id}
        with pytest.raises(replace.CannotReplace, match=f"without {other} only 1 of 3"):
            await replace._replace(at, other, new, None, None)
        assert leader.status()["replaced"] == {}

    run(tmp_path, main, count=3)


def test_no_port_of_another_member_is_taken_and_a_member_that_answers_keeps_its_seat(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        old = await follower(world)
        leader = world.leader()
        assert leader is not None
        at, raft = [world.leader_address()], leader.raft.addresses
        address, free = (f"127.0.0.1:{port}" for port in free_ports(2))
        for name in set(world.addresses) - {old}:
            for kind, taken in (("request", world.addresses[name]), ("Raft", raft[name])):
                for wanted in ((taken, free), (address, taken)):
                    with pytest.raises(replace.CannotReplace, match=f"{taken} is the {kind} port of {name}"):
                        await replace._replace(at, old, *wanted, None, lost=True)
        with pytest.raises(replace.CannotReplace, match="are one port"):
            await replace._replace(at, old, address, address, None, lost=True)
        with pytest.raises(replace.CannotReplace, match=f"{old} answers, .*--yes"):
            await replace._replace(at, old, address, free, None)
        assert leader.status()["replaced"] == {}
        assert await replace._replace(at, old, address, free, None, lost=True) == (1, free)

    run(tmp_path, main, count=3)


def test_it_says_what_it_did_and_what_to_do_next(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async def done(
        controllers: list[str], old: str, new: str, raft: str | None, key: Credentials | None, *, lost: bool
    ) -> tuple[int, str]:
        assert not lost
        assert (controllers, old, new, raft, key) == (["127.0.0.1:1"], "n2", "h:9878", None, None)
        return 1, "h:9888"

    monkeypatch.setattr(replace, "_replace", done)
    arguments = ["replace", "n2", "h:9878", "--controllers", "127.0.0.1:1"]
    assert run_command(server.controller, arguments) == 0
    said = capfd.readouterr().out
    assert "Controller n2 is at h:9878 from now on (Raft h:9888, incarnation 1)." in said
    assert "an empty controllerStorePath" in said
    assert run_command(server.controller, [*arguments, "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == {
        "id": "n2",
        "address": "h:9878",
        "raftAddress": "h:9888",
        "incarnation": 1,
    }


def test_without_a_leader_nothing_is_replaced(capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    arguments = ["replace", "n1", "127.0.0.1:9", "--controllers", f"127.0.0.1:{port}"]
    assert run_command(server.controller, arguments) == UNFINISHED
    assert "no Controller is leader" in capfd.readouterr().err
    assert run_command(server.controller, ["replace", "n1"]) == USAGE


def test_without_a_cluster_here_it_says_how_to_name_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (["controller", "replace", "n2", "10.0.0.9:9878"], ["group", "forget", "--broker", "1"]):
        assert run_command(command(), arguments) == USAGE
        assert "--controllers 'HOST:PORT;...' (controllerAddr in a broker's file)" in capsys.readouterr().err
    for arguments in (["topic", "list"], ["doctor"]):
        assert run_command(command(), arguments) == USAGE
        assert "--namesrv 'HOST:PORT;...' (namesrvAddr in a broker's file)" in capsys.readouterr().err


def test_of_a_local_cluster_the_ports_are_its_own_and_its_directory_knows_the_new_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = LocalCluster.create(tmp_path, base_port=21200)
    asked: list[object] = []

    async def replaced(
        admin: object, at: list[str], old: str, new: str, raft: str, *, lost: bool
    ) -> tuple[int, str]:
        asked.append((at, old, new, raft))
        return 1, raft

    monkeypatch.setattr(AdminClient, "replace_controller", replaced)
    there = ["--dir", str(tmp_path)]
    assert run_command(command(), ["controller", "replace", "n2", "127.0.0.1:21290", *there]) == 0
    before = ["127.0.0.1:21201", "127.0.0.1:21211", "127.0.0.1:21221"]
    assert asked == [(before, "n2", "127.0.0.1:21290", "127.0.0.1:21291")]
    assert "Raft 127.0.0.1:21291" in capsys.readouterr().out
    assert run_command(command(), ["cluster", "status", *there]) == 0
    assert "controller   n2  127.0.0.1:21290" in capsys.readouterr().out
    layout = LocalCluster.open(tmp_path).layout
    moved, other = (layout.conf(layout.node(name), tmp_path) for name in ("namesrv-2", "namesrv-0"))
    assert plan("namesrv", moved), "a NameServer starts with that"
    assert not [key for key in moved if "ontroller" in key or "raft" in key], "and no Controller in it"
    assert other["enableControllerInNamesrv"] == "true"
    assert other["controllerDLegerPeers"].endswith("n2-127.0.0.1:21290")
    assert other["raftPeers"].endswith("n2-127.0.0.1:21291")
    broker = layout.conf(layout.node("broker-a-0"), tmp_path)
    assert broker["controllerAddr"].split(";")[2] == "127.0.0.1:21290"
    back = ["controller", "replace", "n2", "127.0.0.1:21221", *there]
    assert run_command(command(), back) == 0
    assert LocalCluster.open(tmp_path).layout == cluster.layout, "where it was at first"
