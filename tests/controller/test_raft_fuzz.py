"""The promise of controller.raft under schedules drawn at random: none breaks it, and planted bugs are found.

KEELMQ_RAFT_FUZZ_SEEDS=1000 makes it a long run; ``python -m chaos.raft.fuzz`` does the same by hand.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from chaos.raft.bugs import BUGS
from chaos.raft.fuzz import RATES, Broken, fuzz, planted

SEEDS = int(os.environ.get("KEELMQ_RAFT_FUZZ_SEEDS", "12"))
PLANTED_SEEDS = 40

pytestmark = pytest.mark.sim


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of restarts and damaged journals: what they log is no news here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("members", [3, 5])
def test_no_schedule_breaks_a_promise(members: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(SEEDS):
        total += fuzz(seed, members=members)
    assert {kind for kind in RATES if not total[kind]} == set(), "every kind of step happened"
    assert total["answered"] > 5 * SEEDS
    assert total["elections"] > 2 * SEEDS


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        assert any(breaks(seed) for seed in range(PLANTED_SEEDS))


def breaks(seed: int) -> bool:
    try:
        fuzz(seed)
    except Broken:
        return True
    return False


def test_a_seed_is_one_schedule() -> None:
    assert fuzz(3) == fuzz(3)
