"""The promise of broker.requests.consumers: what is there is served at once, the rest is waited for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from model.codes import Request
from model.errors import DiskError
from model.ids import BrokerId, Epoch
from model.message import java_hash
from remoting import bodies
from remoting.codec import Command
from remoting.headers import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from remoting.service import Connection
from store.flow.reading import Got
from tests.broker.helpers import (
    client_of,
    elected,
    eventually,
    heartbeat,
    records,
    running,
)


async def test_a_pull_that_finds_nothing_waits_for_the_next_message(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"first")
        waiting = asyncio.ensure_future(client.pull("T", 1, suspend_ms=20_000))
        await eventually(lambda: broker.status()["heldPulls"] == 1, "the pull is held")
        await client.send("T", b"second")
        answer = await waiting
        assert (answer.code, answer.remark) == (0, "FOUND")
        assert [r.body for r in records(answer.body)] == [b"second"]


async def test_a_held_pull_ends_with_nothing_found_when_its_time_is_over(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        answer = await client.pull("T", 1, suspend_ms=100)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")


async def test_without_long_polling_a_pull_that_finds_nothing_is_held_for_a_moment(tmp_path: Path) -> None:
    """Answered at once, its consumer came again at once, as fast as the network is."""

    async with running(tmp_path, longPollingEnable="false") as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        pull = asyncio.create_task(client.pull("T", 1, suspend_ms=3_600_000))
        await eventually(lambda: pull.done() or broker.status()["heldPulls"] == 1, "it is there")
        assert not pull.done()
        assert (await pull).code == 19


async def test_a_held_pull_is_not_woken_by_tags_it_does_not_want(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", properties="TAGS\x01A\x02")
        waiting = asyncio.ensure_future(client.pull("T", 1, tags="B", suspend_ms=20_000))
        await eventually(lambda: broker.status()["heldPulls"] == 1, "the pull is held")
        await client.send("T", properties="TAGS\x01A\x02")
        await broker.store.caught_up()
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await client.send("T", b"for B", properties="TAGS\x01B\x02")
        assert [r.body for r in records((await waiting).body)] == [b"for B"]


async def test_only_wanted_tags_are_served(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(9):
            await client.send("T", b"%d" % number, properties=f"TAGS\x01{'ABC'[number % 3]}\x02")
        found = await client.pull_until("T", 0, 6, tags="A || C")
        assert [r.body for r in found] == [b"0", b"2", b"3", b"5", b"6", b"8"]


@pytest.mark.parametrize(("offset", "code", "following"), [(3, 19, 3), (5, 21, 3), (-1, 21, 0), (0, 0, 3)])
async def test_offsets_outside_of_a_queue_are_corrected(
    tmp_path: Path, offset: int, code: int, following: int
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(3):
            await client.send("T")
        await broker.store.caught_up()
        answer = await client.pull("T", offset)
        assert (answer.code, answer.ext["nextBeginOffset"]) == (code, str(following))


@pytest.mark.parametrize(
    ("queue_id", "topic", "code"),
    [(0, "Nowhere", 17), (99, "T", 29)],
)
async def test_a_pull_from_where_nothing_is_says_so(
    tmp_path: Path, queue_id: int, topic: str, code: int
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        assert (await client.pull(topic, 0, queue_id=queue_id)).code == code


async def test_a_role_change_frees_every_held_pull(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        waiting = asyncio.ensure_future(client.pull("T", 1, suspend_ms=20_000))
        await eventually(lambda: broker.status()["heldPulls"] == 1, "the pull is held")
        await broker.fence()
        assert (await waiting).code == 20


async def test_pulls_with_a_groups_own_subscription_need_a_heartbeat(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"x", properties="TAGS\x01A\x02")
        await broker.store.caught_up()
        ext = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "0",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subVersion": "1",
        }
        assert (await client.call(Request.PULL_MESSAGE, ext)).code == 24
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "g", "T"))
        assert (await client.call(Request.PULL_MESSAGE, ext)).code == 0
        assert (await client.call(Request.PULL_MESSAGE, {**ext, "subVersion": "2"})).code == 25


@pytest.mark.parametrize(("told", "code", "client_bytes"), [(7, 0, 1 << 20), (6, 25, 1 << 20), (7, 25, 1000)])
async def test_a_consumer_that_knows_more_than_its_heartbeat_said_is_asked(
    tmp_path: Path, told: int, code: int, client_bytes: int
) -> None:
    """The original's client renews its version and may leave out the heartbeat that tells: the original
    refuses its pulls for 20 s."""
    asked: list[dict[str, str]] = []

    async def tell(connection: Connection, request: Command) -> Command | None:
        if request.code != Request.GET_CONSUMER_RUNNING_INFO:
            return None
        asked.append(request.ext)
        wanted = [{"topic": t, "subString": "B", "codeSet": [66], "subVersion": told} for t in ("T", "U")]
        text = json.dumps({"subscriptionSet": wanted, "userConsumerInfo": {}})
        queues = '{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"commitOffset":0}},'
        return request.reply(body=(queues + text[1:]).encode())

    async with running(tmp_path, maxClientBytes=client_bytes) as broker, client_of(broker, tell) as client:
        for tag in "AB":
            await client.send("T", tag.encode(), properties=f"TAGS\x01{tag}\x02")
        await broker.store.caught_up()
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "g", "T"))
        header = PullHeader("g", "T", 0, 0, 32, sys_flag=0, sub_version=7)
        answers = await asyncio.gather(
            *(client.call(Request.PULL_MESSAGE, header.to_ext()) for _ in range(3))
        )
        assert [answer.code for answer in answers] == [code] * 3
        assert asked == [{"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"}], "once"
        if code == 0:
            assert [r.body for r in records(answers[0].body)] == [b"B"], "what it wants now"
        assert broker.context.clients.subscription("g", "U") is None, "a heartbeat alone brings new topics"
        broker.context.clients.check_invariants()


async def test_the_tag_code_of_a_queue_entry_is_javas(tmp_path: Path) -> None:
    codes: list[int] = []
    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.store.on_arrive.append(lambda arrived: codes.extend(code for *_, code in arrived))
        await client.send("T", properties="TAGS\x01grün\x02")
        await broker.store.caught_up()
    assert codes == [java_hash("grün")]


@pytest.mark.parametrize("error", [DiskError("a page that cannot be read"), KeyError("a mistake of ours")])
async def test_a_held_pull_that_cannot_be_read_ends_alone(tmp_path: Path, error: Exception) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", queue_id=0)
        await client.send("T", queue_id=1)
        await broker.store.caught_up()
        await broker.fence()
        waiting = [
            asyncio.ensure_future(client.pull("T", 1, queue_id=queue_id, suspend_ms=20_000))
            for queue_id in (0, 0, 1)
        ]
        await eventually(lambda: broker.status()["heldPulls"] == 3, "the pulls are held")
        get = broker.store.get

        def torn(topic: str, queue_id: int, *rest: Any) -> Got:
            if (topic, queue_id) == ("T", 0):
                raise error
            return get(topic, queue_id, *rest)

        broker.store.get = torn  # type: ignore[method-assign, assignment]
        await broker.lead(elected(0, 0, (), 0))
        assert [(await one).code for one in waiting] == [1, 1, 20]
        assert broker.role_state.is_master
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert any("delay" in name for name in names), "what a master does beside began"


@pytest.mark.parametrize("error", [DiskError("a page that cannot be read"), KeyError("a mistake of ours")])
async def test_a_message_for_a_held_pull_that_cannot_be_read_reaches_the_others(
    tmp_path: Path, error: Exception
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        waiting = [asyncio.ensure_future(client.pull("T", 1, suspend_ms=20_000)) for _ in range(2)]
        await eventually(lambda: broker.status()["heldPulls"] == 2, "the pulls are held")
        get = broker.store.get
        failing = [True]

        def torn_once(topic: str, *rest: Any) -> Got:
            if topic == "T" and failing:
                failing.clear()
                raise error
            return get(topic, *rest)

        broker.store.get = torn_once  # type: ignore[method-assign, assignment]
        await client.send("T")
        assert sorted([(await one).code for one in waiting]) == [0, 1]


def own_pull(offset: int, sub_version: int) -> dict[str, str]:
    """A pull that is held long, with the subscription of the last heartbeat."""
    header = PullHeader(
        "g", "T", 0, offset, 32, PULL_SUSPEND, suspend_timeout_ms=20_000, sub_version=sub_version
    )
    return header.to_ext()


def beat(*tags: str, version: int) -> bytes:
    data = bodies.loads(heartbeat("c1", "g", "T"))
    changed = {"subString": " || ".join(tags), "subVersion": version, "codeSet": [java_hash(t) for t in tags]}
    data["consumerDataSet"][0]["subscriptionDataSet"][0] |= changed
    return bodies.dumps(data)


async def test_a_held_pull_passes_over_nothing_its_consumer_has_come_to_want(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked for A; by the time B comes the consumer wants that, too."""
    monkeypatch.setattr("broker.requests.consumers.pull.RECHECK_MS", 0)

    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", properties="TAGS\x01A\x02")
        await broker.store.caught_up()
        await client.call(Request.HEART_BEAT, {}, beat("A", version=1))
        waiting = asyncio.create_task(client.call(Request.PULL_MESSAGE, own_pull(1, 1), timeout_s=20))
        await eventually(lambda: broker.status()["heldPulls"] == 1, "the pull is held")
        await client.call(Request.HEART_BEAT, {}, beat("A", "B", version=2))
        await client.send("T", b"b", properties="TAGS\x01B\x02")
        answer = await waiting
        assert answer.code == 0
        assert [r.body for r in records(answer.body)] == [b"b"]


@pytest.mark.parametrize(
    ("request_code", "ext", "data", "code"),
    [
        (Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"}, b"", 17),
        (
            Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            {},
            b'{"groupName": "g", "consumeEnable": false}',
            16,
        ),
    ],
)
async def test_a_held_pull_does_not_outlive_what_allowed_it(
    tmp_path: Path, request_code: int, ext: dict[str, str], data: bytes, code: int
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "g", "T"))
        waiting = asyncio.create_task(client.call(Request.PULL_MESSAGE, own_pull(1, 1), timeout_s=20))
        await eventually(lambda: broker.status()["heldPulls"] == 1, "the pull is held")
        assert (await client.call(request_code, ext, data)).code == 0
        await broker.fence()
        assert (await waiting).code == code


@pytest.mark.parametrize("offset", [5, 1])
async def test_a_slave_that_hears_no_master_holds_what_it_cannot_answer(tmp_path: Path, offset: int) -> None:
    """A consumer that read on at the former master finds nothing here; told to come again, it came at once,
    for as long as no master was there."""

    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        await broker.fence()
        pull = asyncio.create_task(client.pull("T", offset, suspend_ms=20_000))
        await eventually(lambda: pull.done() or broker.status()["heldPulls"] == 1, "it is there")
        assert not pull.done()
        await broker.follow(BrokerId(2), Epoch(1), None, None)
        answer = await pull
        assert (answer.code, answer.ext["nextBeginOffset"]) == (20, str(offset))


@pytest.mark.parametrize(("offset", "kept"), [(-5, None), (1, 1), (2**62, 1)])
async def test_a_pull_commits_no_offset_that_is_none(tmp_path: Path, offset: int, kept: int | None) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T")
        await broker.store.caught_up()
        header = PullHeader("g", "T", 0, 0, 32, PULL_COMMIT_OFFSET | PULL_SUBSCRIPTION, offset)
        assert (await client.call(Request.PULL_MESSAGE, header.to_ext())).code == 0
        assert broker.offsets.get("g", "T", 0) == kept
