"""The promise of the bounds: what clients that pop can make a broker hold is bounded, and the others go
on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.requests.consumers.pop import pop as pop_module
from broker.requests.consumers.pop.checks import CHANCES, from_chance
from broker.requests.consumers.pop.log import PopLog
from broker.requests.consumers.pop.polling import Polling
from broker.requests.consumers.pop.pop import QUEUES_AT_ONCE
from broker.state import pending_acks
from model.codes import Request, Response
from model.pop import ATTEMPT_ID_CHARS, ORDER_REVIVE_QUEUE, ExtraInfo, pop_retry_topic
from model.topic import SubscriptionGroupConfig
from remoting.pop_acks import BatchAck, encode_batch_acks
from remoting.pop_headers import AckHeader, PopHeader
from tests.broker.helpers import client_of, commit, eventually, running, topic
from tests.broker.pop.support import ack, pop, popped
from tests.broker.turn_meter import metered, tried_again


async def test_only_so_many_pops_wait(tmp_path: Path) -> None:
    async with running(tmp_path, popPollingSize=2) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        waiting = [asyncio.create_task(pop(client, "T", poll_ms=10_000)) for _ in range(2)]
        await eventually(lambda: broker.status()["heldPops"] == 2, "they wait")
        full = await pop(client, "T", poll_ms=10_000)
        assert (full.code, full.remark) == (Response.POLLING_FULL, "NO_MESSAGE_IN_QUEUE")
        other = asyncio.create_task(pop(client, "T", poll_ms=10_000, queue_id=1))
        await eventually(lambda: broker.status()["heldPops"] == 3, "for another queue there is room")
        for task in (*waiting, other):
            task.cancel()


async def test_pops_of_a_connection_that_ended_leave_their_places(tmp_path: Path) -> None:
    """They kept them until their time was over, and the others' consumers were told that it is full."""
    keys = {"popPollingSize": 150, "maxPopPollingSize": 300}
    async with running(tmp_path, **keys) as broker, client_of(broker) as stays, client_of(broker) as goes:
        await stays.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 2))
        pops = broker.processors.pops
        other = asyncio.create_task(pop(stays, "T", poll_ms=20_000, queue_id=1))
        waiting = [asyncio.create_task(pop(goes, "T", poll_ms=20_000)) for _ in range(150)]
        ext = {"consumerGroup": "cg", "topic": "T", "queueId": "-1", "pollTime": "20000"}
        ext["bornTime"] = str(broker.env.now_ms())
        waiting += [asyncio.create_task(goes.call(Request.NOTIFICATION, ext)) for _ in range(3)]
        await eventually(lambda: pops.polling.held == 151 and pops.notifications.held == 3, "they wait")
        assert (await pop(stays, "T", poll_ms=20_000)).code == Response.POLLING_FULL
        (await goes.connection()).close()
        await eventually(
            lambda: pops.polling.held == 1 and not pops.notifications.held, "their places are free"
        )
        again = asyncio.create_task(pop(stays, "T", poll_ms=20_000))
        await eventually(lambda: pops.polling.held == 2, "others have them")
        for polling in (pops.polling, pops.notifications):
            polling.pops.check_invariants()
        assert pops._leaving.count == 0
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in (other, again):
            task.cancel()


async def test_a_pop_is_answered_when_its_time_is_over(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        answer = await pop(client, "T", poll_ms=300)
        assert (answer.code, answer.ext["restNum"]) == (Response.POLLING_TIMEOUT, "0")
        assert broker.status()["heldPops"] == 0
        broker.processors.pops.polling.pops.check_invariants()


async def test_a_pop_that_waits_long_keeps_no_other_one_waiting(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        long = asyncio.create_task(pop(client, "T", poll_ms=10_000))
        await eventually(lambda: broker.status()["heldPops"] == 1, "it waits")
        answer = await asyncio.wait_for(pop(client, "T", poll_ms=200), 5)
        assert answer.code == Response.POLLING_TIMEOUT
        assert not long.done()
        long.cancel()


async def test_a_client_whose_clock_is_ahead_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        answer = await asyncio.wait_for(pop(client, "T", poll_ms=200, born_ms=2**63 - 1), 5)
        assert answer.code == Response.POLLING_TIMEOUT


async def test_nothing_is_popped_while_too_much_is_not_acknowledged(tmp_path: Path) -> None:
    keys = {"popCkMaxBufferSize": 2, "reviveInterval": 50}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(3):
            await client.send("T", b"%d" % at)
        found = [popped(await pop(client, "T", count_max=1), "T")[0] for _ in range(2)]
        await eventually(lambda: broker.status()["openCheckpoints"] == 2, "both are open")
        assert (await pop(client, "T")).code == Response.POLLING_TIMEOUT
        for one in found:
            await ack(client, one)
        await eventually(lambda: broker.status()["openCheckpoints"] == 0, "none is open")
        assert [one.body for one in popped(await pop(client, "T"), "T")] == [b"2"]


async def test_a_batch_of_acks_names_only_so_much(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        one = BatchAck("pg", "T", "0", 0, 0, 0, 1, 1, [0])
        for acks in ([one] * 1025, [BatchAck("pg", "T", "0", 0, 0, 0, 1, 1, list(range(33)))]):
            answer = await client.call(Request.BATCH_ACK_MESSAGE, {}, encode_batch_acks("b", acks))
            assert answer.code == Response.SYSTEM_ERROR, answer.remark
        wrong = BatchAck("pg", "T", "7", 0, 0, 0, 1, 1, [0])
        answer = await client.call(Request.BATCH_ACK_MESSAGE, {}, encode_batch_acks("b", [wrong]))
        assert answer.code == Response.SYSTEM_ERROR
        assert "retry '7' is not 0, 1 or 2" in (answer.remark or "")


async def test_a_group_whose_retry_topic_cannot_be_named_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        name = "T" * 120
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name, 1))
        await client.send(name, b"x")
        broker.groups.put(SubscriptionGroupConfig("g" * 200))  # of an older table
        answer = await pop(client, name, group="g" * 200)
        assert answer.code == Response.INVALID_PARAMETER, answer.remark


@tried_again
async def test_a_long_batch_of_acks_holds_nobody_up(tmp_path: Path) -> None:
    """Of as many pops as it may name, each with offsets as far apart as they may be."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        many = [BatchAck("pg", "T", "0", 0, 0, 0, at, 1, list(range(32))) for at in range(1024)]
        wide = [BatchAck("pg", "T", "0", 0, 0, 0, at, 1, [0, 65000]) for at in range(60)]
        for acks in (many, wide):
            body = encode_batch_acks("b", acks)
            async with metered() as meter:
                assert (await client.call(Request.BATCH_ACK_MESSAGE, {}, body)).code == 0
            meter.check()


async def test_acks_make_no_groups_queues_or_offsets_that_are_not_there(tmp_path: Path) -> None:
    keys = {"autoCreateSubscriptionGroup": "false"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        info = ExtraInfo(0, 1, 1, ORDER_REVIVE_QUEUE, "0", "broker-t", 0, 0).to_text()
        forged = AckHeader("nobody", "T", 0, info, 0)
        assert (await client.call(Request.ACK_MESSAGE, forged.to_ext())).code == 26
        later = dataclasses.replace(forged, invisible_ms=1000)
        assert (await client.call(Request.CHANGE_MESSAGE_INVISIBLETIME, later.to_ext())).code == 26
        group = json.dumps({"groupName": "pg"}).encode()
        assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)).code == 0
        acks = [
            BatchAck("pg", name, "0", 0, queue_id, ORDER_REVIVE_QUEUE, 1, 1, [0])
            for name, queue_id in (("none", 0), ("T", 7))
        ]
        for one in acks:
            body = encode_batch_acks("b", [one])
            assert (await client.call(Request.BATCH_ACK_MESSAGE, {}, body)).code == 0
            assert broker.offsets.queues("pg", one.topic) == {}
        beyond = AckHeader("pg", "T", 0, info, 1)
        await client.call(Request.ACK_MESSAGE, AckHeader("pg", "T", 0, info, 0).to_ext())
        await client.call(Request.ACK_MESSAGE, beyond.to_ext())
        await client.send("T", b"y")
        assert [one.body for one in popped(await pop(client, "T"), "T")] == [b"y"]


async def test_of_a_long_attempt_id_little_is_remembered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        one, other = "a" * 1_000_000 + "1", "a" * 1_000_000 + "2"
        assert (await pop(client, "T", order=True, attempt_id=one)).code == 0
        assert (await pop(client, "T", order=True, attempt_id=other)).code == Response.POLLING_TIMEOUT
        assert (await pop(client, "T", order=True, attempt_id=one)).code == 0, "the same is given again"
        kept = [found.attempt_id for found in broker.processors.pops.orders._table.values()]
        assert max(map(len, kept)) <= ATTEMPT_ID_CHARS


async def test_changes_of_what_nobody_popped_are_bounded(tmp_path: Path) -> None:
    keys = {"popCkMaxBufferSize": 2, "reviveInterval": 50}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        for at in range(3):
            await client.send("T", b"%d" % at)
        broker.groups.find("pg")
        await client.call(Request.UPDATE_CONSUMER_OFFSET, commit("pg", "T", 0))

        async def forged(offset: int, pop_time_ms: int = 1, name: str = "broker-t") -> int:
            info = ExtraInfo(offset, pop_time_ms, 1, 0, "0", name, 0, offset).to_text()
            header = AckHeader("pg", "T", 0, info, offset, 60_000)
            return (await client.call(Request.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())).code

        assert await forged(0, 2**63 - 1) == Response.INVALID_PARAMETER, "it would be open for ever"
        assert await forged(0, 1, "b" * 256) == Response.SYSTEM_ERROR
        assert [await forged(at) for at in (0, 1)] == [0, 0]
        await eventually(lambda: broker.status()["openCheckpoints"] == 2, "both are open")
        assert await forged(2) == Response.SYSTEM_BUSY


async def test_nothing_is_popped_while_too_many_answers_wait_for_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send("T", b"x")
        monkeypatch.setattr(pending_acks, "ALL_BYTES_MAX", 0)
        assert (await pop(client, "T")).code == Response.POLLING_TIMEOUT
        waiting = asyncio.create_task(pop(client, "T", poll_ms=20_000))
        await eventually(lambda: broker.status()["heldPops"] == 1, "it waits")
        monkeypatch.setattr(pending_acks, "ALL_BYTES_MAX", 1 << 20)
        assert [one.body for one in popped(await waiting, "T")] == [b"x"], "without another message"


@pytest.mark.parametrize("has_room", [True, False])
async def test_what_a_pop_found_waits_for_no_look_into_very_many_queues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_room: bool
) -> None:
    """With a message of the first one in its hand, a pop went through 65,535 queues in one step."""
    monkeypatch.setattr(pop_module, "BEHIND_MAX", QUEUES_AT_ONCE + 8)
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 12))
        for number in range(12):
            await client.send("T", queue_id=number)
        await broker.store.caught_up()
        if has_room:
            while popped(await pop(client, "T"), "T"):
                pass
        looked, told = list[int](), list[PopHeader]()
        known = PopLog.known

        def looks(log: PopLog, name: str, group: str, queue_id: int) -> int | None:
            if name == "T":
                looked.append(queue_id)
                if has_room and len(looked) == 1:
                    return 0
            return known(log, name, group, queue_id)

        monkeypatch.setattr(PopLog, "known", looks)
        monkeypatch.setattr(Polling, "more", lambda polling, header: told.append(header))
        answer = await pop(client, "T", count_max=32 if has_room else 1)
        assert len(popped(answer, "T")) == 1
        assert len(looked) == 9
        assert answer.ext["restNum"] == ("0" if has_room else "8")
        assert len(told) == 1, "there may be something for others in those behind"


@pytest.mark.parametrize("queues", [99, CHANCES, CHANCES + 1, 300])
def test_a_look_may_begin_at_any_queue(queues: int) -> None:
    """It may not look far behind what it finds: of a topic of 300 queues in use, those behind the 164th were
    popped by nobody."""
    ids = list(range(queues))
    for first in (0, queues // 2, queues - 1):
        context: Any = SimpleNamespace(
            env=SimpleNamespace(random=SimpleNamespace(randrange={queues: first}.get))
        )
        found = from_chance(context, ids, first if queues <= CHANCES else 7)
        assert (found[0], sorted(found)) == (first, ids)
    assert from_chance(context, [], 7) == []


async def test_a_pop_of_many_queues_begins_at_the_last_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = CHANCES + 1
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", queues))
        for queue_id in range(queues):
            await client.send("T", queue_id=queue_id)
        await broker.store.caught_up()
        monkeypatch.setattr(broker.env.random, "randrange", lambda end: end - 1)
        (one,) = popped(await pop(client, "T", count_max=1), "T")
        assert one.record.queue_id == queues - 1


@pytest.mark.parametrize("chance", [0, 1])
async def test_of_two_retry_topics_the_one_with_messages_is_taken_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chance: int
) -> None:
    """Whichever comes first by chance, without a look at all their queues before."""
    async with running(tmp_path, enableRetryTopicV2=True) as broker, client_of(broker) as client:
        await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T", 1))
        await client.send(pop_retry_topic("T", "pg", v2=False))
        await broker.store.caught_up()
        monkeypatch.setattr(broker.env.random, "randrange", lambda end: chance)
        assert len(popped(await pop(client, "T"), "T")) == 1
