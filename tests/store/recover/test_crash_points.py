"""The promise about power: whenever it fails, what was acknowledged is there, and what was cut stays gone.

One workload runs once (tests.store.crash_workload); before each of its writes the power fails, and what that
leaves is opened and examined: pages, sizes and names that were not synced are lost, all or each by chance.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable

import pytest

from store.files.commit_log import CommitLog
from store.files.segment import Segment
from store.flow.upkeep.flush import Flusher
from store.message_store import MessageStore
from tests.store.crash_workload import KINDS, Workload, examine, points

SEEDS = int(os.environ.get("KEELMQ_CRASH_SEEDS", "2"))
"""Power failures a write; 22 are more than 7,000 crash points."""


@pytest.fixture(scope="module")
def workload() -> Workload:
    return points()


async def _examine_all(workload: Workload, kinds: tuple[str, ...], seeds: int) -> int:
    count = 0
    for point in workload.points:
        if point.kind in kinds:
            for seed in range(seeds):
                await examine(*point.crash(seed), point.known)
                count += 1
    return count


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_power_failure_before_any_write_loses_nothing_acknowledged(workload: Workload, kind: str) -> None:
    count = asyncio.run(_examine_all(workload, (kind,), SEEDS))
    assert count >= SEEDS * 2
    print(f"{count} crash points in {kind}")


def test_the_workload_has_hundreds_of_writes_of_every_kind() -> None:
    counts = Counter(point.kind for point in points().points)
    assert set(counts) == set(KINDS)
    assert counts.total() > 300


Planted = Callable[[pytest.MonkeyPatch], None]


def _no_sync_of_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Flusher, "_call", lambda self, segments, names, generation: self._log.sync_names())


def _no_sync_of_the_names(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CommitLog, "sync_names", lambda self: None)


def _a_cut_without_erasing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Segment, "erase", lambda self, at, until, **how: None)


def _offsets_that_begin_anew(patch: pytest.MonkeyPatch) -> None:
    def forget(self: MessageStore) -> None:
        self.writer.offsets.table = {}

    patch.setattr(MessageStore, "rebuild_queue_offsets", forget)


@pytest.mark.parametrize(
    ("plant", "complaint"),
    [
        (_no_sync_of_the_log, "is gone"),
        (_no_sync_of_the_names, "is gone"),
        (_a_cut_without_erasing, "was cut or never written"),
        (_offsets_that_begin_anew, "the next would get offset"),
    ],
)
def test_a_planted_mistake_is_found(plant: Planted, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=complaint):
        asyncio.run(_examine_all(points(), KINDS, 2))
