"""The promise of the shell's commands: topics, consumer groups and messages, without Java."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from admin.exits import run
from cli.main import command
from client.pull import PullConsumer
from runtime.os_env import OsEnv
from tests import ROOT

pytestmark = pytest.mark.live


class Shell:
    """Runs commands in this process: a start of Python for each would take most of the time."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str, code: int = 0, stdin: str = "") -> str:
        """What ``keelmq ARGUMENTS`` prints; it must end with ``code``."""
        out, errors = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(errors):
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            ended = run(command(), [*arguments, "--dir", str(self.directory)])
        assert ended == code, out.getvalue() + errors.getvalue()
        assert "Traceback" not in errors.getvalue()
        return out.getvalue() if code == 0 else errors.getvalue()

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json"))

    def lines(self, *arguments: str, stdin: str = "") -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--json", stdin=stdin).splitlines()]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell(tmp_path_factory.mktemp("cluster"))
    try:
        shell("cluster", "up", "--controllers", "1", "--brokers", "1")
        yield shell
    finally:
        shell("cluster", "down")


def read(shell: Shell, group: str, topic: str, upto: int) -> None:
    """Have ``group`` commit ``upto`` in every queue."""

    namesrv = shell.json("cluster", "status")["namesrv"]

    async def work() -> None:
        async with PullConsumer(OsEnv(), group, namesrv) as consumer:
            for queue in await consumer.queues(topic):
                await consumer.pull(queue, 0)
                await consumer.commit(queue, upto)

    asyncio.run(work())


def test_a_topic_is_made_seen_filled_and_deleted(shell: Shell) -> None:
    assert shell("topic", "create", "orders", "--queues", "2") == "orders: 2 queues on broker-a\n"
    assert shell.json("topic", "list") == ["orders"]
    assert "SCHEDULE_TOPIC_XXXX" in shell.json("topic", "list", "--all")
    sent = shell.lines("send", "orders", "one", "two", "--key", "k", "--tag", "t", "--property", "a=b")
    assert [one["status"] for one in sent] == ["SEND_OK", "SEND_OK"]
    assert sorted((q["minOffset"], q["maxOffset"]) for q in shell.json("topic", "describe", "orders")) == [
        (0, 1),
        (0, 1),
    ]
    assert "deleted, and 2 messages" in shell("topic", "delete", "orders", "--yes")
    assert shell.json("topic", "list") == []


def test_messages_are_sent_from_lines_and_files_and_shown_by_time_tag_and_key(
    shell: Shell, tmp_path: Path
) -> None:
    shell("topic", "create", "tailed", "--queues", "1")
    file = tmp_path / "body"
    file.write_bytes(b"from a file \x00\xff")
    shell("send", "tailed", "--lines", stdin="first\nsecond\n")
    shell("send", "tailed", "--file", str(file), "--tag", "paid", "--key", "4711")
    every = shell.lines("tail", "tailed", "--from-begin", "--no-follow")
    assert [m["body"] for m in every] == ["first", "second", "from a file \x00\\xff"]
    assert [m["queueOffset"] for m in every] == [0, 1, 2]
    for chosen in (["--tag", "paid"], ["--key", "4711"]):
        assert [m["keys"] for m in shell.lines("tail", "tailed", "--from-begin", "--no-follow", *chosen)] == [
            ["4711"]
        ]
    assert len(shell.lines("tail", "tailed", "--since", "1h", "--no-follow")) == 3
    assert shell.lines("tail", "tailed", "--no-follow") == []
    assert len(shell.lines("tail", "tailed", "--from-begin", "--count", "2")) == 2
    line = shell("tail", "tailed", "--from-begin", "--no-follow", "--tag", "paid")
    assert "\x00" not in line, "a terminal gets no control characters"


def test_tail_follows(shell: Shell) -> None:
    shell("topic", "create", "followed", "--queues", "1")
    command = [
        sys.executable,
        "-m",
        "keelmq",
        "tail",
        "followed",
        "--count",
        "1",
        "--dir",
        str(shell.directory),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as tail:
        while tail.poll() is None:
            shell("send", "followed", "here it comes")
            time.sleep(0.5)
        assert tail.stdout is not None
        assert "here it comes" in tail.stdout.read()


def test_a_group_is_seen_with_its_lag_and_moved_only_when_told_to(shell: Shell) -> None:
    shell("topic", "create", "lagged", "--queues", "1")
    shell("send", "lagged", *"abcde")
    read(shell, "billing", "lagged", 1)
    assert {"group": "billing", "online": 0, "lag": 4} in shell.json("consumer", "list")
    (queue,) = shell.json("consumer", "describe", "billing")["queues"]
    assert (queue["topic"], queue["offset"], queue["end"], queue["lag"]) == ("lagged", 1, 5, 4)
    planned = shell.json("consumer", "reset", "billing", "lagged", "--to-end")
    assert planned["executed"] is False
    assert [(q["from"], q["to"]) for q in planned["queues"]] == [(1, 5)]
    assert shell.json("consumer", "describe", "billing")["lag"] == 4
    for way, lag in (
        (["--to-end"], 0),
        (["--to-begin"], 5),
        (["--to-offset", "3"], 2),
        (["--to-time", "1h"], 5),
    ):
        done = shell.json("consumer", "reset", "billing", "lagged", *way, "--execute")
        assert done["executed"] is True
        assert shell.json("consumer", "describe", "billing")["lag"] == lag, way


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["topic", "describe", "nothing"], 3, "no broker has it"),
        (["topic", "describe", "bad topic!"], 64, "illegal characters"),
        (["topic", "create", "x", "--group", "broker-z"], 64, "the NameServers know broker-a"),
        (["send", "x"], 64, "nothing to send"),
        (["send", "bad topic!", "x"], 64, "illegal characters"),
        (["send", "x", "y", "--property", "novalue"], 64, "expected NAME=VALUE"),
        (["send", "x", ""], 64, "body"),
        (["send", "x", "y", "--property", "A\x02=1"], 64, "0x01 or 0x02"),
        (["send", "x", "y", "--key", "a\x01b"], 64, "0x01 or 0x02"),
        (["tail", "nothing"], 3, "no broker has it"),
        (["tail", "x", "--since", "yesterday"], 64, "is no time"),
        (["consumer", "describe", "nobody"], 64, "no consumer group nobody"),
        (["consumer", "reset", "g", "x"], 64, "say where to"),
        (["consumer", "reset", "g", "x", "--to-end", "--to-begin"], 64, "say where to"),
        (["consumer", "reset", "g", "TBW102", "--to-end"], 64, "no consumer group g"),
        (
            ["consumer", "reset", "TOOLS_CONSUMER", "TBW102", "--to-end", "--queue", "broker-a/99"],
            64,
            "has no queue",
        ),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    shell: Shell, arguments: list[str], code: int, text: str
) -> None:
    assert text in shell(*arguments, code=code)
