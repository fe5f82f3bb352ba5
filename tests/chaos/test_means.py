"""The promise of one vocabulary: each fault says what carries it out in both worlds, and so does the page."""

from __future__ import annotations

import pytest

from chaos import faults
from chaos.faults import FAULTS
from chaos.live import means
from chaos.scenarios import live_only
from tests import ROOT


def test_each_fault_has_its_means_in_both_worlds() -> None:
    assert set(means.MEANS) == set(FAULTS.values())
    for found in means.MEANS.values():
        assert found.simulated
        assert found.live
        assert set(found.needs) <= set(means.LACKS)


def test_the_page_holds_the_table() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8")
    assert means.table() in page, "python -m chaos.live.means prints it"


def test_a_fault_is_refused_for_the_first_thing_that_the_machine_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacks = {"namespaces": lambda: "needs root", "loop disk": lambda: "no device", "strace": lambda: None}
    monkeypatch.setattr(means, "LACKS", lacks)
    assert means.refusal(faults.PowerFail) == "needs root"
    assert means.refusal(faults.DiskFull) == "no device"
    assert means.refusal(faults.SlowDisk) is None
    assert means.refusal(faults.Kill) is None


def test_only_what_the_plan_needs_is_laid() -> None:
    assert means.needed([faults.Kill, faults.Restart]) == set()
    assert means.needed([faults.Kill, faults.Cut, faults.SyncError]) == {"namespaces", "strace"}


def test_the_page_tells_of_each_fault_that_only_real_processes_have() -> None:
    page = (ROOT / "docs" / "chaos.md").read_text(encoding="utf-8")
    for kind in live_only.LiveOnly.__subclasses__():
        assert f"| `{kind.name}` |" in page
        assert page.split(f"| `{kind.name}` |")[1].split("\n")[0].endswith(f"| {', '.join(kind.needs)} |")
