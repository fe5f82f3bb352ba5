"""A send refused for good ends at once, as not stored, with the reason and the code it was refused by."""

import pytest

from client.message import Message, SendFailed
from client.sending.options import SendOptions
from client.sending.producer import Producer
from model.codes import Request, Response
from model.errors import Refused
from remoting.codec import Command
from runtime.env import Env
from tests.fakes.client import cluster, run, stop

ACL_1 = "org.apache.rocketmq.acl.common.AclException: No default permission for topic T"
DENIED = "User:shop has no permission to access Topic:T from 127.0.0.1, ..."


def message(topic: str = "T") -> Message:
    return Message(topic=topic, body=b"x")


@pytest.mark.parametrize("groups", [1, 2])
def test_what_acl_1_refuses_is_not_stored_and_asked_once_of_each_broker(groups: int) -> None:
    async def work(env: Env) -> None:
        nameserver, brokers = await cluster(env, groups=groups)

        async def refuse(command: Command) -> Command | None:
            if command.code == Request.SEND_MESSAGE_V2:
                raise Refused(ACL_1, Response.SYSTEM_ERROR)
            return None

        for broker in brokers:
            broker.before = refuse
        async with Producer(env, "pg", nameserver.address) as producer:
            with pytest.raises(SendFailed, match="No default permission") as failed:
                await producer.send(message())
        assert failed.value.code == Response.SYSTEM_ERROR
        assert [attempt.outcome for attempt in failed.value.attempts] == ["failed"] * groups
        await stop(nameserver, *brokers)

    run(work)


@pytest.mark.parametrize(
    ("code", "remark"), [(Response.NO_PERMISSION, DENIED), (Response.SYSTEM_ERROR, ACL_1)]
)
def test_a_route_that_is_refused_ends_the_send_at_once_with_its_reason(code: int, remark: str) -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.refusals["T"] = Refused(remark, code)
        async with Producer(env, "pg", nameserver.address) as producer:
            with pytest.raises(SendFailed) as failed:
                await producer.send(message())
        assert failed.value.code == code
        assert remark in failed.value.remark
        assert "refuses the route of topic T" in failed.value.remark
        assert nameserver.asked.count(Request.GET_ROUTEINFO_BY_TOPIC) == 1
        await stop(nameserver, broker)

    run(work)


def test_an_unknown_topic_is_named_also_where_the_default_topic_may_not_be_read() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.refusals["TBW102"] = Refused("no permission to Topic:TBW102", Response.NO_PERMISSION)
        async with Producer(env, "pg", nameserver.address) as producer:
            with pytest.raises(SendFailed, match="no route of topic New: no such topic") as failed:
                await producer.send(message("New"))
        assert failed.value.code == Response.TOPIC_NOT_EXIST
        assert nameserver.asked.count(Request.GET_ROUTEINFO_BY_TOPIC) == 2
        await stop(nameserver, broker)

    run(work)


def test_the_nameserver_that_knows_the_route_outweighs_one_that_refuses_it() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        other, (unused,) = await cluster(env)
        other.refusals["T"] = Refused(DENIED, Response.NO_PERMISSION)
        async with Producer(env, "pg", [other.address, nameserver.address]) as producer:
            await producer.send(message())
        assert len(broker.log) == 1
        await stop(nameserver, broker, other, unused)

    run(work)


def test_a_send_without_any_answer_in_time_says_what_the_last_try_met() -> None:
    async def work(env: Env) -> None:
        nameserver, (broker,) = await cluster(env)
        nameserver.refusals["T"] = Refused("the disk is on fire", Response.SYSTEM_ERROR)
        async with Producer(env, "pg", nameserver.address, options=SendOptions(timeout_s=0.5)) as producer:
            with pytest.raises(SendFailed, match="the disk is on fire"):
                await producer.send(message())
        await stop(nameserver, broker)

    run(work)
