"""The promise of the console's questions, asked of a NameServer and a broker: topics, groups, messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from admin.console.asking import MESSAGES_EACH, Cluster, NotThere
from client.admin import AdminClient
from client.consumer_groups import ConsumerGroups
from client.message import Message, Queue
from client.sending.producer import Producer
from model.topic import SubscriptionGroupConfig
from tests.client.servers import Pair, pair, routed


async def filled(servers: Pair) -> tuple[Cluster, list[str]]:
    """30 messages in queue 0 of ``orders``, and the ids of their producer."""
    cluster = Cluster(servers.env, [servers.namesrv], [], None)
    async with AdminClient(servers.env, servers.namesrv) as admin:
        await admin.create_topic("orders", 1)
        (queue,) = await routed(servers, "orders")
        await ConsumerGroups(admin).create(SubscriptionGroupConfig("billing"))
    async with Producer(servers.env, "p", servers.namesrv) as producer:
        made = [Message(topic="orders", body=b"%d" % n, keys=[f"k{n}"]) for n in range(30)]
        ids = [(await producer.send(one, queue=queue)).msg_id for one in made]
    return cluster, ids


async def test_a_queue_is_browsed_and_what_is_looked_for_is_found(tmp_path: Path) -> None:
    async with pair(tmp_path) as servers:
        cluster, ids = await filled(servers)
        newest = await cluster.browse("orders", "", None)
        place = f"{newest.queue.broker_name}/0"
        assert newest.queue == Queue("orders", servers.broker.config.broker_name, 0)
        assert [m.queue_offset for m in newest.messages] == list(range(30 - MESSAGES_EACH, 30))
        older = await cluster.browse("orders", place, 0)
        assert [m.queue_offset for m in older.messages] == list(range(MESSAGES_EACH))
        assert (older.first, older.end) == (0, 30)
        beyond = await cluster.browse("orders", place, 99)
        assert (beyond.messages, beyond.offset) == ([], 30)
        assert (await cluster.message("orders", place, 7)).msg_id == ids[7]
        assert [m.msg_id for m in (await cluster.by_key("orders", "k7")).messages] == [ids[7]]
        assert [m.queue_offset for m in (await cluster.by_id("orders", ids[9])).messages] == [9]
        assert len((await cluster.since("orders", 0)).messages) == MESSAGES_EACH + 1
        for bad in ("other/0", f"{place}9", "x"):
            with pytest.raises(NotThere):
                await cluster.browse("orders", bad, None)
        with pytest.raises(NotThere):
            await cluster.message("orders", place, 30)
        with pytest.raises(NotThere, match="no queue"):
            await cluster.message("orders", "0", 1)

        assert "orders" in (await cluster.topics(1, "ORD", False)).names
        assert "TBW102" in (await cluster.topics(1, "", True)).names
        seen = await cluster.topic("orders")
        assert [(s.min_offset, s.max_offset) for s in seen.queues] == [(0, 30)]
        assert (await cluster.groups(1, ""))[1] == [("billing", 0, 0)]
        assert (await cluster.group("billing")).lag == []
        with pytest.raises(NotThere):
            await cluster.group("nobody")
        with pytest.raises(NotThere, match="--controllers"):
            await cluster.state("broker-a")
        assert len((await cluster.look()).brokers) == 1
