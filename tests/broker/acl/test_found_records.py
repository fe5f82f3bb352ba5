"""The promise of ACL and the key of the peers: what a handler finds for a client, by place or key, is judged
by its own topic; what no consumer may see yet no client sees; who lost a right gets nothing more by it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.acl.requests import Done
from broker.service import Broker
from model.acl.policies import User
from model.codes import Request, Response
from remoting import bodies
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, EndTransactionHeader, PullHeader, SendHeader
from tests.broker.acl.signed import ALICE, NO, ON, ROOT, Signed, signing
from tests.broker.helpers import client_of, eventually, running, topic
from tests.remoting.keys import KEY, key_file

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"


@contextlib.asynccontextmanager
async def with_alice(path: Path, **keys: str) -> AsyncIterator[tuple[Broker, Signed, Signed]]:
    """Alice has a right to Group:mine alone; there are T, and the retry topics of victim, with a message."""
    async with running(path, **ON, **keys) as broker, signing(broker, ROOT, ALICE) as (root, alice):
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        await root.allow("alice", "Group:mine", actions="Sub,Update,Create")
        for group in ("mine", "victim"):
            body = bodies.dumps({"groupName": group})
            assert (await root(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)).code == 0
        for name in ("T", "%RETRY%victim", "%RETRY%victim_T"):
            assert (await root(Request.UPDATE_AND_CREATE_TOPIC, topic(name))).code == 0
            ext = SendHeader("pg", name, 0, 1, properties=f"UNIQ_KEY\x01{'A' * 32}\x02").to_ext()
            assert (await root(Request.SEND_MESSAGE_V2, ext, b"VICTIMS")).code == 0
        await broker.store.caught_up()
        yield broker, root, alice


def pull(
    name: str, group: str, flags: int = PULL_SUBSCRIPTION, wait_ms: int = 0, at: int = 0
) -> dict[str, str]:
    header = PullHeader(group, name, 0, at, 9, sys_flag=flags, suspend_timeout_ms=wait_ms, subscription="*")
    return header.to_ext()


def offset_of(broker: Broker, name: str) -> str:
    queue = broker.store.files.queues.get(name, 0)
    assert queue is not None
    entry = queue.entry(0)
    assert entry is not None
    return str(entry[0])


POP = {"invisibleTime": "10000", "pollTime": "0", "bornTime": "0", "initMode": "0", "order": "false"}


async def test_retry_topics_of_others_are_neither_pulled_nor_popped(tmp_path: Path) -> None:
    async with with_alice(tmp_path) as (_, root, alice):
        for name in ("%RETRY%victim", "%RETRY%victim_T", "%DLQ%victim"):
            popped = {"consumerGroup": "mine", "topic": name, "queueId": "0", "maxMsgNums": "9"}
            for code, ext in (
                (Request.PULL_MESSAGE, pull(name, "mine")),
                (Request.PEEK_MESSAGE, popped),
                (Request.POP_MESSAGE, {**popped, **POP}),
            ):
                answer = await alice(code, ext)
                assert (answer.code, answer.body) == (NO, b""), (name, code)
        assert b"VICTIMS" in (await root(Request.PULL_MESSAGE, pull("%RETRY%victim", "victim"))).body


async def test_a_decoy_list_changes_no_group_of_others(tmp_path: Path) -> None:
    async with with_alice(tmp_path) as (broker, _, alice):
        decoy = {"groupName": "victim", "consumeEnable": False, "groupConfigList": [{"groupName": "mine"}]}
        answer = await alice(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, bodies.dumps(decoy))
        assert answer.code == NO
        group = broker.groups.find("victim")
        assert group is not None
        assert group.consume_enable


async def test_a_message_found_by_its_offset_is_judged_by_its_own_topic(tmp_path: Path) -> None:
    async with with_alice(tmp_path) as (broker, root, alice):
        at = offset_of(broker, "T")
        text = "User:alice has no permission to access Topic:T from 127.0.0.1, no matched policies."
        viewed = await alice(Request.VIEW_MESSAGE_BY_ID, {"offset": at})
        assert (viewed.code, viewed.remark, viewed.body) == (NO, text, b"")
        back = {"offset": at, "group": "mine", "delayLevel": "-1"}
        returned = await alice(Request.CONSUMER_SEND_MSG_BACK, back)
        assert (returned.code, returned.remark) == (NO, text)
        # It is no way round to name another topic, or to say that it was one's own.
        await root.allow("alice", "Topic:other", actions="Sub")
        assert (await alice(Request.VIEW_MESSAGE_BY_ID, {"offset": at, "topic": "other"})).code == NO
        assert (await alice(Request.CONSUMER_SEND_MSG_BACK, {**back, "originTopic": "other"})).code == NO
        retried = offset_of(broker, "%RETRY%victim")
        assert (await alice(Request.CONSUMER_SEND_MSG_BACK, {**back, "offset": retried})).code == NO
        assert broker.server.guard.status()["audit"]["denied"]["VIEW_MESSAGE_BY_ID"] == 2
        await root.allow("alice", "Topic:T", actions="Sub")
        assert b"VICTIMS" in (await alice(Request.VIEW_MESSAGE_BY_ID, {"offset": at})).body
        assert (await alice(Request.CONSUMER_SEND_MSG_BACK, back)).code == 0


async def test_a_transaction_is_ended_by_who_may_send_to_its_topic(tmp_path: Path) -> None:
    async with with_alice(tmp_path) as (broker, root, alice):
        text = f"UNIQ_KEY\x01{'B' * 32}\x02TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
        sent = await root(
            Request.SEND_MESSAGE_V2, SendHeader("pg", "T", 0, 1, properties=text).to_ext(), b"half"
        )
        assert sent.code == 0
        await broker.store.caught_up()
        end = EndTransactionHeader("pg", 0, int(offset_of(broker, HALF)), 8, "").to_ext()
        await eventually(lambda: broker.processors.transactions._known.is_set(), "what ended before")
        refused = await alice(Request.END_TRANSACTION, end)
        assert refused.code == NO
        assert "Topic:T" in (refused.remark or "")
        assert (await root(Request.END_TRANSACTION, end)).code == 0


async def test_with_a_key_no_client_finds_what_no_consumer_may_see_yet(tmp_path: Path) -> None:
    key = key_file(tmp_path)
    async with running(tmp_path / "s", peerCredentialsFile=key) as broker, client_of(broker) as client:
        await client.send("T")
        await client.send("T", b"SECRET-HALF", properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02")
        await broker.store.caught_up()
        await client.pull("T", 0, group="thief")
        at = offset_of(broker, HALF)
        unique = {"beginTimestamp": "0", "endTimestamp": str(2**53), "_UNIQUE_KEY_QUERY": "true"}
        asked: tuple[tuple[Request, dict[str, str]], ...] = (
            (Request.VIEW_MESSAGE_BY_ID, {"offset": at}),
            (Request.VIEW_MESSAGE_BY_ID, {"offset": at, "topic": "T"}),
            (Request.QUERY_MESSAGE, {"topic": HALF, "key": f"{2:032X}", "maxNum": "10", **unique}),
            (Request.CONSUMER_SEND_MSG_BACK, {"offset": at, "group": "thief", "delayLevel": "-1"}),
            (Request.QUERY_CONSUME_QUEUE, {"topic": HALF, "queueId": "0", "index": "0", "count": "10"}),
            (Request.PULL_MESSAGE, pull(HALF, "thief")),
            (
                Request.PEEK_MESSAGE,
                {"consumerGroup": "thief", "topic": HALF, "queueId": "0", "maxMsgNums": "9"},
            ),
        )
        for code, ext in asked:
            answer = await client.call(code, ext)
            assert (answer.code, answer.body) == (NO, b""), code.name
        assert broker.topics.get("%DLQ%thief") is None
        denied = broker.server.guard.status()["audit"]["denied"]
        assert sum(denied.values()) == len(asked)
        signed = KEY.signed(Command(Request.VIEW_MESSAGE_BY_ID, {"offset": at}))
        assert b"SECRET-HALF" in (await client.call(signed.code, signed.ext)).body


async def test_a_held_pull_is_asked_again_after_its_right_was_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with with_alice(tmp_path) as (broker, root, alice):
        await root.allow("alice", "Topic:T", "Group:mine", actions="Sub")
        waiting = pull("T", "mine", PULL_SUBSCRIPTION | PULL_SUSPEND, 20_000, at=1)
        held = asyncio.create_task(alice(Request.PULL_MESSAGE, waiting))
        popping = {"consumerGroup": "mine", "topic": "T", "queueId": "-1", "maxMsgNums": "9", **POP}
        popping |= {"pollTime": "20000", "bornTime": str(broker.env.now_ms())}
        await alice(Request.POP_MESSAGE, {**popping, "pollTime": "0"})
        popped = asyncio.create_task(alice(Request.POP_MESSAGE, popping))
        await eventually(lambda: broker.processors.pulls.held == 1, "the pull to wait")
        await eventually(lambda: broker.processors.pops.polling.pops.count == 1, "the pop to wait")
        assert (await root.user(Request.AUTH_UPDATE_USER, "alice", userStatus="disable")).code == 0
        ext = SendHeader("pg", "T", 0, 1, properties=f"UNIQ_KEY\x01{'C' * 32}\x02").to_ext()
        assert (await root(Request.SEND_MESSAGE_V2, ext, b"LATER")).code == 0
        for answer in (await held, await popped):
            assert (answer.code, answer.remark, answer.body) == (NO, "User:alice is disabled.", b"")
        denied = broker.server.guard.status()["audit"]["denied"]
        assert denied == {"PULL_MESSAGE": 1, "POP_MESSAGE": 1}
        lines = [line for line in caplog.messages if "alice from 127.0.0.1:" in line and "denied" in line]
        assert [line.partition(" asked for ")[2] for line in lines] == [
            "PULL_MESSAGE: User:alice is disabled.",
            "POP_MESSAGE: User:alice is disabled.",
        ]


def test_a_revocation_by_way_of_a_slave_is_made() -> None:
    done = Done()
    there = (User("mallory", "p"), None)
    delete = Command(Request.AUTH_DELETE_USER, {"username": "mallory"})
    done.add(delete, (None, None), 0.0)
    by_slave = Command(Request.AUTH_DELETE_USER, {"username": "mallory"}, remark="handed on by s")
    assert not done.by_way_of_another(by_slave, there, 1.0)  # she was made again meanwhile
    assert done.by_way_of_another(by_slave, (None, None), 2.0)
    assert not done.by_way_of_another(by_slave, (None, None), 3.0)


@pytest.mark.parametrize("code", [Request.AUTH_CREATE_USER, Request.AUTH_LIST_USER, Request.AUTH_CREATE_ACL])
async def test_while_acl_2_is_off_nobody_plants_a_user(tmp_path: Path, code: Request) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        answer = await client.call(code, {"username": "eve"}, b'{"password":"x","userType":"Super"}')
        text = "An system error occurred, please try again later."
        assert (answer.code, answer.remark) == (Response.SYSTEM_ERROR, text)
        assert not broker.context.trust.directory.users


async def test_a_super_user_sees_what_a_right_to_every_topic_does_not_show(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    async with with_alice(tmp_path / "s", peerCredentialsFile=key_file(tmp_path)) as (broker, root, alice):
        await root.allow("alice", "Topic:*", actions="Sub,Get,Pub")
        text = f"UNIQ_KEY\x01{'D' * 32}\x02TRAN_MSG\x01true\x02PGROUP\x01pg\x02"
        ext = SendHeader("pg", "T", 0, 1, properties=text).to_ext()
        assert (await alice(Request.SEND_MESSAGE_V2, ext, b"SECRET-HALF")).code == 0
        await broker.store.caught_up()
        at = offset_of(broker, HALF)
        view, pulled = {"offset": at}, pull(HALF, "mine")
        for code, ext in ((Request.VIEW_MESSAGE_BY_ID, view), (Request.PULL_MESSAGE, pulled)):
            refused = await alice(code, ext)
            assert (refused.code, refused.body) == (NO, b"")
            assert b"SECRET-HALF" in (await root(code, ext)).body
