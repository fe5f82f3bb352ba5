"""The promise of ``keelmq group``: what is missing is said before anything is changed."""

from pathlib import Path

import pytest

from admin.commands import group as group_commands
from admin.commands.group import group
from admin.exits import DONE, UNFINISHED, USAGE, advised
from admin.exits import run as run_command
from client.admin import SyncState
from remoting.keys import Signer
from tests.fakes.controller.live import G, World, run
from tests.fakes.controller.raft_sim import wait_for
from tests.ports import free_ports


def test_half_an_address_is_wrong_usage(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(group, ["handover", "--controllers", "127.0.0.1:1"]) == USAGE
    assert "go together" in capfd.readouterr().err


def test_without_a_cluster_directory_the_group_must_be_named(capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["handover", "--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:2"]
    assert run_command(group, arguments) == USAGE
    assert "--group" in capfd.readouterr().err


def test_a_directory_without_a_cluster_is_wrong_usage(tmp_path: Path) -> None:
    assert run_command(group, ["handover", "--dir", str(tmp_path / "none")]) == USAGE


def test_controllers_that_are_all_dead_are_an_unfinished_handover(capfd: pytest.CaptureFixture[str]) -> None:
    one, two = free_ports(2)
    where = ["--controllers", f"127.0.0.1:{one}", "--namesrv", f"127.0.0.1:{two}"]
    assert run_command(group, ["handover", "--group", "broker-a", *where]) == UNFINISHED
    assert "no Controller is leader" in capfd.readouterr().err


def test_what_is_to_be_forgotten_must_be_said_one_way() -> None:
    where = ["forget", "--group", G, "--controllers", "127.0.0.1:1"]
    assert run_command(group, where) == USAGE
    assert run_command(group, [*where, "--all", "--broker", "1"]) == USAGE


def test_a_group_is_shown_and_a_dead_broker_forgotten_but_no_living_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def main(world: World) -> None:
        _, _, third = await world.brokers_up()
        at = [world.leader_address()]
        with pytest.raises(group_commands.CannotAsk, match="broker 3 of broker-a is alive"):
            await group_commands._forget(at, "c", G, (3,), None)
        with pytest.raises(group_commands.CannotAsk, match="has a master"):
            await group_commands._forget(at, "c", G, (), None)
        with pytest.raises(group_commands.CannotAsk, match="no group nothing"):
            await group_commands._state(at, "nothing")
        with pytest.raises(group_commands.CannotAsk, match="no broker 77: registered are 1, 2, 3"):
            await group_commands._forget(at, "c", G, (77,), None)
        await third.die()
        await wait_for(lambda: world.group()["brokers"]["3"]["alive"] is False)
        state = await group_commands._state(at, G)
        assert (state.master, sorted(state.in_sync), state.alive) == (
            1,
            [1, 2, 3],
            {1: True, 2: True, 3: False},
        )
        group_commands._print(state)
        with pytest.raises(group_commands.CannotAsk, match=r"member of the SyncStateSet.*--give-up"):
            await group_commands._forget(at, "c", G, (3,), None)
        assert sorted(world.group()["brokers"]) == ["1", "2", "3"]
        await group_commands._forget(at, "c", G, (3,), None, give_up=True)
        assert sorted(world.group()["brokers"]) == ["1", "2"]

    run(tmp_path, main)
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "broker-a: master 1, epoch 1"
    assert [line.split() for line in lines[1:]] == [
        ["broker", "1", "127.0.0.1:20001", "master", "in", "sync", "alive"],
        ["broker", "2", "127.0.0.1:20002", "slave", "in", "sync", "alive"],
        ["broker", "3", "127.0.0.1:20003", "slave", "in", "sync", "dead"],
    ]


def test_a_group_without_a_master_says_who_has_to_come_back(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        brokers = await world.brokers_up(2)
        assert (await brokers[0].alter([1], 1, 2)).code == 0
        await brokers[0].die()
        await wait_for(lambda: world.group()["master"] is None)
        answer = await brokers[1].elect()
        assert answer.remark == (
            "no broker of broker-a may become master: its SyncStateSet is [1], registered [1, 2], alive [2]"
        )

    run(tmp_path, main)


def test_show_signs_like_the_other_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str | None] = []

    async def state(at: list[str], name: str, key: Signer | None = None) -> SyncState:
        asked.append(None if key is None else key.access_key)
        return SyncState(G, None, None, 0, 0, {}, {}, {}, {}, {})

    monkeypatch.setattr(group_commands, "_state", state)
    path = tmp_path / "people.json"
    path.write_text('{"accessKey": "people", "secretKey": "0123456789abcdef"}')
    show = ["show", "--group", G, "--controllers", "127.0.0.1:1"]
    assert run_command(group, [*show, "--credentials", str(path)]) == DONE
    assert run_command(group, [*show, "--access-key", "root", "--secret-key", "password"]) == DONE
    monkeypatch.setenv("KEELMQ_CREDENTIALS_FILE", str(path))
    assert run_command(group, show) == DONE
    assert asked == ["people", "root", "people"]


def test_what_a_server_says_names_the_options_that_mend_it() -> None:
    assert "--access-key" in advised("username cannot be null.")
    assert "--tls-ca" in advised("the connection to h:1 ended before the answer")
    assert "--tls-ca" not in advised("the TLS connection to h:1 ended before the answer")
    assert advised("it wants a certificate: set tls.client.certPath and .keyPath") == (
        "it wants a certificate: give --tls-cert and --tls-key"
    )
