"""The promise of the compiled path below the broker: queues, index and dispatches as Python makes them.

``tests/broker/requests/test_both_paths.py`` holds the two together for sends.
"""

from __future__ import annotations

import errno
import random
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.errors import DiskError
from model.ids import PhysicalOffset
from runtime import native
from store.files.compiled import compiled, layouts
from store.files.record import Dispatch, DispatchParser, blank, delay_levels_ms, encode
from store.flow.dispatching.dispatch import Dispatcher
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import SEGMENT, message, opened

MODULE: Any = compiled()
pytestmark = pytest.mark.skipif(MODULE is None, reason=f"path of sends: {native.describe()}")

TOPICS = ["T"] * 20 + ["Ünïcode"] * 8 + ["SCHEDULE_TOPIC_XXXX", "x" * 127, "y" * 200]
TEXTS = [
    "",
    "UNIQ_KEY\x01ABCDEF0123456789ABCDEF0123456789\x02TAGS\x01A\x02",
    "UNIQ_KEY\x01A\x02KEYS\x01a b  c \x02",
    "KEYS\x01 \x02TAGS\x01grün 𝄞\x02",
    "TAGS\x01A\x02TAGS\x01B\x02",
    "XTAGS\x01A\x02TAGS\x01\x02",
    "TAGS\x01open",
    "DELAY\x012\x02TAGS\x01A\x02UNIQ_KEY\x01é\x02",
    "no pair at all\x02KEYS\x01k\x01l\x02",
]


def records(
    chance: random.Random,
    start: int,
    count: int,
    stored_ms: int,
    following: dict[tuple[str, int], int] | None = None,
) -> bytes:
    """A stretch of a log, mostly plain. ``following``: next offsets of queues; None: they may be wrong."""
    found, at = [], start
    wrong = following is None
    following = {} if following is None else following
    for _ in range(count):
        topic, queue_id = chance.choice(TOPICS), chance.randrange(3)
        text = chance.choice(TEXTS)
        if chance.random() < 0.5:
            text = f"UNIQ_KEY\x01{chance.getrandbits(128):032X}\x02TAGS\x01{chance.choice('AB')}\x02"
        sys_flag = chance.choice([0] * 80 + [1, 1, 8, 8, 4, 12, 16, 128])
        one = message(
            chance.randbytes(chance.choice([0, 3, 60])),
            topic=topic,
            queue_id=queue_id,
            sys_flag=sys_flag,
            properties=text,
            born_host=bytes(20 if sys_flag & 16 else 8),
        )
        queue_offset = 0
        if not sys_flag & 4:
            queue_offset = following.get((topic, queue_id), 0) + (wrong and chance.random() < 0.02)
            following[topic, queue_id] = queue_offset + 1
        raw = encode(one, queue_offset, at, stored_ms + chance.randrange(5000))
        found.append(raw)
        at += len(raw)
    return b"".join(found)


def test_its_layouts_are_those_of_the_files() -> None:
    assert MODULE.layouts() == layouts()
    assert layouts()["record"][-1] == 88


@given(st.binary(max_size=600), st.integers(0, 40))
def test_its_crc_is_zlibs(data: bytes, skipped: int) -> None:
    """Of bytes that begin anywhere."""
    assert MODULE.crc32(memoryview(data)[skipped:]) == zlib.crc32(data[skipped:])


@given(
    seed=st.integers(0, 2**40),
    count=st.integers(0, 30),
    start=st.sampled_from([0, 4096, 2**40]),
    cut=st.integers(0, 200),
    changes=st.integers(0, 2),
)
def test_the_records_it_takes_are_those_python_finds(
    seed: int, count: int, start: int, cut: int, changes: int
) -> None:
    """Of a stretch that may be cut short, and of bytes that may have rotted."""
    chance = random.Random(seed)
    data = bytearray(records(chance, start, count, 10**12) + blank(100))
    for _ in range(changes):
        data[chance.randrange(len(data))] = chance.randrange(256)
    limit = start + len(data) - cut
    parser = DispatchParser(delay_levels_ms("1s 5s 10s"))
    block, end = MODULE.Parser(Dispatch, "SCHEDULE_TOPIC_XXXX").parse(bytes(data), start, limit)
    found, python_end = parser.parse(bytes(data[: end - start]), start, limit)
    assert list(block) == found
    assert end == python_end
    assert [type(item) for item in block] == [Dispatch] * len(block)
    if not changes and count and not cut:
        plain = all(item.topic in ("T", "Ünïcode", "x" * 127) and not item.sys_flag & 0x94 for item in found)
        assert plain, "it took what it is to leave"


async def state(store: MessageStore) -> dict[str, Any]:
    """All that dispatch makes of a log."""
    await store.caught_up()
    store.check_invariants()
    index = store.files.index
    assert index is not None
    return {
        "queues": {
            key: (bytes(queue.buffer), queue.written, queue.max_offset, queue.max_physical, queue.min_offset)
            for key, queue in store.files.queues.table().items()
        },
        "dirty": [(queue.topic, queue.queue_id) for queue in store.files.queues.dirty],
        "index": [
            (file.head, bytes(file.pending), file.table, set(file.dirty_pages)) for file in index.files
        ],
        "next": dict(store.writer.offsets.table),
        "dispatched": store.dispatched,
        "last": store.flow.dispatcher.last_timestamp_ms,
    }


@given(seed=st.integers(0, 2**40), remembered=st.booleans())
async def test_queues_and_index_become_the_same(seed: int, remembered: bool) -> None:
    """Whether the blocks are remembered from the append or read from the log, wherever confirms fall."""
    chance = random.Random(seed)
    seen: list[list[Any]] = []
    following: dict[tuple[str, int], int] | None = {} if remembered or chance.random() < 0.5 else None
    async with _store(packs=True) as packed, _store(packs=False) as python:
        for store in (packed, python):
            heard: list[Any] = []
            seen.append(heard)
            store.on_arrive.append(lambda arrived, heard=heard: heard.extend(arrived))
        for _ in range(chance.randrange(1, 5)):
            start = packed.log.end
            raw = records(chance, start, chance.randrange(1, 12), 10**12 + start, following)
            block, end = MODULE.Parser(Dispatch, "SCHEDULE_TOPIC_XXXX").parse(raw, start, start + len(raw))
            if remembered:
                raw = raw[: end - start]
            if not 0 < len(raw) <= packed.log.room:
                break
            confirmed = start + chance.choice([len(raw), chance.randrange(len(raw) + 1)])
            for store, dispatches in ((packed, block), (python, list(block))):
                if remembered:
                    store.append((raw,), len(raw), dispatches)
                else:
                    store.append_raw(PhysicalOffset(start), raw)
                store.confirm(PhysicalOffset(confirmed))
            assert await state(packed) == await state(python)
        for store in (packed, python):
            store.confirm(store.log.end)
        assert await state(packed) == await state(python)
        latest = [{key[:2] + key[3:]: key[2] for key in heard} for heard in seen]
        assert latest[0] == latest[1], "each queue's waiters heard of each tag's newest"
        for topic, queue_id in packed.queues():
            got = packed.get(topic, queue_id, 0, 100, 1 << 20)
            assert got == python.get(topic, queue_id, 0, 100, 1 << 20)


@pytest.mark.parametrize(
    "stored_ms", [(-5, 2**63 - 1, 0), (-(2**63), 2**63 - 1, -(2**63)), (-9000, -1, 5000), (2**63 - 1, -7, 0)]
)
async def test_store_times_of_a_log_may_be_any_number(stored_ms: tuple[int, ...]) -> None:
    async with _store(packs=True) as packed, _store(packs=False) as python:
        for n, at_ms in enumerate(stored_ms):
            text = f"UNIQ_KEY\x01{n:032X}\x02"
            for store in (packed, python):
                store.append_raw(
                    store.log.end, encode(message(b"", properties=text), n, store.log.end, at_ms)
                )
                store.confirm(store.log.end)
            assert await state(packed) == await state(python)


def segments(chance: random.Random) -> tuple[bytes, list[int]]:
    """A log of a few segments, and where its records begin."""
    found, begins = bytearray(), list[int]()
    following: dict[tuple[str, int], int] | None = {} if chance.random() < 0.8 else None
    for _ in range(chance.randrange(1, 30)):
        raw = records(chance, len(found), 1, 10**12, following)
        left = SEGMENT - len(found) % SEGMENT
        if len(raw) > left - len(blank(left)) or chance.random() < 0.05:
            begins.append(len(found))
            found += blank(left).ljust(left, b"\0")
            raw = records(chance, len(found), 1, 10**12, following)
        begins.append(len(found))
        found += raw
    return bytes(found), begins


@given(seed=st.integers(0, 2**40))
async def test_a_log_that_comes_in_pieces_is_dispatched_the_same(seed: int) -> None:
    """A piece is parsed as it comes, or later from the log; its records may be cut anywhere, its write may
    fail and come again, the log may be cut, and its memory is another's as soon as it is appended."""
    chance, room = random.Random(seed), bytearray(4 * SEGMENT)
    envs = FaultyEnv(), FaultyEnv()
    async with _store(envs[0], packs=True) as packed, _store(envs[1], packs=False) as python:
        stores = (packed, python)
        raw, begins = segments(chance)
        while packed.log.end < len(raw):
            start = packed.log.end
            size = min(chance.choice([1, 3, 50, 200, 1000, SEGMENT, len(raw)]), len(raw) - start)
            if chance.random() < 0.1:
                rolls = start // SEGMENT < (start + size - 1) // SEGMENT
                done = rolls and chance.random() < 0.5
                for store, env in zip(stores, envs, strict=True):
                    env.disk.fail = _full_after(int(done))
                    with pytest.raises(DiskError):
                        store.append_raw(PhysicalOffset(start), raw[start : start + size])
                    env.disk.fail = lambda what, path: None
                    store.log.retry_space()
            elif start and chance.random() < 0.1:
                to = chance.choice([at for at in begins if at <= start])
                for store in stores:
                    store.truncate(PhysicalOffset(to))
            else:
                confirmed = chance.choice([0, start, start + size // 2, start + size])
                for store in stores:
                    room[:size] = raw[start : start + size]
                    store.append_raw(PhysicalOffset(start), memoryview(room)[:size])
                    room[:size] = chance.randbytes(size)
                    store.confirm(PhysicalOffset(confirmed))
            if chance.random() < 0.5:
                assert await state(packed) == await state(python)
        for store in stores:
            store.confirm(store.log.end)
            read = (store.log.read(at, SEGMENT) for at in range(0, len(raw), SEGMENT))
            assert b"".join(read) == raw
        assert await state(packed) == await state(python)
        assert packed.dispatched == len(raw)


def _full_after(done: int) -> Callable[[str, str], int | None]:
    """The disk takes so many writes of the log, and then no more."""
    writes = iter(range(10**6))

    def fail(what: str, path: str) -> int | None:
        full = what == "pwrite" and "/commitlog/" in path and next(writes) >= done
        return errno.ENOSPC if full else None

    return fail


async def test_what_came_whole_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with _store(packs=True) as store:
        raw = encode(message(b"one"), 0, 0, 10**12)
        raw += encode(message(b"two"), 1, len(raw), 10**12)
        monkeypatch.setattr(store.log, "read", lambda *asked: pytest.fail(f"{asked} is read again"))
        store.append_raw(PhysicalOffset(0), raw)
        store.confirm(PhysicalOffset(len(raw)))
        await store.caught_up()
        assert store.dispatched == len(raw)


async def test_a_body_that_looks_like_a_record_where_a_piece_begins_is_none() -> None:
    """A producer may write what it likes: only what follows a record is one."""
    async with _store(packs=True) as store:
        at = encode(message(b""), 0, 0, 10**12).index(b"", 88)  # where a body begins
        body = encode(message(b"not sent"), 7, at, 10**12)
        raw = encode(message(body), 0, 0, 10**12)
        assert raw[at : at + len(body)] == body
        for piece in (raw[:at], raw[at:]):
            store.append_raw(store.log.end, piece)
        store.confirm(store.log.end)
        await store.caught_up()
        assert store.dispatched == len(raw)
        assert [store.max_queue_offset(topic, queue_id) for topic, queue_id in store.queues()] == [1]


def _store(env: FaultyEnv | None = None, *, packs: bool) -> Any:
    """A store that dispatches by the compiled path, or not."""
    env = env or FaultyEnv()
    found = opened(env, index_slots=20, index_entries=60, flush_queue_interval_ms=10**6)

    class Chosen:
        async def __aenter__(self) -> MessageStore:
            store = await found.__aenter__()
            if not packs:
                _python(store.flow.dispatcher)
            return store

        async def __aexit__(self, *what: Any) -> None:
            await found.__aexit__(*what)

    return Chosen()


def _python(dispatcher: Dispatcher) -> None:
    dispatcher._packer = None
