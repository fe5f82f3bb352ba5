"""The promise of client.checking: what cannot work is a ValueError that names it; no broker is asked."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from client.blocking import BlockingPopConsumer, BlockingProducer, BlockingPushConsumer
from client.checking import need_async, need_plain
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.message import Message, Queue, Received, SendFailed, SendResult
from client.sending.options import SendOptions
from client.sending.producer import Producer
from client.sending.transactions import Decision
from runtime.env import Env
from tests.fakes.client import cluster, run, stop

NAMESRV = "127.0.0.1:1"
WRONG_GROUPS = ["", "a b", "a/b", "g" * 121, 5, None]
WRONG_SUBSCRIPTIONS: list[Any] = [{}, ["T"], "T", {"a b": "*"}, {"": "*"}, {"T": None}, {"T" * 128: "*"}]


async def take(messages: list[Received]) -> bool:
    return True


def plain(messages: Any) -> Any:
    return True


async def commit(_: Any) -> Decision:
    return Decision.COMMIT


class Awaited:
    async def __call__(self, messages: list[Received]) -> bool:
        return True

    async def method(self, messages: list[Received]) -> bool:
        return True


def refused(text: str | None, make: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(ValueError, match=text):
        make(*arguments, **named)


def of_consumers(env: Env, group: Any, listener: Any, subscriptions: Any) -> None:
    """All four kinds refuse it."""
    blocked = plain if listener is take else take
    for kind in (PushConsumer, PopConsumer):
        refused(None, kind, env, group, NAMESRV, listener, subscriptions=subscriptions)
    for blocking in (BlockingPushConsumer, BlockingPopConsumer):
        refused(None, blocking, group, NAMESRV, blocked, subscriptions=subscriptions)


def test_groups_topics_and_functions_that_cannot_work_are_refused_when_a_client_is_made() -> None:
    async def work(env: Env) -> None:
        for group in WRONG_GROUPS:
            of_consumers(env, group, take, {"T": "*"})
            refused("group", Producer, env, group, NAMESRV)
            refused("group", BlockingProducer, group, NAMESRV)
        for subscriptions in WRONG_SUBSCRIPTIONS:
            of_consumers(env, "g", take, subscriptions)
        of_consumers(env, "g", plain, {"T": "*"})
        of_consumers(env, "g", None, {"T": "*"})
        refused("env comes first", Producer, "g", NAMESRV)
        refused("env comes first", PushConsumer, "g", NAMESRV, subscriptions={"T": "*"})
        refused("async def", Producer, env, "g", NAMESRV, check=plain)
        refused("plain", BlockingProducer, "g", NAMESRV, check=commit)
        longest, traced = "g" * 120, ConsumeOptions(trace=True)
        PushConsumer(env, longest, NAMESRV, take, subscriptions={"%DLQ%" + longest: "A||B"}, options=traced)

    run(work)


def test_what_is_awaited_is_told_from_what_is_called() -> None:
    wrapped = functools.wraps(take)(lambda messages: take(messages))
    for awaited in (take, functools.partial(take), Awaited(), Awaited().method, wrapped):
        need_async("it", awaited)
        refused("it is to be a plain", need_plain, "it", awaited)
    for called in (plain, functools.partial(plain), len, lambda messages: True):
        need_plain("it", called)
        refused("it is to be an async def", need_async, "it", called)


@pytest.mark.parametrize("kind", [ConsumeOptions, PopOptions])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("concurrency", "4"),
        ("batch_max", 0),
        ("batch_max", float("nan")),
        ("held_max", 0),
        ("held_max", True),
        ("held_bytes_max", 0),
        ("poll_ms", 0),
        ("retry_max", -2),
    ],
)
def test_options_out_of_range_are_refused_by_name(kind: Any, name: str, value: Any) -> None:
    refused(name, kind, **{name: value})


def test_more_options_out_of_range_are_refused() -> None:
    for name, value in (("rebalance_s", 0), ("commit_s", -1), ("suspend_s", -1)):
        refused(name, ConsumeOptions, **{name: value})
    assert ConsumeOptions(retry_max=-1).retry_max == -1
    refused("retry_max", PopOptions, retry_max=-1)
    refused("grace_s", PopOptions, grace_s=-1)
    for after_s in ((), (1, -1)):
        refused("retry_after_s", PopOptions, retry_after_s=after_s)
    for name, value in (("timeout_s", 0), ("attempt_timeout_s", -1), ("in_flight_max", 0)):
        refused(name, SendOptions, **{name: value})
    refused("unknown_retries", SendOptions, unknown_retries=-1)


WRONG_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"flag": 1 << 31}, "flag"),
    ({"flag": 1.5}, "flag"),
    ({"keys": "4711"}, "keys"),
    ({"keys": [""]}, "keys"),
    ({"keys": [4711]}, "keys"),
    ({"body": "text"}, "the body is str"),
    ({"topic": None}, "topic"),
    ({"tags": 5}, "'TAGS' is 5"),
    ({"properties": {"n": 5}}, "'n' is 5"),
    ({"properties": {5: 5}}, "names and values are texts"),
    ({"properties": {"": "a"}}, "has no name"),
    ({"properties": {"a": "\x01"}}, "0x01"),
    ({"deliver_at_ms": 1.8e12}, "deliver_at_ms"),
    ({"deliver_after_ms": -5}, "deliver_after_ms"),
    ({"delay_level": -1}, "delay_level"),
]


@pytest.mark.parametrize(("wrong", "text"), WRONG_MESSAGES)
def test_a_message_no_broker_would_take_is_refused_by_the_name_of_its_field(
    wrong: dict[str, Any], text: str
) -> None:
    async def work(env: Env) -> None:
        producer = Producer(env, "g", NAMESRV)
        message = Message(**{"topic": "T", "body": b"x", **wrong})
        with pytest.raises(ValueError, match=text):
            await producer.send(message)
        with pytest.raises(ValueError, match=text):
            producer.send_async(message)

    run(work)


def test_places_and_times_that_cannot_be_are_refused() -> None:
    async def work(env: Env) -> None:
        producer, message = Producer(env, "g", NAMESRV), Message(topic="T", body=b"x")
        with pytest.raises(ValueError, match="at least 0"):
            await producer.send(message, queue=Queue("T", "broker-a", -1))
        for timeout_s in (0, -1):
            with pytest.raises(ValueError, match="timeout_s"):
                await producer.send(message, timeout_s=timeout_s)
        for name in ("DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC"):
            later = Message(topic="T", body=b"x", properties={name: "5"})
            with pytest.raises(ValueError, match="delayed"):
                await producer.send_batch([message, later])
        assert not Message(topic="T", body=b"x", properties={"DELAY": "0"}).is_delayed

    run(work)


def test_a_stopped_producer_says_at_once_that_it_stores_nothing() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        message = Message(topic="T", body=b"x")
        async with Producer(env, "g", nameserver.address, check=commit) as producer:
            await producer.send(message)
        asked = len(nameserver.asked), len(broker.requests)
        for send in (
            lambda: producer.send(message),
            lambda: producer.send_batch([message]),
            lambda: producer.send_oneway(message),
            lambda: producer.request(message),
            lambda: producer.send_in_transaction(message, commit),
        ):
            with pytest.raises(SendFailed, match="producer g is stopped"):
                await send()
        with pytest.raises(SendFailed, match="producer g is stopped"):
            producer.send_async(message)
        assert (len(nameserver.asked), len(broker.requests)) == asked
        await stop(nameserver, broker)

    run(work)


def test_the_work_of_a_transaction_is_awaited_and_decides() -> None:
    async def undecided(sent: SendResult) -> Any:
        return True

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        wrong: Any = plain
        async with Producer(env, "g", nameserver.address, check=commit) as producer:
            with pytest.raises(ValueError, match="work is to be an async def"):
                await producer.send_in_transaction(Message(topic="T", body=b"x"), wrong)
            assert broker.log == [], "nothing is prepared"
            with pytest.raises(TypeError, match="returned True, not a Decision"):
                await producer.send_in_transaction(Message(topic="T", body=b"x"), undecided)
        await stop(nameserver, broker)

    run(work)
