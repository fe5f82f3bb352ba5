"""The promise of the message trace: mqadmin finds what the official client and keelmq's tell of a message."""

from __future__ import annotations

import asyncio

import pytest

from client.admin import AdminClient
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.message import Message, Received
from client.sending.options import SendOptions
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests.interop.conftest import Cluster, facts, mqadmin_all
from tests.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


async def _ours(namesrv: list[str]) -> str:
    env = OsEnv()
    got: list[str] = []

    async def listener(messages: list[Received]) -> bool:
        got.extend(message.msg_id for message in messages)
        return True

    async with AdminClient(env, namesrv) as admin:
        for topic in ("TracedOurs", "TracedJava"):
            await admin.create_topic(topic, 4)
    options = ConsumeOptions(from_first=True, trace=True)
    consumer = PushConsumer(
        env, "traced_cg", namesrv, listener, subscriptions={"TracedOurs": "*"}, options=options
    )
    async with consumer, Producer(env, "traced_ours", namesrv, SendOptions(trace=True)) as producer:
        sent = await producer.send(Message(topic="TracedOurs", body=b"traced", keys=["k"]))
        await until(lambda: sent.msg_id in got)
    return sent.msg_id


@pytest.mark.covers(
    "Message trace: queryMsgTraceById finds what both clients told",
    client="Java 5.5.0, keelmq, mqadmin 5.5.0",
    sides="keelmq",
)
def test_mqadmin_finds_the_traces_of_both_clients(cluster: Cluster) -> None:
    ours = asyncio.run(_ours(cluster.namesrv.split(";")))
    done = cluster.driver("trace", "TracedJava", "2", "traced_java_cg")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    java = facts(done.stdout, "sent")[0]["msgId"]
    asked = (f"queryMsgTraceById -i {ours}", f"queryMsgTraceById -i {java}")
    said = mqadmin_all(cluster.namesrv, cluster.scratch, *asked)
    for text, producer, consumer in zip(
        said, ("traced_ours", "traced_java"), ("traced_cg", "traced_java_cg"), strict=True
    ):
        rows = [line.split() for line in text.splitlines()]
        found = {(row[0], row[1], row[-1]) for row in rows if row and row[0] in ("Pub", "Sub")}
        assert found == {("Pub", producer, "success"), ("Sub", consumer, "success")}, text
