"""The promise of request and reply to every user of the official client: Java asks Java, Java asks keelmq's
client and the other way round, and what is seen and stored is what it is with the real broker. And of
transactions of keelmq's client: the real broker takes their ends, and is answered when it asks. And of the
shell's commands: they work at the real broker."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.worlds import rocketmq
from chaos.worlds.rocketmq import wait_until
from client.admin import AdminClient
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import PullConsumer
from client.message import Message, Queue, Received, SendResult
from client.sending.producer import Producer
from client.sending.transactions import Decision
from model.codes import Request
from model.message import encode_properties
from remoting.codec import Command
from remoting.headers import SendHeader
from runtime.os_env import OsEnv
from tests.interop.conftest import Cluster, facts
from tests.interop.real_pair import rocketmq_pair
from tests.live.commands import Shell

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

JAVA, OURS, DEAF, PAYS = "AskJava", "AskOurs", "AskNobody", "Pays"
REPLIES = "DefaultCluster_REPLY_TOPIC"
COUNT = 5
ASKS_SOON = {"transactionTimeOut": 1000, "transactionCheckInterval": 1000}


async def _talk(namesrv: str, scratch: Path) -> dict[str, object]:
    """What both clients saw, and what the broker said and stored."""
    env = OsEnv()
    servers = namesrv.split(";")
    async with AdminClient(env, servers) as admin:
        for topic in (JAVA, OURS, DEAF, PAYS):
            await admin.create_topic(topic, 4)
    classes = rocketmq.compile_java(Path(__file__).parent / "java" / "RequestDriver.java")
    words = ("RequestDriver", namesrv, JAVA, OURS, DEAF, str(COUNT))
    line = rocketmq.java(*words, classes=classes, user_home=scratch, heap_mb=256)
    async with Producer(env, "our_askers", servers) as producer:

        async def reply(messages: list[Received]) -> bool:
            for message in messages:
                await producer.reply(message, b"ours:" + message.body)
            return True

        options = ConsumeOptions(from_first=True)
        async with PushConsumer(
            env, "our_repliers", servers, reply, subscriptions={OURS: "*"}, options=options
        ):
            jvm = await asyncio.create_subprocess_exec(
                *line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            assert jvm.stdout is not None
            said = ""
            try:
                async with asyncio.timeout(180):
                    while "DRIVER done" not in said:
                        read = (await jvm.stdout.readline()).decode()
                        assert read, said[-3000:]
                        said += read
                    to_java = [
                        await producer.request(Message(topic=JAVA, body=b"our-%d" % n), timeout_s=30)
                        for n in range(COUNT)
                    ]
                    ours = await producer.request(Message(topic=OURS, body=b"our"), timeout_s=30)
                    told = await _told(env, producer)
                    out, _ = await jvm.communicate(b"")
                    assert jvm.returncode == 0, (said + out.decode())[-3000:]
            finally:
                if jvm.returncode is None:
                    jvm.kill()
                    await jvm.wait()
    return {
        "asked": facts(said, "asked"),
        "deaf": facts(said, "deaf"),
        "failed": facts(said, "failed"),
        "to java": [(r.topic, r.body, sorted(r.properties)) for r in to_java],
        "to ours": (ours.topic, ours.body, sorted(ours.properties)),
        "told": told,
        "stored": await _stored(env, servers),
        "paid": await _paid(env, servers),
    }


async def _paid(env: OsEnv, servers: list[str]) -> list[tuple[bytes, list[str], int]]:
    """What consumers see of transactions: body, property names and sysFlag of each message."""

    async def check(message: Received) -> Decision:
        raise AssertionError(f"{message.msg_id} was told at once")

    async with Producer(env, "our_payers", servers, check=check) as producer:
        for decision in (Decision.COMMIT, Decision.ROLLBACK, Decision.COMMIT):

            async def work(_: SendResult, decision: Decision = decision) -> Decision:
                return decision

            done = await producer.send_in_transaction(Message(topic=PAYS, body=decision.name.encode()), work)
            assert done.told, done.why
        queues = await producer.queues(PAYS)
    found: list[tuple[bytes, list[str], int]] = []
    async with PullConsumer(env, "looks", servers) as consumer:
        for queue in queues:
            found += [(m.body, sorted(m.properties), m.sys_flag) for m in await consumer.read_all(queue)]
    return sorted(found)


async def _asked(namesrv: str) -> list[bytes]:
    """What the broker asked about a transaction that was not ended: it is committed then."""
    asked: list[bytes] = []

    async def check(message: Received) -> Decision:
        asked.append(message.body)
        return Decision.COMMIT

    async def unknown(_: SendResult) -> Decision:
        return Decision.UNKNOWN

    env, servers = OsEnv(), namesrv.split(";")
    async with Producer(env, "asked_payers", servers, check=check) as producer:
        await producer.send_in_transaction(Message(topic=PAYS, body=b"asked"), unknown)
        queues = await producer.queues(PAYS)
        async with PullConsumer(env, "looks", servers) as consumer, asyncio.timeout(60):
            seen: list[bytes] = []
            while b"asked" not in seen:
                seen = [m.body for queue in queues for m in await consumer.read_all(queue)]
                await asyncio.sleep(0.2)
    return asked


async def _told(env: OsEnv, producer: Producer) -> list[tuple[object, ...]]:
    """The broker's words for a reply whose client is not there, or that names none."""
    found: list[tuple[object, ...]] = []
    route = await producer.session.routes.get(REPLIES)
    [address] = route.masters()
    named = {"REPLY_TO_CLIENT": "nobody", "MSG_TYPE": "reply", "CORRELATION_ID": "1", "UNIQ_KEY": "U1"}
    for properties in (named, {"UNIQ_KEY": "U2"}):
        for code, topic in (
            (Request.SEND_REPLY_MESSAGE, REPLIES),
            (Request.SEND_REPLY_MESSAGE_V2, "SELF_TEST_TOPIC"),
        ):
            header = SendHeader("g", topic, 0, env.now_ms(), properties=encode_properties(properties))
            ext = header.to_ext(full_names=code == Request.SEND_REPLY_MESSAGE)
            answer = await producer.session.remoting.call(address, Command(code, ext, b"x"))
            # The original puts two properties beside a refusal; no client looks at them there.
            told = sorted(answer.ext) if topic == REPLIES else []
            found.append((answer.code, answer.remark, told))
    return found


async def _stored(env: OsEnv, servers: list[str]) -> list[tuple[bytes, list[str]]]:
    """Body and property names of each record in the reply topic."""
    found: list[tuple[bytes, list[str]]] = []
    async with PullConsumer(env, "looks", servers) as consumer:
        route = await consumer.session.routes.get(REPLIES)
        queue = Queue(REPLIES, next(iter(route.brokers)), 0)
        while messages := (await consumer.pull(queue, len(found))).messages:
            found += [(message.body, sorted(message.properties)) for message in messages]
    return sorted(found)


@pytest.fixture(scope="module")
def real(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real NameServer with one real broker."""
    directory = tmp_path_factory.mktemp("real")
    with rocketmq_pair(directory, directory / "store", end_with=signal.SIGKILL, **ASKS_SOON) as namesrv:
        yield namesrv


@pytest.mark.covers(
    "The shell's commands (keelmq send, tail, message, topic, doctor)", client="keelmq", sides="real"
)
def test_the_shells_commands_work_at_the_real_broker(real: str) -> None:
    shell, topic = Shell("--namesrv", real), f"shell{time.time_ns()}"
    shell("topic", "create", topic, "--queues", "2")
    wait_until("the route", lambda: topic in shell.json("topic", "list"), 30)
    sent = shell.lines("send", topic, "one", "two", "--key", "the-key")
    wait_until("both", lambda: len(shell.lines("tail", topic, "--from-begin", "--no-follow")) == 2, 30)
    find = ["message", "find", topic]
    wait_until("the index", lambda: shell.ended([*find, "--key", "the-key"])[1].count("the-key") == 2, 30)
    for one in sent:
        for way in ("msgId", "offsetMsgId"):
            (found,) = shell.lines(*find, "--id", one[way])
            assert (found["msgId"], found["queueOffset"]) == (one["msgId"], one["queueOffset"])
    assert len(shell.lines(*find, "--since", "1h")) == 2
    (altered,) = shell.json("topic", "alter", topic, "--queues", "3", "--attribute", "message.type=NORMAL")[
        "groups"
    ]
    assert altered["after"]["readQueueNums"] == 3
    assert "3 queues, perm rw, message.type=NORMAL" in shell("topic", "describe", topic)
    # One that answers late counts as failed, and nothing is said of its clock.
    wait_until("a doctor who finds nothing", lambda: _healthy(shell.findings("doctor")), 30)


def _healthy(found: list[dict[str, Any]]) -> bool:
    failed = [f for f in found if f["level"] == "failed" and f["check"] != "disk"]
    return not failed and {f["check"] for f in found} >= {"reachable", "groups", "clocks"}


@pytest.mark.covers(
    "Request and reply; transactions, and what the broker asks about them",
    client="Java 5.5.0, keelmq",
    sides="both",
)
def test_java_and_our_client_ask_and_reply_as_with_the_real_broker(
    cluster: Cluster, real: str, tmp_path: Path
) -> None:
    ours = asyncio.run(_talk(cluster.namesrv, cluster.scratch))
    asked = ours["asked"]
    assert isinstance(asked, list)
    assert [(a["where"], a["reply"]) for a in asked] == [
        *((JAVA, f"java:ask-{n}") for n in range(COUNT)),
        *((OURS, f"ours:ask-{n}") for n in range(COUNT)),
    ]
    assert ours["deaf"] == [{"error": "RequestTimeoutException"}]
    assert ours["failed"] == []
    paid = ours["paid"]
    assert isinstance(paid, list)
    assert [body for body, *_ in paid] == [b"COMMIT"] * 2
    to_java = ours["to java"]
    assert isinstance(to_java, list)
    assert [body for _, body, _ in to_java] == [b"java:our-%d" % n for n in range(COUNT)]
    theirs = asyncio.run(_talk(real, tmp_path))
    assert set(asyncio.run(_asked(real))) == {b"asked"}
    for what, seen in ours.items():
        assert seen == theirs[what], what
