"""The promise of ``keelmq controller``: it runs a server as ever, and with a command it moves leadership."""

from pathlib import Path

import pytest

from admin import server_commands as commands
from admin.exits import UNFINISHED, USAGE
from admin.exits import run as run_command
from tests.controller.ports import free_ports


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
