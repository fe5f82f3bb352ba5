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

JAVA_TRIES = 3
"""Java sends a trace once, waits 5 s for the answer, and drops it then: a busy machine loses some."""


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
    ours_told = {("Pub", "traced_ours", "success"), ("Sub", "traced_cg", "success")}
    java_told = {("Pub", "traced_java", "success"), ("Sub", "traced_java_cg", "success")}
    java_text = ""
    for _ in range(JAVA_TRIES):
        done = cluster.driver("trace", "TracedJava", "2", "traced_java_cg")
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        java = facts(done.stdout, "sent")[0]["msgId"]
        asked = (f"queryMsgTraceById -i {ours}", f"queryMsgTraceById -i {java}")
        text, java_text = mqadmin_all(cluster.namesrv, cluster.scratch, *asked)
        assert _told(text) == ours_told, text
        if _told(java_text) == java_told:
            return
    raise AssertionError(f"what Java told was not found in {JAVA_TRIES} tries: {java_text}")


def _told(text: str) -> set[tuple[str, str, str]]:
    rows = [line.split() for line in text.splitlines()]
    return {(row[0], row[1], row[-1]) for row in rows if row and row[0] in ("Pub", "Sub")}
