"""The promise of client.consuming.operated: what operators ask a consumer is done, and told as RocketMQ's
clients tell it."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from client.admin import AdminClient
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pop.consumer import PopConsumer
from client.consuming.pop.options import PopOptions
from client.consuming.pull import PullConsumer
from client.message import Message, Received
from client.sending.producer import Producer
from model.codes import Request
from remoting import bodies
from remoting.codec import Command
from tests.client.servers import Pair, run
from tests.waiting import until

TOPIC = "Orders"
COUNT = 6


class Listener:
    """Takes every message, unless ``answer`` says otherwise."""

    def __init__(self) -> None:
        self.got: Counter[bytes] = Counter()
        self.answer: bool | BaseException = True

    async def __call__(self, messages: list[Received]) -> bool:
        self.got.update(message.body for message in messages)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


async def sent(servers: Pair) -> list[str]:
    """Ids (of the broker) of COUNT messages of one queue."""
    async with AdminClient(servers.env, servers.namesrv) as admin:
        await admin.create_topic(TOPIC, 1)
    async with Producer(servers.env, "pg", servers.namesrv) as producer:
        results = [await producer.send(Message(topic=TOPIC, body=b"%d" % n)) for n in range(COUNT)]
    return [result.offset_msg_id for result in results]


async def asked(other: PullConsumer, servers: Pair, code: int, **ext: Any) -> Command:
    command = Command(code, {name: str(value) for name, value in ext.items()})
    return await other.session.remoting.call(servers.broker.config.address, command)


def options(**more: Any) -> ConsumeOptions:
    return ConsumeOptions(from_first=True, commit_s=0.05, **more)


def test_offsets_that_are_reset_while_a_consumer_is_online_are_read_from_again(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        await sent(servers)
        listener = Listener()
        consumer = PushConsumer(
            servers.env, "cg", servers.namesrv, listener, subscriptions={TOPIC: "*"}, options=options()
        )
        offsets = servers.broker.context.offsets
        async with consumer, PullConsumer(servers.env, "asks", servers.namesrv) as other:
            await until(lambda: offsets.get("cg", TOPIC, 0) == COUNT)
            answer = await asked(
                other,
                servers,
                Request.INVOKE_BROKER_TO_RESET_OFFSET,
                topic=TOPIC,
                group="cg",
                timestamp=0,
                isForce="true",
            )
            assert answer.code == 0, answer.remark
            await until(lambda: sum(listener.got.values()) == 2 * COUNT)
            assert set(listener.got.values()) == {2}
            await until(lambda: offsets.get("cg", TOPIC, 0) == COUNT)

    run(tmp_path, work)


@pytest.mark.parametrize("held", [1, 3])
def test_a_reset_passes_over_a_message_that_its_consumer_cannot_handle(tmp_path: Path, held: int) -> None:
    """In order nothing passes it, and a worker with its hands full does not pull: its commits are told."""

    async def work(servers: Pair) -> None:
        await sent(servers)
        got: list[bytes] = []

        async def listener(messages: list[Received]) -> bool:
            got.append(messages[0].body)
            return messages[0].body != b"0"

        consumer = PushConsumer(
            servers.env,
            "cg",
            servers.namesrv,
            listener,
            subscriptions={TOPIC: "*"},
            options=options(orderly=True, held_max=held, suspend_s=0.01),
        )
        offsets = servers.broker.context.offsets
        async with consumer, PullConsumer(servers.env, "asks", servers.namesrv) as other:
            await until(lambda: len(got) > 3)
            to = {"topic": TOPIC, "group": "cg", "timestamp": 0, "queueId": 0, "offset": COUNT - 1}
            answer = await asked(other, servers, Request.INVOKE_BROKER_TO_RESET_OFFSET, **to)
            assert answer.code == 0, answer.remark
            consumer._doubt_commits()  # as each minute
            await until(lambda: offsets.get("cg", TOPIC, 0) == COUNT)
            assert set(got) == {b"0", b"%d" % (COUNT - 1)}

    run(tmp_path, work)


def test_a_message_is_handled_when_an_operator_asks_and_the_outcome_is_told(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        ids = await sent(servers)
        pushed, popped = Listener(), Listener()
        wanted = {TOPIC: "*"}
        push = PushConsumer(
            servers.env, "cg", servers.namesrv, pushed, subscriptions=wanted, options=options()
        )
        pop = PopConsumer(
            servers.env,
            "pops",
            servers.namesrv,
            popped,
            subscriptions=wanted,
            options=PopOptions(from_first=True),
        )
        clients = servers.broker.context.clients
        async with push, pop, PullConsumer(servers.env, "asks", servers.namesrv) as other:
            await until(lambda: sum(pushed.got.values()) == sum(popped.got.values()) == COUNT)
            for listener, group in ((pushed, "cg"), (popped, "pops")):
                (client,) = clients.consumers[group].ids()
                ext = {"consumerGroup": group, "clientId": client, "topic": TOPIC, "msgId": ids[2]}
                for answer, result in (
                    (True, "CR_SUCCESS"),
                    (False, "CR_LATER"),
                    (asyncio.CancelledError("elsewhere"), "CR_THROW_EXCEPTION"),
                    (ValueError("no"), "CR_THROW_EXCEPTION"),
                ):
                    listener.answer = answer
                    said = await asked(other, servers, Request.CONSUME_MESSAGE_DIRECTLY, **ext)
                    told = bodies.loads(said.body)
                    assert (said.code, told["consumeResult"]) == (0, result)
                    assert (told["autoCommit"], told["order"]) == (True, False)
                assert told["remark"] == "ValueError('no')"
                assert listener.got[b"2"] == 5
                none = {**ext, "msgId": ids[2][:16] + f"{2**40:016X}"}
                missing = await asked(other, servers, Request.CONSUME_MESSAGE_DIRECTLY, **none)
                assert (missing.code, "can not find message" in (missing.remark or "")) == (1, True)
                reads = await asked(other, servers, Request.GET_CONSUMER_RUNNING_INFO, **ext)
                assert bodies.loads(reads.body)["properties"]["PROP_CONSUME_TYPE"]

    run(tmp_path, work)


def test_how_far_a_consumer_is_in_each_queue_is_told(tmp_path: Path) -> None:
    async def work(servers: Pair) -> None:
        await sent(servers)
        listener = Listener()
        consumer = PushConsumer(
            servers.env, "cg", servers.namesrv, listener, subscriptions={TOPIC: "*"}, options=options()
        )
        async with consumer, PullConsumer(servers.env, "asks", servers.namesrv) as other:
            offsets = servers.broker.context.offsets
            await until(lambda: offsets.get("cg", TOPIC, 0) == COUNT)
            asks = {"topic": TOPIC, "group": "cg"}
            said = await asked(other, servers, Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, **asks)
            assert said.code == 0, said.remark
            [table] = bodies.believed_object(said.body)["consumerTable"].values()
            assert list(table.values()) == [COUNT]

    run(tmp_path, work)
