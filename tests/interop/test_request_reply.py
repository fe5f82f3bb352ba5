"""The promise of request and reply to every user of the official client: Java asks Java, Java asks keelmq's
client and the other way round, and what is seen and stored is what it is with the real broker."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from chaos.worlds import rocketmq
from client.admin import AdminClient
from client.consumer import ConsumeOptions, PushConsumer
from client.message import Message, Queue, Received
from client.producer import Producer
from client.pull import PullConsumer
from model.codes import Request
from model.message import encode_properties
from remoting.codec import Command
from remoting.headers import SendHeader
from runtime.os_env import OsEnv
from tests.interop.conftest import Cluster, facts
from tests.interop.real_pair import rocketmq_pair

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

JAVA, OURS, DEAF = "AskJava", "AskOurs", "AskNobody"
REPLIES = "DefaultCluster_REPLY_TOPIC"
COUNT = 5


async def _talk(namesrv: str, scratch: Path) -> dict[str, object]:
    """What both clients saw, and what the broker said and stored."""
    env = OsEnv()
    servers = namesrv.split(";")
    async with AdminClient(env, servers) as admin:
        for topic in (JAVA, OURS, DEAF):
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
    }


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


def test_java_and_our_client_ask_and_reply_as_with_the_real_broker(cluster: Cluster, tmp_path: Path) -> None:
    ours = asyncio.run(_talk(cluster.namesrv, cluster.scratch))
    asked = ours["asked"]
    assert isinstance(asked, list)
    assert [(a["where"], a["reply"]) for a in asked] == [
        *((JAVA, f"java:ask-{n}") for n in range(COUNT)),
        *((OURS, f"ours:ask-{n}") for n in range(COUNT)),
    ]
    assert ours["deaf"] == [{"error": "RequestTimeoutException"}]
    assert ours["failed"] == []
    to_java = ours["to java"]
    assert isinstance(to_java, list)
    assert [body for _, body, _ in to_java] == [b"java:our-%d" % n for n in range(COUNT)]
    with rocketmq_pair(tmp_path, tmp_path / "store") as namesrv:
        theirs = asyncio.run(_talk(namesrv, tmp_path))
    for what, seen in ours.items():
        assert seen == theirs[what], what
