"""The promise of ``keelmq controller``: it runs a server as ever, and with a command it moves leadership."""

from pathlib import Path

import pytest

from admin.commands import server as commands
from admin.commands.controllers import transfer
from admin.exits import UNFINISHED, USAGE
from admin.exits import run as run_command
from remoting.auth import Credentials
from tests.fakes.controller.live import World, run
from tests.ports import free_ports
from tests.remoting.keys import KEY, key_file


def test_without_a_command_a_server_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[object] = []

    def serve(*what: object) -> int:
        served.append(what)
        return 7

    monkeypatch.setattr(commands, "serve", serve)
    assert run_command(commands.controller, ["-c", "c.conf", "--set", "a=b", "--set", "c=d"]) == 7
    assert run_command(commands.controller, []) == 7
    assert served == [("controller", "c.conf", ("a=b", "c=d")), ("controller", None, ())]


def test_a_servers_options_do_not_go_with_a_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(commands.controller, ["-c", "c.conf", "transfer"]) == USAGE
    assert "are for running a Controller" in capfd.readouterr().err


def test_help_names_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(commands.controller, ["--help"]) == 0
    assert "transfer" in capfd.readouterr().out


def test_a_directory_without_a_cluster_is_wrong_usage(tmp_path: Path) -> None:
    assert run_command(commands.controller, ["transfer", "--dir", str(tmp_path / "none")]) == USAGE


def test_without_a_leader_nothing_is_moved(capfd: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    arguments = ["transfer", "--to", "n1", "--controllers", f"127.0.0.1:{port}"]
    assert run_command(commands.controller, arguments) == UNFINISHED
    assert "no Controller is leader" in capfd.readouterr().err


def test_the_key_is_taken_from_the_option_else_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text('{"accessKey": "one", "secretKey": "0123456789abcdef"}')
    two.write_text('{"accessKey": "two", "secretKey": "0123456789abcdef"}')
    used: list[str | None] = []

    async def moved(
        controllers: list[str], transfer_target: str | None, key: Credentials | None
    ) -> tuple[str, str]:
        used.append(key.access_key if key is not None else None)
        return "n1", controllers[0]

    monkeypatch.setattr(transfer, "_transfer", moved)
    arguments = ["transfer", "--controllers", "127.0.0.1:1"]
    assert run_command(commands.controller, arguments) == 0
    monkeypatch.setenv("KEELMQ_CREDENTIALS_FILE", str(two))
    assert run_command(commands.controller, arguments) == 0
    assert run_command(commands.controller, [*arguments, "--credentials", str(one)]) == 0
    assert used == [None, "two", "one"]
    assert run_command(commands.controller, [*arguments, "--credentials", str(tmp_path / "none")]) == USAGE
    assert "--credentials=" in capfd.readouterr().err


def test_a_leader_with_a_key_moves_only_for_who_has_it(tmp_path: Path) -> None:
    moved: list[tuple[str, str]] = []

    async def main(world: World) -> None:
        leader = world.leader_address()
        other = next(name for name, address in world.addresses.items() if address != leader)
        with pytest.raises(transfer.CannotTransfer, match="KEELMQ_TRANSFER_LEADERSHIP must be signed"):
            await transfer._transfer([leader], other, None)
        assert world.leader_address() == leader
        moved.append(await transfer._transfer([leader], other, KEY))
        assert moved == [(other, world.addresses[other])]

    run(tmp_path, main, count=3, peerCredentialsFile=key_file(tmp_path))
