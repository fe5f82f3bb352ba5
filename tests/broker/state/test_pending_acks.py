"""The promise of broker.state.pending_acks: no OK leaves before its record is where it has to be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.state import pending_acks as pending_acks_module
from broker.state.pending_acks import PendingAcks, with_code
from model.config import BrokerConfig
from remoting import codec
from remoting.codec import Command
from remoting.guard import LONG_ANSWER_BYTES, Made
from remoting.service import Connection
from runtime.os_env import OsEnv
from runtime.report.slow_requests import SlowRequests
from tests.broker.helpers import eventually
from tests.fakes.broker.store import FakeConnection


class Marks:
    """The two watermarks parking looks at, and what it asked to be synced."""

    def __init__(self) -> None:
        self.replicated = 0
        self.flushed = 0
        self.asked: list[int] = []


def parking_of(marks: Marks, *, bytes_max: int = 1 << 20, **keys: str) -> PendingAcks:
    return PendingAcks(
        OsEnv(),
        BrokerConfig.from_mapping(keys),
        replicated=lambda: marks.replicated,
        flushed=lambda: marks.flushed,
        sync_to=marks.asked.append,
        pending_bytes_max=bytes_max,
    )


def answer(opaque: int) -> bytes:
    return codec.encode(Command(0, {"msgId": "A", "queueId": "0"}, opaque=opaque, flag=codec.FLAG_RESPONSE))


def answers_in(data: bytes) -> list[Command]:
    found = []
    at = 0
    while end := codec.frame_end(data, at, len(data)):
        found.append(codec.decode(data[at:end]))
        at = end
    assert at == len(data), "only whole answers leave"
    return found


def conn(connection: FakeConnection) -> Connection:
    return cast(Connection, connection)


def run(test: Callable[[], Any]) -> None:
    async def body() -> None:
        test()

    asyncio.run(body())


def test_an_answer_whose_record_is_replicated_leaves_at_once() -> None:
    def body() -> None:
        marks = Marks()
        marks.replicated = 100
        connection = FakeConnection()
        parking_of(marks).add(conn(connection), answer(1), 100)
        assert [a.opaque for a in answers_in(connection.data)] == [1]

    run(body)


def test_what_passes_in_one_step_leaves_in_one_write_per_connection() -> None:
    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks)
        first, second = FakeConnection(), FakeConnection("127.0.0.1:40001")
        for opaque, connection in enumerate((first, second, first, first)):
            pending_acks.add(conn(connection), answer(opaque), 10 * (opaque + 1))
        marks.replicated = 30
        pending_acks.on_replicated(30)
        assert len(first.written) == 1
        assert [a.opaque for a in answers_in(first.data)] == [0, 2]
        assert [a.opaque for a in answers_in(second.data)] == [1]
        assert len(pending_acks) == 1

    run(body)


async def test_what_the_slaves_have_waits_for_the_disk_no_longer_than_its_own_time() -> None:
    marks = Marks()
    pending_acks = parking_of(
        marks, flushDiskType="SYNC_FLUSH", slaveTimeout="3600000", syncFlushTimeout="20"
    )
    connection = FakeConnection()
    pending_acks.add(conn(connection), answer(1), 10)
    marks.replicated = 10
    pending_acks.on_replicated(10)
    await eventually(lambda: bool(connection.written), "it is answered")
    pending_acks.add(conn(connection), answer(2), 20)
    marks.replicated = marks.flushed = 20
    pending_acks.on_replicated(20)
    marks.replicated = 30
    pending_acks.add(conn(connection), answer(3), 30)  # while the timer is for the second, which has left
    await eventually(lambda: len(answers_in(connection.data)) == 3, "so is that")
    assert [one.code for one in answers_in(connection.data)] == [10, 0, 10]


@pytest.mark.parametrize("key", ["slaveTimeout", "syncFlushTimeout"])
async def test_a_shorter_time_waits_behind_a_longer_one_and_sets_no_timer_for_each_send(key: str) -> None:
    marks = Marks()
    keys: dict[str, Any] = {"flushDiskType": "SYNC_FLUSH"} if key == "syncFlushTimeout" else {}
    pending_acks = parking_of(marks, **{**keys, key: "3600000"})
    connection = FakeConnection()
    if keys:
        marks.replicated = 100
    pending_acks.add(conn(connection), answer(0), 10)
    timer = pending_acks._timer
    pending_acks.reconfigure(BrokerConfig.from_mapping({**keys, key: "1"}))
    for n in range(1, 4):
        pending_acks.add(conn(connection), answer(n), 10 + n)
        assert pending_acks._timer is timer
    marks.replicated = max(marks.replicated, 10)
    marks.flushed = 10
    (pending_acks.on_flushed if keys else pending_acks.on_replicated)(10)
    await eventually(
        lambda: len(answers_in(connection.data)) == 4, "the others wait no longer than their own"
    )
    assert [one.code == 0 for one in answers_in(connection.data)] == [True, False, False, False]


def test_with_sync_flush_an_answer_needs_slaves_and_disk() -> None:
    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks, flushDiskType="SYNC_FLUSH")
        connection = FakeConnection()
        pending_acks.add(conn(connection), answer(1), 10)
        assert marks.asked == [10]
        marks.replicated = 10
        pending_acks.on_replicated(10)
        assert connection.written == []
        marks.flushed = 10
        pending_acks.on_flushed(10)
        assert [a.code for a in answers_in(connection.data)] == [0]

    run(body)


def test_a_disk_faster_than_the_slaves_changes_nothing() -> None:
    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks, flushDiskType="SYNC_FLUSH")
        connection = FakeConnection()
        pending_acks.add(conn(connection), answer(1), 10)
        marks.flushed = 10
        pending_acks.on_flushed(10)
        assert connection.written == []
        marks.replicated = 10
        pending_acks.on_replicated(10)
        assert [a.code for a in answers_in(connection.data)] == [0]

    run(body)


async def test_slow_slaves_and_a_slow_disk_are_told_apart_with_the_full_header() -> None:
    marks = Marks()
    pending_acks = parking_of(marks, flushDiskType="SYNC_FLUSH", slaveTimeout="20", syncFlushTimeout="40")
    connection = FakeConnection()
    pending_acks.add(conn(connection), answer(1), 10)
    pending_acks.add(conn(connection), answer(2), 20)
    marks.replicated = 10
    pending_acks.on_replicated(10)
    await eventually(lambda: not len(pending_acks), "all deadlines are over")
    found = {a.opaque: a for a in answers_in(connection.data)}
    assert (found[1].code, found[2].code) == (10, 12)
    assert all(a.ext == {"msgId": "A", "queueId": "0"} for a in found.values())


async def test_an_answer_after_its_deadline_does_not_delay_those_behind_it() -> None:
    marks = Marks()
    pending_acks = parking_of(marks, slaveTimeout="30")
    late, later = FakeConnection(), FakeConnection("127.0.0.1:40001")
    pending_acks.add(conn(late), answer(1), 10)
    await eventually(lambda: late.written, "its time is over")
    pending_acks.add(conn(later), answer(2), 20)
    marks.replicated = 20
    pending_acks.on_replicated(20)
    assert [a.code for a in answers_in(late.data)] == [12]
    assert [a.code for a in answers_in(later.data)] == [0]


def test_after_a_demotion_nothing_parked_leaves_and_the_connections_end() -> None:
    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks)
        connection = FakeConnection()
        pending_acks.add(conn(connection), answer(1), 10)
        pending_acks.drop()
        marks.replicated = 10
        pending_acks.on_replicated(10)
        assert connection.written == []
        assert connection.closed
        assert len(pending_acks) == 0

    run(body)


def test_a_connection_with_too_much_parked_is_not_read_until_half_of_it_left() -> None:
    def body() -> None:
        marks = Marks()
        size = len(answer(1))
        pending_acks = parking_of(marks, bytes_max=4 * size)
        connection = FakeConnection()
        for at in range(1, 6):
            pending_acks.add(conn(connection), answer(1), 10 * at)
        assert connection.held
        marks.replicated = 20
        pending_acks.on_replicated(20)
        assert connection.held, "three of four allowed are still there"
        marks.replicated = 30
        pending_acks.on_replicated(30)
        assert not connection.held

    run(body)


def test_a_connection_that_ended_leaves_nothing_behind() -> None:
    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks)
        gone, stays = FakeConnection(), FakeConnection("127.0.0.1:40001")
        pending_acks.add(conn(gone), answer(1), 10)
        pending_acks.add(conn(stays), answer(2), 20)
        pending_acks.forget(conn(gone))
        assert len(pending_acks) == 1
        marks.replicated = 20
        pending_acks.on_replicated(20)
        assert gone.written == []
        assert [a.opaque for a in answers_in(stays.data)] == [2]

    run(body)


def test_a_connection_that_ends_looks_through_the_answers_of_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1,000 that ended together looked through 100,000 answers each."""
    monkeypatch.setattr(pending_acks_module, "GONE_BYTES_MAX", 60 * len(answer(100)))

    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks)
        connections = [FakeConnection(f"127.0.0.1:{40000 + i}") for i in range(100)]
        for at, connection in enumerate(connections):
            pending_acks.add(conn(connection), answer(100 + at), 10 * (at + 1))
        waiting = pending_acks._await_slaves
        for count, connection in enumerate(connections[:60], 1):
            pending_acks.forget(conn(connection))
            assert pending_acks._await_slaves is waiting, "nothing was looked through"
            assert len(pending_acks) == 100 - count
        pending_acks.forget(conn(connections[60]))
        assert len(pending_acks._await_slaves) == len(pending_acks) == 39, "too much waits for nobody"
        pending_acks.forget(conn(connections[61]))
        marks.replicated = 1000
        pending_acks.on_replicated(1000)
        assert [len(c.written) for c in connections] == [0] * 62 + [1] * 38
        assert (
            len(pending_acks)
            == pending_acks._all.gone.size
            == pending_acks._all.gone.count
            == len(pending_acks._accounts)
            == 0
        )

    run(body)


async def test_long_answers_count_together_and_as_made_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of pops leave this way: a checkpoint waits for its copies."""
    long = codec.encode(Command(0, {}, bytes(LONG_ANSWER_BYTES), flag=codec.FLAG_RESPONSE))
    monkeypatch.setattr(pending_acks_module, "ALL_BYTES_MAX", 3 * len(long))
    marks, connections = Marks(), [FakeConnection(f"127.0.0.1:{port}") for port in range(4)]
    pending_acks = parking_of(marks)
    pending_acks.made = made = Made(lambda what: None)
    for end, connection in enumerate(connections, 1):
        assert pending_acks.is_full is (end > 3)
        pending_acks.add(conn(connection), long, end)
        pending_acks.add(conn(connection), answer(end), end)
        assert made.size == end * len(long), "short ones cost nothing"
    pending_acks.forget(conn(connections[3]))
    assert pending_acks.is_full, "what is kept for nobody counts"
    marks.replicated = 2
    pending_acks.on_replicated(2)
    assert not pending_acks.is_full
    pending_acks.add(conn(connections[0]), long, 5)
    assert pending_acks.is_full
    pending_acks.drop()
    assert not pending_acks.is_full
    pending_acks.add(conn(connections[0]), long, 2)
    assert made.size == 6 * len(long), "also one that leaves at once"


def test_answers_that_are_late_together_are_written_anew_a_part_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also those of one read, in order; what becomes safe meanwhile is answered as safe."""
    monkeypatch.setattr(pending_acks_module, "LATE_BYTES", 3 * len(answer(1)) - 1)

    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks)
        one, other = FakeConnection(), FakeConnection("127.0.0.1:40001")
        pending_acks.add(conn(one), b"".join(answer(number) for number in range(8)), 10)
        pending_acks.add(conn(other), answer(8), 20)
        for pending in pending_acks._await_slaves:
            pending.slave_deadline_ms = float("-inf")
        pending_acks._expire()
        assert [(a.opaque, a.code) for a in answers_in(one.data)] == [(0, 12), (1, 12), (2, 12)]
        pending_acks._expire()
        marks.replicated = 10
        pending_acks.on_replicated(10)
        assert [a.opaque for a in answers_in(one.data)] == list(range(8))
        assert [a.code for a in answers_in(one.data)] == [12] * 6 + [0] * 2
        pending_acks._expire()
        assert [(a.opaque, a.code) for a in answers_in(other.data)] == [(8, 12)]
        assert len(pending_acks) == len(pending_acks._accounts) == 0

    run(body)


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("park"), st.integers(0, 2), st.integers(1, 50)),
            st.tuples(st.just("replicated"), st.integers(0, 400), st.just(0)),
            st.tuples(st.just("flushed"), st.integers(0, 400), st.just(0)),
        ),
        max_size=40,
    ),
    sync=st.booleans(),
)
def test_no_order_of_events_lets_an_ok_out_too_early_or_never(
    steps: list[tuple[str, int, int]], sync: bool
) -> None:
    def body() -> None:
        marks = Marks()
        pending_acks = parking_of(marks, flushDiskType="SYNC_FLUSH" if sync else "ASYNC_FLUSH")
        connections = [FakeConnection(f"127.0.0.1:{40000 + i}") for i in range(3)]
        ends: dict[int, int] = {}
        end = 0
        for what, value, size in steps:
            if what == "park":
                end += size
                opaque = len(ends) + 1
                ends[opaque] = end
                pending_acks.add(conn(connections[value]), answer(opaque), end)
            elif what == "replicated":
                marks.replicated = max(marks.replicated, min(value, end))
                pending_acks.on_replicated(marks.replicated)
            else:
                marks.flushed = max(marks.flushed, min(value, end))
                pending_acks.on_flushed(marks.flushed)
            accounts = pending_acks._accounts.values()
            assert pending_acks._all.size == sum(account.size for account in accounts)
            safe = min(marks.replicated, marks.flushed) if sync else marks.replicated
            out = [a.opaque for c in connections for a in answers_in(c.data)]
            assert sorted(out) == [opaque for opaque, at in ends.items() if at <= safe]
        for connection in connections:
            opaques = [a.opaque for a in answers_in(connection.data)]
            assert opaques == sorted(opaques)
        pending_acks.drop()

    run(body)


def test_a_changed_code_keeps_every_answer_of_a_read() -> None:
    changed = answers_in(with_code(answer(1) + answer(2), 12, "late"))
    assert [(a.opaque, a.code, a.remark, a.ext["msgId"]) for a in changed] == [
        (1, 12, "late", "A"),
        (2, 12, "late", "A"),
    ]


def test_answers_that_waited_long_are_told_as_slow_sends() -> None:
    async def body() -> None:
        marks, connection = Marks(), FakeConnection()
        parking = parking_of(marks)
        parking.slow = SlowRequests("b", OsEnv().monotonic_ms, 5)
        parking.add(conn(connection), answer(1), 100)
        await asyncio.sleep(0.02)
        marks.replicated = 100
        parking.on_replicated(100)
        parking.add(conn(connection), answer(2), 100)  # at once
        assert parking.slow.by_request == {"SEND_MESSAGE": 1}

    asyncio.run(body())
