"""The promise of a server's log: levels, form and files as the environment says, and at run time."""

from __future__ import annotations

import json
import logging
import os
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.commands.server import broker
from admin.exits import USAGE, run
from admin.host.log_setup import LogOptions, RotatingFile, apply_levels, on_signal, set_up, set_up_command
from admin.host.logs import JsonFormatter, LineFormatter
from model import installed
from model.errors import ConfigError
from tests import ROOT

AT_S = 1_800_000_000.0  # a whole multiple of an hour


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was afterwards."""
    found = logging.getLogger()
    level = found.level
    yield found
    found.setLevel(level)
    for name in ("controller.raft", "admin", "admin.console"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def record(text: str, at_s: float = AT_S, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "keelmq", "levelno": 20, "levelname": "INFO", "msg": text, **extra})
    made.created = at_s
    return made


def file(path: Path, size_bytes: int = 0, period_s: int = 0, kept: int = 7) -> RotatingFile:
    options = LogOptions(file=str(path), size_bytes=size_bytes, period_s=period_s, kept=kept)
    handler = RotatingFile(options)
    handler.setFormatter(LineFormatter("broker@h:1"))
    return handler


def test_a_line_has_date_zone_level_and_server() -> None:
    line = LineFormatter("broker@10.0.0.1:10911").format(record("event promoted epoch=1"))
    when, rest = line.split(" ", 1)
    assert len(when) == len("2026-11-23T23:31:23.692+00:00")
    assert rest == "I broker@10.0.0.1:10911 keelmq: event promoted epoch=1"


def test_json_is_one_object_a_line_whatever_stands_in_it() -> None:
    hostile = 'x"}\n{"level":"ERROR"\x1b[2J\u2028\ud800'
    line = JsonFormatter("b").format(
        record(hostile, event="promoted", fields={"epoch": 7, "level": "forged"})
    )
    assert line.isprintable()
    found = json.loads(line)
    assert found["message"] == hostile
    assert (found["level"], found["server"], found["event"], found["epoch"]) == ("INFO", "b", "promoted", 7)
    try:
        raise ValueError(hostile)
    except ValueError as error:
        broken = record("it broke", exc_info=(type(error), error, error.__traceback__))
    assert "ValueError" in json.loads(JsonFormatter("b").format(broken))["traceback"]


def test_loggers_have_levels_of_their_own_and_signals_change_them(root: logging.Logger) -> None:
    options = LogOptions.of({"KEELMQ_LOG": "warning, controller.raft=DEBUG"})
    raft = logging.getLogger("controller.raft")
    apply_levels(options)
    assert (root.level, raft.getEffectiveLevel()) == (logging.WARNING, logging.DEBUG)
    on_signal(signal.SIGUSR1, options)
    assert (root.level, raft.getEffectiveLevel()) == (logging.DEBUG, logging.DEBUG)
    on_signal(signal.SIGUSR2, options)
    assert (root.level, raft.getEffectiveLevel()) == (logging.WARNING, logging.DEBUG)


@pytest.mark.parametrize("prefix", ["", "keelmq."], ids=["checkout", "wheel"])
def test_a_logger_has_one_name_in_a_checkout_and_in_a_wheel(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "PREFIX", prefix)
    for name in ("controller.raft", "keelmq.controller.raft"):
        levels = LogOptions.of({"KEELMQ_LOG": f"INFO,{name}=DEBUG,asyncio=ERROR"}).levels
        assert levels == {f"{prefix}controller.raft": "DEBUG", "asyncio": "ERROR"}
    assert LogOptions.of({"KEELMQ_LOG": "keelmq.audit=ERROR"}).levels == {"keelmq.audit": "ERROR"}
    shown = {f"{prefix}broker.role.x": "broker.role.x", "keelmq": "keelmq", "keelmq.audit": "keelmq.audit"}
    for name, text in shown.items():
        assert f" {text}: event" in LineFormatter("b").format(record("event", name=name))
        assert json.loads(JsonFormatter("b").format(record("event", name=name)))["logger"] == text


@pytest.mark.parametrize("prefix", ["", "keelmq."], ids=["checkout", "wheel"])
def test_keelmq_is_all_of_ours_and_one_of_them_may_differ(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "PREFIX", prefix)
    levels = LogOptions.of({"KEELMQ_LOG": "controller=DEBUG,keelmq=WARNING"}).levels

    def level(name: str) -> str:
        return levels.get(name) or (level(name.rpartition(".")[0]) if "." in name else "")

    assert level(f"{prefix}controller.raft") == "DEBUG"
    assert {level(f"{prefix}{name}.x") for name in installed.OURS if name != "controller"} == {"WARNING"}
    assert level("keelmq.audit") == "WARNING"
    assert level("asyncio") == ""


def test_our_packages_are_those_that_move_in_a_wheel() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert list(installed.OURS) == wheel["hooks"]["custom"]["packages"]


@pytest.mark.parametrize(
    "name",
    ["KEELMQ_LOG", "KEELMQ_LOG_FORMAT", "KEELMQ_LOG_FILE_BYTES", "KEELMQ_LOG_FILE_HOURS", "KEELMQ_LOG_FILES"],
)
def test_what_is_wrong_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        LogOptions.of({name: "VERBOSE"})


def test_a_server_with_a_wrong_level_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], root: logging.Logger
) -> None:
    monkeypatch.setenv("KEELMQ_LOG", "VERBOSE")
    assert run(broker, ["--set", "brokerRole=SYNC_MASTER"]) == USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "KEELMQ_LOG" in error
    monkeypatch.setenv("KEELMQ_LOG", "INFO")
    monkeypatch.setenv("KEELMQ_LOG_FILE", "/dev/null/x")
    assert run(broker, ["--set", "brokerRole=SYNC_MASTER"]) == USAGE
    assert "KEELMQ_LOG_FILE=/dev/null/x" in capsys.readouterr().err


def test_a_file_is_rotated_by_size_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    handler = file(path, size_bytes=200, kept=2)
    for number in range(12):
        handler.handle(record(f"{number:040}"))
    handler.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(one.stat().st_size <= 200 for one in tmp_path.iterdir())
    assert path.read_text().rstrip().endswith("11")


def test_a_file_is_rotated_by_time_also_when_the_server_was_restarted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for at_s, left in ((AT_S, 0), (AT_S + 10, 0), (AT_S + 3600, 1)):
        handler = file(path, period_s=3600)
        handler.handle(record("x", at_s))
        handler.close()
        os.utime(path, (at_s, at_s))
        assert (tmp_path / "log.1").exists() == bool(left)
    assert len((tmp_path / "log.1").read_text().splitlines()) == 2
    handler = file(path, period_s=3600)
    handler.handle(record("y", AT_S + 3601))
    handler.handle(record("z", AT_S + 7200))
    handler.close()
    assert (tmp_path / "log.2").exists()
    assert path.read_text().rstrip().endswith("z")


def test_no_old_file_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    handler = file(tmp_path / "log", size_bytes=200, kept=0)
    for number in range(12):
        handler.handle(record(f"{number:040}"))
    handler.close()
    assert [one.name for one in tmp_path.iterdir()] == ["log"]
    assert (tmp_path / "log").stat().st_size <= 200


def test_it_is_set_up_from_the_environment(
    tmp_path: Path, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root, "handlers", [])  # pytest's own came after the fixture
    environment = {"KEELMQ_LOG_FILE": str(tmp_path / "log"), "KEELMQ_LOG_FORMAT": "json"}
    set_up("namesrv@h:1", environment)
    logging.getLogger("keelmq").info("hello")
    (handler,) = root.handlers
    handler.close()
    assert json.loads((tmp_path / "log").read_text())["server"] == "namesrv@h:1"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("", True),
        ("WARNING", True),
        ("DEBUG", True),
        ("INFO,admin=ERROR", False),
        ("admin.console=ERROR", False),
    ],
)
def test_a_command_says_what_people_did_and_writes_no_servers_file(
    said: str, shown: bool, tmp_path: Path, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root, "handlers", [])
    acts = logging.getLogger("admin.console.pages")
    set_up_command(
        "console@h:1", "admin.console", {"KEELMQ_LOG": said, "KEELMQ_LOG_FILE": str(tmp_path / "log")}
    )
    assert acts.isEnabledFor(logging.INFO) is shown
    assert list(tmp_path.iterdir()) == []
