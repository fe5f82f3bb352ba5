"""The promise of admin.outfile: a result that could not be written is said before the work begins."""

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
