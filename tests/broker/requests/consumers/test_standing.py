"""The promise of broker.requests.consumers.standing: what the rules found of a pull is kept, and no change of
what they look at is seen a pull late."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker.service import Broker
from broker.state.clients import ConsumerGroup, Subscription
from model.codes import Request
from model.topic import PERM_WRITE, SubscriptionGroupConfig, TopicConfig
from remoting import bodies
from remoting.codec import Command
from remoting.headers import PULL_COMMIT_OFFSET, PullHeader
from tests.broker.helpers import Client, client_of, heartbeat, running, topic

GROUP, TOPIC, QUEUE = "cg", "T", 1
Change = Callable[[Broker, Client], Awaitable[object]]


async def beat(client: Client, expression: str = "*", version: int = 1, model: str = "CLUSTERING") -> None:
    data = bodies.loads(heartbeat("c", GROUP, TOPIC))
    data["consumerDataSet"][0]["messageModel"] = model
    wanted = {"subString": expression, "subVersion": version}
    if expression != "*":
        wanted |= {"tagsSet": [expression], "codeSet": [ord(expression)]}
    data["consumerDataSet"][0]["subscriptionDataSet"][0] |= wanted
    assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(data))).code == 0


def config(key: str, value: int) -> Change:
    async def change(broker: Broker, client: Client) -> None:
        body = f"{key}={value}\n".encode()
        assert (await client.call(Request.UPDATE_BROKER_CONFIG, {}, body)).code == 0

    return change


async def made_again(broker: Broker, client: Client) -> None:
    assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})).code == 0
    assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(TOPIC, 4))).code == 0


async def no_reading(broker: Broker, client: Client) -> None:
    broker.context.topics.put(TopicConfig(TOPIC, 4, 4, PERM_WRITE))


async def fewer_queues(broker: Broker, client: Client) -> None:
    broker.context.topics.put(TopicConfig(TOPIC, QUEUE, 4))


async def disabled(broker: Broker, client: Client) -> None:
    broker.context.groups.put(SubscriptionGroupConfig(GROUP, consume_enable=False))


async def forbidden(broker: Broker, client: Client) -> None:
    broker.context.groups.forbid(GROUP, TOPIC, forbidden=True)


async def reset(broker: Broker, client: Client) -> None:
    broker.context.offsets.reset(GROUP, TOPIC, QUEUE, 5)


async def left(broker: Broker, client: Client) -> None:
    ext = {"clientID": "c", "consumerGroup": GROUP}
    assert (await client.call(Request.UNREGISTER_CLIENT, ext)).code == 0


CHANGES: dict[str, Change] = {
    "the topic was deleted and made again": made_again,
    "the topic is not to be read": no_reading,
    "the topic has fewer queues": fewer_queues,
    "the group is disabled": disabled,
    "the group may not read the topic": forbidden,
    "the group reads other tags": lambda broker, client: beat(client, "A", 2),
    "the group broadcasts, and may not": lambda broker, client: beat(client, model="BROADCASTING"),
    "the group's last consumer left": left,
    "the group's offset was reset": reset,
    "the broker is not to be read": config("brokerPermission", PERM_WRITE),
    "an answer has fewer messages": config("maxTransferCountOnMessageInMemory", 2),
    "an answer has fewer bytes": config("maxTransferBytesOnMessageInMemory", 300),
}


def said(answer: Command) -> tuple[Any, ...]:
    return answer.code, answer.remark, answer.ext, answer.body


async def filled(broker: Broker, client: Client) -> None:
    assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(TOPIC, 4))).code == 0
    for number in range(10):
        await client.send(TOPIC, b"%d" % number, queue_id=QUEUE, properties=f"TAGS\x01{'AB'[number % 2]}\x02")
    await client.pull_until(TOPIC, 0, 10, queue_id=QUEUE, group="other")
    broker.context.groups.put(SubscriptionGroupConfig(GROUP, consume_broadcast_enable=False))
    await beat(client)


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_is_seen_by_the_next_pull(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await filled(broker, client)
        looks, tell = [0], broker.processors.pulls.tell

        def counted(*asked: Any, **how: Any) -> Any:
            looks[0] += 1
            return tell(*asked, **how)

        monkeypatch.setattr(broker.processors.pulls, "tell", counted)
        pull = PullHeader(GROUP, TOPIC, QUEUE, 3, 7).to_ext()
        first, second = [await client.call(11, pull) for _ in range(2)]
        assert said(first) == said(second)
        assert first.code == 0
        assert looks == [1], "the rules are not worked out anew"
        await CHANGES[what](broker, client)
        fast = await client.call(11, pull)
        assert said(fast) != said(first)
        broker.context.offsets.resets.drop((TOPIC, GROUP))  # it was told once
        await reset(broker, client) if what == "the group's offset was reset" else None
        slow = await client.call(11, pull | {"unknown": "1"})
        assert said(fast) == said(slow)


async def test_each_pull_is_counted_and_commits(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await filled(broker, client)
        stats, before = broker.context.stats, broker.context.stats.totals
        for offset in (2, 3, 4, 6):
            pull = PullHeader(GROUP, TOPIC, QUEUE, offset, 2, PULL_COMMIT_OFFSET, offset - 1)
            assert (await client.call(11, pull.to_ext())).code == 0
            assert broker.context.offsets.get(GROUP, TOPIC, QUEUE) == offset - 1
            assert stats.pulled.of(GROUP, TOPIC, QUEUE, 0) == offset + 2
        assert (stats.totals.got, stats.totals.found) == (before.got + 8, before.found + 4)


def living(kind: type) -> int:
    gc.collect()
    return sum(type(one) is kind for one in gc.get_objects())


async def test_what_a_client_said_goes_with_it_though_its_pulls_are_remembered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send(TOPIC, b"x")
        await client.pull_until(TOPIC, 0, 1)
        kept = living(ConsumerGroup), living(Subscription)
        for number in range(5):
            assert (await client.call(Request.HEART_BEAT, {}, heartbeat("c", GROUP, TOPIC))).code == 0
            ext = PullHeader(GROUP, TOPIC, 0, 0, 1, suspend_timeout_ms=number).to_ext()
            for _ in range(2):
                assert (await client.call(Request.PULL_MESSAGE, ext)).code == 0
            gone = {"clientID": "c", "consumerGroup": GROUP}
            assert (await client.call(Request.UNREGISTER_CLIENT, gone)).code == 0
        assert (living(ConsumerGroup), living(Subscription)) == kept
