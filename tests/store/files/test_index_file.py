"""The promise of the index: every key of every indexed message is found, newest first, also after a crash."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ids import PhysicalOffset, QueueOffset
from model.message import TRANSACTION_ROLLBACK, java_hash
from store.files.index import Index
from store.files.index_file import HEADER, HEADER_BYTES
from store.files.key_hash import KeyHash
from store.files.record import Dispatch
from tests.fakes.disk.crashing import CrashingDisk, machine
from tests.fakes.disk.memory import FaultyDisk

SLOTS, ENTRIES = 7, 30


def _index(disk: FaultyDisk) -> Index:
    return Index(disk, "/index", SLOTS, ENTRIES, lambda: 1_700_000_000_000)


def _item(number: int, keys: str = "", uniq: str = "", *, flag: int = 0) -> Dispatch:
    offset, queue_offset = PhysicalOffset(number * 100), QueueOffset(number)
    return Dispatch(offset, 100, "T", 0, queue_offset, 0, uniq or f"U{number}", keys, 1000 * number, flag)


def _found(index: Index, key: str, begin_ms: int = 0, end_ms: int = 1 << 40) -> list[int]:
    return [offset // 100 for offset in index.find("T", key, begin_ms, end_ms)]


def _flush(index: Index) -> None:
    index.begin_flush()()
    index.end_flush(True)


@given(st.text(max_size=40), st.text(max_size=80))
def test_the_hash_is_the_real_one(topic: str, key: str) -> None:
    expected = abs(java_hash(f"{topic}#{key}"))
    hash_of = KeyHash()
    assert hash_of(topic, key) == (expected if expected < 2**31 else 0)
    assert hash_of(topic, key) == hash_of(topic, key)


@given(st.lists(st.from_regex(r"[0-9A-F]{32}|[0-9A-F]{56}", fullmatch=True), max_size=20))
def test_the_hash_of_producer_ids_is_the_real_one(keys: list[str]) -> None:
    hash_of = KeyHash()
    for key in keys:
        assert hash_of("T", key) == abs(java_hash(f"T#{key}"))


@given(st.lists(st.tuples(st.sampled_from(["T", "%RETRY%G", "\u00e4"]), st.text(max_size=40)), max_size=30))
def test_the_hash_is_the_same_whatever_was_met_before(named: list[tuple[str, str]]) -> None:
    """Odd keys beside each other: short ones, others than ASCII, ones that share a start or an end."""
    index = _index(FaultyDisk())
    for topic, key in [(topic, prefix + key) for topic, key in named for prefix in ("", "0123456789ABCDEF")]:
        expected = abs(java_hash(f"{topic}#{key}"))
        assert index.hash(topic, key) == (expected if expected < 2**31 else 0)


@given(st.lists(st.tuples(st.sampled_from(["T", "U"]), st.text("01\u00e4", max_size=12)), max_size=25))
def test_a_batch_is_hashed_as_one_by_one(named: list[tuple[str, str]]) -> None:
    whole, single = _index(FaultyDisk()), _index(FaultyDisk())
    items = [_item(n)._replace(topic=t, uniq_key=k) for n, (t, k) in enumerate(named, 1)]
    whole.put_many(items)
    for item in items:
        single.put_many([item])
    for file, other in zip(whole.files, single.files, strict=True):
        assert (file.pending, file.table, file.head) == (other.pending, other.table, other.head)


def test_every_word_of_the_keys_is_found() -> None:
    index = _index(FaultyDisk())
    index.put_many([_item(1, "red  green"), _item(2, "green"), _item(3)])
    assert _found(index, "green") == [2, 1]
    assert _found(index, "red") == [1]
    assert _found(index, "U3") == [3]


def test_rolled_back_and_already_indexed_messages_are_skipped() -> None:
    index = _index(FaultyDisk())
    index.put_many([_item(1), _item(2, flag=TRANSACTION_ROLLBACK), _item(3)])
    index.put_many([_item(1), _item(3)])
    assert _found(index, "U1") == [1]
    assert _found(index, "U2") == []
    assert index.files[0].head.count == 3


def test_a_search_in_time_leaves_out_what_is_younger_or_older() -> None:
    index = _index(FaultyDisk())
    index.put_many([_item(n, "k") for n in range(1, 9)])
    assert _found(index, "k", 3000, 5000) == [5, 4, 3]


def test_a_full_file_is_followed_by_another_and_both_are_searched() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(n, "k") for n in range(1, 41)])  # two entries each: 80, 29 fit a file
    assert len(index.files) == 3
    assert _found(index, "k") == list(range(40, 0, -1))
    _flush(index)
    assert [file.table is None for file in index.files] == [True, True, False]
    again = _index(disk)
    again.load()
    assert _found(again, "k") == list(range(40, 0, -1))
    again.put_many([_item(41, "k")])
    assert _found(again, "k")[0] == 41
    assert all(len(name) == 17 for name in disk.listdir("/index"))


def test_the_layout_is_the_real_one() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(1), _item(2)])
    _flush(index)
    data = bytes(disk.nodes[index.files[0].path].cache)
    assert len(data) == 40 + 4 * SLOTS + 20 * ENTRIES
    assert HEADER.unpack(data[:40]) == (1000, 2000, 100, 200, index.files[0].head.slots_used, 3)
    slot = abs(java_hash("T#U2")) % SLOTS
    assert struct.unpack_from(">i", data, HEADER_BYTES + 4 * slot)[0] == 2
    entry = struct.unpack_from(">iqii", data, HEADER_BYTES + 4 * SLOTS + 20)
    assert entry == (abs(java_hash("T#U1")), 100, 0, 0)


@given(count=st.integers(1, 40), cut=st.integers(0, 45), more=st.integers(0, 20), flush=st.booleans())
def test_after_a_cut_the_index_knows_what_is_left_and_takes_new_messages(
    count: int, cut: int, more: int, flush: bool
) -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(n, "k") for n in range(1, count + 1)])
    if flush:
        _flush(index)
    index.truncate(cut * 100)
    left = min(count, max(cut - 1, 0))
    index.put_many([_item(n, "k") for n in range(left + 1, left + more + 1)])
    expected = list(range(left + more, 0, -1))
    assert _found(index, "k") == expected
    _flush(index)
    again = _index(disk)
    again.load()
    assert _found(again, "k") == expected


@given(first=st.integers(1, 14), second=st.integers(1, 14), seed=st.integers(0, 1 << 16))
def test_a_crash_during_a_flush_loses_nothing_of_the_flush_before(first: int, second: int, seed: int) -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(n, uniq="k") for n in range(1, first + 1)])
    _flush(index)
    index.put_many([_item(n, uniq="k") for n in range(first + 1, first + second + 1)])
    stop_at = disk.syncs + seed % 3

    def fail(what: str, path: str) -> int | None:
        return 5 if what == "sync" and disk.syncs > stop_at else None

    disk.fail = fail
    try:
        index.begin_flush()()
    except OSError:
        index.end_flush(False)
    again = _index(disk.crash(seed))
    again.load()
    found = _found(again, "k")
    assert found[-first:] == list(range(first, 0, -1))
    again.put_many([_item(n, uniq="k") for n in range(1, first + second + 1)])  # what recovery does
    assert _found(again, "k") == list(range(first + second, 0, -1))


def test_what_a_flush_could_not_write_is_written_by_the_next() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(n) for n in range(1, 6)])
    index.begin_flush()  # its call is never made
    assert _found(index, "U3") == [3]
    index.end_flush(False)
    index.put_many([_item(6)])
    _flush(index)
    again = _index(disk)
    again.load()
    assert [_found(again, f"U{n}") for n in range(1, 7)] == [[n] for n in range(1, 7)]


def test_a_cut_during_a_flush_wins() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(n, "k") for n in range(1, 11)])
    write = index.begin_flush()
    index.truncate(400)
    write()  # the picture taken before the cut
    index.end_flush(True)
    _flush(index)
    again = _index(disk)
    again.load()
    assert _found(again, "k") == [3, 2, 1]


def test_a_file_that_cannot_be_right_is_made_anew() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(1)])
    _flush(index)
    disk.nodes[index.files[0].path].cache[36:40] = b"\x7f\xff\xff\xff"
    again = _index(disk)
    again.load()
    assert again.files == []
    assert disk.listdir("/index") == []


def test_files_below_the_logs_start_are_given_up() -> None:
    index = _index(FaultyDisk())
    index.put_many([_item(n, "k") for n in range(1, 41)])
    first = index.files[0]
    assert index.drop_below(first.head.end_offset) == []
    assert index.drop_below(first.head.end_offset + 1) == [first.path]
    assert len(index.files) == 2


def test_messages_that_found_no_room_are_indexed_when_there_is_room_again() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    disk.fail = lambda what, path: errno.ENOSPC if what == "truncate" else None
    with pytest.raises(OSError, match="No space"):
        index.put_many([_item(0, "a b"), _item(1, "a")])
    with pytest.raises(OSError, match="No space"):
        index.put_many([_item(2, "a")])
    assert not disk.listdir("/index"), "a file that could not be made must not stay"
    disk.fail = lambda what, path: None
    index.put_many(())
    assert _found(index, "a") == [2, 1, 0]
    assert _found(index, "b") == [0]
    index.put_many([_item(2, "a")])
    assert _found(index, "a") == [2, 1, 0], "nothing is indexed twice"


def test_an_index_that_is_dropped_after_an_unclean_stop_has_no_names_to_sync() -> None:
    """Its directory is gone until there is a first entry again; to sync it is an error, as on a real disk."""
    disk = CrashingDisk(machine())

    def made() -> Index:
        return Index(disk, "/raft/index", SLOTS, ENTRIES, lambda: 1_700_000_000_000)

    index = made()
    index.put_many([_item(1, "a")])
    _flush(index)
    index = made()
    index.load(clean=False)
    index.destroy()
    _flush(index)
    index.put_many([_item(2, "b")])
    _flush(index)
    assert _found(index, "b") == [2]


def test_the_index_names_a_message_unless_an_entry_says_another_second_of_it() -> None:
    """Those that came late, with several keys and one after the other, carry the newest one's second."""
    index = _index(FaultyDisk())
    index.put_many([_item(number, "a b") for number in (1, 2, 5, 6)])
    index.add_late([_item(3, "a c"), _item(4, "a c")])
    for number, keys in ((1, "a b"), (3, "a c"), (4, "a c"), (6, "a b")):
        item = _item(number, keys)
        assert index.names(item), number
        assert not index.names(item._replace(store_timestamp_ms=9_000)), "later than any"
        assert not index.names(item._replace(keys="unknown"))
    for number in (2, 5, 6):
        assert not index.names(_item(number, "a b")._replace(store_timestamp_ms=1_000)), "earlier, in order"


@pytest.mark.parametrize("back_ms", [0, 1, 3_600_000, 400 * 86_400_000])
def test_names_keep_the_order_of_what_files_hold_though_the_clock_is_set_back(back_ms: int) -> None:
    """An hour that comes twice in autumn is such a clock, too: names are local time."""
    disk, now_ms = FaultyDisk(), 1_700_000_000_000

    def at() -> int:
        nonlocal now_ms
        now_ms -= back_ms
        return now_ms

    index = Index(disk, "/index", SLOTS, ENTRIES, at)
    for number in range(1, 200):
        index.put_many([_item(number)])
        if number % 50 == 0:
            _flush(index)
            index.close()
            index = Index(disk, "/index", SLOTS, ENTRIES, at)
            index.load()
            assert index.end_offset == number * 100
    paths = [file.path for file in index.files]
    assert len(paths) > 5
    assert paths == sorted(paths)
    assert {len(path) for path in paths} == {len("/index/") + 17}
    assert [_found(index, f"U{number}") for number in range(1, 200)] == [[n] for n in range(1, 200)]


@pytest.mark.parametrize("order", [[3, 2, 1, 0], [3, 0, 1, 2], [1, 0, 3, 2]])
def test_files_are_in_the_order_of_what_they_hold_whatever_their_names(order: list[int]) -> None:
    """As a RocketMQ leaves them whose clock was set back."""
    disk = FaultyDisk()
    index = _index(disk)
    count = 4 * (ENTRIES - 1) - 5
    for number in range(1, count):
        index.put_many([_item(number)])
    _flush(index)
    index.close()
    names = disk.listdir("/index")
    assert len(names) == 4
    for name in names:
        disk.replace(f"/index/{name}", f"/index/{name}.was")
    for at, name in zip(order, names, strict=True):
        disk.replace(f"/index/{names[at]}.was", f"/index/{name}")
    index = _index(disk)
    index.load()
    assert index.end_offset == (count - 1) * 100
    begins = [file.head.begin_offset for file in index.files]
    assert begins == sorted(begins)
    for number in range(count, count + 20):
        index.put_many([_item(number)])
    assert [_found(index, f"U{number}") for number in range(1, count + 20)] == [
        [n] for n in range(1, count + 20)
    ]


def test_a_name_that_is_the_last_one_there_can_be_is_followed_by_the_time() -> None:
    disk = FaultyDisk()
    index = _index(disk)
    index.put_many([_item(number) for number in range(1, ENTRIES)])
    _flush(index)
    (name,) = disk.listdir("/index")
    index.close()
    disk.replace(f"/index/{name}", "/index/" + "9" * 17)
    index = _index(disk)
    index.load()
    index.put_many([_item(ENTRIES)])
    assert sorted(disk.listdir("/index")) == [name, "9" * 17]
