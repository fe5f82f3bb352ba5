"""The promise of a changed table: before the answer it is on the disk of the master and of every broker that
could be elected, and so many brokers have it as ``minInSyncReplicas`` says."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.service import Broker
from model.codes import Request, Response
from model.ids import BrokerId
from remoting import bodies
from tests.broker.helpers import client_of, commit, eventually, pair, role_state, running, topic
from tests.plain import broker_ids

NEVER = "3600000"


def stored(broker: Broker, name: str) -> bytes:
    """The table's file, as a broker would find it whose process is killed now."""
    path = Path(broker.tables.files[name].path)
    return path.read_bytes() if path.exists() else b""


async def test_what_is_answered_is_on_both_disks(tmp_path: Path) -> None:
    async with pair(tmp_path, slaveSyncMetadataPeriod=NEVER) as (one, two), client_of(one) as client:
        for number in range(5):
            name = f"Written{number}"
            assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name))).code == 0
            assert [name.encode() in stored(b, "topics") for b in (one, two)] == [True, True]
        group = bodies.dumps({"groupName": "readers", "retryMaxTimes": 3})
        assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)).code == 0
        assert [b"readers" in stored(b, "groups") for b in (one, two)] == [True, True]


async def test_offsets_that_an_operator_sets_are_on_both_disks(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, slaveSyncMetadataPeriod=NEVER, flushConsumerOffsetInterval="60000") as (one, two),
        client_of(one) as client,
    ):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        one.groups.find("source")
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("source", "T", 0))
        copy = {"srcGroup": "source", "destGroup": "copied", "topic": "T"}
        assert (await client.call(Request.CLONE_GROUP_OFFSET, copy)).code == 0
        assert [b"T@copied" in stored(b, "offsets") for b in (one, two)] == [True, True]


async def test_a_slave_whose_disk_refuses_the_table_confirms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        pair(tmp_path, slaveSyncMetadataPeriod="50", slaveTimeout="1000") as (one, two),
        client_of(one) as client,
    ):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Before"))).code == 0

        def refuse(data: bytes) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(two.tables.files["topics"], "_write", refuse)
            answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
            assert answer.code == Response.SYSTEM_ERROR
            assert "in-sync slaves [2]" in (answer.remark or "")
            assert not one.context.copies.has(BrokerId(2), one.context.copies.revision)
        await eventually(
            lambda: one.context.copies.has(BrokerId(2), one.context.copies.revision), "it tries again"
        )
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert b'"T"' in stored(two, "topics")


async def test_a_master_whose_disk_refuses_the_table_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as one, client_of(one) as client:

        def refuse(data: bytes) -> None:
            raise OSError("no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(one.tables.files["topics"], "_write", refuse)
            answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        assert answer.code == Response.SYSTEM_ERROR
        assert "no space left" in (answer.remark or "")
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert b'"T"' in stored(one, "topics")


async def test_with_fewer_copies_than_the_minimum_a_change_is_refused(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, slaveSyncMetadataPeriod=NEVER, minInSyncReplicas="2") as (one, _),
        client_of(one) as client,
    ):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Before"))).code == 0
        one.ha.adopt(broker_ids({1}), 3)
        answer = await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        assert answer.code != 0
        assert "1 of 2" in (answer.remark or "")
        assert "T" not in one.topics.table, "as a send that is refused stores nothing"


async def test_with_fewer_copies_than_the_minimum_no_offset_is_reset_or_cloned(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, slaveSyncMetadataPeriod=NEVER, minInSyncReplicas="2") as (one, _),
        client_of(one) as client,
    ):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        for group, offset in (("source", 1), ("target", 0)):
            one.groups.find(group)
            await client.send("T", b"x")
            assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, commit(group, "T", offset))).code == 0
        before = one.offsets.to_json()
        one.ha.adopt(broker_ids({1}), 3)
        reset = {"topic": "T", "group": "source", "queueId": "0", "offset": "0", "timestamp": "0"}
        clone = {"srcGroup": "source", "destGroup": "target", "topic": "T"}
        for code, ext in (
            (Request.INVOKE_BROKER_TO_RESET_OFFSET, reset),
            (Request.CLONE_GROUP_OFFSET, clone),
        ):
            answer = await client.call(code, ext)
            assert answer.code != 0
            assert "1 of 2" in (answer.remark or "")
        assert one.offsets.to_json() == before, "as a send that is refused stores nothing"


async def test_a_set_that_shrinks_under_a_change_does_not_make_one_copy_enough(tmp_path: Path) -> None:
    keys = {"slaveSyncMetadataPeriod": NEVER, "minInSyncReplicas": "2", "slaveTimeout": "600"}
    async with pair(tmp_path, **keys) as (one, two), client_of(one) as client:
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Before"))).code == 0
        two.client.drop(one.config.address)
        two.role_state.set(role_state("slave", 2, 1))  # it follows the log, and asks for no tables
        asking = asyncio.create_task(client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T")))
        await eventually(lambda: "T" in one.topics.table, "the change is made")
        one.ha.adopt(broker_ids({1}), 3)
        answer = await asking
        assert answer.code == Response.SYSTEM_ERROR
        assert "1 of 2 copies" in (answer.remark or "")
