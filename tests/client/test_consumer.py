"""The promises of client.consuming: every message handled at least once, queues shared, order kept where
asked.
"""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.consuming.consume import Progress
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pull import PullConsumer, PullStatus
from client.message import Message, Queue, Received
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import PeerError, Refused
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import FakeBroker, FakeNameServer, cluster, run, stop
from tests.waiting import until


async def fill(env: Env, nameserver: FakeNameServer, bodies: list[str], queue_id: int = 0) -> None:
    async with Producer(env, "pg", nameserver.address) as producer:
        for body in bodies:
            await producer.send(
                Message(topic="T", body=body.encode(), tags=body[0]), queue=Queue("T", "broker-a", queue_id)
            )


def test_pull_reads_from_an_offset_and_says_where_to_go_on() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["a0", "a1", "a2"])
        async with PullConsumer(env, "cg", nameserver.address) as consumer:
            queue = Queue("T", "broker-a", 0)
            pulled = await consumer.pull(queue, 1)
            assert [m.body for m in pulled.messages] == [b"a1", b"a2"]
            assert (pulled.status, pulled.next_offset, pulled.max_offset) == (PullStatus.FOUND, 3, 3)
            assert [m.queue_offset for m in pulled.messages] == [1, 2]
            assert pulled.messages[0].tags == "a"
            assert (await consumer.pull(queue, 3)).status is PullStatus.NO_NEW
            moved = await consumer.pull(queue, 9)
            assert (moved.status, moved.next_offset) == (PullStatus.MOVED, 3)
        await stop(nameserver, broker)

    run(work)


def test_a_long_poll_is_answered_when_a_message_comes() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with PullConsumer(env, "cg", nameserver.address) as consumer:
            waiting = asyncio.create_task(consumer.pull(Queue("T", "broker-a", 0), 0, suspend_ms=10_000))
            await until(lambda: any(r.code == Request.PULL_MESSAGE for r in broker.requests))
            await fill(env, nameserver, ["late"])
            assert [m.body for m in (await waiting).messages] == [b"late"]
        await stop(nameserver, broker)

    run(work)


def test_offsets_of_a_group_are_kept_and_absent_ones_are_none() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with PullConsumer(env, "cg", nameserver.address) as consumer:
            queue = Queue("T", "broker-a", 0)
            assert await consumer.committed(queue) is None
            await consumer.commit(queue, 7)
            assert await consumer.committed(queue) == 7
        await stop(nameserver, broker)

    run(work)


def test_read_all_returns_everything_in_order() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, [f"m{i}" for i in range(70)])
        async with PullConsumer(env, "cg", nameserver.address) as consumer:
            found = await consumer.read_all(Queue("T", "broker-a", 0))
        assert [m.body.decode() for m in found] == [f"m{i}" for i in range(70)]
        await stop(nameserver, broker)

    run(work)


def test_damaged_records_are_refused_not_delivered() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["a0"])
        record = bytearray(broker.log[0].record)
        record[90] ^= 0xFF  # a byte of the body
        broker.log[0].record = bytes(record)
        async with PullConsumer(env, "cg", nameserver.address) as consumer:
            with pytest.raises(PeerError, match="damaged"):
                await consumer.pull(Queue("T", "broker-a", 0), 0)
        await stop(nameserver, broker)

    run(work)


def test_a_push_consumer_handles_everything_once_and_commits_on_stop() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, [f"m{i}" for i in range(40)])
        seen: list[str] = []

        async def listener(messages: list[Received]) -> None:
            seen.extend(m.body.decode() for m in messages)

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True),
        ):
            await until(lambda: len(seen) == 40)
        assert seen == [f"m{i}" for i in range(40)]
        assert broker.offsets["cg", "T", 0] == 40
        await stop(nameserver, broker)

    run(work)


def test_a_second_member_takes_half_of_the_queues_and_gives_them_back() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env, queues=4)

        async def listener(messages: list[Received]) -> None:
            pass

        def member() -> PushConsumer:
            return PushConsumer(env, "cg", nameserver.address, listener, subscriptions={"T": "*"})

        async with member() as first:
            await until(lambda: len(first.queues) == 4)
            async with member() as second:
                await until(lambda: len(first.queues) == 2 and len(second.queues) == 2)
                assert not set(first.queues) & set(second.queues)
            await until(lambda: len(first.queues) == 4)
        await stop(nameserver, broker)

    run(work)


def test_a_start_that_is_given_up_leaves_no_member_behind() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        beats = asyncio.Event()

        async def slow_heartbeat(command: Command) -> Command | None:
            if command.code == Request.HEART_BEAT:
                beats.set()
                await asyncio.sleep(0.1)
            return None

        broker.before = slow_heartbeat
        consumer = PushConsumer(env, "cg", nameserver.address, listener=ignore, subscriptions={"T": "*"})
        others = asyncio.all_tasks()
        entering = asyncio.ensure_future(consumer.__aenter__())
        await beats.wait()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        names = {task.get_name() for task in asyncio.all_tasks() - others}
        assert not {name for name in names if name.startswith(("consumer cg", "client ", "routes"))}
        assert consumer.queues == []
        assert any(request.code == Request.UNREGISTER_CLIENT for request in broker.requests)
        await stop(nameserver, broker)

    run(work)


async def ignore(messages: list[Received]) -> None:
    pass


def test_a_stop_while_a_queue_is_given_away_ends_its_calls_and_commits_its_offset() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env, queues=1)
        await fill(env, nameserver, ["m0", "m1"])
        begun, go = asyncio.Event(), asyncio.Event()

        async def listener(messages: list[Received]) -> None:
            begun.set()
            await go.wait()

        in_order = ConsumeOptions(from_first=True, orderly=True, rebalance_s=0.1)
        consumer = PushConsumer(
            env, "cg", nameserver.address, listener, subscriptions={"T": "*"}, options=in_order
        )
        await consumer.start()
        await begun.wait()
        worker = consumer._workers[Queue("T", "broker-a", 0)]
        broker.consumers["cg"] = {"!": next(iter(broker.consumers["cg"].values()))}  # it has the queue now
        await until(lambda: worker.stopped)
        assert broker.locks == {("T", 0): consumer.session.client_id}
        stopping = asyncio.ensure_future(consumer.stop())
        await asyncio.sleep(0.01)
        assert broker.locks, "the queue is another member's when the call has ended"
        go.set()
        await stopping
        assert broker.offsets["cg", "T", 0] == 1
        assert broker.locks == {}
        assert consumer.queues == []
        await stop(nameserver, broker)

    run(work)


def test_a_message_the_listener_fails_on_goes_back_to_the_broker_and_the_rest_goes_on() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["m0", "bad", "m2"])
        seen: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            body = messages[0].body.decode()
            if body == "bad":
                raise RuntimeError("cannot handle this")
            seen.append(body)
            return True

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True),
        ):
            await until(lambda: seen == ["m0", "m2"] and bool(broker.returned))
        assert broker.returned[0]["group"] == "cg"
        assert broker.returned[0]["originTopic"] == "T"
        assert int(broker.returned[0]["offset"]) == len(broker.log[0].record)
        assert broker.offsets["cg", "T", 0] == 3
        await stop(nameserver, broker)

    run(work)


def test_a_message_that_cannot_be_given_back_holds_the_offset() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["bad", "m1"])

        async def no_returns(command: Command) -> Command | None:
            if command.code == Request.CONSUMER_SEND_MSG_BACK:
                raise Refused("busy", 2)
            return None

        broker.before = no_returns
        seen: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            seen.append(messages[0].body.decode())
            return messages[0].body != b"bad"

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True, concurrency=2),
        ) as consumer:
            await until(lambda: "m1" in seen)
            await consumer.commit()
            assert broker.offsets["cg", "T", 0] == 0
        assert broker.offsets["cg", "T", 0] == 0  # "bad" comes again to whoever takes the queue next
        await stop(nameserver, broker)

    run(work)


def test_a_message_that_is_never_taken_back_does_not_stop_the_others_of_its_queue() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["bad", *(f"m{number}" for number in range(40))])

        async def no_returns(command: Command) -> Command | None:
            if command.code == Request.CONSUMER_SEND_MSG_BACK:
                raise Refused("illegal", 13)
            return None

        broker.before = no_returns
        seen: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            seen.extend(message.body.decode() for message in messages)
            return messages[0].body != b"bad" or seen.count("bad") == 4

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True, concurrency=1),
        ) as consumer:
            await until(lambda: len(set(seen)) == 41)
            assert seen.count("bad") < 4
            await consumer.commit()
            assert broker.offsets["cg", "T", 0] == 0, "what is not handled is not passed"
            async with asyncio.timeout(10):  # once it is handled here, it is done
                while broker.offsets["cg", "T", 0] == 0:
                    await asyncio.sleep(0.01)
                    await consumer.commit()
            assert seen.count("bad") == 4
        await stop(nameserver, broker)

    run(work)


def test_in_order_a_failed_message_is_tried_again_before_the_next() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["m0", "m1", "m2"])
        seen: list[str] = []

        async def listener(messages: list[Received]) -> bool:
            seen.append(messages[0].body.decode())
            return seen.count("m1") != 1

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True, orderly=True, suspend_s=0.01),
        ):
            await until(lambda: "m2" in seen and len(broker.locks) == 4)
        assert seen == ["m0", "m1", "m1", "m2"]
        assert broker.locks == {}
        assert broker.returned == []
        await stop(nameserver, broker)

    run(work)


@pytest.mark.parametrize("retries", [0, 2])
def test_in_order_a_message_that_always_fails_is_a_dead_letter_after_its_retries(retries: int) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["bad", "m1"])
        seen: list[tuple[str, int]] = []
        first = True

        async def no_first_return(command: Command) -> Command | None:
            nonlocal first
            if command.code == Request.CONSUMER_SEND_MSG_BACK and first:
                first = False
                raise Refused("not now", Response.SYSTEM_BUSY)
            return None

        broker.before = no_first_return

        async def listener(messages: list[Received]) -> bool:
            seen.append((messages[0].body.decode(), messages[0].reconsume_times))
            return messages[0].body != b"bad"

        in_order = ConsumeOptions(from_first=True, orderly=True, retry_max=retries, suspend_s=0.01)
        async with PushConsumer(
            env, "cg", nameserver.address, listener, subscriptions={"T": "*"}, options=in_order
        ):
            await until(lambda: ("m1", 0) in seen)
        tries = retries + 2  # one more for the broker that was busy
        assert seen == [*(("bad", times) for times in range(tries)), ("m1", 0)]
        assert [one["delayLevel"] for one in broker.returned] == ["-1"]
        assert broker.offsets["cg", "T", 0] == 2
        await stop(nameserver, broker)

    run(work)


def test_retries_are_rocketmqs_unless_they_are_said() -> None:
    assert ConsumeOptions().returns_max == 16
    assert ConsumeOptions(orderly=True).returns_max == 2**31 - 1
    assert ConsumeOptions(orderly=True, retry_max=3).returns_max == 3
    assert ConsumeOptions().suspend_s == 1.0


def test_a_queue_another_member_locked_is_not_consumed() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        broker.locks["T", 0] = "someone else"

        async def listener(messages: list[Received]) -> None:
            pass

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(orderly=True),
        ) as consumer:
            await until(lambda: len(consumer.queues) == 3)
            assert Queue("T", "broker-a", 0) not in consumer.queues
        await stop(nameserver, broker)

    run(work)


def test_only_subscribed_tags_are_delivered_though_the_broker_sends_all() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        await fill(env, nameserver, ["a0", "b1", "c2", "a3"])
        seen: list[str] = []

        async def listener(messages: list[Received]) -> None:
            seen.extend(m.body.decode() for m in messages)

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "a||c"},
            options=ConsumeOptions(from_first=True),
        ):
            await until(lambda: len(seen) == 3)
        assert seen == ["a0", "c2", "a3"]
        assert broker.offsets["cg", "T", 0] == 4
        beat = next(r for r in broker.requests if r.code == Request.HEART_BEAT and b"a||c" in r.body)
        assert b'"codeSet":[97,99]' in beat.body
        await stop(nameserver, broker)

    run(work)


def test_consumption_goes_on_at_the_new_master() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        await fill(env, nameserver, ["m0"])
        new = FakeBroker(env, "broker-a")
        await new.start()
        new.log = list(old.log)
        new.offsets = old.offsets
        seen: list[str] = []

        async def listener(messages: list[Received]) -> None:
            seen.extend(m.body.decode() for m in messages)

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True),
        ):
            await until(lambda: seen == ["m0"])
            nameserver.masters["broker-a"] = {0: new.address}
            await old.server.stop()
            await fill(env, nameserver, ["m1"])
            await until(lambda: "m1" in seen)
        assert seen == ["m0", "m1"]
        assert new.offsets["cg", "T", 0] == 2
        await stop(nameserver, new)

    run(work)


@pytest.mark.parametrize("failover", [True, False])
def test_a_commit_that_was_lost_is_repeated_though_no_message_comes(
    failover: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not failover:
        monkeypatch.setattr("client.consuming.consumer.COMMIT_AGAIN_S", 0.05)

    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        await fill(env, nameserver, ["m0"])
        new = FakeBroker(env, "broker-a")
        await new.start()
        options = ConsumeOptions(from_first=True, commit_s=0.02, poll_ms=50)
        async with PushConsumer(
            env, "cg", nameserver.address, ignore, subscriptions={"T": "*"}, options=options
        ):
            await until(lambda: old.offsets.get(("cg", "T", 0)) == 1)
            if failover:
                new.log = list(old.log)
                nameserver.masters["broker-a"] = {0: new.address}
                await until(lambda: new.offsets.get(("cg", "T", 0)) == 1)
            else:
                old.offsets.clear()
                await until(lambda: old.offsets.get(("cg", "T", 0)) == 1)
        await stop(nameserver, old, new)

    run(work)


def test_a_held_pull_at_a_silent_master_ends_when_the_route_names_its_successor() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        await fill(env, nameserver, ["m0"])
        new = FakeBroker(env, "broker-a")
        await new.start()
        seen: list[str] = []

        async def listener(messages: list[Received]) -> None:
            seen.extend(m.body.decode() for m in messages)

        async with PushConsumer(
            env,
            "cg",
            nameserver.address,
            listener,
            subscriptions={"T": "*"},
            options=ConsumeOptions(from_first=True, poll_ms=200),
        ):
            await until(lambda: seen == ["m0"])
            new.log, new.offsets = list(old.log), old.offsets
            nameserver.masters["broker-a"] = {0: new.address}  # the old one holds the pull and says nothing
            await fill(env, nameserver, ["m1"])
            await until(lambda: "m1" in seen)
        assert seen == ["m0", "m1"]
        await stop(nameserver, old, new)

    run(work)


@given(st.lists(st.integers(1, 5), max_size=8), st.randoms())
def test_the_committed_offset_never_passes_a_message_under_way(sizes: list[int], order: object) -> None:
    progress = Progress(10)
    open_offsets: list[int] = []
    for size in sizes:
        offsets = list(range(progress.next, progress.next + size))
        progress.took(offsets, progress.next + size)
        open_offsets += offsets
    order.shuffle(open_offsets)  # type: ignore[attr-defined]
    last = progress.handled
    while open_offsets:
        progress.done(open_offsets.pop())
        assert progress.handled == min(open_offsets, default=progress.next)
        assert progress.handled >= last
        last = progress.handled
