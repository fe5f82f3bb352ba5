"""The promise of broker.requests.transactions: what is committed is seen, once; nothing else ever is."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from broker.requests import transactions as module
from broker.requests.moving import moved
from broker.requests.transactions import GROUP
from broker.service import Broker
from model.codes import Request
from model.errors import Refused
from model.ids import PhysicalOffset
from model.message import PROPERTIES_BYTES_MAX, decode_properties, property_of
from remoting.codec import Command
from remoting.headers import EndTransactionHeader
from remoting.service import Connection
from store.files.record import Record, decode, encode
from tests.broker.halves import COMMIT, GIVEN_UP, HALF, HALVES, ROLLBACK, SOON, UNKNOWN, begin, end, of_topic
from tests.broker.helpers import (
    client_of,
    elected,
    eventually,
    golden_exchanges,
    heartbeat,
    log_records,
    pair,
    running,
    topic,
)
from tests.plain import broker_ids

LOOKS_OFTEN = {"transactionCheckInterval": "20"}
OPS = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
REAL = {"REAL_TOPIC": "T", "REAL_QID": "0"}


async def test_a_half_message_is_invisible_until_it_is_committed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        half = await begin(client, queue_id=2)
        assert half.ext["queueId"] == "2"
        (stored,) = log_records(broker)
        assert (stored.topic, stored.queue_id, stored.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 0)
        assert property_of(stored.properties, "REAL_TOPIC") == "T"
        assert property_of(stored.properties, "__transactionId__") == half.ext["transactionId"]
        assert (await client.pull("T", 0, queue_id=2)).code == 19
        assert (await end(client, half, COMMIT)).code == 0
        (seen,) = await client.pull_until("T", 0, 1, queue_id=2)
        assert (seen.body, seen.sys_flag) == (b"half", 8)
        assert seen.prepared_transaction_offset == stored.physical_offset
        assert property_of(seen.properties, "REAL_TOPIC") is None
        (op,) = of_topic(broker, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
        assert (op.body, property_of(op.properties, "TAGS")) == (b"0,", "d")


async def test_a_committed_message_keeps_the_properties_of_its_half_as_the_originals_does(
    tmp_path: Path,
) -> None:
    """In a store of the real broker TRAN_MSG and WAIT stay as they were, also in halves asked about."""
    async with running(tmp_path, **SOON) as broker, client_of(broker) as client:
        properties = HALF + "UNIQ_KEY\x01U1\x02WAIT\x01true\x02"
        half = await client.send("T", b"half", properties=properties)
        await eventually(lambda: len(of_topic(broker, HALVES)) >= 2, "it is asked about")
        assert (await end(client, half, COMMIT)).code == 0
        (seen,) = await client.pull_until("T", 0, 1)
        halves = [decode_properties(one.properties) for one in of_topic(broker, HALVES)]
        kept = decode_properties(seen.properties)
        assert (kept["TRAN_MSG"], kept["WAIT"]) == ("true", "true")
        for one in (*halves[1:], kept):
            same = {k: v for k, v in one.items() if k != "TRANSACTION_CHECK_TIMES"} | REAL
            assert same == halves[0] | REAL


async def test_what_is_rolled_back_is_never_seen(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as broker, client_of(broker) as client:
        half = await begin(client)
        assert (await end(client, half, ROLLBACK)).code == 0
        assert (await end(client, half, ROLLBACK)).code == 0, "it has ended: nothing more to do"
        await eventually(lambda: (broker.offsets.get(GROUP, HALVES, 0) or 0) >= 1, "progress is noted")
        assert (await end(client, half, ROLLBACK)).code == 0, "also when only the log knows it"
        assert of_topic(broker, "T") == []


async def test_how_long_transactions_took_is_told_by_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        finished = broker.processors.transactions.finished
        first, second = await begin(client), await begin(client)
        assert (await end(client, second, ROLLBACK)).code == 0
        assert finished.to_json() == []
        for _ in range(2):  # the second one is known, and counts no more
            assert (await end(client, first, COMMIT)).code == 0
        (row,) = finished.to_json()
        assert (row["topic"], row["counts"][-1]) == ("T", 1)


@pytest.mark.parametrize(
    ("first", "then", "told"),
    [
        (ROLLBACK, COMMIT, "this transaction was rolled back"),
        (COMMIT, ROLLBACK, "this transaction was committed"),
    ],
)
async def test_an_end_against_the_first_is_not_answered_ok(
    tmp_path: Path, first: int, then: int, told: str
) -> None:
    async with running(tmp_path, **LOOKS_OFTEN) as broker, client_of(broker) as client:
        half = await begin(client)
        assert (await end(client, half, first)).code == 0
        answer = await end(client, half, then)
        assert (answer.code, answer.remark) == (1, told)
        await eventually(lambda: (broker.offsets.get(GROUP, HALVES, 0) or 0) >= 1, "progress is noted")
        answer = await end(client, half, then)
        assert (answer.code, answer.remark) == (1, told), "the op record says it"
    async with running(tmp_path, **LOOKS_OFTEN) as broker, client_of(broker) as client:
        await eventually(lambda: broker.processors.transactions._known.is_set(), "the log is read")
        answer = await end(client, half, then)
        assert (answer.code, answer.remark) == (1, told)


async def test_a_commit_that_comes_twice_is_carried_out_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        half = await begin(client)
        for _ in range(3):
            assert (await end(client, half, COMMIT)).code == 0
        assert len(of_topic(broker, "T")) == 1


async def test_a_commit_to_a_deleted_topic_is_carried_out_once_there_is_one_again(tmp_path: Path) -> None:
    """Its message would be for no reader, also later: no OK for nothing, and nothing is lost."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        half, undone = await begin(client), await begin(client)
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T"})).code == 0
        answer = await end(client, half, COMMIT)
        assert (answer.code, answer.remark) == (17, "topic[T] was deleted, make it again first")
        assert (await end(client, undone, ROLLBACK)).code == 0
        assert of_topic(broker, "T") == []
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        assert (await end(client, half, COMMIT)).code == 0
        (seen,) = await client.pull_until("T", 0, 1)
        assert seen.body == b"half"


async def test_an_end_that_crosses_the_question_counts(tmp_path: Path) -> None:
    async with running(tmp_path, **SOON) as broker, client_of(broker) as client:
        half = await begin(client)
        await eventually(
            lambda: len(of_topic(broker, "RMQ_SYS_TRANS_HALF_TOPIC")) >= 3, "it is asked about twice"
        )
        for _ in range(2):
            assert (await end(client, half, COMMIT)).code == 0
        await client.pull_until("T", 0, 1)
        asked = len(of_topic(broker, "RMQ_SYS_TRANS_HALF_TOPIC"))
        await eventually(
            lambda: broker.offsets.get(GROUP, "RMQ_SYS_TRANS_HALF_TOPIC", 0) == asked, "all have ended"
        )
        assert len(of_topic(broker, "T")) == 1


async def test_a_commit_without_enough_replicas_is_refused_and_carried_out_when_they_are_back(
    tmp_path: Path,
) -> None:
    keys = SOON | {"transactionCheckMax": "30", "minInSyncReplicas": "2"}
    async with pair(tmp_path, **keys) as (one, two), client_of(one) as client:
        half = await begin(client)
        one.ha.adopt(broker_ids({1}), 3)
        assert (await end(client, half, COMMIT)).code != 0
        # Long enough for 50 looks: if each counted as a question, the half would be given up by now.
        await asyncio.sleep(1.0)
        assert of_topic(one, "T") == []
        one.ha.adopt(broker_ids({1, 2}), 4)
        assert (await end(client, half, COMMIT)).code == 0
        assert [record.body for record in await client.pull_until("T", 0, 1)] == [b"half"]
        await eventually(lambda: two.store.log.end == one.store.log.end, "the slave has it")
        assert len(of_topic(two, "T")) == 1


@pytest.mark.parametrize("wrong", ["group", "offset", "place"])
async def test_an_end_that_does_not_fit_its_half_is_refused(tmp_path: Path, wrong: str) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        plain = await client.send("T", b"plain")
        half = await begin(client)
        if wrong == "offset":
            half.ext["queueOffset"] = "7"
        if wrong == "place":
            half.ext["msgId"] = plain.ext["msgId"]
        answer = await end(client, half, COMMIT, "other" if wrong == "group" else "pg")
        assert answer.code == 1
        assert len(of_topic(broker, "T")) == 1


async def test_bytes_of_a_half_in_a_body_end_nobodys_transaction(tmp_path: Path) -> None:
    """A sender knows where its message will lie, and which queue offset the next half will have."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        store, told = broker.store, await begin(client)
        theirs = int(told.ext["queueOffset"])

        def forged(physical_offset: int) -> bytes:
            (half,) = of_topic(broker, HALVES)
            properties = half.properties.replace("REAL_TOPIC\x01T", "REAL_TOPIC\x01MT")
            message = dataclasses.replace(moved(half, (HALVES, 0), properties, half.store_host), body=b"mine")
            return encode(message, theirs, physical_offset, 1)

        first = store.log.end
        await client.send("MT", forged(0))
        second = store.log.end
        place = second + bytes(store.log.read(first, second - first)).index(forged(0))
        await client.send("MT", forged(place))
        planted = store.lookup(PhysicalOffset(place))
        assert planted is not None
        assert decode(planted).topic == HALVES, "the store cannot tell it from a record"
        ops = len(of_topic(broker, OPS))
        header = EndTransactionHeader("pg", theirs, place, ROLLBACK, "")
        answer = await client.call(Request.END_TRANSACTION, header.to_ext())
        assert (answer.code, answer.remark) == (1, "the message at this offset is not a prepared one")
        assert len(of_topic(broker, OPS)) == ops
        assert (await end(client, told, COMMIT)).code == 0
        assert [record.body for record in of_topic(broker, "T")] == [b"half"]


async def test_a_producer_is_asked_as_the_real_broker_asks_and_its_answer_counts(tmp_path: Path) -> None:
    asked: list[Command] = []

    async def handler(connection: Connection, request: Command) -> None:
        asked.append(request)
        header = EndTransactionHeader(
            "pg",
            int(request.ext["tranStateTableOffset"]),
            int(request.ext["commitLogOffset"]),
            COMMIT,
            request.ext["msgId"],
            request.ext["transactionId"],
            from_check=True,
        )
        connection.oneway(Command(int(Request.END_TRANSACTION), header.to_ext()))

    async with running(tmp_path, **SOON) as broker, client_of(broker, handler) as client:
        await client.call(Request.HEART_BEAT, {}, heartbeat("c", "", producer="pg"))
        half = await begin(client)
        assert (await end(client, half, UNKNOWN)).code == 0
        (seen,) = await client.pull_until("T", 0, 1)
        assert seen.body == b"half"
        _, real, _ = golden_exchanges("tx.jsonl")["check_transaction_state"]
        assert (asked[0].code, asked[0].flag & 2) == (real.code, 2)
        assert set(asked[0].ext) == set(real.ext)
        shown, theirs = decode(asked[0].body), decode(real.body)
        assert shown.topic == "T"
        assert shown.queue_offset == int(asked[0].ext["tranStateTableOffset"])
        assert shown.physical_offset == int(asked[0].ext["commitLogOffset"])
        names = set(re.findall(r"(?:^|\x02)([^\x01\x02]+)\x01", theirs.properties)) - {
            "TAGS",
            "KEYS",
        }
        assert names <= set(re.findall(r"(?:^|\x02)([^\x01\x02]+)\x01", shown.properties))
        assert property_of(shown.properties, "TRANSACTION_CHECK_TIMES") == "1"
        await asyncio.sleep(0.1)
        assert len(of_topic(broker, "T")) == 1, "asked until it ended, then no more"
        assert (await end(client, half, COMMIT)).code == 0, "late word about the first copy"
        assert len(of_topic(broker, "T")) == 1


async def test_a_transaction_nobody_ends_is_given_up_and_kept_aside(tmp_path: Path) -> None:
    async with running(tmp_path, transactionCheckMax="2", **SOON) as broker, client_of(broker) as client:
        await begin(client)
        await eventually(lambda: of_topic(broker, "TRANS_CHECK_MAX_TIME_TOPIC") != [], "it is given up")
        assert len(of_topic(broker, "TRANS_CHECK_MAX_TIME_TOPIC")) == 1
        assert of_topic(broker, "T") == []


async def test_a_successor_carries_out_the_end_and_remembers_what_ended(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as old, client_of(two) as new:
        ended, open_ = await begin(old, body=b"ended"), await begin(old, body=b"open")
        assert (await end(old, ended, COMMIT)).code == 0
        assert (await end(new, open_, COMMIT)).code == 11
        await one.fence()
        await two.lead(elected(2, 2, {2}, 3))
        assert (await end(new, open_, COMMIT)).code == 0
        await eventually(lambda: len(of_topic(two, "T")) == 2, "both are there")
        for half in (ended, open_):
            assert (await end(new, half, COMMIT)).code == 0, "its producer had no answer, and asks again"
            answer = await end(new, half, ROLLBACK)
            assert (answer.code, answer.remark) == (1, "this transaction was committed")
        assert [r.body for r in of_topic(two, "T")] == [b"ended", b"open"], "each once"


async def test_halves_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        half = await begin(client)
        done = await begin(client)
        await end(client, done, COMMIT)
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await end(client, half, COMMIT)).code == 0
        assert (await end(client, done, COMMIT)).code == 0
        assert len(of_topic(broker, "T")) == 2, "what ended before the restart has ended"


@pytest.mark.parametrize("passed", [False, True])
async def test_an_end_for_a_half_that_a_former_master_wrote_anew_counts_for_its_copy(
    tmp_path: Path, passed: bool
) -> None:
    """Its op record says that it is gone; not that the transaction has ended."""
    async with running(tmp_path, **SOON) as broker, client_of(broker) as client:
        half = await begin(client)
        rolled_back = await begin(client, body=b"rolled back")
        await eventually(lambda: len(of_topic(broker, HALVES)) >= 6, "both are asked about twice")
    async with running(tmp_path) as broker, client_of(broker) as client:
        if passed:  # progress is behind them: the log alone knows
            await eventually(lambda: broker.processors.transactions._known.is_set(), "what ended is known")
            broker.processors.transactions._next_half = len(of_topic(broker, HALVES)) - 2
            broker.processors.transactions._ended.clear()
        assert (await end(client, rolled_back, ROLLBACK)).code == 0
        for _ in range(2):
            assert (await end(client, half, COMMIT)).code == 0
        assert [record.body for record in of_topic(broker, "T")] == [b"half"]
        for ended, decision, how in ((half, ROLLBACK, "committed"), (rolled_back, COMMIT, "rolled back")):
            answer = await end(client, ended, decision)
            assert (answer.code, answer.remark) == (1, f"this transaction was {how}")


def given_up(broker: Broker) -> set[bytes]:
    return {record.body for record in of_topic(broker, GIVEN_UP)}


@pytest.mark.parametrize("how", ["told", "asked"])
async def test_an_end_the_successor_holds_but_cannot_confirm_yet_is_not_carried_out_again(
    tmp_path: Path, how: str
) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as old, client_of(two) as new:
        half = await begin(old)
        await eventually(lambda: two.store.dispatched == one.store.log.end, "the half is confirmed")
        two.store.confirm_copied = lambda offset: None  # type: ignore[method-assign]
        assert (await end(old, half, COMMIT)).code == 0
        await one.fence()
        asked: list[int] = []
        transactions = two.processors.transactions
        ask, is_due = transactions._ask, transactions._is_due
        transactions._ask = lambda half: (asked.append(half.queue_offset), ask(half))[1]  # type: ignore
        transactions._is_due = lambda half: how == "asked" or is_due(half)  # type: ignore[method-assign]
        await two.lead(elected(2, 2, {1, 2}, 3))  # the other member is away: nothing is confirmed
        del two.store.confirm_copied
        assert two.store.dispatched < two.store.log.end
        again = asyncio.create_task(end(new, half, COMMIT)) if how == "told" else None
        await asyncio.sleep(0.2)
        two.ha.adopt(broker_ids({2}), 4)
        if again is not None:
            assert (await again).code == 0
        await eventually(
            lambda: two.offsets.get(GROUP, HALVES, 0) == 1, "the half has ended for the successor, too"
        )
        assert [record.body for record in of_topic(two, "T")] == [b"half"]
        assert asked == []


async def test_an_end_the_successor_cannot_judge_in_time_is_refused(tmp_path: Path) -> None:
    keys = {"slaveTimeout": "600"}
    async with pair(tmp_path, **keys) as (one, two), client_of(one) as old, client_of(two) as new:
        half = await begin(old)
        await eventually(lambda: two.store.dispatched == one.store.log.end, "the half is confirmed")
        two.store.confirm_copied = lambda offset: None  # type: ignore[method-assign]
        assert (await end(old, half, COMMIT)).code == 0
        await one.fence()
        await two.lead(elected(2, 2, {1, 2}, 3))
        del two.store.confirm_copied
        assert (await end(new, half, COMMIT)).code == 2
        assert len(of_topic(two, "T")) == 1


@pytest.mark.parametrize("spare", [0, 10, 60])
async def test_a_half_with_no_room_for_the_count_of_questions_holds_nobody_up(
    tmp_path: Path, spare: int
) -> None:
    async with running(tmp_path, transactionCheckMax="3", **SOON) as broker, client_of(broker) as client:
        await end(client, await begin(client, body=b"probe"), COMMIT)
        stored = of_topic(broker, HALVES)[0].properties
        room = PROPERTIES_BYTES_MAX - spare - len(stored.encode())
        answer = await client.send("T", b"long", properties=HALF + f"f\x01{'x' * (room - 3)}\x02")
        assert answer.code == 0, answer.remark
        await begin(client, body=b"behind")
        await eventually(lambda: given_up(broker) == {b"long", b"behind"}, "both are given up in the end")


async def test_a_half_to_be_asked_about_late_is_written_anew_only_when_it_is_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 3)
    async with running(tmp_path, transactionCheckMax="2", **SOON) as broker, client_of(broker) as client:
        late = HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02"
        await client.send("T", b"late", properties=late)
        await begin(client, body=b"behind")
        await eventually(lambda: given_up(broker) == {b"behind"}, "it is asked about, and given up")
        written = [record.body for record in of_topic(broker, HALVES)]
        assert written.count(b"behind") == 3
        assert written.count(b"late") <= 2, "three ends were held up by it at most once"


async def test_what_was_told_of_a_half_is_all_that_is_remembered_of_its_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_BACK_MS", 0)
    async with running(tmp_path, **SOON) as broker, client_of(broker) as client:
        late = HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02"
        half = await client.send("T", b"late", properties=late)
        await eventually(lambda: len(of_topic(broker, HALVES)) >= 6, "it was written anew five times")
        places = broker.processors.transactions._places
        assert [len(places) for places in places._former.values()] == [1]
        assert len(places._newest) == 1
        assert len(places._untold) == 1
        assert (await end(client, half, COMMIT)).code == 0
        assert [record.body for record in of_topic(broker, "T")] == [b"late"]


async def test_a_half_to_be_asked_about_late_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PUT_BACK_MS", 0)
    async with running(tmp_path, transactionCheckMax="2", **SOON) as broker, client_of(broker) as client:
        late = HALF + "CHECK_IMMUNITY_TIME_IN_SECONDS\x013600\x02"
        half = await client.send("T", b"late", properties=late)
        await begin(client, body=b"behind")
        await eventually(lambda: given_up(broker) == {b"behind"}, "the one behind is asked about")
        _, *rest = [record for record in of_topic(broker, HALVES) if record.body == b"late"]
        left = [property_of(one.properties, "CHECK_IMMUNITY_TIME_IN_SECONDS") or "" for one in rest]
        assert left, "it is written anew"
        assert all(3000 < int(one) <= 3600 for one in left), "it keeps what is left of its time"
        assert all(property_of(one.properties, "TRANSACTION_CHECK_TIMES") is None for one in rest)
        assert (await end(client, half, COMMIT)).code == 0, "the first copy's end counts for the newest"
        assert [record.body for record in of_topic(broker, "T")] == [b"late"]


@pytest.mark.parametrize("ahead_ms", [3_600_000, 86_400_000, 50_000])
async def test_a_half_of_a_clock_that_was_ahead_holds_nobody_up(tmp_path: Path, ahead_ms: int) -> None:
    """One that is ahead by no more than a minute waits for its time, and no other one does."""
    keys = {"transactionTimeOut": "300", "transactionCheckInterval": "20", "transactionCheckMax": "2"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        real_ms, stamp_ms = broker.env.now_ms, broker.store.writer.stamp_ms
        broker.store.writer.stamp_ms = lambda: real_ms() + ahead_ms  # type: ignore[method-assign]
        half = await begin(client, body=b"ahead")
        broker.store.writer.stamp_ms = stamp_ms  # type: ignore[method-assign]
        await begin(client, body=b"right")
        await eventually(lambda: b"right" in given_up(broker), "it is asked about, and given up")
        done = broker.offsets.get(GROUP, HALVES, 0) or 0
        copies = [record for record in of_topic(broker, HALVES) if record.body == b"ahead"]
        if ahead_ms > 60_000:
            await eventually(lambda: given_up(broker) == {b"ahead", b"right"}, "so is the other one")
            first, put_back, asked, *_ = (r for r in of_topic(broker, HALVES) if r.body == b"ahead")
            assert put_back.properties == first.properties, "nobody was asked at once"
            assert asked.store_timestamp_ms - put_back.store_timestamp_ms >= 300
        else:
            assert len(copies) == 1
            assert done <= copies[0].queue_offset, "its successor has to look at it"
            assert (await end(client, half, COMMIT)).code == 0
            assert [record.body for record in of_topic(broker, "T")] == [b"ahead"]


async def test_an_end_counts_for_a_half_that_was_put_back_as_a_clock_was_ahead(tmp_path: Path) -> None:
    keys = {"transactionTimeOut": "60000", "transactionCheckInterval": "20"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        real_ms, stamp_ms = broker.env.now_ms, broker.store.writer.stamp_ms
        broker.store.writer.stamp_ms = lambda: real_ms() + 3_600_000  # type: ignore[method-assign]
        half = await begin(client)
        broker.store.writer.stamp_ms = stamp_ms  # type: ignore[method-assign]
        await eventually(lambda: len(of_topic(broker, HALVES)) == 2, "it is put back")
        await asyncio.sleep(0.2)
        assert len(of_topic(broker, HALVES)) == 2, "once"
        assert (await end(client, half, COMMIT)).code == 0
        assert (await end(client, half, COMMIT)).code == 0
        assert [record.body for record in of_topic(broker, "T")] == [b"half"]
        await broker.fence()
        await broker.lead(elected(0, 0, (), 0))
        assert (await end(client, half, COMMIT)).code == 0, "a successor knows it, too"
        assert [record.body for record in of_topic(broker, "T")] == [b"half"]


async def test_what_is_stored_moves_on_although_the_longest_body_was_lowered(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("T", b"d" * 5000, properties="DELAY\x011\x02")
        half = await begin(client, body=b"t" * 5000)
    async with running(tmp_path, maxMessageSize="1000") as broker, client_of(broker) as client:
        assert (await client.send("T", b"n" * 5000)).code == 13, "new ones are refused"
        assert (await end(client, half, COMMIT)).code == 0
        await eventually(lambda: len(of_topic(broker, "T")) == 2, "the delayed one is delivered, too")
        assert {record.body[:1] for record in of_topic(broker, "T")} == {b"d", b"t"}


async def test_others_have_their_turn_while_very_many_halves_are_asked_about(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await asyncio.gather(*(begin(client) for _ in range(200)))
        await broker.store.caught_up()
        transactions = broker.processors.transactions
        asked = 0
        ask = transactions._ask

        def counted(half: Record) -> None:
            nonlocal asked
            asked += 1
            ask(half)

        transactions._ask = counted  # type: ignore[method-assign]
        transactions._is_due = lambda half: True  # type: ignore[method-assign]
        looking = asyncio.create_task(transactions.check())
        turns = [0]
        while not looking.done():
            await asyncio.sleep(0)
            turns.append(asked)
        await looking
        assert asked == 200
        assert max(after - before for before, after in itertools.pairwise(turns)) <= 32


async def test_a_look_at_halves_ends_with_the_role(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await asyncio.gather(*(begin(client) for _ in range(100)))
        await broker.store.caught_up()
        transactions = broker.processors.transactions
        transactions._is_due = lambda half: True  # type: ignore[method-assign]
        end = broker.store.log.end
        looking = asyncio.create_task(transactions.check())
        for _ in range(10_000):  # its first turns
            if broker.store.log.end > end:
                break
            await asyncio.sleep(0)
        await broker.fence()
        with pytest.raises(Refused):
            await looking
        written = len(of_topic(broker, HALVES))
        assert 100 < written < 200
        assert broker.offsets.get(GROUP, HALVES, 0) is None
