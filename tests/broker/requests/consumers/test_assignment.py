"""The promise of an assignment: together the clients of a group get every queue, as the mode says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.consumers import assignment
from broker.requests.consumers.allocation import STRATEGIES, average, by_circle, for_pop
from broker.requests.consumers.assignment import ASKED_MAX, NO_ROUTE_MS, ROUTE_MS, AssignmentProcessor
from broker.tables.modes import RequestMode, RequestModes
from model.codes import Request, Response
from model.topic import TopicConfig
from remoting import bodies
from remoting.codec import Command
from tests.broker.helpers import Client, client_of, eventually, heartbeat, pair, running, topic

QUEUES = [("a", 0), ("a", 1), ("a", 2), ("b", 0)]


def test_the_strategies_share_as_the_original_does() -> None:
    assert average(QUEUES, ["x", "y", "z"], "x") == [("a", 0), ("a", 1)]
    assert average(QUEUES, ["x", "y", "z"], "z") == [("b", 0)]
    assert by_circle(QUEUES, ["x", "y", "z"], "x") == [("a", 0), ("b", 0)]
    assert average(QUEUES, ["x"], "stranger") == by_circle(QUEUES, ["x"], "stranger") == []


def test_those_that_pop_share_all_queues_or_those_of_their_neighbours() -> None:
    clients = ["w", "x", "y", "z"]
    assert for_pop(average, QUEUES, clients, "x", -1) == [("a", -1), ("b", -1)]
    assert for_pop(average, QUEUES, clients, "x", 3) == [("a", -1), ("b", -1)]
    assert for_pop(average, QUEUES, clients, "z", 1) == [("b", 0), ("a", 0)]
    assert for_pop(average, QUEUES[:2], clients, "y", 1) == [("a", 0)], "more clients than queues"


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.integers(-1, 12),
    st.sampled_from(sorted(STRATEGIES)),
    st.booleans(),
)
def test_every_queue_has_a_client(queues: int, clients: int, share: int, strategy: str, pops: bool) -> None:
    all_queues = [("a", at) for at in range(queues)]
    ids = [f"c{at:02}" for at in range(clients)]
    found = set()
    for me in ids:
        how = STRATEGIES[strategy]
        found.update(for_pop(how, all_queues, ids, me, share) if pops else how(all_queues, ids, me))
    assert found == {("a", -1)} or found == set(all_queues)


def test_the_table_of_modes_is_the_originals() -> None:
    modes = RequestModes()
    stored = {
        "messageRequestModeMap": {
            "T": {"g": {"consumerGroup": "g", "mode": "POP", "popShareQueueNum": 2, "topic": "T"}}
        }
    }
    modes.load(stored)
    assert modes.get("T", "g") == RequestMode("POP", 2)
    assert modes.to_json() == stored
    assert not modes.adopt(stored)
    assert modes.adopt({"messageRequestModeMap": {}})
    with pytest.raises(ValueError, match="neither PULL nor POP"):
        modes.adopt({"messageRequestModeMap": {"T": {"g": {"mode": "PUSH"}}}})


async def asked(client: Client, **more: Any) -> Any:
    data = {
        "topic": "T",
        "consumerGroup": "pg",
        "clientId": "c1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **more,
    }
    answer = await client.call(Request.QUERY_ASSIGNMENT, {}, bodies.dumps(data))
    assert answer.code == 0, answer.remark
    return bodies.loads_object(answer.body).get("messageQueueAssignments")


async def set_mode(client: Client, mode: str, **more: Any) -> Command:
    data = {"topic": "T", "consumerGroup": "pg", "mode": mode, "popShareQueueNum": 0, **more}
    return await client.call(Request.SET_MESSAGE_REQUEST_MODE, {}, bodies.dumps(data))


async def test_a_client_is_told_its_queues_and_to_pop(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        assert await asked(client) is None, "it does not beat yet"
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "pg", "T"))
        queue = {"brokerName": "broker-t", "topic": "T"}
        assert await asked(client) == [
            {"messageQueue": {**queue, "queueId": at}, "mode": "PULL"} for at in range(2)
        ]
        assert (await set_mode(client, "POP")).code == 0
        assert await asked(client) == [{"messageQueue": {**queue, "queueId": -1}, "mode": "POP"}]
        table = await client.call(Request.GET_ALL_MESSAGE_REQUEST_MODE)
        row = {"consumerGroup": "pg", "mode": "POP", "popShareQueueNum": 0, "topic": "T"}
        assert json.loads(table.body) == {"messageRequestModeMap": {"T": {"pg": row}}}
        stored = json.loads((tmp_path / "config" / "messageRequestMode.json").read_text())
        assert stored["messageRequestModeMap"] == {"T": {"pg": row}}
        assert (await asked(client, strategyName="OTHER")) is None
        assert len(await asked(client, messageModel="BROADCASTING")) == 2


async def test_what_cannot_be_set_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        retry = await set_mode(client, "POP", topic="%RETRY%pg")
        assert (retry.code, retry.remark) == (16, "retry topic is not allowed to set mode")
        none = await set_mode(client, "POP", topic="None")
        assert (none.code, none.remark) == (Response.TOPIC_NOT_EXIST, "topic[None] not exist")
        group = await set_mode(client, "POP", consumerGroup="no good")
        assert group.code == Response.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await set_mode(client, "PUSH")).code == Response.SYSTEM_ERROR


async def test_a_mode_is_on_the_slave_before_the_answer(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        assert (await set_mode(client, "POP", popShareQueueNum=1)).code == 0
        await eventually(lambda: two.groups.modes.get("T", "pg") == RequestMode("POP", 1), "it is there")


class World:
    """A NameServer that answers when it is told to, and a clock."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.asked: list[str] = []
        self.said: dict[str, list[dict[str, Any]] | None] = {}
        self.answers = asyncio.Event()
        self.answers.set()
        self.namesrv_addr, self.broker_name = "n:1", "a"
        self.env = self.config = self.topics = self

    def monotonic_ms(self) -> float:
        return self.now_ms

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        name = command.ext["topic"]
        self.asked.append(name)
        await self.answers.wait()
        if name not in self.said:
            return command.reply(Response.TOPIC_NOT_EXIST)
        queues = self.said[name]
        if queues is None:
            raise ConnectionError("no NameServer")
        return command.reply(body=bodies.dumps({"queueDatas": queues}))

    def get(self, name: str) -> TopicConfig:
        return TopicConfig(name, 1, 1)

    def processor(self) -> Any:
        world: Any = self
        return AssignmentProcessor(world, world)


def queue_of(broker: str, number: int = 1) -> dict[str, Any]:
    return {"brokerName": broker, "perm": 6, "readQueueNums": number}


async def test_a_nameserver_is_asked_once_for_all_who_wait_and_seldom_for_what_is_not_there() -> None:
    """Each request of a client was a call, as often as it liked; an empty answer was not kept at all."""
    world = World()
    processor = world.processor()
    world.said["T"] = [queue_of("b")]
    world.answers.clear()
    waiting = [asyncio.ensure_future(processor._queues("T")) for _ in range(50)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.sleep(0)
    world.answers.set()
    assert await asyncio.gather(*waiting[1:]) == [[("b", 0)]] * 49
    assert world.asked == ["T"]
    for at_ms, times in ((0, 1), (NO_ROUTE_MS - 1, 1), (NO_ROUTE_MS, 2)):
        world.now_ms = at_ms
        assert await processor._queues("none") == []
        assert world.asked.count("none") == times
    assert await processor._queues("no/topic") == []
    assert await processor._queues("x" * 10_000) == []
    world.now_ms = ROUTE_MS
    world.said["T"] = None
    assert [await processor._queues("T") for _ in range(3)] == [[("b", 0)]] * 3, "what is known"
    assert (len(world.asked), world.asked.count("T")) == (4, 2)
    world.now_ms += NO_ROUTE_MS
    world.said["T"] = [queue_of("b", 2)]
    assert len(await processor._queues("T")) == 2


async def test_a_client_is_told_of_this_brokers_queues_alone_where_there_is_no_nameserver() -> None:
    """Where NameServers did not answer, it left the queues of all other brokers, and messages lay there."""
    world = World()
    world.said["T"] = None
    assert await world.processor()._queues("T") is None
    world.namesrv_addr = ""
    assert await world.processor()._queues("T") == [("a", 0)]


async def test_however_many_topics_are_named_few_are_asked_for_at_once_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(assignment, "NO_ROUTES_MAX", 10)
    world = World()
    processor = world.processor()
    world.said["T"] = [queue_of("b")]
    assert await processor._queues("T") == [("b", 0)]
    world.answers.clear()
    waiting = [asyncio.ensure_future(processor._queues(f"none{n}")) for n in range(ASKED_MAX + 10)]
    await asyncio.sleep(0.01)
    assert len(world.asked) == 1 + ASKED_MAX
    assert [task.result() for task in waiting if task.done()] == [None] * 10, "it is to change nothing"
    world.answers.set()
    assert await asyncio.gather(*waiting[:ASKED_MAX]) == [[]] * ASKED_MAX
    assert (len(processor._none), len(processor._asked)) == (10, 0)
    assert await processor._queues("T") == [("b", 0)]
    assert world.asked.count("T") == 1
