"""The promise of controller.raft under schedules drawn at random: none breaks it, and planted bugs are found.

KEELMQ_RAFT_FUZZ_SEEDS=1000 makes it a long run; ``python -m chaos.raft.fuzz`` does the same by hand.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from chaos.raft.bugs import BUGS, planted
from chaos.raft.fuzz import RATES, fuzz, main
from chaos.raft.members import Broken

SEEDS = int(os.environ.get("KEELMQ_RAFT_FUZZ_SEEDS", "8"))
PLANTED_SEEDS = 40
FIRST = {"read_without_own_term": 9, "old_journal_accepted": 16}
"""The first seed that finds it, where those before would only take time (docs/results/raft-fuzz.md)."""

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
    assert total["reads answered"] > SEEDS
    assert total["replaced"] >= SEEDS // 3


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_a_planted_bug_is_found(bug: str) -> None:
    with planted(bug):
        assert any(breaks(seed) for seed in range(FIRST.get(bug, 0), PLANTED_SEEDS))


def breaks(seed: int) -> bool:
    try:
        fuzz(seed)
    except Broken:
        return True
    return False


def test_a_seed_is_one_schedule() -> None:
    assert fuzz(3) == fuzz(3)


@pytest.mark.parametrize(
    "wrong", [["--members", "-3"], ["--members", "0"], ["--members", "30"], ["--seeds", "-4"]], ids=" ".join
)
def test_a_run_that_would_look_at_nothing_is_refused(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*wrong, "--steps", "1"])
    assert ended.value.code == 64
    assert f"{wrong[1]} is not " in capsys.readouterr().err


def test_a_broken_run_ends_with_2_and_the_line_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(seed: int, **options: int) -> Counter[str]:
        if seed == 5:
            raise Broken("two leaders")
        return Counter()

    monkeypatch.setattr("chaos.raft.fuzz.fuzz", broken)
    assert main(["--first", "4", "--seeds", "3", "--steps", "9"]) == 2
    said = capsys.readouterr().out
    assert "    python -m chaos.raft.fuzz --first 5 --seeds 1 --members 3 --steps 9\n" in said
    bug = sorted(BUGS)[0]
    assert main(["--seeds", "2", "--bug", bug]) == 3
    assert f"the planted bug {bug} was NOT found" in capsys.readouterr().out
