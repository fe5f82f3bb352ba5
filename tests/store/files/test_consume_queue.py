"""The promise of a queue: entry n is message n, in memory or on disk, and never one that is not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import DiskError
from store.files.consume_queue import ENTRY, PRE_BLANK, ConsumeQueue, is_queue_name
from store.files.consume_queues import ConsumeQueues
from store.files.entry_sizes import sizes_in
from tests.fakes.disk.memory import FaultyDisk

PER_FILE = 5


def _queue(disk: FaultyDisk) -> ConsumeQueue:
    return ConsumeQueue(disk, "/q/T/0", "T", 0, PER_FILE * 20)


def _found(disk: FaultyDisk) -> ConsumeQueue:
    queue = _queue(disk)
    queue.find()
    return queue


def _fill(queue: ConsumeQueue, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        assert queue.put(number, number * 100, 100, number)


def _one(topic: str, offset: int, size: int) -> int:
    return 1


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.integers(1, 12)),
            st.tuples(st.just("flush"), st.just(0)),
            st.tuples(st.just("cut"), st.integers(0, 12)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=20,
    )
)
def test_a_queue_reads_as_a_list_whatever_happens_to_it(steps: list[tuple[str, int]]) -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    model: list[tuple[int, int, int]] = []
    for step, number in steps:
        if step == "put":
            for _ in range(number):
                n = len(model)
                queue.put(n, n * 100, 100, n)
                model.append((n * 100, 100, n))
        elif step == "flush":
            queue.flush()
        elif step == "cut":
            keep = max(len(model) - number, 0)
            queue.truncate(keep * 100, _one)
            del model[keep:]
        else:
            queue.flush()
            queue.close()
            queue = _found(disk)
            queue.load()
        assert queue.max_offset == len(model)
        assert queue.max_physical == len(model) * 100
        assert [entry[1:] for entry in queue.entries(0)] == model
        assert [queue.entry(n) for n in range(len(model))] == model
        assert queue.entry(len(model)) is None


def test_entries_lie_in_files_of_full_size_named_by_their_first_byte() -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 7)
    queue.flush()
    assert disk.listdir("/q/T/0") == ["0" * 20, f"{100:020}"]
    second = bytes(disk.nodes[f"/q/T/0/{100:020}"].cache)
    assert second == ENTRY.pack(500, 100, 5) + ENTRY.pack(600, 100, 6) + bytes(60)


def test_a_message_that_is_there_already_is_left_out() -> None:
    queue = _queue(FaultyDisk())
    _fill(queue, 3)
    assert not queue.put(1, 100, 100, 1)
    assert not queue.put(3, 200, 100, 1)  # another index, but bytes seen already
    assert queue.max_offset == 3


def test_a_queue_that_starts_late_is_filled_with_entries_without_a_message() -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 2, first=13)
    queue.flush()
    assert disk.listdir("/q/T/0") == [f"{200:020}"]
    assert bytes(disk.nodes[f"/q/T/0/{200:020}"].cache[:60]) == PRE_BLANK * 3
    assert (queue.min_offset, queue.max_offset) == (13, 15)
    again = _found(disk)
    again.load()
    again.correct_min(0)
    assert (again.min_offset, again.max_offset) == (13, 15)
    assert again.entry(13) == (1300, 100, 13)


def test_sizes_are_those_of_the_entries() -> None:
    queue = _queue(FaultyDisk())
    assert sizes_in(queue.read(0, 10)) == []
    for number, size in enumerate((1, 300, 70_000, (1 << 31) - 2)):
        queue.put(number, number << 32, size, -1)
    assert sizes_in(queue.read(1, 10)) == [300, 70_000, (1 << 31) - 2]
    late = _queue(FaultyDisk())
    _fill(late, 2, first=3)
    assert sizes_in(late.read(0, 10)) == [0, 0, 0, 100, 100]


def test_a_gap_keeps_the_offsets_of_what_comes_after_it() -> None:
    queue = _queue(FaultyDisk())
    _fill(queue, 3)
    assert queue.put(6, 600, 100, 6)
    assert queue.entry(6) == (600, 100, 6)
    assert (queue.min_offset, queue.max_offset) == (0, 7)
    queue.drop_below(200)
    assert queue.min_offset == 2
    queue.drop_below(300)
    assert queue.min_offset == 6


@pytest.mark.parametrize("settled", [100, 700, 1900, 2100, 2300, 9999])
def test_loading_from_what_is_settled_finds_what_loading_all_finds(settled: int) -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 23)
    queue.flush()
    again, whole = _found(disk), _found(disk)
    again.load(settled)
    whole.load()
    assert list(again.entries()) == list(whole.entries())
    assert (again.max_offset, again.max_physical, again.cut_short) == (23, 2300, False)


@pytest.mark.parametrize("wrong", range(1, 22))
def test_a_damaged_entry_among_the_settled_ones_is_never_the_silent_end_of_a_queue(wrong: int) -> None:
    for entry in (bytes(20), b"\x7f" + bytes(10) + b"\x64" + bytes(8)):  # lost, and far beyond the log
        disk = FaultyDisk()
        queue = _queue(disk)
        _fill(queue, 23)
        queue.flush()
        path = f"/q/T/0/{wrong // PER_FILE * PER_FILE * 20:020}"
        disk.open(path).pwrite(entry, wrong % PER_FILE * 20)
        again = _found(disk)
        again.load(2300)
        assert again.cut_short or again.max_offset == 23


def test_rubbish_behind_the_last_entry_is_cut() -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 3)
    queue.flush()
    disk.nodes["/q/T/0/" + "0" * 20].cache[60:80] = ENTRY.pack(50, 10, 1)  # bytes that came before
    again = _found(disk)
    again.load()
    assert again.max_offset == 3
    assert not any(disk.nodes["/q/T/0/" + "0" * 20].cache[60:])


def test_what_lies_behind_a_missing_file_is_to_be_made_again() -> None:
    """What lies before it is kept: of that the log need hold nothing any more."""
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 23)
    queue.flush()
    disk.remove(f"/q/T/0/{100:020}")
    again = _found(disk)
    again.load()
    assert (again.min_offset, again.max_offset, again.cut_short) == (0, 5, True)


def test_no_file_is_grown_before_all_queues_were_looked_at() -> None:
    disk = FaultyDisk()
    queues = ConsumeQueues(disk, "/q", PER_FILE * 20)
    for topic, count in (("A", 3), ("B", 13)):
        queue = queues.open(topic, 0)
        _fill(queue, count)
        queues.dirty[queue] = None
    queues.write_out()
    files = {name: bytes(node.cache) for name, node in disk.nodes.items()}
    for per_file in (2 * PER_FILE, 1):
        with pytest.raises(DiskError, match="mappedFileSizeConsumeQueue"):
            ConsumeQueues(disk, "/q", per_file * 20).load()
    assert {name: bytes(node.cache) for name, node in disk.nodes.items()} == files
    again = ConsumeQueues(disk, "/q", PER_FILE * 20)
    again.load()
    assert [queue.max_offset for queue in again] == [3, 13]


@pytest.mark.parametrize("per_file", [2 * PER_FILE, 3 * PER_FILE, PER_FILE - 1, 1])
def test_files_of_another_size_are_refused_and_all_kept(per_file: int) -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 13)
    queue.flush()
    files = {name: bytes(node.cache) for name, node in disk.nodes.items()}
    with pytest.raises(DiskError, match="mappedFileSizeConsumeQueue"):
        ConsumeQueue(disk, "/q/T/0", "T", 0, per_file * 20).find()
    assert {name: bytes(node.cache) for name, node in disk.nodes.items()} == files
    again = _found(disk)
    again.load()
    assert (again.min_offset, again.max_offset) == (0, 13)


def test_a_step_longer_than_a_small_file_drops_no_message() -> None:
    queue = _queue(FaultyDisk())
    _fill(queue, 3)
    assert queue.put(3 + 4096, 600, 100, 6)
    assert (queue.min_offset, queue.max_offset) == (0, 4 + 4096)
    assert queue.entry(2) == (200, 100, 2)


@pytest.mark.parametrize(("taken", "end"), [(1, 3), (4, 6), (9, 9), (None, 9)])
def test_empty_entries_stay_at_the_end_as_far_as_a_record_accounts_for_them(
    taken: int | None, end: int
) -> None:
    """An inner batch's are never given out again; others stood for nothing but a message that is cut."""
    for cut in (True, False):
        queue = _queue(FaultyDisk())
        _fill(queue, 3)
        queue.skip_to(9)
        if cut:
            queue.put(9, 900, 100, 9)
            assert queue.truncate(900, lambda topic, offset, size: taken)
        else:
            queue.drop_empty_end(lambda topic, offset, size: taken)
        assert (queue.max_offset, queue.max_physical) == (end, 300)


def test_files_below_the_logs_start_are_given_up_but_never_the_last() -> None:
    disk = FaultyDisk()
    queue = _queue(disk)
    _fill(queue, 23)
    queue.flush()
    gone = queue.drop_below(1150)
    assert queue.min_offset == 12
    assert [segment.start for segment in gone] == [0, 100]
    assert [segment.start for segment in queue.drop_below(1 << 40)] == [200, 300]
    assert queue.min_offset == queue.max_offset == 23


def test_few_files_are_open_at_once() -> None:
    disk = FaultyDisk()
    queues = ConsumeQueues(disk, "/q", PER_FILE * 20)
    queues._pool._open_max = 4
    for number in range(20):
        queue = queues.open(f"T{number}", 0)
        queue.put(0, number * 100, 100, 0)
        queues.dirty[queue] = None
    queues.write_out()
    assert [queue.entry(0) for queue in queues] == [(n * 100, 100, 0) for n in range(20)]
    assert len(queues._pool._open) <= 4


def test_a_topic_from_the_wire_cannot_name_a_folder_outside() -> None:
    assert is_queue_name("%RETRY%group", 0)
    for topic in ("", ".", "..", "a/b", "../x", "a\0b", "x" * 256):
        assert not is_queue_name(topic, 0)
    assert not is_queue_name("T", -1)


def test_the_queues_of_a_topic_are_known_whatever_comes_and_goes() -> None:
    queues = ConsumeQueues(FaultyDisk(), "/q", PER_FILE * 20)
    for topic, queue_id in (("A", 0), ("A", 3), ("B", 0), ("A", 0)):
        queues.open(topic, queue_id)
        queues.check_invariants()
    assert (queues.ids_of("A"), queues.ids_of("B"), queues.ids_of("C")) == ([0, 3], [0], [])
    queues.remove(queues.open("A", 3))
    queues.check_invariants()
    assert (queues.ids_of("A"), queues.ids_of("B")) == ([0], [0])
    queue = queues.open("B", 0)
    queue.put(0, 0, 100, 0)
    queues.dirty[queue] = None
    queues.write_out()
    queues.remove(queue)
    queues.check_invariants()
    assert queues.ids_of("B") == []
    queues.open("B", 1)
    queues.destroy()
    queues.check_invariants()
    assert list(queues) == []
