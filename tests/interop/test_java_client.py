"""The promise to every RocketMQ user: the unmodified Java client works against a keelmq cluster."""

from __future__ import annotations

import asyncio

import pytest

from client.admin import AdminClient
from runtime.os_env import OsEnv
from tests.interop.conftest import Cluster, facts

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def _create(cluster: Cluster, topic: str, queues: int = 4) -> None:
    async def create() -> None:
        async with AdminClient(OsEnv(), cluster.namesrv.split(";")) as admin:
            await admin.create_topic(topic, queues)

    asyncio.run(create())


@pytest.mark.covers("Send and wait", client="Java 5.5.0", sides="keelmq")
def test_a_synchronous_send_is_stored_and_numbered(cluster: Cluster) -> None:
    _create(cluster, "InteropSync")
    done = cluster.driver("sync", "InteropSync", "40")
    sent = facts(done.stdout, "sent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [s["status"] for s in sent] == ["SEND_OK"] * 40
    places = {(s["queue"], int(s["offset"])) for s in sent}
    assert places == {(str(q), n) for q in range(4) for n in range(10)}
    assert len({s["offsetMsgId"] for s in sent}) == 40


@pytest.mark.covers("Send with a callback", client="Java 5.5.0", sides="keelmq")
def test_asynchronous_sends_all_call_back(cluster: Cluster) -> None:
    _create(cluster, "InteropAsync")
    done = cluster.driver("async", "InteropAsync", "500")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    sent = facts(done.stdout, "sent")
    assert {s["key"] for s in sent} == {f"async-{n}" for n in range(500)}
    assert len({(s["queue"], s["offset"]) for s in sent}) == 500


@pytest.mark.covers("The first message makes its topic", client="Java 5.5.0", sides="keelmq")
def test_a_topic_nobody_created_appears_with_the_first_send(cluster: Cluster) -> None:
    done = cluster.driver("sync", "InteropAutoCreated", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "InteropAutoCreated" in cluster.mqadmin("topicList")


@pytest.mark.covers(
    "One-way and batch sends; a group of two shares the queues", client="Java 5.5.0", sides="keelmq"
)
def test_oneway_sends_and_a_batch_are_read_by_a_group_of_two_that_share_the_queues(cluster: Cluster) -> None:
    topic = "InteropGroup"
    _create(cluster, topic)
    assert cluster.driver("oneway", topic, "30").returncode == 0
    batch = cluster.driver("batch", topic, "10")
    assert batch.returncode == 0, batch.stdout + batch.stderr
    assert cluster.driver("sync", topic, "20").returncode == 0
    done = cluster.driver("group", topic, "60", "InteropGroupOfTwo", "150")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    read = facts(done.stdout, "read")
    expected = (
        {f"oneway-{n}" for n in range(30)}
        | {f"batch-{n}" for n in range(10)}
        | {f"sync-{n}" for n in range(20)}
    )
    assert {r["key"] for r in read} == expected
    for line in read:
        number = line["key"].rpartition("-")[2]
        assert line["number"] == number
        assert line["tags"] == ("even" if int(number) % 2 == 0 else "odd")


@pytest.mark.covers(
    "A SQL92 subscription, and one that cannot be parsed", client="Java 5.5.0", sides="keelmq"
)
def test_a_sql92_subscription_gets_what_it_asks_for(cluster: Cluster) -> None:
    _create(cluster, "InteropSql")
    assert cluster.driver("sync", "InteropSql", "30").returncode == 0
    done = cluster.driver("sql", "InteropSql", "8", "InteropSqlGroup", "number BETWEEN 10 AND 17")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert {fact["number"] for fact in facts(done.stdout, "chosen")} == {str(n) for n in range(10, 18)}
    wrong = cluster.driver("sql", "InteropSql", "0", "InteropSqlWrong", "number BETWEEN 10")
    assert wrong.returncode == 1, wrong.stdout[-2000:]
    assert "Invalid MessageSelector" in wrong.stdout + wrong.stderr


@pytest.mark.covers(
    "What a listener fails on comes back through the retry topic", client="Java 5.5.0", sides="keelmq"
)
def test_a_message_the_listener_fails_comes_back_through_the_retry_topic(cluster: Cluster) -> None:
    _create(cluster, "InteropRetry")
    assert cluster.driver("sync", "InteropRetry", "4").returncode == 0
    done = cluster.driver("retry", "InteropRetry", "4", "InteropRetryGroup")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    tries = facts(done.stdout, "try")
    assert {t["reconsume"] for t in tries if t["key"] == "sync-0"} >= {"0", "1"}


REBALANCE_MS = 20_000
"""Of the Java client: so long the original leaves a consumer waiting whose heartbeat was left out."""


@pytest.mark.covers("A new push consumer has its messages at once", client="Java 5.5.0", sides="keelmq")
@pytest.mark.more
def test_no_start_of_a_push_consumer_waits_for_a_rebalance(cluster: Cluster) -> None:
    _create(cluster, "InteropStarts")
    assert cluster.driver("sync", "InteropStarts", "5").returncode == 0
    done = cluster.driver("starts", "InteropStarts", "12", "5")
    took_ms = [int(fact["ms"]) for fact in facts(done.stdout, "started")]
    assert done.returncode == 0, (took_ms, done.stderr[-2000:])
    assert max(took_ms) < REBALANCE_MS / 2, took_ms
