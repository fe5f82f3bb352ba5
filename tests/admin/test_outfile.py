"""The promise of admin.outfile: a result that could not be written is said before the work begins."""

import os
from pathlib import Path

import pytest

from admin.exits import USAGE, run
from chaos.drills.commands import drill


@pytest.mark.parametrize("command", [["kill-master", "--json"], ["sim", "--json"], ["sim", "--history"]])
def test_a_folder_that_is_not_there_is_said_before_the_work(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path / "none" / "out.json", tmp_path):
        assert run(drill, [*command, str(out)]) == USAGE
    told = capfd.readouterr().err
    assert f"no folder '{tmp_path / 'none'}'" in told
    assert "is a directory" in told


@pytest.mark.parametrize(
    "options", [["kill-master", "--json"], ["kill-master", "--history"], ["sim", "--json"]]
)
def test_a_folder_that_one_may_not_write_is_said_before_the_work(
    options: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system is asked: root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    assert run(drill, [*options, str(tmp_path / "x")]) == USAGE
    told = capfd.readouterr().err
    assert "nothing can be written in" in told
    assert f"'{tmp_path}'" in told


def test_a_folder_that_would_lie_in_a_file_is_said_before_the_work(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert run(drill, ["kill-master", "--history", str(tmp_path / "file" / "x" / "y")]) == USAGE
    assert f"nothing can be written in '{tmp_path / 'file'}'" in capfd.readouterr().err
