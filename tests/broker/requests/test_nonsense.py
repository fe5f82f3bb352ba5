"""The promise of the processors: nonsense is refused in plain words, and the broker serves on."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from broker.state.clients import Subscription
from model.codes import Request, Response
from remoting import bodies
from tests.broker.helpers import client_of, running

NONSENSE: list[tuple[dict[str, str], bytes]] = [
    ({}, b""),
    ({}, b"{}"),
    ({}, b"[1,2]"),
    ({}, b"\xff\xfe not json"),
    (
        dict.fromkeys(
            [
                "topic",
                "queueId",
                "offset",
                "consumerGroup",
                "group",
                "groupName",
                "timestamp",
                "key",
                "maxNum",
            ],
            "nonsense",
        ),
        b'{"consumerDataSet":[{}],"mqSet":[{}],"clientID":1}',
    ),
    (
        {
            "topic": "T",
            "group": "g",
            "groupName": "g",
            "consumerGroup": "g",
            "queueId": "-1",
            "offset": str(2**63 - 1),
            "commitOffset": "-5",
            "timestamp": "-9",
            "key": "",
            "clientId": "nobody",
            "queueOffset": "-7",
            "readQueueNums": "999999",
            "writeQueueNums": "0",
            "perm": "99",
        },
        b'{"clientID":null,"consumerDataSet":[{"groupName":null,"subscriptionDataSet":[null]}],"groupName":""}',
    ),
]


def test_no_request_makes_a_processor_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with running(tmp_path) as broker, client_of(broker) as client:
            await client.send("T")
            for code in broker.processors.handlers:
                for ext, content in NONSENSE:
                    answer = await client.call(code, dict(ext), content)
                    assert answer.remark or answer.code == 0, (code, ext)
            assert (await client.send("T")).code == 0
            assert broker.role_state.is_master

    with caplog.at_level(logging.ERROR):
        asyncio.run(body())
    assert [record.message for record in caplog.records if record.exc_info] == []


async def test_heartbeats_of_very_many_groups_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.requests.consumers.heartbeats.CLIENTS_MAX", 3)
    async with running(tmp_path) as broker, client_of(broker) as client:
        codes = []
        for number in range(8):
            data = {"clientID": "c", "producerDataSet": [{"groupName": f"p{number}"}]}
            codes.append((await client.call(Request.HEART_BEAT, {}, bodies.dumps(data))).code)
        assert codes[0] == 0
        assert codes[-1] == 2


async def test_heartbeats_side_by_side_make_no_more_groups_than_one_behind_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.requests.consumers.heartbeats.CLIENTS_MAX", 4)

    async def breathe(turn: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr("runtime.turns.Slice.breathe", breathe)
    async with running(tmp_path) as broker, client_of(broker) as client:
        asked = []
        for names in ("ab", "bc", "de", "ce", "ab"):
            data = {"clientID": "c", "producerDataSet": [{"groupName": name} for name in names]}
            asked.append(client.call(Request.HEART_BEAT, {}, bodies.dumps(data)))
        assert [answer.code for answer in await asyncio.gather(*asked)] == [0, 0, 2, 0, 0]
        assert sorted(broker.context.clients.producers) == ["a", "b", "c", "e"]
        assert not any(broker.processors.clients._places._promised.values())


async def test_a_delay_level_that_is_no_number_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    """RocketMQ refuses it, too; it was delivered at once."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        for level in ("x", "1.5", str(1 << 31)):
            answer = await client.send("T", b"m", properties=f"DELAY\x01{level}\x02")
            assert answer.code == Response.MESSAGE_ILLEGAL, level
        assert broker.store.log.end == 0


def test_tags_without_their_hashes_are_what_a_heartbeat_wants() -> None:
    said = {"topic": "T", "subString": "A||B", "tagsSet": ["A", "B"], "codeSet": []}
    assert Subscription.from_json(said).codes == {65, 66}
    assert Subscription.from_json({**said, "codeSet": [65]}).codes == {65}
    assert not Subscription.from_json({**said, "subString": "*"}).codes
    assert not Subscription.from_json({**said, "expressionType": "SQL92"}).codes
