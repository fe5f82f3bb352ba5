"""The promise of our own consumer that pops, at real processes: a killed master loses no message."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.local.cluster import LocalCluster
from client.admin import AdminClient
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.message import Message, Received, SendUnknown
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests.live.commands import keelmq, status
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]
TOPIC = "Orders"
HELD_MAX = 32


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    where = tmp_path_factory.mktemp("cluster")
    done = keelmq("cluster", "up", "--dir", where)
    try:
        assert done.returncode == 0, done.stderr
        yield where
    finally:
        ended = keelmq("cluster", "down", "--dir", where)
    assert ended.returncode == 0, ended.stderr


async def test_a_killed_master_loses_nothing_and_repeats_little(directory: Path) -> None:
    env = OsEnv()
    found = status(directory)
    namesrv = ";".join(found["namesrv"])
    (master,) = (b for b in found["groups"][0]["brokers"] if b["role"] == "master")
    cluster = LocalCluster.open(directory)
    async with AdminClient(env, namesrv) as admin:
        await admin.create_topic(TOPIC, 8)
    sent: set[bytes] = set()
    unknown: set[bytes] = set()
    handled: Counter[bytes] = Counter()
    failed: set[bytes] = set()

    async def listener(messages: list[Received]) -> bool:
        body = messages[0].body
        await asyncio.sleep(0.02)
        if body.endswith(b"7") and body not in failed:
            failed.add(body)
            return False
        handled[body] += 1
        return True

    options = PopOptions(
        from_first=True, invisible_s=5, poll_s=2, held_max=HELD_MAX, retry_after_s=(0.5,), concurrency=8
    )

    def member() -> PopConsumer:
        return PopConsumer(env, "poppers", namesrv, listener, subscriptions={TOPIC: "*"}, options=options)

    async with member() as one, member() as two, Producer(env, "senders", namesrv) as producer:
        for number in range(300):
            body = b"%d" % number
            if number == 100:
                victim = next(n for n in cluster.layout.broker_nodes if n.pid == master["pid"])
                cluster.send_signal(victim, signal.SIGKILL)
            try:
                await producer.send(Message(topic=TOPIC, body=body))
                sent.add(body)
            except SendUnknown:
                unknown.add(body)
            assert max(one.held, two.held) <= HELD_MAX
            await asyncio.sleep(0.01)
        await until(lambda: sent <= set(handled) and not one.held and not two.held, timeout_s=60)
    moved = status(directory)["groups"][0]
    assert [b["id"] for b in moved["brokers"] if b["role"] == "master"] != [master["id"]]
    assert set(handled) <= sent | unknown
    # In hand at the kill, or its acknowledgement without an answer; and a send whose first try was unknown.
    again = sum(handled.values()) - len(handled)
    assert again <= 2 * HELD_MAX
