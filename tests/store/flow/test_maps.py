"""The promise of runtime/native/maps.pxi: what is read through a map is what the file has, or nothing; no map
outlives its file, and a byte that the disk cannot give ends no process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime import native
from store.files.compiled import compiled
from store.message_store import MessageStore
from tests.store.support import message, opened_at, put_in_turn, said

pytestmark = pytest.mark.skipif(compiled() is None, reason=f"path of sends: {native.describe()}")

SLICE_BYTES = (4 << 20) + (256 << 10)
SLICES = 8


@pytest.fixture
async def long_log(tmp_path: Path) -> AsyncIterator[MessageStore]:
    """46 MB in segments of 7 MB, of three queues in turn."""
    store = await opened_at(tmp_path, segment_bytes=7 << 20, queue_file_bytes=600_000)
    text = random.Random(11).randbytes(1500).hex()
    for number in range(15000):
        store.put(message(f"{number}{text}", queue_id=number % 3))
    store.confirm(store.log.end)
    await store.caught_up()
    yield store
    await store.close()


def is_right(store: MessageStore, queue_id: int, at: int) -> bool:
    """Whether compiled code reads what Python does."""
    reader = store.reader
    read_plain, asked = reader._read_plain, ("T", queue_id, at, 32, 1 << 20, None)
    fast = said(reader.get(*asked))
    reader._read_plain = None
    slow = said(reader.get(*asked))
    reader._read_plain = read_plain
    return fast == slow


def mapped(store: MessageStore) -> int:
    assert store.reader._maps is not None
    return int(store.reader._maps.mapped)


def files_mapped() -> set[str]:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(None, 5)[5] for line in lines if "/commitlog/" in line}


async def test_what_is_read_of_a_log_longer_than_what_is_mapped_is_right(long_log: MessageStore) -> None:
    """Queues are read some MB behind each other, go back, or skip much."""
    chance = random.Random(11)
    at = [0, 700, 1400]
    most = 0
    for _ in range(400):
        queue_id = chance.randrange(3)
        if chance.random() < 0.1:
            at[queue_id] = chance.randrange(4900)
        assert is_right(long_log, queue_id, min(at[queue_id], 4960))
        at[queue_id] += 32
        most = max(most, mapped(long_log))
    assert most == SLICES * SLICE_BYTES, "it was given up, and bounded"


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux tells how much was read")
async def test_what_lies_between_the_records_is_not_read(long_log: MessageStore) -> None:
    before = int(Path("/proc/self/io").read_text().split()[1])
    for at in range(0, 4900, 32):
        for queue_id in range(3):
            assert long_log.reader.get("T", queue_id, at, 32, 1 << 20, None).count
    took = int(Path("/proc/self/io").read_text().split()[1]) - before
    assert took < long_log.log.end // 10, "entries"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="Linux tells what is mapped")
async def test_no_map_outlives_its_file(long_log: MessageStore) -> None:
    """The blocks of a segment that retention removed are free when it is."""
    for at in (0, 1000, 2000, 3000):
        assert is_right(long_log, 0, at)
    names = [segment.path for segment in long_log.log.segments]
    assert {names[0], names[1], names[2]} <= files_mapped()
    long_log.log.forget_first()
    for _ in range(2):
        await long_log.background.retention.follow_log_start()
    assert not {name for name in files_mapped() if names[0] in name}
    assert names[2] in files_mapped(), "the others stay"
    await long_log.close()
    assert not files_mapped()


async def test_a_map_sees_what_is_written_since(long_log: MessageStore) -> None:
    """Cut, and written anew; and appended to a segment that is mapped."""
    assert is_right(long_log, 1, 4960)
    end = long_log.log.end
    put_in_turn(long_log, random.Random(1), 60)
    await long_log.caught_up()
    assert long_log.log.end > end
    got = long_log.reader.get("T", 1, 4990, 32, 1 << 20, None)
    assert got.count == 30
    assert is_right(long_log, 1, 4990)


_TRUNCATED = """
import asyncio, os, sys
from pathlib import Path
from tests.store.support import opened_at, put_in_turn
import random
{before}
async def main():
    store = await opened_at(Path(sys.argv[1]), segment_bytes=1 << 20, queue_file_bytes=60_000)
    put_in_turn(store, random.Random(7), 600)
    await store.caught_up()
    assert store.reader.get("T", 0, 0, 32, 1 << 20, None).count == 32
    {after}
    whole = store.reader._maps.mapped
    os.truncate(store.log.segments[0].path, 8192)
    queue = store.reader._queues.get("T", 0)
    print(whole, store.reader._gather(queue, 100, 32, 1 << 20, None), store.reader._maps.mapped)
    try:
        store.reader.get("T", 0, 100, 32, 1 << 20, None)
    except Exception as error:
        print(type(error).__name__, error)
    print(store.reader.get("T", 0, 0, 4, 1 << 20, None).count, flush=True)
    {end}
asyncio.run(main())
"""
_HANDLER = "import faulthandler; faulthandler.enable()"
_DEFAULT = "import signal; signal.signal(signal.SIGBUS, signal.SIG_DFL)"
_KILLED = f"__import__('signal').raise_signal({int(signal.SIGBUS)})"


def _run(tmp_path: Path, before: str = "", after: str = "", end: str = "") -> tuple[int, list[str], str]:
    script = textwrap.dedent(_TRUNCATED).format(before=before, after=after, end=end)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True, text=True, timeout=120, env=os.environ | {"PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize(("before", "after"), [("", ""), (_HANDLER, ""), ("", _HANDLER), ("", _DEFAULT)])
def test_a_file_that_is_shorter_than_it_was_is_an_error_and_not_the_end(
    tmp_path: Path, before: str, after: str
) -> None:
    """Also where somebody else listens to SIGBUS, since before or behind the first read: then each record is
    read on its own."""
    code, out, err = _run(tmp_path, before, after)
    assert (code, len(out)) == (0, 3), err
    assert out[0] == f"{SLICE_BYTES} None {SLICE_BYTES}"
    assert out[1].startswith("DiskError ")
    assert " ends at " in out[1]
    assert out[2] == "4", "the rest is read"


@pytest.mark.parametrize("cut", [0, 1, 100, 500])
async def test_a_record_that_the_file_ends_in_is_none(tmp_path: Path, cut: int) -> None:
    """The rest of its last page reads as zeros."""
    store = await opened_at(tmp_path, segment_bytes=1 << 20, queue_file_bytes=60_000)
    put_in_turn(store, random.Random(7), 90)
    await store.caught_up()
    try:
        queue = store.reader._queues.get("T", 0)
        assert queue is not None
        offset, size, _ = queue.entry(20) or (0, 0, 0)
        end = offset + size - cut
        assert end % 4096, "not a page's end"
        os.truncate(store.log.segments[0].path, end)
        found = store.reader._gather(queue, 10, 11, 1 << 20, None)
        assert (found is None) == bool(cut)
        assert mapped(store)
    finally:
        os.truncate(store.log.segments[0].path, 1 << 20)
        await store.close()


@pytest.mark.parametrize("before", ["", _HANDLER])
def test_any_other_bus_error_goes_where_it_went(tmp_path: Path, before: str) -> None:
    code, out, err = _run(tmp_path, before, end=_KILLED)
    assert len(out) == 3
    without = subprocess.run([sys.executable, "-c", f"{before}\n{_KILLED}"], capture_output=True, check=False)
    assert code == without.returncode != 0
    assert ("Fatal Python error: Bus error" in err) == bool(before)
