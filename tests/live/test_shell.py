"""The promise of the shell's commands: topics, consumer groups and messages, without Java."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import PullConsumer
from client.message import Message, Received
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests import ROOT
from tests.live.commands import Shell

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell("--dir", str(tmp_path_factory.mktemp("cluster")))
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


def test_tail_follows_until_ctrl_c(shell: Shell) -> None:
    shell("topic", "create", "followed", "--queues", "1")
    words = [sys.executable, "-m", "keelmq", "tail", "followed", *shell.where]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    ) as following:
        assert following.stdout is not None
        assert following.stderr is not None
        shown = False
        while not shown:
            assert following.poll() is None
            shell("send", "followed", "here it comes")
            shown = bool(select.select([following.stdout], [], [], 0.2)[0])
        assert "here it comes" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        assert following.stderr.read() == ""
        assert following.wait() == 130, "what a shell expects of Ctrl-C"


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


def test_a_topic_is_altered_and_no_queue_is_hidden_that_somebody_reads(shell: Shell) -> None:
    shell("topic", "create", "grown", "--queues", "2")
    planned = shell.json("topic", "alter", "grown", "--queues", "4", "--dry-run")
    assert planned["executed"] is False
    assert len(shell.json("topic", "describe", "grown")) == 2
    shell("topic", "alter", "grown", "--queues", "4", "--attribute", "message.type=NORMAL")
    assert len(shell.json("topic", "describe", "grown")) == 4
    assert "4 queues, perm rw, message.type=NORMAL" in shell("topic", "describe", "grown")
    hidden = shell("topic", "create", "grown", "--queues", "2", code=64)
    assert hidden == "keelmq: grown has 4 queues on broker-a: keelmq topic alter takes some away\n"
    shell("send", "grown", *"abcdefgh")
    read(shell, "reader", "grown", 1)
    refused = shell("topic", "alter", "grown", "--queues", "1", code=64)
    assert "reader has 3 messages to read in queues from 1 on" in refused
    shell("topic", "alter", "grown", "--write-queues", "1", "--perm", "r", "--drop-attribute", "message.type")
    assert "4 queues to read, 1 to write, perm r\n" in shell("topic", "describe", "grown")
    assert "reader" in shell("topic", "describe", "grown")
    shell("topic", "alter", "grown", "--read-queues", "1", "--force")
    (group,) = shell.json("topic", "alter", "grown", "--order", "--dry-run")["groups"]
    assert (group["before"]["readQueueNums"], group["after"]["order"]) == (1, True)


def test_a_message_is_found_by_its_ids_its_key_and_its_time(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text("one\r\ntwo\nthree")
    shell("topic", "create", "found", "--queues", "2")
    sent = shell.lines("send", "found", "--lines-from", str(file), "--key", "k1", "--tag", "t")
    shell("send", "found", "other", "--key", "k2")
    found = shell.lines("message", "find", "found", "--key", "k1")
    assert [m["body"] for m in found] == ["one", "two", "three"]
    assert [m["msgId"] for m in found] == [m["msgId"] for m in sent]
    assert [m["body"] for m in shell.lines("message", "find", "found", "--key", "k1", "--max", "1")] == [
        "one"
    ]
    for one in sent:
        for way in ("msgId", "offsetMsgId"):
            (same,) = shell.lines("message", "find", "found", "--id", one[way].lower())
            assert (same["msgId"], same["queueOffset"]) == (one["msgId"], one["queueOffset"])
    assert "broker's id" in shell("message", "find", "found", "--id", sent[0]["msgId"])
    every = [m["body"] for m in shell.lines("message", "find", "found", "--since", "1h")]
    assert every == ["one", "two", "three", "other"]
    last_ms = found[-1]["storeTimestamp"]
    until = datetime.fromtimestamp(last_ms / 1000, UTC).isoformat()
    before = [m["body"] for m in shell.lines("message", "find", "found", "--until", until)]
    assert before == [m["body"] for m in found if m["storeTimestamp"] < last_ms]
    for wrong in (["--key", "k3"], ["--id", "0" * 32], ["--since", "0s"], ["--key", "k1", "--until", "1h"]):
        assert "no such message" in shell("message", "find", "found", *wrong, code=1)


@contextmanager
def member(namesrv: list[str], group: str, topic: str) -> Iterator[str]:
    """A consumer that is online on a thread of its own, as commands have this one; its client id."""
    about: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def listen(messages: list[Received]) -> None:
        return

    async def work() -> None:
        leave = asyncio.Event()
        options = ConsumeOptions(from_first=True, commit_s=0.05)
        async with PushConsumer(
            OsEnv(), group, namesrv, listen, subscriptions={topic: "*"}, options=options
        ) as consumer:
            about.append((consumer.session.client_id, asyncio.get_running_loop(), leave))
            await leave.wait()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        while not about:
            assert thread.is_alive()
            time.sleep(0.01)
        yield about[0][0]
    finally:
        for _, loop, leave in about:
            loop.call_soon_threadsafe(leave.set)
        thread.join()


def test_a_member_is_shown_with_its_queues_and_its_group_deleted_when_it_is_gone(shell: Shell) -> None:
    shell("topic", "create", "shared", "--queues", "2")
    shell("send", "shared", *"abcd")
    with member(shell.json("cluster", "status")["namesrv"], "team", "shared") as client_id:
        while True:
            queues = shell.json("consumer", "describe", "team")["queues"]
            mine = [q for q in queues if q["topic"] == "shared"]
            if [(q["lag"], q["member"]) for q in mine] == [(0, client_id)] * 2:
                break
            time.sleep(0.05)
        assert all(q["lastTimestamp"] > 0 for q in mine)
        assert client_id in shell("consumer", "describe", "team")
        assert "stop them first" in shell("consumer", "delete", "team", "--yes", code=64)
    assert shell.json("consumer", "delete", "team", "--dry-run")["executed"] is False
    assert "nobody is online" in shell("consumer", "describe", "team")
    shell("consumer", "delete", "team", "--yes")
    assert "no consumer group team" in shell("consumer", "describe", "team", code=64)
    assert "%RETRY%team" not in shell.json("topic", "list", "--all")


def test_the_doctor_finds_nothing_wrong_until_something_is(shell: Shell) -> None:
    found = shell.findings("doctor")
    assert "failed" not in {f["level"] for f in found}, found
    where = {f["check"]: f["where"] for f in found}
    assert where["clocks"] == "3 servers", "the NameServer, its Controller and the broker tell theirs"
    assert {"configuration", "secrets", "disk", "ports", "limits", "reachable", "Controllers", "groups"} <= {
        *where
    }
    directory = Path(shell.where[1])
    secret = directory / "raft.secret"
    secret.chmod(0o644)
    try:
        (one,) = [f for f in shell.findings("doctor", "--problems") if f["check"] == "secrets"]
        assert (one["level"], one["do"]) == ("warning", f"chmod 600 {secret.resolve()}")
    finally:
        secret.chmod(0o600)
    files = [str(directory / "conf" / name) for name in ("broker-a-0.conf", "namesrv-0.conf")]
    found = Shell().findings("doctor", "-c", files[0], "-c", files[1])
    assert "failed" not in {f["level"] for f in found}, found
    assert next(f["text"] for f in found if f["check"] == "groups").startswith("master 1 at ")
    (gone,) = Shell().findings("doctor", "--namesrv", "127.0.0.1:1")
    assert (gone["level"], gone["check"]) == ("failed", "reachable")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["topic", "alter", "TBW102", "--queues", "2"], 3, "conflict with system topic"),
        (["topic", "alter", "nothing", "--queues", "2"], 3, "no broker has it"),
        (["topic", "delete", "orders"], 3, "no broker has it"),
        (["message", "find", "nothing", "--key", "k"], 3, "no broker has it"),
        (["consumer", "delete", "nobody", "--yes"], 64, "no consumer group nobody"),
        (["consumer", "delete", "TOOLS_CONSUMER", "--yes"], 64, "RocketMQ's own"),
        (["topic", "describe", "nothing"], 3, "keelmq: no route for topic nothing: no broker has it"),
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
    said = shell(*arguments, code=code)
    assert text in said
    assert len(said.splitlines()) == 1


def test_bench_sends_reads_and_says_how_long_it_took(shell: Shell) -> None:
    assert shell("bench", "send", "benched", code=64).endswith("keelmq topic create benched\n")
    shell("topic", "create", "benched", "--queues", "2")
    size = ("--size", "100-200")
    sent = shell.json("bench", "send", "benched", "--rate", "50", "--seconds", "2", *size, "--end-to-end")
    assert (sent["sent"], sent["failed"], sent["unknown"]) == (100, 0, 0)
    assert sent["read"]["messages"] == 100
    for figures in (sent["latencyMs"], sent["serviceMs"], sent["read"]["endToEndMs"]):
        assert 0 < figures["p50"] <= figures["p99"] <= figures["p999"] <= figures["max"]
    fast = shell.json("bench", "send", "benched", "--seconds", "0.5", "--in-flight", "8")
    assert fast["acknowledged"] == fast["sent"] > 8
    read = shell.json("bench", "consume", "benched", "--from-begin")
    assert read["messages"] == 100 + fast["sent"]
    assert "acknowledged (50/s asked)" in shell(
        "bench", "send", "benched", "--rate", "50", "--seconds", "0.5"
    )


def test_producers_that_are_online_are_listed_with_their_clients(shell: Shell) -> None:
    shell("topic", "create", "produced")
    namesrv = shell.json("cluster", "status")["namesrv"]

    async def work() -> tuple[list[Any], list[dict[str, Any]], str]:
        async with Producer(OsEnv(), "writers", namesrv) as producer:
            await producer.send(Message(topic="produced", body=b"x"))
            await producer.session.beat()
            ask = asyncio.to_thread
            listed = await ask(shell.json, "producer", "list")
            described = await ask(shell.json, "producer", "describe", "writers")
            return listed, described, producer.session.client_id

    listed, (one,), client_id = asyncio.run(work())
    assert {"group": "writers", "clients": 1, "brokers": ["broker-a"]} in listed
    assert (one["clientId"], one["brokerName"]) == (client_id, "broker-a")
    assert "keelmq producer list" in shell("producer", "describe", "nobody", code=64)


def test_top_shows_roles_rates_and_lag_and_names_a_silent_broker(shell: Shell) -> None:
    shell("topic", "create", "topped", "--queues", "1")
    shell.lines("send", "topped", *"abc")
    read(shell, "slow", "topped", 1)
    (group,) = (seen := shell.json("top", "--once"))["groups"]
    assert (group["name"], group["master"], group["syncStateSet"]) == ("broker-a", 1, [1])
    assert {row["group"]: row["lag"] for row in seen["consumers"]}["slow"] == 2
    assert "master 1  in sync {1} of 1" in shell("top", "--once")
    pid = shell.json("cluster", "status")["groups"][0]["brokers"][0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "SILENT" in shell("top", "--once")
    finally:
        os.kill(pid, signal.SIGCONT)
