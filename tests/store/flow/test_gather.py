"""The promise of runtime/native/pulls.pxi: what a pull is given is what Python's way gives, or nothing."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from model.ids import PhysicalOffset
from model.message import INNER_BATCH, encode_properties, java_hash
from runtime import native
from store.files.compiled import compiled
from store.files.consume_queue import ENTRY, PRE_BLANK_SIZE
from store.files.damage import DamagedRange
from store.files.record import encode
from store.flow.reading import GetStatus
from store.message_store import MessageStore
from tests.store.support import message, opened_at, put_in_turn, said

pytestmark = pytest.mark.skipif(compiled() is None, reason=f"path of sends: {native.describe()}")


async def fill(store: MessageStore, chance: random.Random, count: int) -> None:
    for number in range(count):
        body = chance.randbytes(chance.choice([0, 5, 90, 700])).hex()
        tag = chance.choice("ABC")
        store.put(message(body, queue_id=chance.choice([0, 0, 1, 2]), properties=f"TAGS\x01{tag}\x02"))
        if number % 7 == 0:
            store.confirm(store.log.end)
            await store.caught_up()
    store.confirm(store.log.end)
    await store.caught_up()


async def test_both_ways_give_the_same(tmp_path: Path) -> None:
    chance = random.Random(15)
    store = await opened_at(tmp_path, segment_bytes=64 * 1024, queue_file_bytes=2000)
    reader, read_plain = store.reader, store.reader._read_plain
    taken = 0
    try:
        await fill(store, chance, 600)
        for _ in range(800):
            tags = chance.sample("ABCD", chance.choice([0, 0, 1, 2]))
            wanted = {java_hash(tag) for tag in tags} or None
            queue_id = chance.randrange(4)
            most = store.max_queue_offset("T", queue_id)
            asked = (
                "T",
                queue_id,
                chance.randrange(-1, most + 2),
                chance.choice([1, 2, 32, 500]),
                chance.choice([1, 300, 5000, 1 << 20]),
                wanted,
            )
            reader._read_plain = read_plain
            fast = reader.get(*asked)
            reader._read_plain = None
            slow = reader.get(*asked)
            assert said(fast) == said(slow)
            queue = reader._queues.get("T", queue_id)
            reader._read_plain = read_plain
            if queue is not None and 0 <= asked[2] < most:
                taken += reader._gather(queue, *asked[2:]) is not None
        assert taken > 100, "it is what pulls take"
    finally:
        await store.close()


def _inner_batch(store: MessageStore, queue_id: int, count: int) -> None:
    """Append as a slave does what a master with batch queues wrote: one record that stands for ``count``."""
    properties = encode_properties({"INNER_NUM": str(count), "TAGS": "A"})
    one = message("inner", queue_id=queue_id, sys_flag=INNER_BATCH, properties=properties)
    at = store.log.end
    store.append_raw(at, encode(one, store.next_offset("T", queue_id), at, 1_700_000_000_000))
    store.confirm(store.log.end)


def _spoil(store: MessageStore, chance: random.Random, *, ledger: bool) -> None:
    """What lies on the disk is not what was written: an entry, a record, or a range known to be lost."""
    queue = store.reader._queues.get("T", chance.randrange(3))
    assert queue is not None
    index = chance.randrange(queue.min_offset, queue.max_offset)
    offset, size, tags_code = queue.entry(index) or (0, 0, 0)
    what = chance.randrange(4)
    log, place = store.log, offset + chance.choice([0, 12, 20, 24, 28, 32, 60])
    if what == 0:
        odd = [0, 1, -1, -offset, 1 << 40, store.log.end, -(1 << 63), (1 << 63) - 1]
        sizes = [0, -1, 89, 90, size + 1, 1 << 20, PRE_BLANK_SIZE, -(1 << 31)]
        queue.patch(
            index, chance.choice([offset, offset + 1, *odd]), chance.choice([size, *sizes]), tags_code
        )
    elif what == 1 and index + 1 < queue.max_offset:
        queue.patch(index, *(queue.entry(index + 1) or (0, 0, 0)))  # it names the one behind it
    elif what == 2 and log.min_offset <= offset < place + 4 <= log.end and size != PRE_BLANK_SIZE:
        log.overwrite(place, chance.randbytes(4))
    elif ledger and size != PRE_BLANK_SIZE:
        store.damage.note([DamagedRange(offset, offset + size, "torn")])


def _asked(store: MessageStore, chance: random.Random) -> tuple[str, int, int, int, int, set[int] | None]:
    tags = chance.sample("ABCD", chance.choice([0, 0, 0, 1, 2]))
    queue_id = chance.randrange(4)
    most = store.max_queue_offset("T", queue_id)
    return (
        "T",
        queue_id,
        chance.randrange(-1, most + 2),
        chance.choice([1, 2, 32, 32, 500, 2000]),
        chance.choice([1, 300, 5000, 1 << 20]),
        {java_hash(tag) for tag in tags} or None,
    )


@pytest.mark.parametrize("seed", range(12))
async def test_both_ways_give_the_same_of_whatever_lies_there(tmp_path: Path, seed: int) -> None:
    """Rolls, entries not written yet, what retention took, inner batches, and damage of all kinds."""
    chance = random.Random(seed)
    lazy = {"flush_queue_interval_ms": 3_600_000} if seed % 3 == 0 else {}
    sizes = {"segment_bytes": chance.choice([8192, 65536]), "queue_file_bytes": chance.choice([400, 2000])}
    store = await opened_at(tmp_path, **sizes, **lazy)
    reader, read_plain = store.reader, store.reader._read_plain
    taken = left = 0
    try:
        for _ in range(3):
            await fill(store, chance, 80)
            if seed % 2:
                _inner_batch(store, chance.randrange(3), chance.choice([1, 5, 30]))
                await store.caught_up()
                store.rebuild_queue_offsets()
            if chance.random() < 0.5:
                store.files.queues.write_out()
        if seed % 4 < 2 and len(store.log.segments) > 2:
            store.log.forget_first()
            if seed % 4:
                await store.background.retention.follow_log_start()
        reader.mend_entry = lambda topic, queue_id, index: False  # both find the same damage
        for number in range(240):
            if number > 80 and number % 8 == 0:
                _spoil(store, chance, ledger=number > 200)  # with one that is known, nothing is plain
            asked = _asked(store, chance)
            outcomes = []
            for way in chance.sample([read_plain, None], 2):
                reader._read_plain = way
                outcomes.append(said(reader.get(*asked)))
            assert outcomes[0] == outcomes[1], asked
            queue, reader._read_plain = reader._queues.get("T", asked[1]), read_plain
            if outcomes[0][0] is GetStatus.FOUND and queue is not None:
                is_taken = reader._gather(queue, *asked[2:]) is not None
                taken, left = taken + is_taken, left + (not is_taken)
        assert taken > 20, "it is what pulls take"
        assert left, "Python's way had something to do"
    finally:
        await store.close()


@pytest.mark.parametrize("what", ["entry", "record"])
async def test_an_entry_whose_record_is_not_there_is_left_to_pythons_way(tmp_path: Path, what: str) -> None:
    store = await opened_at(tmp_path)
    try:
        await fill(store, random.Random(1), 12)
        queue = store.reader._queues.get("T", 0)
        assert queue is not None
        assert store.reader._gather(queue, 0, 32, 1 << 20, None) is not None
        offset, size, tags_code = queue.entry(1) or (0, 0, 0)
        if what == "entry":
            queue.patch(1, offset + 1, size, tags_code)
        else:
            store.log.overwrite(offset + 12, b"\0\0\0\x09")  # it says that it is of another queue
        assert store.reader._gather(queue, 0, 32, 1 << 20, None) is None
        assert store.reader._gather(queue, 0, 1, 1 << 20, None) is not None
    finally:
        await store.close()


@pytest.mark.parametrize("segment_bytes", [8192, 1 << 20])
@pytest.mark.parametrize("seed", range(4))
async def test_what_was_read_before_is_not_given_for_what_was_written_since(
    tmp_path: Path, seed: int, segment_bytes: int
) -> None:
    """The log is cut or emptied and other records of the same size take the places, or bytes in it are
    overwritten."""
    chance = random.Random(seed)
    # Nothing syncs the queues meanwhile, which a reset removes.
    store = await opened_at(tmp_path, segment_bytes=segment_bytes, flush_queue_interval_ms=3_600_000)
    reader, read_plain = store.reader, store.reader._read_plain
    seen = set[object]()
    try:
        for _ in range(12):
            put_in_turn(store, chance, 60)
            await store.caught_up()
            for queue_id in chance.sample(range(3), 3) * 2:
                most = store.max_queue_offset("T", queue_id)
                asked = ("T", queue_id, chance.randrange(max(0, most - 40), most), 32, 1 << 20, None)
                outcomes = []
                for way in (read_plain, None):
                    reader._read_plain = way
                    outcomes.append(said(reader.get(*asked)))
                assert outcomes[0] == outcomes[1], asked
                seen.add(outcomes[0][-1])
            queue = reader._queues.get("T", chance.randrange(3))
            assert queue is not None
            offset, size, _ = queue.entry(queue.max_offset - chance.randrange(1, 15)) or (0, 0, 0)
            what = chance.randrange(5)
            if what == 0:
                store.reset()
            elif what < 3:
                store.truncate(PhysicalOffset(offset))
            else:
                store.log.overwrite(offset + size - 100, chance.randbytes(20).hex().encode())
        assert len(seen) > 30
    finally:
        await store.close()


async def test_what_is_read_of_a_log_longer_than_what_is_kept_is_right(tmp_path: Path) -> None:
    """Queues are read some MB behind each other, go back, or skip much."""
    chance = random.Random(11)
    store = await opened_at(tmp_path, segment_bytes=7 << 20, queue_file_bytes=60_000)
    reader, read_plain = store.reader, store.reader._read_plain
    try:
        text = chance.randbytes(1000).hex()
        for number in range(9000):  # 20 MB
            store.put(message(f"{number}{text}", queue_id=number % 3))
        store.confirm(store.log.end)
        await store.caught_up()
        at = [0, 700, 1400]
        for _ in range(400):
            queue_id = chance.randrange(3)
            if chance.random() < 0.03:
                at[queue_id] = chance.randrange(2900)
            asked = ("T", queue_id, min(at[queue_id], 2960), 32, 1 << 20, None)
            outcomes = []
            for way in (read_plain, None):
                reader._read_plain = way
                outcomes.append(said(reader.get(*asked)))
            assert outcomes[0] == outcomes[1], asked
            at[queue_id] += 32
    finally:
        await store.close()


def _record(at: int, index: int) -> bytes:
    """As much of one as is looked at: its size, queue, queue offset and place."""
    data = bytearray(120)
    struct.pack_into(">i8xi4xqq", data, 0, len(data), 3, index, at)
    return bytes(data)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux, for a file with a hole")
def test_what_lies_between_two_records_need_not_be_readable() -> None:
    """Records that lie close are read in one go; a page between them that gives EIO is nobody's concern."""
    module = compiled()
    assert module is not None
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 3 * page)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    places = (begin, begin + 2 * page)
    records = [_record(at, index) for index, at in enumerate(places)]
    entries = b"".join(ENTRY.pack(at, len(data), 0) for at, data in zip(places, records, strict=True))
    for at, data in zip(places, records, strict=True):
        memory[at - begin : at - begin + len(data)] = data
    descriptor = os.open("/proc/self/mem", os.O_RDONLY)
    asked = (entries, 0, True, 3, (0, begin, begin + 3 * page), 32, 1 << 20, None)
    try:
        assert module.gather(descriptor, *asked) == (b"".join(records), 2, 2)
        assert ctypes.CDLL(None).munmap(ctypes.c_void_p(begin + page), ctypes.c_size_t(page)) == 0
        assert len(os.pread(descriptor, 3 * page, begin)) == page, "there is a hole"
        assert module.gather(descriptor, *asked) == (b"".join(records), 2, 2)
    finally:
        os.close(descriptor)


class _Moving:
    """A file whose descriptor is asked for: ``buffer`` goes elsewhere then, and its old place to others."""

    maps: object = None

    def __init__(self, descriptor: int, buffer: bytearray) -> None:
        self._descriptor = descriptor
        self._buffer = buffer

    @property
    def descriptor(self) -> int:
        self._buffer[:] = b"\xff" * (len(self._buffer) + (1 << 20))
        return self._descriptor


def _directory(file: object, segment_bytes: int) -> SimpleNamespace:
    return SimpleNamespace(
        segments=[SimpleNamespace(start=0, opened=file)], segment_bytes=segment_bytes, changes=0
    )


def _queue(buffer: bytearray, written: int, max_offset: int, directory: object = None) -> SimpleNamespace:
    return SimpleNamespace(max_offset=max_offset, written=written, queue_id=3, buffer=buffer, _dir=directory)


def test_the_buffer_of_a_queue_may_change_while_its_entries_are_gathered(tmp_path: Path) -> None:
    module = compiled()
    assert module is not None
    records = [_record(index * 120, index) for index in range(30)]
    (tmp_path / "log").write_bytes(b"".join(records))
    buffer = bytearray(b"".join(ENTRY.pack(index * 120, 120, 0) for index in range(30)))
    descriptor = os.open(tmp_path / "log", os.O_RDONLY)
    log = SimpleNamespace(_dir=_directory(_Moving(descriptor, buffer), 4096), end=30 * 120)
    try:
        found = module.read_plain(module.Maps(), _queue(buffer, 0, 30), log, 0, 32, 32, 1 << 20, None)
    finally:
        os.close(descriptor)
    assert found == (b"".join(records), 30, 30)
    assert len(buffer) > 1 << 20, "it changed"


def test_other_threads_run_while_entries_are_read(tmp_path: Path) -> None:
    """A read that waits for the disk must not stop the syncs of other threads.

    No thread is made to give up the GIL here: another one runs when it is given up for a read.
    """
    module = compiled()
    assert module is not None
    (tmp_path / "queue").write_bytes(ENTRY.pack(-1, 120, 0) * 512)  # no record: the log is not read
    descriptor = os.open(tmp_path / "queue", os.O_RDONLY)
    queue = _queue(bytearray(), 512, 512, _directory(SimpleNamespace(descriptor=descriptor), 512 * 20))
    log = SimpleNamespace(_dir=_directory(None, 4096), end=4096)
    gate, ran = threading.Lock(), list[bool]()
    gate.acquire()
    other = threading.Thread(target=lambda: ran.extend([gate.acquire()]))
    other.start()
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(600)
    try:
        gate.release()
        until_s = time.monotonic() + 20
        while not ran and time.monotonic() < until_s:
            assert module.read_plain(module.Maps(), queue, log, 0, 512, 512, 1 << 20, None) is None
        assert ran, "the GIL was held"
    finally:
        sys.setswitchinterval(interval_s)
        os.close(descriptor)
        other.join()
