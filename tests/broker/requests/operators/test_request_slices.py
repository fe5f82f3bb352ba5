"""The longest requests of operators and clients are taken a few entries a turn (docs/results/turns.md).

What is counted: looks at the clock, each of which ends a slice here, and entries between two of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from broker.requests.operators.admin import NAMED_CHARS_MAX
from broker.requests.operators.inspection import ASKED_AT_ONCE
from broker.requests.operators.tables import ATTRIBUTES_CHARS_MAX, GROUP_BYTES_MAX, PUT_AT_ONCE
from broker.service import Broker
from broker.state.clients import Client as Member
from broker.tables.topics import QUEUES_MAX
from model.codes import Request, Response
from model.errors import PeerError, Refused
from model.settings import CHANGES_BYTES_MAX
from model.topic import TopicConfig
from remoting import bodies
from remoting.codec import Command
from remoting.service import Connection
from store.flow.reading import QUERY_BYTES_MAX
from tests.broker.helpers import client_of, commit, eventually, records, running, topic
from tests.broker.pop.support import pop, popped
from tests.broker.turn_meter import Slices, counted_slices
from tests.fakes.broker.store import FakeConnection


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    return counted_slices(monkeypatch)


async def ask(broker: Broker, code: int, ext: dict[str, str] | None = None, body: Any = b"") -> Command:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    handler = broker.processors.handlers[int(code)]
    answer = await handler(cast(Connection, FakeConnection()), Command(int(code), ext or {}, data))
    assert answer is not None
    return answer


def counted(put: Callable[..., object], sizes: list[int]) -> Callable[..., object]:
    def noted(*entries: object) -> object:
        sizes.append(len(entries))
        return put(*entries)

    return noted


def listed(count: int) -> dict[str, Any]:
    names = [f"made{n}" for n in range(count)]
    return {
        "topicConfigList": [
            {"topicName": n, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for n in names
        ],
        "groupConfigList": [{"groupName": n} for n in names],
    }


@pytest.mark.parametrize("what", ["topics", "groups"])
async def test_a_list_of_entries_is_taken_a_few_at_a_time(
    tmp_path: Path, slices: Slices, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    code = {
        "topics": Request.UPDATE_AND_CREATE_TOPIC_LIST,
        "groups": Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    }[what]
    async with running(tmp_path) as broker:
        table, sizes = getattr(broker, what), list[int]()
        monkeypatch.setattr(table, "put", counted(table.put, sizes))
        slices.looks = 0
        assert (await ask(broker, code, body=listed(1000))).code == 0
        assert slices.looks >= 1000, "one for each that is read"
        assert sum(sizes) == 1000
        assert max(sizes) == PUT_AT_ONCE
        assert {f"made{n}" for n in range(1000)} <= set(table.table)
        table.check_invariants()


async def test_of_a_list_with_one_that_cannot_be_none_is_made(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        body = listed(300)
        body["topicConfigList"][-1]["topicName"] = "no name"
        with pytest.raises(Refused):
            await ask(broker, Request.UPDATE_AND_CREATE_TOPIC_LIST, body=body)
        assert "made0" not in broker.topics.table


async def test_texts_that_would_be_read_in_one_go_are_bounded(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        group = {"groupName": "g", "attributes": {"-a" + "x" * GROUP_BYTES_MAX: ""}}
        attributes = {"attributes": "-a," * (ATTRIBUTES_CHARS_MAX // 3 + 1)}
        names = {"consumerGroup": "g", "topicList": "x" * (NAMED_CHARS_MAX + 1)}
        for code, ext, body, refused in (
            (Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group, Response.INVALID_PARAMETER),
            (Request.UPDATE_AND_CREATE_TOPIC, topic("T") | attributes, b"", Response.INVALID_PARAMETER),
            (Request.GET_CONSUME_STATS, names, b"", Response.SYSTEM_ERROR),
            (Request.UPDATE_BROKER_CONFIG, {}, b"#\n" * CHANGES_BYTES_MAX, Response.INVALID_PARAMETER),
            (Request.AUTH_CREATE_USER, {"username": "u"}, b" " * (1 << 20), Response.SYSTEM_ERROR),
        ):
            with pytest.raises(Refused) as told:
                await ask(broker, code, ext, body)
            assert told.value.code == refused, code.name


class Told:
    """A member's connection that notes what it is told, and how many are asked in one turn of the loop."""

    closed = False
    asked_now = 0
    most_at_once = 0

    def __init__(self) -> None:
        self.remote = "10.0.0.1:1"
        self.attributes: dict[str, Any] = {}
        self.heard: list[Command] = []

    def oneway(self, command: Command) -> None:
        self.heard.append(command)

    def need_room(self, size: int) -> None:
        pass

    async def call(self, command: Command, timeout_s: float) -> Command:
        Told.asked_now += 1
        Told.most_at_once = max(Told.most_at_once, Told.asked_now)
        await asyncio.sleep(0)
        Told.asked_now = 0
        return command.reply(body=b'{"messageQueueTable":{}}')


def with_members(broker: Broker, group: str, count: int) -> list[Told]:
    found = [Told() for _ in range(count)]
    for n, one in enumerate(found):
        member = Member(f"c{n}", cast(Connection, one), "JAVA", 401, 1e12)
        broker.context.clients.consumer({"groupName": group, "subscriptionDataSet": []}, member)
    return found


async def test_a_reset_goes_through_queues_one_a_look(tmp_path: Path, slices: Slices) -> None:
    async with running(tmp_path) as broker:
        broker.topics.put(TopicConfig("Wide", 200, 200))
        broker.groups.find("g")
        slices.looks = 0
        ext = {"topic": "Wide", "group": "g", "timestamp": "0", "isForce": "true"}
        answer = await ask(broker, Request.INVOKE_BROKER_TO_RESET_OFFSET, ext)
        assert slices.looks >= 200 + 200, "queues set, queues written"
        assert len(bodies.loads(answer.body)["offsetTable"]) == 200
        assert len(broker.offsets.queues("g", "Wide")) == 200


async def test_a_clone_and_deletions_go_one_entry_a_look(tmp_path: Path, slices: Slices) -> None:
    async with running(tmp_path) as broker:
        broker.topics.put(TopicConfig("Read", 400, 400))
        for n in range(300):
            broker.offsets.commit("source", f"t{n}", 0, 7)
            broker.offsets.commit(f"g{n}", "Read", 0, 7)
        slices.looks = 0
        await ask(broker, Request.CLONE_GROUP_OFFSET, {"srcGroup": "source", "destGroup": "copy"})
        assert slices.looks >= 300
        assert broker.offsets.get("copy", "t299", 0) == 7
        slices.looks = 0
        await ask(broker, Request.DELETE_SUBSCRIPTIONGROUP, {"groupName": "copy", "cleanOffset": "true"})
        assert slices.looks >= 300
        assert broker.offsets.topics_of("copy") == []
        slices.looks = 0
        await ask(broker, Request.DELETE_TOPIC_IN_BROKER, {"topic": "Read"})
        assert slices.looks >= 400 + 300, "queues looked at, groups forgotten"
        assert broker.offsets.groups_of("Read") == []
        broker.offsets.check_invariants()


async def test_the_consumers_of_a_large_group_are_asked_a_few_a_turn(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        with_members(broker, "g", 500)
        Told.most_at_once = 0
        ext = {"topic": "T", "group": "g"}
        answer = await ask(broker, Request.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ext)
        assert len(bodies.loads(answer.body)["consumerTable"]) == 500
        assert 0 < Told.most_at_once <= ASKED_AT_ONCE


async def test_heartbeats_locks_and_unlocks_go_one_entry_a_look(tmp_path: Path, slices: Slices) -> None:
    async with running(tmp_path) as broker:
        producers = [{"groupName": f"p{n}"} for n in range(600)]
        await ask(broker, Request.HEART_BEAT, body={"clientID": "c", "producerDataSet": producers})
        assert slices.looks >= 600
        queues = [{"brokerName": "b", "topic": "T", "queueId": n} for n in range(1000)]
        body = {"consumerGroup": "g", "clientId": "c", "mqSet": queues}
        for code in (Request.LOCK_BATCH_MQ, Request.UNLOCK_BATCH_MQ):
            slices.looks = 0
            await ask(broker, code, body=body)
            assert slices.looks >= 1000
        assert not broker.context.locks.group_has_locks("g", broker.env.monotonic_ms())


async def test_a_heartbeat_is_looked_at_and_parsed_in_turns_of_their_own(
    tmp_path: Path, slices: Slices, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker:
        looks: dict[str, int] = {}
        check, parse = bodies.Bound.check, bodies._decode

        def checked(self: bodies.Bound, data: bytes) -> None:
            check(self, data)
            if self.size is not None:
                looks["checked"] = slices.looks

        def parsed(data: bytes) -> object:
            looks["parsed"] = slices.looks
            return parse(data)

        monkeypatch.setattr(bodies.Bound, "check", checked)
        monkeypatch.setattr(bodies, "_decode", parsed)
        await ask(broker, Request.HEART_BEAT, body={"clientID": "c", "producerDataSet": [{"groupName": "p"}]})
        assert looks["checked"] < looks["parsed"] < slices.looks
        with pytest.raises(PeerError, match="parts"):
            await ask(broker, Request.HEART_BEAT, body=b'{"x":[' + b"1," * 150_000 + b"1]}")


async def test_the_members_of_each_producer_group_are_written_one_a_look(
    tmp_path: Path, slices: Slices
) -> None:
    async with running(tmp_path) as broker:
        for n in range(300):
            member = Member(f"c{n}", cast(Connection, Told()), "JAVA", 401, 1e12)
            broker.context.clients.producer("pg", member)
        slices.looks = 0
        answer = await ask(broker, Request.GET_ALL_PRODUCER_INFO)
        assert slices.looks >= 300 + 300, "read, and written"
        assert len(bodies.loads(answer.body)["data"]["pg"]) == 300


async def test_a_pop_looks_only_at_queues_that_hold_something(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Wide", QUEUES_MAX))
        await client.send("Wide", b"one", queue_id=60_000)
        await eventually(lambda: broker.store.max_queue_offset("Wide", 60_000) == 1, "the message is there")
        await eventually(lambda: broker.processors.pops.log.ready, "pops are served")
        found = popped(await pop(client, "Wide"), "Wide")
        assert [one.body for one in found] == [b"one"]
        assert set(broker.offsets.queues("pg", "Wide")) <= {60_000}
        ext = {"consumerGroup": "other", "topic": "Wide", "queueId": "-1", "maxMsgNums": "32"}
        assert [r.body for r in records((await client.call(Request.PEEK_MESSAGE, ext)).body)] == [b"one"]


async def test_what_one_key_finds_is_bounded_in_bytes(tmp_path: Path) -> None:
    async with running(tmp_path, mappedFileSizeCommitLog=64 << 20) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        body, count = bytes(1 << 20), 12
        for n in range(count):
            await client.send("T", body + b"%d" % n, properties="KEYS\x01K\x02")
        await eventually(lambda: broker.store.dispatched == broker.store.log.end, "all is dispatched")
        ext = {"topic": "T", "key": "K", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**62)}
        answer = await client.call(Request.QUERY_MESSAGE, ext)
        found = records(answer.body)
        assert len(answer.body) <= QUERY_BYTES_MAX < len(answer.body) + (2 << 20)
        assert found[-1].body.endswith(b"%d" % (count - 1)), "the newest ones"


async def test_a_table_of_topics_says_which_were_deleted_however_it_is_written(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for name in ("A", "B"):
            await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name))
            await client.send(name, b"x", queue_id=0)
            await eventually(lambda name=name: broker.store.max_queue_offset(name, 0) == 1, "it is there")
            await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("g", name, 1))
            await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": name})
            table = broker.topics
            assert bodies.dumps(table.to_text()) == bodies.dumps(table.to_json())
            assert bodies.loads(
                bodies.dumps_dialect(table.to_text(indent=True), indent=True)
            ) == bodies.loads(bodies.dumps(table.to_json()))
            table.check_invariants()
        assert table.to_json()["keelmqDeletedTopics"] == {"A": {"0": 1}, "B": {"0": 1}}


async def test_policies_are_listed_as_ever_one_user_a_look(tmp_path: Path, slices: Slices) -> None:
    async with running(tmp_path, authenticationEnabled="true") as broker:
        entry = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
        for name in ("b", "a"):
            await ask(broker, Request.AUTH_CREATE_USER, {"username": name}, {"password": "p"})
            policy = {"policies": [{"policyType": "Custom", "entries": [entry]}]}
            await ask(broker, Request.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, policy)
        for file in broker.tables.files.values():
            await file.flush()  # which looks at the clock, too
        slices.looks = 0
        answer = await ask(broker, Request.AUTH_LIST_ACL)
        assert slices.looks >= 2
        assert [one["subject"] for one in bodies.loads(answer.body)] == ["User:a", "User:b"]
        slices.looks = 0
        assert (await ask(broker, Request.AUTH_LIST_ACL, {"subjectFilter": "nobody"})).body == b""
        assert slices.looks >= 2, "those that are not shown are looked at one by one, too"
