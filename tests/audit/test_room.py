"""The promise of an audit whose disk is full: it says which folder has no room, and what to set; no store is
at fault."""

from __future__ import annotations

import errno
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest

from admin.exits import run as run_command
from audit import room
from audit.commands import audit
from audit.pages import report as pages
from audit.rows.parts import Folder
from audit.run import AuditError
from audit.sources import unpacked
from audit.tables import EngineError
from tests.audit.plants import make, run_local
from tests.audit.sources import tarred

FULL = "/dev/full"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("of", ["records", "parts"])
def test_temporary_files_without_room_are_named(
    of: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _, ledger = make(tmp_path)
    own = Folder.file
    monkeypatch.setattr(Folder, "file", lambda self, name: FULL if name == of else own(self, name))
    with pytest.raises(AuditError) as caught:
        run_local(stores, ledger)
    told = f"no room for temporary files in {temporary}: set TMPDIR to where there is ("
    assert str(caught.value).startswith(told), "and no store's file is blamed"


@pytest.mark.parametrize("file", ["r1.tar.gz", "r1.tar"])
def test_a_copy_that_has_no_room_to_be_unpacked_is_no_wrong_copy(
    file: str, temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _, _ = make(tmp_path)
    packed = tarred(stores[1], tmp_path / file)
    monkeypatch.setattr(unpacked.HELD, "_swept", False)
    own = Path.open

    def open_full(self: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
        if mode == "wb" and temporary in self.parents:
            return io.BufferedWriter(io.FileIO(FULL, "wb"), 1 << 20)
        return own(self, mode, *more, **named)

    monkeypatch.setattr(Path, "open", open_full)
    report = run_local([stores[0], packed, stores[2]], None)
    (why,) = report.unreadable.values()
    assert unpacked.NO_ROOM in why
    assert str(temporary) in why
    assert (report.verdict, report.findings) == ("unfinished", [])


def test_a_report_without_room_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    stores, _, _ = make(tmp_path)
    monkeypatch.setattr(pages, "write", full)
    out = tmp_path / "out"
    assert run_command(audit, [*map(str, stores), "--out", str(out)], "keelmq audit") == 3
    assert f"no room in {out} (" in capsys.readouterr().err


def test_what_spark_says_of_it_counts_and_of_two_folders_the_fuller_one(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = EngineError("java.io.IOException: No space left on device")
    assert (
        room.why(error)
        == f"no room for temporary files in {temporary}: set TMPDIR to where there is ({error})"
    )
    free = {temporary: 5, tmp_path: 4}
    monkeypatch.setattr(room, "_free", free.__getitem__)
    assert room.why(error, tmp_path) == f"no room in {tmp_path} ({error})"
    assert room.why(OSError(5, "no")) == "[Errno 5] no"
