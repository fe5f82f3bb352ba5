"""The promise to sites with NameServers of RocketMQ: one change of a large table is told alone, and all is
known."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chaos.worlds import rocketmq
from client.admin import AdminClient
from model.errors import MqError
from model.topic import TopicConfig
from remoting.bodies import dumps
from runtime.os_env import OsEnv
from tests.broker.helpers import running
from tests.ports import free_port_of_broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

MANY = 3000
START_S = 60.0


@pytest.mark.covers("Registration: changes of topics told alone", client="NameServer 5.5.0", sides="together")
@pytest.mark.parametrize("forgets", [False, True], ids=["default", "deleteTopicWithBrokerRegistration"])
def test_a_real_nameserver_knows_every_topic_after_changes_told_alone(
    real_rocketmq: Path, tmp_path: Path, forgets: bool
) -> None:
    port = free_port_of_broker()
    flag = str(forgets).lower()
    node = rocketmq.namesrv_node(tmp_path / "namesrv", port, deleteTopicWithBrokerRegistration=flag)
    node.name, node.heap_mb = "namesrv", 256
    node.start()
    try:
        asyncio.run(work(tmp_path / "store", f"127.0.0.1:{port}", flag))
    finally:
        node.stop()


async def work(store: Path, namesrv: str, flag: str) -> None:
    sizes: list[int] = []
    async with AdminClient(OsEnv(seed=2), [namesrv]) as admin:
        keys = {"enableSingleTopicRegister": flag, "registerNameServerPeriod": "60000"}
        async with running(store, namesrvAddr=namesrv, **keys) as broker:
            body = broker.registration._body

            def counted(table: dict[str, Any]) -> dict[str, Any]:
                made = body(table)
                sizes.append(len(dumps(made)))
                return made

            broker.registration._body = counted  # type: ignore[method-assign]
            await known(admin, "SELF_TEST_TOPIC", 1)
            broker.topics.put(*(TopicConfig(f"T{n:05}", 8, 8) for n in range(MANY)))
            await known(admin, "T00000", 8)
            for n in range(10):
                broker.topics.put(TopicConfig(f"New{n}", 3, 3))
                await known(admin, f"New{n}", 3)
            broker.topics.put(TopicConfig("T00007", 5, 5))
            await known(admin, "T00007", 5)
            listed = set(await admin.topics())
            assert {f"T{n:05}" for n in range(MANY)} | {f"New{n}" for n in range(10)} <= listed
            if flag == "false":
                assert max(sizes[-11:]) < 2000, "one entry each"
            else:
                assert min(sizes[-11:]) > 100_000


async def known(admin: AdminClient, topic: str, queues: int) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                route = await admin.route(topic)
            except (MqError, OSError):
                route = None
            if route is not None and len(route.writable) == queues:
                return
            await asyncio.sleep(0.05)
