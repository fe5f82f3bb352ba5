"""The promise of a drill's result: it is in its file whole or not at all, and hides no verdict."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from admin.exits import FAILED, UNFINISHED
from admin.exits import run as run_command
from admin.outfile import write_whole
from chaos.drills import commands, ledger
from chaos.drills.live.commands import write_history
from chaos.drills.measure import Drill
from chaos.drills.timeline import BIN_MS, availability, strikes_ms, windows
from chaos.history import Happened, History


@pytest.mark.parametrize(
    ("drill", "code"), [(Drill(offset_reuse=1), FAILED), (Drill(), UNFINISHED)], ids=["broken", "kept"]
)
def test_a_full_disk_names_the_file_and_hides_no_verdict(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    drill: Drill,
    code: int,
) -> None:
    async def carry_out(self: commands.RunOptions, console: object) -> tuple[dict[str, Any], list[Drill]]:
        return {"drills": 1}, [drill]

    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(commands.RunOptions, "carry_out", carry_out)
    monkeypatch.setattr(os, "replace", full)
    out = tmp_path / "drill.json"
    out.write_text("former")
    assert run_command(commands.drill, ["kill-master", "--repeat", "1", "--json", str(out)]) == code
    assert f"{out} was not written: No space left on device" in capfd.readouterr().err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["former"]


def test_a_dash_is_stdout_and_no_file_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_whole(Path("-"), "text\n")
    write_history(History([Happened(1.0, "b1", "kill")]), Path("-"))
    ledger.write(History(), Path("-"))
    text, told = capfd.readouterr().out.splitlines()
    assert (text, json.loads(told)["node"]) == ("text", "b1")
    assert list(tmp_path.iterdir()) == []


def test_a_link_goes_on_to_lead_to_the_result(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    link.symlink_to(real)
    write_whole(link, "text")
    assert link.is_symlink()
    assert real.read_text() == "text"


def _told(
    faults: list[dict[str, Any]], silent: tuple[float, float], until_ms: float = 70_000
) -> dict[str, Any]:
    acks = [0 if silent[0] <= at * BIN_MS < silent[1] else 1 for at in range(int(until_ms // BIN_MS))]
    return {"faults": faults, "acks": acks, "until_ms": until_ms}


def _fault(name: str, since_ms: float, to_ms: float, **more: Any) -> dict[str, Any]:
    return {"fault": name, "node": "broker-a-0", "from_ms": since_ms, "to_ms": to_ms, **more}


def test_one_answer_behind_the_mend_cuts_no_outage() -> None:
    told = _told([_fault("pause", 1000, 2000)], (1000, 61_000))
    whole = availability(told)
    told["acks"][int(2020 // BIN_MS)] = 1
    assert availability(told) == pytest.approx(whole, abs=0.01)
    assert windows(told) > 590


def test_a_strike_on_a_server_that_was_whole_again_is_one_of_its_own() -> None:
    """Meant by what an earlier step bound, too; what goes on with a strike is part of it."""
    one, other = _fault("kill", 2000, 2500, goes_on=True), _fault("kill", 12_000, 14_500, goes_on=True)
    assert strikes_ms(_told([one, other], (0, 0))) == [2000, 12_000]
    wipe = _fault("wipe", 2400, 2400, goes_on=True)
    assert strikes_ms(_told([one, wipe, other], (0, 0))) == [2000, 12_000]
