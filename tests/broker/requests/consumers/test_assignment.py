"""The promise of an assignment: together the clients of a group get every queue, as the mode says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.consumers.allocation import STRATEGIES, average, by_circle, for_pop
from broker.tables.modes import RequestMode, RequestModes
from model.codes import Request, Response
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
