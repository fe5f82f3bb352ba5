"""The promise of the turn meter: a loop held each time is found, a machine that stood still once is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.turn_meter import TRIES, LongTurn, Meter, metered, tried_again


def a_test(turns_s: list[float], began: list[Path]) -> object:
    @tried_again
    async def test(tmp_path: Path) -> None:
        async with metered() as meter:
            pass
        began.append(tmp_path)
        meter.longest_s = turns_s[len(began) - 1]
        meter.check()

    return test


async def test_one_long_turn_is_tried_again_in_another_directory(tmp_path: Path) -> None:
    began: list[Path] = []
    await a_test([60.0, 0.0], began)(tmp_path=tmp_path)  # type: ignore[operator]
    assert len({path for path in began if path.is_dir()}) == 2


async def test_a_turn_that_is_long_each_time_fails(tmp_path: Path) -> None:
    began: list[Path] = []
    with pytest.raises(LongTurn, match="a turn of 60000"):
        await a_test([60.0] * TRIES, began)(tmp_path=tmp_path)  # type: ignore[operator]
    assert len(began) == TRIES


async def test_without_further_tries_nothing_is_measured() -> None:
    with pytest.raises(AssertionError, match="tried_again"):
        async with metered():
            pass
    assert Meter().longest_s == 0
