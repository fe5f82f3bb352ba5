"""The promises of client.sending: stored, not stored or unknown, and it goes on once a master is back."""

import asyncio
import logging

import pytest

from client.message import Message, Queue, SendFailed, SendStatus, SendUnknown
from client.sending.delivery import shard
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import Refused
from model.message import decode_properties
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import FakeBroker, FakeNameServer, cluster, run, stop
from tests.waiting import until

LONG = SendOptions(timeout_s=600, attempt_timeout_s=600)
"""A send that waits for any of these to be over outlasts its test (tests.fakes.client.run)."""


def message(body: bytes = b"hello", **properties: str) -> Message:
    return Message(topic="T", body=body, properties=dict(properties))


def test_a_send_tells_where_the_message_lies() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            first = await producer.send(message(), queue=Queue("T", "broker-a", 2))
            second = await producer.send(message(), queue=Queue("T", "broker-a", 2))
        assert (first.status, first.queue.queue_id, first.queue_offset) == (SendStatus.SEND_OK, 2, 0)
        assert second.queue_offset == 1
        assert [s.properties["UNIQ_KEY"] for s in broker.log] == [first.msg_id, second.msg_id]
        assert [a.outcome for a in first.attempts] == ["ok"]
        await stop(nameserver, broker)

    run(work)


def test_sends_take_turns_over_all_queues_of_all_groups() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2, queues=2)
        async with Producer(env, "pg", nameserver.address) as producer:
            results = [await producer.send(message()) for _ in range(8)]
        queues = [r.queue for r in results]
        assert len(set(queues[:4])) == 4
        assert queues[:4] == queues[4:]
        await stop(nameserver, *brokers)

    run(work)


def test_one_sharding_key_stays_in_one_queue() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2, queues=4)
        async with Producer(env, "pg", nameserver.address) as producer:
            results = [await producer.send(message(), sharding_key=f"k{i % 3}") for i in range(9)]
        by_key = [{r.queue for r in results[i::3]} for i in range(3)]
        assert all(len(queues) == 1 for queues in by_key)
        await stop(nameserver, *brokers)

    run(work)


@pytest.mark.parametrize(
    # what SelectMessageQueueByHash of RocketMQ says of 4, 5 and 8 queues; the last two hashes are negative
    ("key", "numbers"),
    [("a", (1, 2, 1)), ("customer-7", (0, 3, 0)), ("polygenelubricants", (0, 3, 0))],
)
def test_a_sharding_key_has_the_queue_that_java_clients_give_it(key: str, numbers: tuple[int, ...]) -> None:
    assert tuple(shard(key, count) for count in (4, 5, 8)) == numbers


def test_a_batch_lies_in_one_queue_one_after_the_other() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            result = await producer.send_batch([message(b"a"), message(b"b"), message(b"c")])
        assert [s.body for s in broker.queue("T", result.queue.queue_id)] == [b"a", b"b", b"c"]
        assert result.queue_offset == 0
        assert len(result.offset_msg_id.split(",")) == 3
        assert result.msg_id.split(",") == [s.properties["UNIQ_KEY"] for s in broker.log]
        await stop(nameserver, broker)

    run(work)


def test_a_batch_of_two_topics_or_with_a_delay_is_refused_before_anything_is_sent() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            for wrong in (
                [],
                [message(), Message(topic="U", body=b"x")],
                [Message(topic="T", body=b"x", delay_level=1)],
            ):
                with pytest.raises(ValueError, match="batch"):
                    await producer.send_batch(wrong)
        assert broker.log == []
        await stop(nameserver, broker)

    run(work)


def test_oneway_arrives_and_waits_for_nothing() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            await producer.send_oneway(message(b"fire"))
            await until(lambda: bool(broker.log))
        assert broker.log[0].body == b"fire"
        assert [r.is_oneway for r in broker.requests if r.code == Request.SEND_MESSAGE_V2] == [True]
        await stop(nameserver, broker)

    run(work)


def test_async_sends_end_in_their_futures() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            futures = [producer.send_async(message(str(i).encode())) for i in range(50)]
            results = await asyncio.gather(*futures)
        assert len({r.msg_id for r in results}) == 50
        assert len(broker.log) == 50
        await stop(nameserver, broker)

    run(work)


def test_long_bodies_travel_compressed_when_asked() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(
            env, "pg", nameserver.address, options=SendOptions(compress_over_bytes=100)
        ) as producer:
            await producer.send(message(b"z" * 1000))
        assert len(broker.log[0].body) < 100
        send = next(r for r in broker.requests if r.code == Request.SEND_MESSAGE_V2)
        assert int(send.ext["f"]) == 0x301  # compressed, by zlib
        await stop(nameserver, broker)

    run(work)


def test_a_topic_nobody_knows_is_made_by_its_first_message() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.topics["TBW102"] = {"broker-a": 8}
        async with Producer(env, "pg", nameserver.address) as producer:
            result = await producer.send(Message(topic="New", body=b"x"))
            assert result.queue.queue_id < 4  # the default number of queues, not the default topic's
            nameserver.topics["New"] = {"broker-a": 2}
            await producer.send(Message(topic="New", body=b"y"))
            await until(lambda: producer.session.routes.cached("New") is not None)
            assert len(await producer.queues("New")) == 2
        send = next(r for r in broker.requests if r.code == Request.SEND_MESSAGE_V2)
        assert (send.ext["c"], send.ext["d"]) == ("TBW102", "4")
        await stop(nameserver, broker)

    run(work)


def test_a_topic_that_cannot_be_made_is_definitely_not_stored() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(env, "pg", nameserver.address) as producer:
            with pytest.raises(SendFailed) as failed:
                await producer.send(Message(topic="New", body=b"x"))
        assert failed.value.code == Response.TOPIC_NOT_EXIST
        assert failed.value.attempts == ()
        await stop(nameserver, broker)

    run(work)


def test_the_send_goes_on_at_the_new_master_as_soon_as_a_nameserver_names_it() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        new = FakeBroker(env, "broker-a")
        await new.start()
        async with Producer(env, "pg", nameserver.address, options=SendOptions(timeout_s=10)) as producer:
            await producer.send(message(b"before"))
            nameserver.masters["broker-a"] = {1: new.address}
            await old.server.stop()
            waiting = producer.send_async(message(b"during"))
            await asyncio.sleep(0.3)
            assert not waiting.done()
            nameserver.masters["broker-a"] = {0: new.address}
            result = await waiting
        assert result.status is SendStatus.SEND_OK
        assert [s.body for s in new.log] == [b"during"]
        assert [s.body for s in old.log] == [b"before"]
        await stop(nameserver, new)

    run(work)


def test_an_idle_producer_learns_of_the_new_master_from_the_closed_link() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        new = FakeBroker(env, "broker-a")
        await new.start()
        async with Producer(env, "pg", nameserver.address) as producer:
            await producer.send(message(b"before"))
            nameserver.masters["broker-a"] = {}
            await old.server.stop()
            await asyncio.sleep(0.1)
            nameserver.masters["broker-a"] = {0: new.address}

            def moved() -> bool:
                route = producer.session.routes.cached("T")
                return route is not None and route.master("broker-a") == new.address

            await until(moved)
        await stop(nameserver, new)

    run(work)


def test_a_refusal_that_says_not_here_is_tried_elsewhere() -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=2)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                raise Refused("not master", Response.NO_PERMISSION)
            return None

        brokers[0].before = refuse
        async with Producer(env, "pg", nameserver.address) as producer:
            results = [await producer.send(message()) for _ in range(8)]
        assert {r.queue.broker_name for r in results} == {"broker-b"}
        assert not any(r.maybe_duplicate for r in results)
        assert any(a.outcome == "failed" for r in results for a in r.attempts)
        await stop(nameserver, *brokers)

    run(work)


def test_sends_that_wait_for_one_new_master_ask_together_and_go_when_it_is_named() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        new = FakeBroker(env, "broker-a")
        await new.start()

        async def hand_over(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                raise Refused("handing over", Response.SERVICE_NOT_AVAILABLE)
            return None

        async with Producer(env, "pg", nameserver.address, options=SendOptions(timeout_s=10)) as producer:
            await producer.send(message(b"before"))
            old.before = hand_over
            sends = [producer.send_async(message(b"%d" % i)) for i in range(40)]
            tries = asked = 0

            def tried() -> int:
                return sum(command.code == Request.SEND_MESSAGE_V2 for command in old.requests)

            await until(lambda: tried() > 200)
            nameserver.masters["broker-a"] = {0: new.address}
            tries, asked = tried(), nameserver.asked.count(Request.GET_ROUTEINFO_BY_TOPIC)
            results = await asyncio.gather(*sends)
        assert {r.status for r in results} == {SendStatus.SEND_OK}
        assert len(new.log) == 40
        assert asked < tries / 4
        assert not any(r.maybe_duplicate for r in results)
        await stop(nameserver, old, new)

    run(work)


def test_answers_of_a_master_that_was_succeeded_still_arrive() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        new = FakeBroker(env, "broker-a")
        await new.start()
        succeeded = asyncio.Event()

        async def answer_late(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                await succeeded.wait()
                await asyncio.sleep(0.05)
            return None

        async with Producer(
            env, "pg", nameserver.address, options=SendOptions(unknown_retries=0)
        ) as producer:
            await producer.queues("T")
            old.before = answer_late
            waiting = producer.send_async(message(b"old"))
            await until(lambda: any(c.code == Request.SEND_MESSAGE_V2 for c in old.requests))
            nameserver.masters["broker-a"] = {0: new.address}
            await producer.session.routes.refresh("T")
            succeeded.set()
            assert (await waiting).status is SendStatus.SEND_OK
            assert (await producer.send(message(b"new"))).status is SendStatus.SEND_OK
        assert [[s.body for s in broker.log] for broker in (old, new)] == [[b"old"], [b"new"]]
        await stop(nameserver, old, new)

    run(work)


def test_a_refusal_that_no_retry_can_mend_ends_at_once() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                raise Refused("illegal", Response.MESSAGE_ILLEGAL)
            return None

        broker.before = refuse
        async with Producer(env, "pg", nameserver.address) as producer:
            with pytest.raises(SendFailed, match="illegal") as failed:
                await producer.send(message())
        assert failed.value.code == Response.MESSAGE_ILLEGAL
        assert len(failed.value.attempts) == 1
        await stop(nameserver, broker)

    run(work)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_refusal_of_every_broker_that_is_about_no_role_ends_soon_with_its_words(groups: int) -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=groups)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                raise Refused("Sending message to topic[T] is forbidden.", Response.NO_PERMISSION)
            return None

        for broker in brokers:
            broker.before = refuse
        async with Producer(env, "pg", nameserver.address, options=LONG) as producer:
            with pytest.raises(SendFailed, match="is forbidden") as failed:
                await producer.send(message())
        assert failed.value.code == Response.NO_PERMISSION
        assert len(failed.value.attempts) <= 2 * groups
        await stop(nameserver, *brokers)

    run(work)


@pytest.mark.parametrize("topic", ["%RETRY%g", "%DLQ%g"])
def test_the_first_message_of_a_topic_of_a_group_goes_to_the_one_queue_it_gets(topic: str) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.topics["TBW102"] = {"broker-a": 8}
        async with Producer(env, "pg", nameserver.address) as producer:
            for _ in range(4):
                assert (await producer.send(Message(topic=topic, body=b"x"))).queue.queue_id == 0
        await stop(nameserver, broker)

    run(work)


def test_a_silent_nameserver_holds_a_new_topic_up_for_a_moment_and_is_told_of() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.topics["TBW102"] = {"broker-a": 8}
        silent = FakeNameServer(env)
        await silent.start()
        silent.silent = True
        told: list[str] = []
        addresses = [silent.address, "127.0.0.1:1", nameserver.address]
        async with Producer(env, "pg", addresses, options=LONG) as producer:
            routes = producer.session.routes
            routes.silence.on_silent.append(told.append)
            routes._timeout_s = LONG.timeout_s
            await producer.send(Message(topic="New", body=b"x"))
        assert sorted(told) == sorted(set(told))
        assert any(line.startswith("NameServer 127.0.0.1:1: cannot connect") for line in told)
        assert f"NameServer {silent.address} does not answer, the others are believed" in told
        await stop(nameserver, silent, broker)

    run(work)


def test_an_answer_that_never_comes_is_unknown_not_failed() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)

        async def swallow(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                await asyncio.sleep(60)
            return None

        broker.before = swallow
        async with Producer(
            env,
            "pg",
            nameserver.address,
            options=SendOptions(timeout_s=1, attempt_timeout_s=0.2, unknown_retries=0),
        ) as producer:
            with pytest.raises(SendUnknown) as unknown:
                await producer.send(message())
        assert [a.outcome for a in unknown.value.attempts] == ["unknown"]
        await stop(nameserver, broker)

    run(work)


def test_a_link_that_ends_after_the_send_is_unknown_and_the_retry_says_it_may_be_a_duplicate() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        first = True

        async def cut(command: Command) -> Command | None:
            nonlocal first
            if command.code == Request.SEND_MESSAGE_V2 and first:
                first = False
                for link in list(broker.server.connections):
                    link.abort()
            return None

        broker.before = cut
        async with Producer(env, "pg", nameserver.address) as producer:
            result = await producer.send(message())
        assert [a.outcome for a in result.attempts] == ["unknown", "ok"]
        assert result.maybe_duplicate
        keys = [decode_properties(r.ext["i"])["UNIQ_KEY"] for r in broker.requests if "i" in r.ext]
        assert keys == [result.msg_id] * 2  # both copies bear one name, so a reader can tell
        await stop(nameserver, broker)

    run(work)


def test_a_system_error_is_unknown_unless_it_names_a_reason_before_the_write() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        remark = "something broke"

        async def fail(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                raise Refused(remark, Response.SYSTEM_ERROR)
            return None

        broker.before = fail
        async with Producer(
            env, "pg", nameserver.address, options=SendOptions(timeout_s=0.3, unknown_retries=0)
        ) as producer:
            with pytest.raises(SendUnknown):
                await producer.send(message())
            remark = "in-sync replicas not enough"
            with pytest.raises(SendFailed):
                await producer.send(message())
        await stop(nameserver, broker)

    run(work)


def test_flush_and_replica_timeouts_are_answers_not_errors() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)

        async def late(command: Command) -> Command | None:
            if command.code != Request.SEND_MESSAGE_V2:
                return None
            ext = {"msgId": "0" * 32, "queueId": command.ext["e"], "queueOffset": "7"}
            return command.reply(Response.FLUSH_SLAVE_TIMEOUT, ext=ext)

        broker.before = late
        async with Producer(env, "pg", nameserver.address) as producer:
            result = await producer.send(message())
        assert result.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        assert result.queue_offset == 7
        await stop(nameserver, broker)

    run(work)


def test_a_silent_master_is_left_for_its_successor_before_the_answer_times_out() -> None:
    async def work(env: Env) -> None:
        nameserver, (old,) = await cluster(env)
        new = FakeBroker(env, "broker-a")
        await new.start()
        frozen, held = False, 0

        async def freeze(command: Command) -> Command | None:
            nonlocal held
            if frozen:
                held += 1
                await asyncio.sleep(60)
            return None

        old.before = freeze
        async with Producer(env, "pg", nameserver.address, options=LONG) as producer:
            await producer.send(message(b"before"))
            frozen = True
            waiting = producer.send_async(message(b"during"))
            await until(lambda: held, "the old master has it")
            nameserver.masters["broker-a"] = {0: new.address}
            result = await waiting
        assert [a.outcome for a in result.attempts] == ["unknown", "ok"]
        await stop(nameserver, old, new)

    run(work)


def test_a_dead_and_a_silent_nameserver_cost_nothing() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        silent = FakeNameServer(env)
        await silent.start()
        silent.silent = True
        addresses = ["127.0.0.1:1", silent.address, nameserver.address]
        async with Producer(env, "pg", addresses, options=LONG) as producer:
            producer.session.routes._timeout_s = LONG.timeout_s
            await producer.send(message())
        await stop(nameserver, silent, broker)

    run(work)


def test_a_nameserver_that_forgot_the_topic_does_not_hide_it() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        empty = FakeNameServer(env)
        await empty.start()
        async with Producer(env, "pg", [empty.address, nameserver.address]) as producer:
            assert (await producer.send(message())).status is SendStatus.SEND_OK
        await stop(nameserver, empty, broker)

    run(work)


def test_a_message_that_cannot_be_encoded_is_a_value_error() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        async with Producer(
            env, "pg", nameserver.address, options=SendOptions(message_bytes_max=10)
        ) as producer:
            for wrong in (Message(topic="", body=b"x"), message(b""), message(b"x" * 11)):
                with pytest.raises(ValueError, match=r"topic|message|body"):
                    await producer.send(wrong)
            with pytest.raises(ValueError, match="not of topic"):
                await producer.send(message(), queue=Queue("U", "broker-a", 0))
        assert broker.log == []
        await stop(nameserver, broker)

    run(work)


def test_a_loop_that_an_application_holds_is_not_the_clients_to_warn_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server's loop is held by requests; a client's, by what the application does on it."""

    async def work(env: Env) -> None:
        async with Producer(env, "pg", "127.0.0.1:1") as producer:
            producer.session.remoting.guard.slow.note(500.0, "one read", "127.0.0.1:10911")

    with caplog.at_level(logging.INFO):
        run(work)
    levels = [one.levelno for one in caplog.records if "held the event loop" in one.message]
    assert levels == [logging.INFO]
