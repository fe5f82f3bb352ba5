"""The promise of the command line: a wrong use is one line that says what to do, and leaves nothing."""

from __future__ import annotations

from pathlib import Path

import click
import psutil
import pytest

from admin.exits import UNFINISHED, USAGE, run
from cli.main import command
from model.errors import Refused

WRONG = [
    (["nonsense"], "No such command 'nonsense'"),
    (["topic", "nonsense"], "No such command 'nonsense'"),
    (["topic", "list", "--dir", "nowhere"], "start one with keelmq cluster up"),
    (["topic", "list", "--dir", "x", "--namesrv", "h:1"], "name a cluster each"),
    (["topic", "list", "--namesrv", "no-port"], "no-port"),
    (["topic", "list", "--namesrv", ";;"], "--namesrv: ';;' names none"),
    (["topic", "list", "--namesrv", "[::1:9876"], "address '[::1:9876': expected host:port"),
    (["topic", "describe"], "Missing argument 'NAME'"),
    (["topic", "create", "bad topic!"], "illegal characters"),
    (["topic", "create", "t", "--queues", "0"], "--queues"),
    (["topic", "create", "t", "--perm", "x"], "'r', 'rw', 'w'"),
    (["topic", "alter", "t"], "nothing to change"),
    (["topic", "alter", "bad topic!", "--queues", "2"], "illegal characters"),
    (["topic", "alter", "t", "--queues", "2", "--read-queues", "1"], "--queues is for both"),
    (["topic", "alter", "t", "--attribute", "fifo"], "expected NAME=VALUE"),
    (["topic", "alter", "t", "--attribute", "+message.type=FIFO"], "expected NAME=VALUE"),
    (["topic", "alter", "t", "--read-queues", "70000"], "--read-queues"),
    (["group", "list"], "keelmq consumer list"),
    (["group", "reset", "billing"], "keelmq consumer reset"),
    (["consumer", "reset", "g", "t"], "say where to"),
    (["consumer", "reset", "g", "t", "--to-end", "--execute", "--dry-run"], "give one of them"),
    (["consumer", "reset", "g", "t", "--to-time", "soon"], "is no time"),
    (["consumer", "reset", "g", "t", "--to-offset", "-1"], "--to-offset"),
    (["consumer", "create", "bad/group"], "illegal characters"),
    (["consumer", "create", "g" * 121], "longer than group max length 120"),
    (["consumer", "delete"], "Missing argument 'GROUP'"),
    (["consumer", "delete", "CID_RMQ_SYS_TRANS"], "RocketMQ's own group"),
    (["message", "find", "t"], "say which"),
    (["message", "find", "bad topic!", "--key", "k"], "illegal characters"),
    (["message", "find", "t", "--id", "a", "--key", "b"], "an id names one message"),
    (["message", "find", "t", "--since", "yesterday"], "is no time"),
    (["message", "find", "t", "--since", "1h", "--until", "2h"], "must be later"),
    (["message", "find", "t", "--since", "\u00b2d"], "is no time"),
    (["message", "find", "t", "--since", "99999999999d"], "before 1970"),
    (["message", "find", "t", "--key", ""], "blank"),
    (["message", "find", "t", "--key", "k", "--max", "0"], "--max"),
    (["tail", "t", "--since", "1h", "--from-begin"], "exclude each other"),
    (["tail", "t", "--max", "0"], "--max"),
    (["tail", ""], "blank"),
    (["doctor", "--role", "broker"], "give -c"),
    (["doctor", "-c", "nowhere.conf"], "nowhere.conf"),
    (["doctor", "--namesrv", "x"], "expected host:port"),
    (["doctor", "--controllers", " "], "--controllers: ' ' names none"),
    (["doctor"], "start one with keelmq cluster up"),
    (["cluster", "restart"], "say --rolling"),
    (["cluster", "restart", "--rolling"], "start one with keelmq cluster up"),
    (["cluster", "restart", "--rolling", "--timeout", "0"], "--timeout"),
    (["producer", "describe"], "Missing argument 'GROUP'"),
    (["producer", "list"], "start one with keelmq cluster up"),
    (["top"], "start one with keelmq cluster up"),
    (["top", "--every", "0"], "--every"),
    (["top", "--every", "nan"], "'nan' is no number"),
    (["bench", "send", "t", "--rate", "nan"], "'nan' is no number"),
    (["cluster", "restart", "--rolling", "--timeout", "inf"], "'inf' is no number"),
    (["top", "--namesrv", "x"], "expected host:port"),
    (["top", "--namesrv", "h:1", "--controllers", "x"], "expected host:port"),
    (["console"], "start one with keelmq cluster up"),
    (["console", "--namesrv", "h:1", "--address", "0.0.0.0"], "give --password-file"),
    (["console", "--namesrv", "h:1", "--password-file", "nowhere"], "nowhere"),
    (["console", "--namesrv", "h:1", "--https-cert", "nowhere"], "go together"),
    (["console", "--namesrv", "h:1", "--every", "0"], "--every"),
    (["bench", "send"], "Missing argument 'TOPIC'"),
    (["bench", "send", "bad topic!"], "illegal characters"),
    (["bench", "send", "t"], "start one with keelmq cluster up"),
    (["bench", "send", "t", "--namesrv", "10.1.2.3:9876"], "--yes-remote"),
    (["bench", "send", "t", "--rate", "0"], "--rate"),
    (["bench", "send", "t", "--seconds", "100000"], "--seconds"),
    (["bench", "send", "t", "--size", "9-1"], "the smaller one first"),
    (["bench", "send", "t", "--size", "big"], "expected bytes"),
    (["bench", "send", "t", "--size", "4", "--end-to-end"], "16 bytes at least"),
    (["bench", "send", "t", "--in-flight", "0"], "--in-flight"),
    (["bench", "consume", "t", "--namesrv", "h:1"], "--yes-remote"),
    (["send", "t"], "nothing to send"),
    (["send", "t", "--lines-from", "nowhere"], "nowhere"),
    (["send", "t", "x", "--property", "novalue"], "expected NAME=VALUE"),
    (["send", "t", "x", "--namesrv", "h:1", "--access-key", "a"], "go together"),
    (["demo", "--nonsense"], "No such option '--nonsense'"),
    (["drill", "nonsense"], "No such command 'nonsense'"),
    (["drill", "heal", "nowhere"], "'nowhere' does not exist"),
    (["audit"], "Missing argument 'STORE...'"),
    (["store", "verify", "nowhere"], "'nowhere' does not exist"),
    (["group", "show", "--controllers", "x"], "expected host:port"),
    (["group", "show", "--controllers", ","], "--controllers: ',' names none"),
    (
        ["group", "handover", "--group", "g", "--controllers", "h:1", "--namesrv", ""],
        "--namesrv: '' names none",
    ),
    (["group", "handover"], "start one with keelmq cluster up"),
    (["maintenance", "on"], "Missing argument 'BROKER'"),
    (["maintenance", "sideways", "1"], "No such command 'sideways'"),
    (["backup", "create", "nowhere", "kept"], "'nowhere' does not exist"),
    (["backup", "verify", "s3:/x"], "neither a directory nor a URL"),
    (["cluster", "up", "--brokers", "0"], "--brokers"),
    (["broker", "-c", "nowhere.conf"], "nowhere.conf"),
    (["namesrv", "--set", "listenPort=x"], "listenPort=x: expected a whole number"),
    (["broker", "--set", "brokerName="], "brokerName= must not be blank"),
    (["controller", "--set", "x"], "expected key=value"),
    (["broker", "--set", "metricsExporterType=x"], "expected one of DISABLE, OTLP_GRPC"),
    (["user", "list", "--namesrv", "x"], "expected host:port"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=[" ".join(a) for a, _ in WRONG])
def test_a_wrong_use_is_one_line(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(psutil.Process().children())
    assert run(command(), arguments) == USAGE
    assert set(psutil.Process().children()) <= before, "nothing is left running"
    assert list(tmp_path.iterdir()) == [], "nor lying"
    said = capsys.readouterr()
    assert said.out == ""
    assert text in said.err
    assert len(said.err.splitlines()) == 1, said.err


def test_what_a_server_says_in_several_lines_is_one(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command
    def asks() -> None:
        raise Refused("No topic route info in name server for the topic: t\nSee the page about it.\n", 17)

    assert run(asks, []) == UNFINISHED
    told = "keelmq: No topic route info in name server for the topic: t See the page about it.\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize(
    ("name", "lines", "settings", "told"),
    [
        (
            "b.conf",
            ["# ours", "brokerNam=x"],
            [],
            "b.conf: line 2: unknown key brokerNam; did you mean brokerName?",
        ),
        ("b.toml", ["", "listenPort = 70000"], [], "b.toml: line 2: listenPort=70000: must be at most 65535"),
        ("b.conf", ["listenPort=1"], ["listenPort=0x1"], "listenPort=0x1: expected a whole number"),
        ("b.conf", ["brokerRole=BOSS"], [], "b.conf: line 1: brokerRole=BOSS: expected ASYNC_MASTER"),
    ],
)
def test_a_mistake_of_a_server_is_told_with_its_file_and_line(
    name: str,
    lines: list[str],
    settings: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("\n".join(lines))
    asked = ["broker", "-c", name, *(f"--set={setting}" for setting in settings)]
    assert run(command(), asked) == USAGE
    assert capsys.readouterr().err.startswith(f"keelmq: {told}")
