"""The promise of the store: what is appended is read back in order once it is confirmed, never before."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.errors import DiskError, Refused
from model.ids import Epoch, PhysicalOffset, QueueOffset
from model.message import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK, java_hash
from runtime.os_env import OsEnv
from store.files.record import MAGIC_BLANK, decode, encode, walk
from store.flow.reading import GetStatus
from store.flow.writing import Put
from store.message_store import MessageStore
from store.recover.recovery import Recovered
from store.recover.scan import Scan
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import SEGMENT, config, fill, message, opened, records_of, unpack
from tests.waiting import until


async def test_a_checkpoint_is_held_against_a_log_that_was_read() -> None:
    """A start that a full disk ends has read the checkpoint alone (seed 7249 of the swarm)."""
    async with opened(FaultyEnv()) as store:
        store.check_invariants()
        store.checkpoint.now.settled_offset = PhysicalOffset(store.log.flushed + 1)
        with pytest.raises(AssertionError, match="the checkpoint covers bytes up to"):
            store.check_invariants()
        store.checkpoint.now.settled_offset = store.log.flushed
    store.checkpoint.now.settled_offset = PhysicalOffset(store.log.flushed + 1)
    store.check_invariants()


async def test_what_is_put_is_served_in_order_after_it_is_confirmed() -> None:
    async with opened(FaultyEnv()) as store:
        puts = [store.put(message(f"m{n}"))[0] for n in range(5)]
        assert [put.queue_offset for put in puts] == [0, 1, 2, 3, 4]
        await store.caught_up()
        assert store.get("T", 0, 0, 32, 1 << 20).status is GetStatus.NO_QUEUE
        store.confirm(
            PhysicalOffset(puts[2].physical_offset + 1)
        )  # inside of the third: only two are whole below
        await store.caught_up()
        assert store.max_queue_offset("T", 0) == 2
        store.confirm(store.log.end)
        await store.caught_up()
        assert [r.body for r in records_of(store)] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
        assert store.dispatched == store.confirmed == store.log.end


async def test_confirming_never_moves_back_nor_past_the_end() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 3)
        end = store.log.end
        store.confirm(PhysicalOffset(end - 50))
        store.confirm(PhysicalOffset(end + 500))
        assert store.confirmed == end


async def test_a_batch_goes_into_one_segment_as_a_whole_and_the_rest_is_a_blank() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 24, size=200)
        left = SEGMENT - store.log.end % SEGMENT
        before = store.log.end
        puts = store.put([message(b"x" * 200) for _ in range(4)])
        assert puts[0].physical_offset == SEGMENT
        head = store.log.read(before, 8)
        assert (int.from_bytes(head[:4], "big"), int.from_bytes(head[4:], "big")) == (left, MAGIC_BLANK)
        store.confirm(store.log.end)
        await store.caught_up()
        assert len(records_of(store, "T", 0)) == 12 + 4


async def test_reads_of_the_log_stop_at_a_segment_and_at_the_end() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 60, size=200)
        assert store.log.end > SEGMENT
        assert len(store.log.read(0, 1 << 20)) == SEGMENT
        assert store.log.read(store.log.end, 100) == b""
        at, data = 0, b""
        while piece := store.log.read(at, 1000):
            data += piece
            at += len(piece)
        assert len(data) == store.log.end
        with pytest.raises(ValueError, match="outside"):
            store.log.read(store.log.end + 1, 10)


async def test_a_slave_that_gets_the_bytes_in_any_pieces_serves_the_same() -> None:
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        await fill(master, 80, size=150)
        at = 0
        for size in (1, 7, 50, 333, 1024):
            for _ in range(10):
                data = master.log.read(at, size)
                slave.append_raw(PhysicalOffset(at), data)
                at += len(data)
                slave.confirm(PhysicalOffset(at))
        while data := master.log.read(at, 4096):
            slave.append_raw(PhysicalOffset(at), data)
            at += len(data)
        slave.confirm(PhysicalOffset(at))
        await slave.caught_up()
        assert slave.log.end == master.log.end
        for queue_id in (0, 1):
            assert records_of(slave, "T", queue_id) == records_of(master, "T", queue_id)
        slave.rebuild_queue_offsets()
        assert slave.next_offset("T", 0) == master.next_offset("T", 0) == 40


async def test_bytes_for_another_place_are_refused() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 2)
        with pytest.raises(DiskError, match="the log ends at"):
            store.append_raw(PhysicalOffset(store.log.end + 1), b"abc")


async def test_an_empty_slave_starts_at_any_segment_and_its_queues_at_any_offset() -> None:
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        await fill(master, 120, size=200, queues=1)
        at = SEGMENT
        with pytest.raises(DiskError, match="inside of a segment"):
            slave.append_raw(PhysicalOffset(100), b"x")
        while data := master.log.read(at, 4096):
            slave.append_raw(PhysicalOffset(at), data)
            at += len(data)
        slave.confirm(PhysicalOffset(at))
        await slave.caught_up()
        assert slave.log.min_offset == SEGMENT
        first = slave.min_queue_offset("T", 0)
        assert first > 0
        assert records_of(slave) == records_of(master)[first:]
        assert slave.get("T", 0, 0, 1, 1 << 20).status is GetStatus.OFFSET_TOO_SMALL


async def test_a_partial_record_at_the_end_is_dropped_and_nothing_else() -> None:
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        puts = await fill(master, 5)
        slave.append_raw(PhysicalOffset(0), master.log.read(0, puts[4].physical_offset + 40))
        slave.confirm(puts[1].physical_offset)
        assert slave.truncate_partial_tail() == puts[4].physical_offset
        assert slave.truncate_partial_tail() == puts[4].physical_offset
        slave.rebuild_queue_offsets()
        assert slave.next_offset("T", 0) == 2


async def test_a_partial_blank_at_the_end_is_dropped_too() -> None:
    async with opened(FaultyEnv()) as master, opened(FaultyEnv()) as slave:
        puts = await fill(master, 40, size=200)
        last = next(put for put in reversed(puts) if put.physical_offset < SEGMENT)
        end = last.physical_offset + last.size
        slave.append_raw(PhysicalOffset(0), master.log.read(0, end + 6))
        assert slave.truncate_partial_tail() == end
        slave.append_raw(PhysicalOffset(end), master.log.read(end, 10))
        assert slave.truncate_partial_tail() == end


async def test_truncate_takes_records_out_of_queues_index_and_offset_table() -> None:
    async with opened(FaultyEnv()) as store:
        puts = await fill(store, 20)
        cut = puts[11].physical_offset
        store.truncate(cut)
        assert (store.log.end, store.confirmed, store.dispatched) == (cut, cut, cut)
        assert store.max_queue_offset("T", 0) == 6
        assert store.max_queue_offset("T", 1) == 5
        assert store.query("T", "U11", 10, 0, 1 << 62) == []
        assert len(store.query("T", "U10", 10, 0, 1 << 62)) == 1
        again = store.put(message("new", queue_id=1, uniq="N"))[0]
        assert again == Put(cut, again.size, QueueOffset(5))
        store.confirm(store.log.end)
        await store.caught_up()
        assert [r.body for r in records_of(store, "T", 1)][-1] == b"new"
        assert len(store.query("T", "N", 10, 0, 1 << 62)) == 1


async def test_truncate_inside_of_a_record_is_refused_and_changes_nothing() -> None:
    async with opened(FaultyEnv()) as store:
        puts = await fill(store, 4)
        end = store.log.end
        for offset in (puts[2].physical_offset + 5, end + 1, -1):
            with pytest.raises(DiskError, match="cannot cut"):
                store.truncate(PhysicalOffset(offset))
        assert store.log.end == end
        store.put(message("unconfirmed"))
        with pytest.raises(DiskError, match="no record starts"):
            store.truncate(PhysicalOffset(end + 3))
        store.truncate(end)
        assert store.log.end == end


async def test_a_get_says_what_is_wrong_with_an_offset() -> None:
    async with opened(FaultyEnv()) as store:
        await fill(store, 10, queues=1)
        status = {at: store.get("T", 0, at, 5, 1 << 20) for at in (9, 10, 11)}
        assert status[9].status is GetStatus.FOUND
        assert status[10].status is GetStatus.OFFSET_OVERFLOW_ONE
        assert status[11].status is GetStatus.OFFSET_OVERFLOW_BADLY
        assert (status[11].next_offset, status[11].min_offset, status[11].max_offset) == (10, 0, 10)


async def test_a_get_is_bounded_by_count_and_bytes_but_gives_one() -> None:
    async with opened(FaultyEnv()) as store:
        puts = await fill(store, 20, queues=1)
        assert store.get("T", 0, 0, 7, 1 << 20).count == 7
        two = store.get("T", 0, 0, 32, puts[0].size * 2 + 5)
        assert (two.count, two.next_offset) == (2, 2)
        assert store.get("T", 0, 3, 32, 1).count == 1


async def test_a_filter_sees_every_tags_code_and_the_next_offset_skips_what_it_left_out() -> None:
    async with opened(FaultyEnv()) as store:
        for number in range(12):
            tag = "odd" if number % 2 else "even"
            store.put(message(str(number), properties=f"TAGS\x01{tag}\x02"))
        store.confirm(store.log.end)
        await store.caught_up()
        got = store.get("T", 0, 0, 3, 1 << 20, {java_hash("odd")})
        assert [r.body for r in unpack(got.chunks)] == [b"1", b"3", b"5"]
        assert got.next_offset == 6
        none = store.get("T", 0, 0, 3, 1 << 20, set())
        assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED, 12)


async def test_records_of_many_queues_are_fetched_right_however_they_lie() -> None:
    async with opened(FaultyEnv()) as store:
        for number in range(120):
            store.put(message(f"{number}" * 20, queue_id=number * number % 7))
        store.confirm(store.log.end)
        await store.caught_up()
        for queue_id in {n * n % 7 for n in range(120)}:
            expected = [f"{n}".encode() * 20 for n in range(120) if n * n % 7 == queue_id]
            assert [r.body for r in records_of(store, "T", queue_id)] == expected


async def test_prepared_and_rolled_back_records_are_in_no_queue_and_take_no_offset() -> None:
    async with opened(FaultyEnv()) as store:
        store.put(message("a"))
        store.put(message("half", sys_flag=TRANSACTION_PREPARED, uniq="P"))
        store.put(message("no", sys_flag=TRANSACTION_ROLLBACK, uniq="R"))
        store.put(message("b"))
        store.confirm(store.log.end)
        await store.caught_up()
        assert [r.body for r in records_of(store)] == [b"a", b"b"]
        assert len(store.query("T", "P", 5, 0, 1 << 62)) == 1
        assert store.query("T", "R", 5, 0, 1 << 62) == []


async def test_offsets_by_time_find_the_first_at_or_after_and_the_last_at_or_before() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        start = env.clock_ms
        for number in range(10):
            env.clock_ms = start + number // 2 * 1000  # two messages at each time
            store.put(message(str(number)))
        store.confirm(store.log.end)
        await store.caught_up()
        found = [store.offset_by_time("T", 0, start + t) for t in (-1, 0, 1, 1000, 4000, 4001)]
        assert found == [0, 0, 2, 2, 8, 10]
        upper = [store.offset_by_time("T", 0, start + t, True) for t in (-1, 0, 1, 1000, 4000, 9999)]
        assert upper == [0, 1, 1, 3, 9, 9]
        assert store.offset_by_time("nobody", 0, start) == 0


async def test_store_times_do_not_go_back_with_the_clock() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        first = store.stamp_ms()
        env.clock_ms -= 500
        assert store.stamp_ms() == first
        env.clock_ms -= 3_600_000  # the clock was wrong by an hour: follow it
        assert store.stamp_ms() == env.clock_ms


async def test_arrivals_are_told_once_per_queue_and_tag_of_a_batch() -> None:
    async with opened(FaultyEnv()) as store:
        heard: list[tuple[str, int, int, int]] = []
        store.on_arrive.append(heard.extend)
        store.put([message(queue_id=0), message(queue_id=1), message(queue_id=0)])
        store.confirm(store.log.end)
        await store.caught_up()
        assert heard == [("T", 0, 2, java_hash("A")), ("T", 1, 1, java_hash("A"))]


async def test_a_key_is_found_by_word_in_its_topic_and_time_only() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        store.put(message("one", keys="k1 k2", uniq="U1"))
        env.clock_ms += 10_000
        store.put(message("two", keys="k2", uniq="U2"))
        store.put(message("other", topic="O", keys="k2"))
        store.confirm(store.log.end)
        await store.caught_up()
        found = store.query("T", "k2", 10, 0, 1 << 62)
        assert [decode(raw).body for raw in found] == [b"one", b"two"]  # as RocketMQ: in log order
        assert [decode(raw).body for raw in store.query("T", "k2", 1, 0, 1 << 62)] == [b"two"]
        old = store.query("T", "k2", 10, 0, env.clock_ms - 5000)
        assert [decode(raw).body for raw in old] == [b"one"]
        assert store.query("T", "k3", 10, 0, 1 << 62) == []


async def test_lookup_gives_a_record_at_its_start_only() -> None:
    async with opened(FaultyEnv()) as store:
        puts = await fill(store, 3)
        raw = store.lookup(puts[1].physical_offset)
        assert raw is not None
        assert decode(raw).queue_offset == puts[1].queue_offset
        assert store.lookup(puts[1].physical_offset + 1) is None
        assert store.lookup(store.log.end) is None
        assert store.lookup(-5) is None


@pytest.mark.parametrize("topic", ["T", "t" * 200])
@pytest.mark.parametrize("size", [0, 1, 50, 5000])
async def test_a_record_without_its_body_is_the_record_but_for_that(size: int, topic: str) -> None:
    async with opened(FaultyEnv()) as store:
        for flags in (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6):
            born, stored = (bytes(20 if flags & bit else 8) for bit in (BORN_HOST_V6, STORE_HOST_V6))
            one = message(b"x" * size, topic=topic, keys="k" * 200)
            (put,) = store.put(replace(one, sys_flag=flags, born_host=born, store_host=stored))
            at = put.physical_offset
            raw, found = store.lookup(at), store.without_body(at)
            assert raw is not None
            whole = decode(raw)
            assert found == replace(whole, body=b"")
            assert store.without_body(at + 1) is None
        assert store.without_body(store.log.end) is None
        assert store.without_body(-5) is None


async def test_a_message_too_long_is_refused_before_anything_is_written() -> None:
    async with opened(FaultyEnv(), message_bytes_max=1000) as store:
        with pytest.raises(Refused) as caught:
            store.put([message(), message(b"x" * 1001)])
        assert caught.value.code == 13
        with pytest.raises(Refused, match="one segment"):
            store.put([message(b"x" * 900) for _ in range(20)])
        assert store.log.end == 0
        assert store.next_offset("T", 0) == 0


async def test_a_record_longer_than_one_reading_is_dispatched_on_a_slave() -> None:
    big: dict[str, Any] = {"segment_bytes": 4 << 20}
    async with opened(FaultyEnv(), **big) as master, opened(FaultyEnv(), **big) as slave:
        master.put(message(b"x" * (1 << 20)))
        master.put(message(b"y"))
        slave.append_raw(PhysicalOffset(0), master.log.read(0, 4 << 20))
        slave.confirm(slave.log.end)
        await slave.caught_up()
        assert [len(r.body) for r in records_of(slave)] == [1 << 20, 1]


async def test_two_stores_cannot_open_one_directory() -> None:
    env = FaultyEnv()
    async with opened(env):
        with pytest.raises(DiskError, match="another process"):
            await MessageStore(env, config()).open()


async def test_a_closed_store_takes_no_writes_and_says_so() -> None:
    store = MessageStore(FaultyEnv(), config())
    assert store.why_not_writable == "the store is not open"
    await store.open()
    assert store.why_not_writable is None
    await store.close()
    await store.close()
    with pytest.raises(DiskError, match="not open"):
        store.put(message())


async def test_reset_empties_everything() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 60, size=200)
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        store.reset(3 * SEGMENT)
        assert (store.log.min_offset, store.log.end, store.confirmed) == (3 * SEGMENT,) * 3
        assert (list(store.queues()), store.epochs.entries) == ([], [])
        await fill(store, 3)
    async with opened(FaultyEnv(env.disk.crash())) as store:
        assert store.log.min_offset == 3 * SEGMENT
        assert len(records_of(store)) == 2


async def test_recovery_tells_nobody_and_a_closed_store_writes_nothing() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 5)
    env.disk.open("/store/abort", create=True)
    again = MessageStore(env, config())
    heard: list[object] = []
    again.on_arrive.append(heard.extend)
    await again.open()
    assert again.dispatched == again.log.end
    assert heard == []
    await again.close()
    before = {path: bytes(node.cache) for path, node in env.disk.nodes.items()}
    with pytest.raises(DiskError, match="closed"):
        again.append([b"x"], 1, [])
    again.confirm(again.log.end)
    with pytest.raises(DiskError, match="closed"):
        again.log.read(0, 10)
    assert {path: bytes(node.cache) for path, node in env.disk.nodes.items()} == before


async def test_all_who_wait_for_a_sync_share_one() -> None:
    env = FaultyEnv()
    async with opened(env, flush_interval_ms=3_600_000, flush_queue_interval_ms=3_600_000) as store:
        store.put(message())
        store.log.sync()
        syncs = env.disk.syncs
        for _ in range(30):
            store.put(message())
            store.sync_to(store.log.end)
        await until(lambda: store.log.flushed == store.log.end)
        assert env.disk.syncs == syncs + 2, "of `abort`, and of the log"


async def test_a_topic_that_cannot_be_a_folder_is_refused_and_skipped_on_a_slave() -> None:
    async with opened(FaultyEnv()) as store:
        with pytest.raises(Refused, match="no queue"):
            store.put(message(topic="../../etc"))
        evil = encode(message(topic="../../etc"), 0, 0, 0)
        store.append_raw(PhysicalOffset(0), evil + encode(message(), 0, len(evil), 0))
        store.confirm(store.log.end)
        await store.caught_up()
        assert list(store.queues()) == [("T", 0)]


class HandshakeResponder:
    """A recovery whose thread stands still until ``open`` is set; ``ended`` holds how it ended."""

    def __init__(self, store: MessageStore, part: Any, step: str) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.ended: list[Exception | None] = []
        self._recover, self._step = store._opening._recover, getattr(part, step)
        store._opening._recover = self.recover  # type: ignore[method-assign]
        setattr(part, step, self.wait)

    def wait(self, *args: Any) -> None:
        self.entered.set()
        self.open.wait(10)
        self._step(*args)

    def recover(self) -> Recovered:
        try:
            found = self._recover()
        except Exception as error:
            self.ended.append(error)
            raise
        self.ended.append(None)
        return found


TRY_LOCK = "import sys, runtime.os_env as e; e.OsDisk().lock(sys.argv[1])"


def _in_use(path: Path) -> bool:
    """As another process sees it: within one these locks exclude nobody."""
    tried = subprocess.run([sys.executable, "-c", TRY_LOCK, f"{path}/lock"], capture_output=True, check=False)
    assert not tried.returncode or b"BlockingIOError" in tried.stderr, tried.stderr
    return bool(tried.returncode)


async def _killed(path: Path) -> None:
    async with opened(OsEnv(), root=str(path)) as store:
        await fill(store, 20)
    (path / "abort").touch()
    shutil.rmtree(path / "consumequeue")


@pytest.mark.parametrize("behind", ["scan", "dispatch"])
async def test_a_start_told_to_stop_keeps_the_store_until_its_recovery_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: str
) -> None:
    scanned: list[Scan] = []
    monkeypatch.setattr(Scan, "last_is_torn", lambda self: scanned.append(self))
    await _killed(tmp_path)
    store = MessageStore(OsEnv(), config(str(tmp_path)))
    if behind == "scan":
        gate = HandshakeResponder(store, store.damage, "load")
    else:
        gate = HandshakeResponder(store, store.flow.dispatcher, "start_at")
    opening = asyncio.create_task(store.open())
    await until(gate.entered.is_set)
    opening.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert not opening.done()
    assert _in_use(tmp_path)
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    (error,) = gate.ended
    assert "told to stop" in str(error)
    assert len(scanned) == (behind == "dispatch"), "it does not read a long log to its end first"
    assert store.dispatched == 0
    assert not _in_use(tmp_path)


async def test_a_recovery_that_does_not_end_in_time_keeps_the_lock_for_as_long_as_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.recover.opening.RECOVERY_ENDS_S", 0.01)
    await _killed(tmp_path)
    store = MessageStore(OsEnv(), config(str(tmp_path)))
    gate = HandshakeResponder(store, store.damage, "load")
    opening = asyncio.create_task(store.open())
    await until(gate.entered.is_set)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not gate.ended
    assert _in_use(tmp_path)
    gate.open.set()
    await until(lambda: store._opening.lock is None)
    assert gate.ended
    assert not _in_use(tmp_path)


@pytest.mark.parametrize(
    ("next_is_there", "says"), [(True, "the log ends in zeros"), (False, "the log's files end")]
)
async def test_a_start_says_whether_the_log_ends_in_zeros_or_with_its_files(
    next_is_there: bool, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 3)
        store.log.roll()
        following = store.log.segments[-1].path
    if not next_is_there:
        env.disk.remove(following)
    caplog.clear()
    with caplog.at_level("INFO"):
        async with opened(env) as store:
            assert store.log.end == SEGMENT
    assert f"; {says}" in caplog.text


@pytest.mark.parametrize("way", ["put", "put_prepared"])
async def test_records_are_made_for_where_the_log_ends_once_those_on_their_way_are_in_it(way: str) -> None:
    """Whatever waits for the end of its turn is appended first, and moves the log's end."""
    async with opened(FaultyEnv()) as store:
        writer = store.writer
        on_their_way = [message("waited")]

        def append_what_waits() -> None:
            if on_their_way:
                writer.put([on_their_way.pop()], stored_before=False)

        writer.before_append = append_what_waits
        if way == "put":
            store.put([message("one"), message("two")])
        else:
            store.put_prepared([writer.prepare(message(body)) for body in ("one", "two")])
        records = list(walk(store.log.read(0, store.log.end), 0))
        assert [record.body for record in records] == [b"waited", b"one", b"two"]
        assert [record.queue_offset for record in records] == [0, 1, 2]


async def test_a_record_made_for_another_place_is_not_appended() -> None:
    async with opened(FaultyEnv()) as store:
        store.put(message("first"))
        records, dispatches, size = store.writer._encode_all([message("late")], 1)
        end = store.put(message("came between")) and store.log.end
        with pytest.raises(AssertionError, match="the log ends at"):
            store.append(records, size, dispatches)
        assert store.log.end == end
