"""The promise of ``keelmq group``: what is missing is said before anything is changed."""

from pathlib import Path

import pytest

from admin.exits import UNFINISHED, USAGE
from admin.exits import run as run_command
from admin.group_commands import group
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
