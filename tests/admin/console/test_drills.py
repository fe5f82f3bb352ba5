"""The promise of drills from the console: confirmed on its own page, one at a time, on a cluster of their
own, and ended with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from admin.commands.console import console
from admin.console.drills import COMMAND, KINDS, LINE_BYTES_MAX, REPEAT_MAX, CannotDrill, Drills
from admin.exits import USAGE
from admin.exits import run as run_command
from chaos.drills.commands import TEXTS
from chaos.links.cluster_links import LINK_FAULTS
from runtime.os_env import OsEnv
from tests.admin.console.served import HOSTILE, MadeUp, served, visiting
from tests.waiting import until

SAYS = f"""
import pathlib, sys
if sys.argv[1] == "report":
    pathlib.Path(sys.argv[2]).with_suffix(".html").write_text("its page")
else:
    print("asked", *sys.argv[1:4], {HOSTILE!r})
    pathlib.Path(sys.argv[5]).write_text("{{}}")
"""
WAITS = "import signal, sys; print('waits', flush=True); signal.pause()"
FORM = {"kind": "kill-master", "repeat": "3", "sure": "yes"}


def made(directory: Path, script: str) -> Drills:
    return Drills(OsEnv(), directory, (sys.executable, "-S", "-c", script))


async def ended(drills: Drills) -> None:
    await until(lambda: not drills.runs, "the end of the drill", 60)


def test_the_kinds_are_those_of_the_command_line_that_need_no_proxies() -> None:
    assert {name: text for name, text in TEXTS.items() if name not in LINK_FAULTS} == KINDS


def test_no_drill_is_given_a_cluster_that_is_there() -> None:
    assert COMMAND[-1] == "drill"
    assert "--dir" not in COMMAND


async def test_a_drill_is_confirmed_shown_and_leaves_its_report(tmp_path: Path) -> None:
    drills = made(tmp_path, SAYS)
    async with served(MadeUp(), reports=tmp_path, drills=drills) as url, visiting(url) as visitor:
        form = {"csrf": await visitor.token("drills"), **FORM}
        assert (await visitor.post("drills", {**form, "sure": ""}))[0] == 400
        assert (await visitor.post("drills", {**form, "csrf": "x"}))[0] == 403
        assert (await visitor.post("drills", form, "http://evil.example"))[0] == 403
        for wrong in ({"kind": "rm -rf"}, {"repeat": "0"}, {"repeat": str(REPEAT_MAX + 1)}):
            assert (await visitor.post("drills", {**form, **wrong}))[0] == 409, wrong
        assert (await visitor.post("drills", {**form, "repeat": "x"}))[0] == 400
        assert drills.last is None
        status, _, headers = await visitor.post("drills", form)
        assert (status, headers["Location"]) == (303, "/drills")
        await ended(drills)
        _, text = await visitor.get("drills")
        assert "asked kill-master --repeat 3" in text
        assert "<img" not in text
        assert "nothing was lost" in text
        assert drills.last is not None
        assert (await visitor.get(f"report?name={drills.last.report}")) == (200, "its page")
        assert drills.last.report in (await visitor.get("reports"))[1]


async def test_one_runs_at_a_time_and_ends_when_it_is_told_to_or_with_the_console(tmp_path: Path) -> None:
    drills = made(tmp_path, WAITS)
    async with served(MadeUp(), reports=tmp_path, drills=drills) as url, visiting(url) as visitor:
        form = {"csrf": await visitor.token("drills"), **FORM}
        await visitor.post("drills", form)
        assert (await visitor.post("drills", form))[0] == 409
        assert drills.last is not None
        await until(drills.last.lines.__len__, "a line of the drill", 60)
        assert "http-equiv=refresh" in (await visitor.get("drills"))[1]
        assert (await visitor.post("drills/stop", {"csrf": form["csrf"]}))[0] == 303
        await ended(drills)
        assert drills.last.verdict == "it did not come to its end"
        assert "http-equiv=refresh" not in (await visitor.get("drills"))[1]
        await visitor.post("drills", form)
        await until(drills.last.lines.__len__, "a line of the drill", 60)
    assert not drills.runs


async def test_a_line_without_an_end_is_cut_and_the_verdict_stands(tmp_path: Path) -> None:
    script = "import sys; print('x' * 300_000); print('a\\n\\nb', end=''); sys.exit(2)"
    drills = made(tmp_path, script)
    run = drills.start("kill-master", 1, "")
    assert run.verdict == "it did not come to its end"
    await ended(drills)
    assert list(run.lines) == ["x" * LINE_BYTES_MAX, "a", "", "b"]
    assert run.verdict == "a promise was broken"


async def test_a_drill_whose_end_nobody_saw_is_no_success(tmp_path: Path) -> None:
    drills = made(tmp_path, WAITS)
    run = drills.start("kill-master", 1, "")
    await until(run.lines.__len__, "a line of the drill", 60)
    await drills.stop()
    assert run.exit_code != 0
    assert run.verdict == "it did not come to its end"


async def test_a_drill_that_cannot_be_started_says_why(tmp_path: Path) -> None:
    drills = Drills(OsEnv(), tmp_path, (str(tmp_path / "nothing"),))
    with pytest.raises(CannotDrill, match="no drill"):
        drills.start("cut-replication", 1, "")
    run = drills.start("kill-master", 1, "")
    await ended(drills)
    assert run.exit_code == 3
    assert "nothing" in run.lines[0]


async def test_without_the_option_there_is_no_such_page(tmp_path: Path) -> None:
    async with served(MadeUp(), reports=tmp_path) as url, visiting(url) as visitor:
        assert (await visitor.get("drills"))[0] == 404
        assert "/drills" not in (await visitor.get(""))[1]
        form = {"csrf": await visitor.token("handover?group=broker-a"), **FORM}
        assert (await visitor.post("drills", form))[0] == 404


@pytest.mark.parametrize("more", [[], ["--reports", ".", "--read-only"]])
def test_drills_need_a_place_for_results_and_a_console_that_may_act(more: list[str]) -> None:
    assert run_command(console, ["--drills", "--namesrv", "127.0.0.1:1", *more]) == USAGE
