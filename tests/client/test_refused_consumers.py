"""A consumer that is refused for good says so once, as a warning with the reason, and asks seldom."""

import asyncio
import logging
import random
from typing import Any

import pytest

from client.consuming import refused
from client.consuming.consumer import ConsumeOptions, PushConsumer
from client.consuming.pop.consumer import PopConsumer
from client.message import Message, NoRoute, Received
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import Refused
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import cluster, run, stop
from tests.waiting import until

DENIED = "User:shop has no permission to access Group:g"
ACL_1 = "org.apache.rocketmq.acl.common.AclException: No default permission for topic T"


async def handle(messages: list[Received]) -> bool:
    return True


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and r.name.startswith("client")
    ]


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (Response.NO_PERMISSION, DENIED),
        (Response.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group [g] does not exist"),
        (Response.SYSTEM_ERROR, ACL_1),
    ],
)
def test_refused_pulls_are_a_warning_and_few_and_go_on_when_they_are_not(
    code: int, remark: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Four queues that are refused together are four refusals: the fourth waits for up to 8 s else.
    monkeypatch.setattr(refused, "LONGEST_MS", 2_000)

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        refusing = True

        async def refuse(command: Command) -> Command | None:
            if refusing and command.code == Request.PULL_MESSAGE:
                raise Refused(remark, code)
            return None

        broker.before = refuse
        seen: list[bytes] = []

        async def take(messages: list[Received]) -> bool:
            seen.extend(message.body for message in messages)
            return True

        options = ConsumeOptions(from_first=True)
        async with PushConsumer(
            env, "g", nameserver.address, take, subscriptions={"T": "*"}, options=options
        ):
            await until(lambda: any(r.code == Request.PULL_MESSAGE for r in broker.requests))
            await asyncio.sleep(1.5)
            asked = sum(r.code == Request.PULL_MESSAGE for r in broker.requests)
            told = [text for text in warnings(caplog) if remark in text]
            refusing = False
            async with Producer(env, "pg", nameserver.address) as producer:
                await producer.send(Message(topic="T", body=b"x"))
            await until(lambda: seen == [b"x"])
        assert asked <= 4 * 3, "each of four queues again after one second"
        assert told == [f"consumer g: pull of T at broker-a is refused: {remark}"]
        await stop(nameserver, broker)

    with caplog.at_level(logging.INFO):
        run(work)


def test_refused_routes_and_offsets_are_a_warning_and_few(caplog: pytest.LogCaptureFixture) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.topics["U"] = {"broker-a": 4}
        nameserver.refusals["T"] = Refused(DENIED, Response.NO_PERMISSION)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.QUERY_CONSUMER_OFFSET and command.ext["topic"] == "U":
                raise Refused(DENIED, Response.NO_PERMISSION)
            return None

        broker.before = refuse
        async with PushConsumer(env, "g", nameserver.address, handle, subscriptions={"T": "*", "U": "*"}):
            await until(lambda: len([text for text in warnings(caplog) if "refused" in text]) >= 2)
            await asyncio.sleep(2)
        told = warnings(caplog)
        assert len([text for text in told if "rebalance of T is refused" in text and DENIED in text]) == 1
        assert len([text for text in told if "offset of U at broker-a is refused" in text]) == 1
        asked = sum(
            r.code == Request.QUERY_CONSUMER_OFFSET and r.ext["topic"] == "U" for r in broker.requests
        )
        assert asked <= 5
        await stop(nameserver, broker)

    with caplog.at_level(logging.INFO):
        run(work)


@pytest.mark.parametrize(
    ("code", "remark"), [(Response.NO_PERMISSION, DENIED), (Response.SYSTEM_ERROR, ACL_1)]
)
def test_refused_pops_are_a_warning_and_few(code: int, remark: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.POP_MESSAGE:
                raise Refused(remark, code)
            return None

        broker.before = refuse
        async with PopConsumer(env, "g", nameserver.address, handle, subscriptions={"T": "*"}):
            await until(lambda: any(r.code == Request.POP_MESSAGE for r in broker.requests))
            await asyncio.sleep(1.5)
        told = [text for text in warnings(caplog) if remark in text]
        assert told == [f"consumer g: pop of T at broker-a is refused: {remark}"]
        assert sum(r.code == Request.POP_MESSAGE for r in broker.requests) <= 3
        await stop(nameserver, broker)

    with caplog.at_level(logging.INFO):
        run(work)


class Clock:
    """The world of ``Refusals``, at a time that the test says."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.ms = 0.0

    def monotonic_ms(self) -> float:
        return self.ms


def test_what_fails_for_long_is_a_warning_once_until_it_works_again(caplog: pytest.LogCaptureFixture) -> None:
    clock: Any = Clock()
    told = refused.Refusals(logging.getLogger("client.test"), "g", clock)
    with caplog.at_level(logging.INFO):
        for second in range(20):
            clock.ms = second * 1000.0
            assert told.on_error("rebalance of T", NoRoute("no topic T"), 1.0, needed=True) == 1.0
            told.on_error("commit of T", NoRoute("no topic T"), 1.0)
        told.on_good("rebalance of T")
        told.on_error("rebalance of T", NoRoute("no topic T"), 1.0, needed=True)
    assert warnings(caplog) == ["consumer g: rebalance of T fails since 5 s, and is tried again: no topic T"]
    infos = [
        r.getMessage() for r in caplog.records if r.levelno == logging.INFO and "rebalance" in r.msg % r.args
    ]
    assert len(infos) == 5 + 1 + 1
    assert "consumer g: rebalance of T works again" in infos


def test_a_group_that_is_not_there_is_a_warning_though_the_broker_only_counts_no_members(
    caplog: pytest.LogCaptureFixture,
) -> None:
    no_group = "No group in this broker. group: g"

    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.GET_CONSUMER_LIST_BY_GROUP:
                raise Refused("no consumer for this group, g", Response.SYSTEM_ERROR)
            if command.code == Request.GET_SUBSCRIPTIONGROUP_CONFIG:
                raise Refused(no_group, Response.SUBSCRIPTION_GROUP_NOT_EXIST)
            return None

        broker.before = refuse
        async with PushConsumer(env, "g", nameserver.address, handle, subscriptions={"T": "*"}):
            await until(lambda: any(no_group in text for text in warnings(caplog)))
        assert warnings(caplog) == [f"consumer g: rebalance of T is refused: {no_group}"]
        await stop(nameserver, broker)

    with caplog.at_level(logging.INFO):
        run(work)
