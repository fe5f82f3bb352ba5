"""What a campaign puts aside keeps its verdict, and its evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from admin.exits import FAILED, UNFINISHED
from chaos.drills.live.campaign.commands import _code, _told
from chaos.drills.live.campaign.page import page
from chaos.drills.live.campaign.runs import Runs
from chaos.drills.live.campaign.state import Campaign
from tests.chaos.campaigns import KILLS, THEIR_KILLS, begun, put, result, same

NAME = f"{KILLS.name}-1"
LOST: dict[str, Any] = {"broken": {"lost": 3}, "violations": [{"checker": "lost", "text": "k1 is lost"}]}
TOLD = "the code was written to while it ran, and it broke a promise: lost 3"


def taken_in(directory: Path, told: dict[str, Any], history: str, written: str = "before") -> list[str]:
    """What is said of a run that left this; ``written``: what the code was when it began."""
    found, said = begun(directory, KILLS), list[str]()
    (directory / "next" / f"{NAME}.json").write_text(json.dumps({"written": written}))
    (directory / "next" / f"{NAME}.result").write_text(json.dumps(told))
    (directory / "next" / f"{NAME}.jsonl").write_text(history)
    Runs(found, 1, 0, lambda text: said.append(str(text)), code=same).take_in()
    return said


def test_a_promise_that_a_run_broke_is_told_though_the_run_is_not_counted(tmp_path: Path) -> None:
    assert taken_in(tmp_path, result(KILLS, 1, 2, **LOST), "") == [
        f"not counted: refused/{NAME}.json: {TOLD}"
    ]
    for seed in (1, 2, 3):  # its seed is struck again, and holds
        found, said = Campaign.open(tmp_path, [KILLS]), list[str]()
        _told(found, lambda text, said=said: said.append(str(text)))  # type: ignore[misc]
        text = page(found, "x")
        assert f"not counted: refused/{NAME}.json: {TOLD}" in said
        assert f"- not counted: refused/{NAME}.json: {TOLD}" in text
        assert "; 1 more runs, which are not counted, broke a promise" in text
        assert _code(found) == FAILED
        put(tmp_path, f"{KILLS.name}-{seed}", result(KILLS, seed, 2))


def test_what_is_put_aside_breaks_only_the_promises_of_its_own_system(tmp_path: Path) -> None:
    begun(tmp_path, KILLS, THEIR_KILLS)
    put(tmp_path, f"{THEIR_KILLS.name}-1", result(THEIR_KILLS, 1, 2, release="v2", **LOST))
    found = Campaign.open(tmp_path, [KILLS, THEIR_KILLS])
    assert found.refused == [f"runs/{THEIR_KILLS.name}-1.json: it is of v2, and it broke a promise: lost 3"]
    assert (found.broken_aside({KILLS.target}), found.broken_aside({THEIR_KILLS.target})) == (0, 1)
    assert _code(found) == UNFINISHED
    put(tmp_path, f"{KILLS.name}-9", result(KILLS, 1, 2, **LOST))
    assert _code(Campaign.open(tmp_path, [KILLS, THEIR_KILLS])) == FAILED, "also under another run's name"


def test_nothing_that_was_put_aside_is_replaced(tmp_path: Path) -> None:
    begun(tmp_path, KILLS)
    put(tmp_path, NAME, result(KILLS, 1, 2, release="v2", **LOST))  # a stray one under its name
    for at, more in enumerate((LOST, {}, {})):
        taken_in(tmp_path, result(KILLS, 1, 2, **more), f"history {at}")
    taken_in(tmp_path, result(KILLS, 1, 2), "", same().written)
    aside = tmp_path / "refused"
    names = (NAME, f"{NAME}.2", f"{NAME}.3")
    assert [(aside / f"{name}.jsonl").read_text() for name in names] == [f"history {at}" for at in range(3)]
    kept = [json.loads((aside / f"{name}.json").read_text()) for name in (*names, f"{NAME}.4")]
    assert [one.get("broken") for one in kept] == [{"lost": 3}, None, None, {"lost": 3}]
    found = Campaign.open(tmp_path, [KILLS])
    assert (found.counted(KILLS), len(found.refused)) == (2, 4)
    assert f"refused/{NAME}.4.json: it is of v2, and it broke a promise: lost 3" in found.refused
