"""The promise to those that pop: the official client, told to pop by mqadmin, and ours get the same messages
from keelmq as from the real broker.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.worlds import rocketmq
from client.admin import AdminClient
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.consuming.pull import PullConsumer
from client.message import Message, NoRoute, Received
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests.interop.conftest import Cluster, beside, facts, mqadmin_all
from tests.interop.real_pair import rocketmq_pair
from tests.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC, GROUP = "PopJava", "pops_java"
OURS = "PopOurs"
COUNT = 12


@pytest.fixture(scope="module")
def real(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real NameServer with one real broker; its pops need its timers."""
    base = tmp_path_factory.mktemp("real")
    with rocketmq_pair(base, base / "store", end_with=signal.SIGKILL, timerWheelEnable="true") as namesrv:
        yield namesrv


def _by_java(namesrv: str, scratch: Path) -> list[tuple[str, ...]]:
    """What the official client gets: key, topic, how often returned, body, names of its properties."""

    async def prepare() -> str:
        async with AdminClient(OsEnv(), namesrv) as admin:
            await admin.create_topic(TOPIC, 4, timeout_s=60)
            return next(iter((await admin.cluster_info()).clusters))

    cluster = asyncio.run(prepare())
    (said,) = mqadmin_all(namesrv, scratch, f"setConsumeMode -c {cluster} -t {TOPIC} -g {GROUP} -m POP -q 0")
    assert "success" in said, said
    classes = rocketmq.compile_java(Path(__file__).parent / "java" / "PopDriver.java")
    words = ("PopDriver", namesrv, TOPIC, GROUP, str(COUNT))
    line = rocketmq.java(*words, classes=classes, user_home=scratch, heap_mb=256)
    done = subprocess.run(line, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return sorted(tuple(fact.values()) for fact in facts(done.stdout, "popped"))


@pytest.mark.covers(
    "Pop: setConsumeMode, shared by the broker, a failure comes again",
    client="Java 5.5.0, mqadmin 5.5.0",
    sides="both",
)
def test_the_java_client_pops_as_from_the_real_broker(cluster: Cluster, real: str, tmp_path: Path) -> None:
    ours, theirs = beside(
        lambda: _by_java(cluster.namesrv, cluster.scratch), lambda: _by_java(real, tmp_path)
    )
    again = [one for one in ours if one[2] == "1"]
    assert [one[0] for one in again] == ["pop-3"]
    assert sorted(one[0] for one in ours if one[2] == "0") == sorted(f"pop-{n}" for n in range(COUNT))
    assert len(ours) == COUNT + 1, "each once"
    assert all("POP_CK" in one[4].split(",") for one in ours), "they were popped, not pulled"
    assert ours == theirs


async def _by_us(namesrv: str) -> tuple[list[tuple[bytes, int]], list[bytes]]:
    """What our client gets (body, how often returned), and which dead letter it left."""
    env = OsEnv()
    got: list[tuple[bytes, int]] = []

    async def listener(messages: list[Received]) -> bool:
        await asyncio.sleep(2.5 if messages[0].body == b"slow" else 0)
        got.append((messages[0].body, messages[0].reconsume_times))
        return messages[0].body != b"bad"

    async with AdminClient(env, namesrv) as admin:
        await admin.create_topic(OURS, 4, timeout_s=60)
    async with Producer(env, "pop_senders", namesrv) as producer:
        for body in (b"slow", b"bad", *(b"%d" % n for n in range(40))):
            await producer.send(Message(topic=OURS, body=body))
    options = PopOptions(from_first=True, invisible_s=2.0, poll_s=2.0, retry_after_s=(1.0,), retry_max=1)
    async with PopConsumer(
        env, "pops_ours", namesrv, listener, subscriptions={OURS: "*"}, options=options
    ) as c:
        await until(lambda: len(got) == 43 and not c.held, timeout_s=60)
        await asyncio.sleep(4)  # what was kept for longer, or acknowledged, does not come again
    async with PullConsumer(env, "looks", namesrv) as reader:
        for _ in range(100):
            try:
                (queue,) = await reader.queues("%DLQ%pops_ours")
                break
            except NoRoute:
                await asyncio.sleep(0.2)
        dead = [message.body for message in await reader.read_all(queue)]
    return sorted(got), dead


@pytest.mark.covers(
    "Pop: batches of acknowledgements, longer invisible times, dead letters", client="keelmq", sides="both"
)
@pytest.mark.more
def test_our_client_pops_from_both(cluster: Cluster, real: str) -> None:
    everything = sorted([(b"slow", 0), (b"bad", 0), (b"bad", 1), *((b"%d" % n, 0) for n in range(40))])
    for namesrv in (cluster.namesrv, real):
        assert asyncio.run(_by_us(namesrv)) == (everything, [b"bad"])
