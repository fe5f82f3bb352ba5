"""The promise of logWasLonger: a log that lost its end is told from one that never had it."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.ids import Epoch, PhysicalOffset
from runtime.env import write_file
from store.files.checkpoint import Checkpoint
from store.files.epoch_file import EpochEntry
from store.recover.evidence import FILE, LogWasLonger, reached
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.store.support import SEGMENT, fill, opened

OFFSETS = st.integers(0, 10**12)


@given(
    flushed=OFFSETS,
    confirmed=OFFSETS,
    settled=OFFSETS,
    trusted=st.booleans(),
    last=st.none() | st.builds(EpochEntry, st.just(3), OFFSETS),
)
def test_only_what_was_written_here_and_synced_is_evidence(
    flushed: int, confirmed: int, settled: int, trusted: bool, last: EpochEntry | None
) -> None:
    checkpoint = Checkpoint(
        master_flushed_offset=PhysicalOffset(flushed),
        confirm_offset=PhysicalOffset(confirmed),
        settled_offset=PhysicalOffset(settled),
        trusted=trusted,
    )
    was = reached(checkpoint, last)
    epochs = 0 if last is None else last.start
    assert was == (max(flushed, confirmed, settled, epochs) if trusted else epochs)


async def written(env: FaultyEnv, *, clean: bool, segments: int = 3) -> int:
    """A store in its first epoch with so many segments; where its log ended."""
    async with opened(env, controller_mode=True) as store:
        store.epochs.append(Epoch(1), PhysicalOffset(0))
        while store.log.end < segments * SEGMENT:
            await fill(store, 20)
        end = store.log.end
    if not clean:
        env.disk.open("/store/abort", create=True).close()
    return end


def without_log(env: FaultyEnv) -> None:
    for name in env.disk.listdir("/store/commitlog"):
        env.disk.remove(f"/store/commitlog/{name}")


def without_last_segments(env: FaultyEnv) -> None:
    for name in sorted(env.disk.listdir("/store/commitlog"))[1:]:
        env.disk.remove(f"/store/commitlog/{name}")


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("takes", [without_log, without_last_segments])
async def test_a_log_whose_disk_was_replaced_was_longer(
    takes: Callable[[FaultyEnv], None], clean: bool
) -> None:
    env = FaultyEnv(FaultyDisk())
    end = await written(env, clean=clean)
    takes(env)
    async with opened(env, controller_mode=True) as store:
        assert store.log.end < end
        assert store.was_longer.end == end
    async with opened(env, controller_mode=True) as store:
        assert store.was_longer.end == end, "the checkpoint agrees with the log now, the note remains"
        store.was_longer.forget()
    async with opened(env, controller_mode=True) as store:
        assert store.was_longer.end is None


@pytest.mark.parametrize("clean", [True, False])
async def test_a_log_that_is_whole_or_was_cut_by_its_own_store_was_not_longer(clean: bool) -> None:
    env = FaultyEnv(FaultyDisk())
    await written(env, clean=clean)
    async with opened(env, controller_mode=True) as store:
        assert store.was_longer.end is None

        store.truncate(PhysicalOffset(0))
        store.epochs.truncate_suffix(PhysicalOffset(1))
    async with opened(env, controller_mode=True) as store:
        assert (store.log.end, store.was_longer.end) == (0, None)


def test_a_damaged_note_says_at_least_that_something_is_missing() -> None:
    env = FaultyEnv(FaultyDisk())
    env.disk.makedirs("/store")
    LogWasLonger(env.disk, "/store").compare(100, 200)
    write_file(env.disk, f"/store/{FILE}", b"\0")
    again = LogWasLonger(env.disk, "/store")
    again.compare(100, 100)
    assert again.end == 101
