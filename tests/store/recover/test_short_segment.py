"""The promise of a start with a file of the log that is too short: the rest of the log is there, and what is
missing counts as damage, to be had from a replica."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from model.errors import DiskError
from runtime.os_env import OsEnv
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import SEGMENT, fill, opened, records_of, scrub_all

LOG = "/store/commitlog"


def shorten(env: FaultyEnv, start: int, size: int) -> None:
    node = env.disk.nodes[f"{LOG}/{start:020d}"]
    del node.cache[size:]
    node.sync()


@pytest.mark.parametrize("size", [0, 1000])
async def test_a_short_file_in_the_middle_costs_its_records_and_not_the_start(size: int) -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 120, queues=1)
        whole, end = records_of(store), store.log.end
        assert end > 3 * SEGMENT
    good = copy.deepcopy(env.disk)
    shorten(env, SEGMENT, size)
    async with opened(env) as store:
        assert store.log.end == end
        kept = [record for record in records_of(store) if record in whole]
        assert next(r for r in whole if not SEGMENT <= r.physical_offset < 2 * SEGMENT) in kept
        assert whole[-1] in kept
        scrub_all(store)
        (damage,) = store.files.damage.ranges
        assert SEGMENT <= damage.begin <= SEGMENT + size
        assert damage.until == 2 * SEGMENT
        async with opened(FaultyEnv(good)) as peer:
            for wanted in store.repairer.wanted():
                data = peer.log.read(wanted.begin, wanted.until - wanted.begin)
                await store.repairer.mend(wanted, data)
        assert records_of(store) == whole


async def test_a_short_last_file_has_damage_up_to_where_the_log_ended() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 120, queues=1)
        whole, end = records_of(store), store.log.end
    last = end // SEGMENT * SEGMENT
    shorten(env, last, 1000)
    async with opened(env) as store:
        (damage,) = store.files.damage.ranges
        assert (damage.until, store.log.end) == (end, end)
        assert last <= damage.begin <= last + 1000
        assert records_of(store) == [r for r in whole if r.physical_offset < damage.begin]


async def test_files_of_another_size_are_a_mistake_in_the_configuration() -> None:
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 120, queues=1)
    with pytest.raises(DiskError, match="mappedFileSizeCommitLog is 16384"):
        async with opened(env, segment_bytes=2 * SEGMENT):
            pass


async def test_a_store_that_is_closed_before_it_had_a_log_closes_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with opened(FaultyEnv()):
        pass
    assert caplog.records == []


async def test_a_root_that_is_a_file_is_named_with_its_key(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.write_text("no store")
    with pytest.raises(DiskError, match=f"storePathRootDir={root}: {root} is no directory"):
        async with opened(OsEnv(), store_path=str(root)):
            pass


@pytest.mark.parametrize("size", [SEGMENT, 1000])
async def test_a_last_file_that_is_gone_ends_the_log_before_it_whatever_was_made_ahead(size: int) -> None:
    """As where none was: the store notes that its log was longer, and its broker follows a master."""
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 120, queues=1)
        whole, end = records_of(store), store.log.end
    last = end // SEGMENT * SEGMENT
    env.disk.remove(f"{LOG}/{last:020d}")
    env.disk.open(f"{LOG}/{last + SEGMENT:020d}", create=True).truncate(size)
    async with opened(env) as store:
        assert store.log.end == last
        assert store.was_longer.end == end
        assert records_of(store) == [r for r in whole if r.physical_offset < last]
        assert f"{LOG}/{last + SEGMENT:020d}" not in env.disk.nodes


async def test_a_log_with_a_hole_does_not_open_nor_changes() -> None:
    """One byte behind it is enough; so is a configured size that is not the files'."""
    env = FaultyEnv()
    async with opened(env) as store:
        await fill(store, 120, queues=1)
        last = store.log.end // SEGMENT * SEGMENT
    env.disk.remove(f"{LOG}/{last:020d}")
    file = env.disk.open(f"{LOG}/{last + SEGMENT:020d}", create=True)
    file.truncate(SEGMENT)
    before = sorted(env.disk.nodes)
    with pytest.raises(DiskError, match="no segment between"):
        async with opened(env, segment_bytes=2 * SEGMENT):
            pass
    file.pwrite(b"\1", SEGMENT - 1)
    with pytest.raises(DiskError, match=f"no segment between {last - SEGMENT}"):
        async with opened(env):
            pass
    assert sorted(path for path in env.disk.nodes if path.startswith(LOG)) == [
        path for path in before if path.startswith(LOG)
    ]
