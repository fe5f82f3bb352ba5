"""The promises of the client against the project's own servers, in one process on loopback."""

from pathlib import Path

import pytest

from client.admin import AdminClient
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import PullConsumer, PullStatus
from client.message import Message, Queue, Received, SendFailed
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.codes import Request
from model.errors import Refused
from remoting import bodies
from remoting.codec import Command
from tests.client.servers import Pair, routed, run
from tests.waiting import until


def test_a_created_topic_takes_singles_batches_and_long_bodies_and_gives_them_back(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 3)
        queues = await routed(servers, "Orders")
        assert len(queues) == 3
        async with Producer(
            servers.env, "pg", servers.namesrv, options=SendOptions(compress_over_bytes=1000)
        ) as producer:
            single = await producer.send(
                Message(topic="Orders", body=b"one", tags="A", keys=["k1"], properties={"color": "red"}),
                queue=queues[0],
            )
            batch = await producer.send_batch(
                [Message(topic="Orders", body=b"two"), Message(topic="Orders", body=b"three")],
                queue=queues[0],
            )
            await producer.send(Message(topic="Orders", body=b"z" * 5000), queue=queues[0])
        assert (single.queue_offset, batch.queue_offset) == (0, 1)
        async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
            found = await consumer.read_all(queues[0])
        assert [m.body for m in found] == [b"one", b"two", b"three", b"z" * 5000]
        assert (found[0].tags, found[0].keys, found[0].properties["color"]) == ("A", ["k1"], "red")
        assert found[0].msg_id == single.msg_id
        assert [m.msg_id for m in found[1:3]] == batch.msg_id.split(",")
        assert found[0].offset_msg_id == single.offset_msg_id

    run(tmp_path, work)


def test_the_first_message_makes_its_topic(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with Producer(servers.env, "pg", servers.namesrv) as producer:
            for index in range(8):
                await producer.send(Message(topic="Fresh", body=str(index).encode()))
            assert len(await producer.queues("Fresh")) == 4

    run(tmp_path, work)


def test_statistics_tell_ends_and_lag(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 2)
            queues = await routed(servers, "Orders")
            async with Producer(servers.env, "pg", servers.namesrv) as producer:
                for _ in range(5):
                    await producer.send(Message(topic="Orders", body=b"x"), queue=queues[1])
            async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
                assert len(await consumer.read_all(queues[1])) == 5  # a commit alone makes no group
                await consumer.commit(queues[1], 2)
                assert await consumer.committed(queues[1]) == 2
            stats = await admin.topic_stats("Orders")
            assert [(s.queue, s.min_offset, s.max_offset) for s in stats] == [
                (queues[0], 0, 0),
                (queues[1], 0, 5),
            ]
            lag = {s.queue: s.lag for s in await admin.consume_stats("cg", "Orders")}
            assert lag[queues[1]] == 3
            told = await admin.session.call(servers.broker.config.address, Request.GET_BROKER_RUNTIME_INFO)
            assert int(bodies.loads_object(told.body)["table"]["commitLogMaxOffset"]) > 0
            assert "Orders" in await admin.topics()

    run(tmp_path, work)


def test_a_group_shares_the_queues_filters_by_tag_and_commits(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 4)
        queues = await routed(servers, "Orders")
        seen: list[str] = []

        async def listener(messages: list[Received]) -> None:
            seen.extend(m.body.decode() for m in messages)

        def member() -> PushConsumer:
            return PushConsumer(
                servers.env,
                "cg",
                servers.namesrv,
                listener,
                subscriptions={"Orders": "A||B"},
                options=ConsumeOptions(from_first=True, commit_s=0.2),
            )

        def own(consumer: PushConsumer) -> list[Queue]:
            return [queue for queue in consumer.queues if queue.topic == "Orders"]

        async with member() as first, member() as second:
            await until(lambda: len(own(first)) == len(own(second)) == 2, timeout_s=10)
            assert sorted(own(first) + own(second)) == sorted(queues)
            async with Producer(servers.env, "pg", servers.namesrv) as producer:
                for index in range(20):
                    tag = "ABC"[index % 3]
                    await producer.send(Message(topic="Orders", body=f"{tag}{index}".encode(), tags=tag))
            wanted = sorted(f"{'ABC'[i % 3]}{i}" for i in range(20) if i % 3 < 2)
            await until(lambda: len(seen) >= len(wanted), timeout_s=10)
        assert sorted(seen) == wanted
        async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
            ends = [await consumer.max_offset(queue) for queue in queues]
            committed = [await consumer.committed(queue) or 0 for queue in queues]
        # A message nobody subscribed to wakes no held pull: at the end of a queue it may be passed later.
        assert all(end - 1 <= offset <= end for offset, end in zip(committed, ends, strict=True))

    run(tmp_path, work)


def test_in_order_consumption_holds_the_brokers_lock(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 1)
        queue = (await routed(servers, "Orders"))[0]
        seen: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            seen.append(messages[0].body.decode())
            return seen.count("m1") != 1

        async with Producer(servers.env, "pg", servers.namesrv) as producer:
            for index in range(3):
                await producer.send(Message(topic="Orders", body=f"m{index}".encode()), queue=queue)
        async with PushConsumer(
            servers.env,
            "cg",
            servers.namesrv,
            listener,
            subscriptions={"Orders": "*"},
            options=ConsumeOptions(from_first=True, orderly=True),
        ):
            await until(lambda: "m2" in seen, timeout_s=10)
            async with PullConsumer(servers.env, "cg", servers.namesrv) as other:
                assert await other.lock([queue], servers.broker.config.address) == []
        assert seen == ["m0", "m1", "m1", "m2"]
        async with PullConsumer(servers.env, "cg", servers.namesrv) as other:
            assert await other.lock([queue], servers.broker.config.address) == [queue]

    run(tmp_path, work)


def test_a_message_not_handled_goes_to_the_brokers_retry(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 1)
        queue = (await routed(servers, "Orders"))[0]
        failed: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            failed.append(messages[0].msg_id)
            return False

        async with Producer(servers.env, "pg", servers.namesrv) as producer:
            sent = await producer.send(Message(topic="Orders", body=b"bad"), queue=queue)
        async with PushConsumer(
            servers.env,
            "cg",
            servers.namesrv,
            listener,
            subscriptions={"Orders": "*"},
            options=ConsumeOptions(from_first=True),
        ):
            await until(lambda: bool(failed), timeout_s=10)
            # The broker keeps it for a delay of its own before the retry topic shows it.
            await until(
                lambda: ("SCHEDULE_TOPIC_XXXX", 2) in list(servers.broker.store.queues()), timeout_s=10
            )
        assert failed == [sent.msg_id]
        async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
            assert await consumer.committed(queue) == 1

    run(tmp_path, work)


def test_refusals_reach_the_caller_with_their_code(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 1)
            with pytest.raises(Refused):
                await admin.epochs(servers.broker.config.address)
        queue = (await routed(servers, "Orders"))[0]
        async with Producer(servers.env, "pg", servers.namesrv, options=SendOptions(timeout_s=2)) as producer:
            with pytest.raises(SendFailed) as failed:
                await producer.send(
                    Message(topic="Orders", body=b"x"), queue=Queue("Orders", queue.broker_name, 77)
                )
        assert failed.value.code == 29
        async with PullConsumer(servers.env, "cg", servers.namesrv) as consumer:
            assert (await consumer.pull(queue, 99)).status is PullStatus.MOVED

    run(tmp_path, work)


def test_a_consumer_says_what_it_wants_when_operators_ask(tmp_path: Path) -> None:
    """What mqadmin consumerStatus shows, and a broker that missed a heartbeat goes on with."""

    async def work(servers: Pair) -> None:
        async def listener(messages: list[Received]) -> None:
            pass

        async with AdminClient(servers.env, servers.namesrv) as admin:
            await admin.create_topic("Orders", 1)
        consumer = PushConsumer(servers.env, "cg", servers.namesrv, listener, subscriptions={"Orders": "A"})
        async with consumer, PullConsumer(servers.env, "asks", servers.namesrv) as other:
            clients = servers.broker.context.clients
            await until(lambda: clients.subscription("cg", "Orders") is not None)
            (client_id,) = clients.consumers["cg"].ids()
            asked = Command(
                int(Request.GET_CONSUMER_RUNNING_INFO), {"consumerGroup": "cg", "clientId": client_id}
            )
            answer = await other.session.remoting.call(servers.broker.config.address, asked)
            held = clients.subscription("cg", "Orders")
            assert held is not None
            told = bodies.loads(answer.body)
        assert told["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert held.to_json() in told["subscriptionSet"]

    run(tmp_path, work)
