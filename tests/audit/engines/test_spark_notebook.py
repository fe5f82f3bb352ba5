"""The promise of the notebook: its cells run one after the other, and find what they plant."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.audit.stores import trio

pytest.importorskip("pyspark")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

NOTEBOOK = ROOT / "docs" / "examples" / "audit.ipynb"


def test_the_notebook_runs_and_finds_what_it_plants(
    engine: object, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the session of the other tests. The cell marked as parameters gets stores of the real broker."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    whole = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in whole["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    stores = trio("ha-allack-91", "after", tmp_path)
    before = {path: path.read_bytes() for store in stores for path in store.rglob("*") if path.is_file()}
    names: dict[str, Any] = {}
    told = {}
    for number, cell in enumerate(cells):
        parameters = "parameters" in cell["metadata"].get("tags", [])
        text = f"STORES = {list(map(str, stores))}" if parameters else "".join(cell["source"])
        exec(compile(text, f"cell {number}", "exec"), names)
        told[number] = capsys.readouterr().out
    assert "0 records without an entry" in "".join(told.values())
    offset = names["victim"].offset
    (damage,) = names["damage"]
    assert (damage.store, damage.kind, damage.offset) == ("broken", "crc_mismatch", offset)
    ((start, end),) = names["differing"]
    assert start <= offset < end
    report = names["report"]
    assert report.verdict == "diverged"
    assert [(f.kind, f.replica, f.phys_offset) for f in report.findings if f.severity == "error"] == [
        ("crc_mismatch", "broken", offset)
    ]
    assert not names["broken"].exists()
    assert before == {path: path.read_bytes() for path in before}, "the stores are only read"
