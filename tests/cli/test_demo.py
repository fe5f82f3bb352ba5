"""The promise of ``keelmq demo``: it replaces only its own folder, tells the truth, and needs no terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from chaos.drills.measure import Drill
from cli.demo import MARKER, demo, prepare, summary_lines
from cli.demo_report import bins, page
from cli.demo_run import Plan, Result
from cli.demo_screen import PlainScreen, Sight
from model.errors import ConfigError


def result(**drill: object) -> Result:
    """A run whose master was killed at 10 s and replaced 0.3 s later."""
    plan = Plan(seconds=30, rate=1000, size_bytes=1024, seed=7)
    made = Result(
        plan,
        Drill(rto_ms=310.0, noticed_ms=12.0, first_ack_ms=300.0, acked=3),
    )
    for name, value in drill.items():
        setattr(made.drill, name, value)
    made.victim, made.successor, made.epochs = "broker-a-0", "broker-a-1", (1, 2)
    made.kill_ms, made.restart_ms, made.stop_ms, made.first_ack_ms = 10_000, 20_000, 30_000, 10_300
    made.acks_ms = [9_990.0, 10_300.0, 29_999.0]
    return made


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(ConfigError, match="not a demo's folder"):
        prepare(tmp_path)
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ConfigError, match="not a folder"):
        prepare(file)
    assert (tmp_path / "thesis.tex").read_text() == "all of it"


def test_an_earlier_demo_and_an_empty_folder_are_replaced(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    out.mkdir()
    prepare(out)
    (out / "index.html").write_text("old")
    prepare(out)
    assert [p.name for p in out.iterdir()] == [MARKER]


def test_acknowledgements_are_counted_in_tenths_of_a_second() -> None:
    assert bins([0.0, 99.9, 100.0, 250.0, 999.0], 300.0) == [2, 1, 1, 0]


def test_the_page_stands_alone_and_shows_the_fault() -> None:
    text = page(result())
    assert not re.search(r"src=|@import|url\(|https?://", text)
    assert text.index('section class="verdict') < text.index("<svg")
    assert all(mark in text for mark in ("kill 10.00 s", "restart 20.00 s", "first ack 10.30 s", "310 ms"))


def test_what_was_not_seen_is_not_made_up() -> None:
    made = result(rto_ms=None, first_ack_ms=None)
    made.first_ack_ms, made.acks_ms = None, []
    assert "first ack 1" not in page(made)
    assert "no new master answered" in "\n".join(summary_lines(made, Path("demo")))


@pytest.mark.parametrize(
    ("name", "value"), [("lost", 1), ("duplicates", 2), ("order_violations", 1), ("read_then_gone", 1)]
)
def test_a_broken_promise_is_exit_code_2(name: str, value: int) -> None:
    made = result(**{name: value})
    assert made.exit_code == 2
    assert "A promise was broken." in summary_lines(made, Path("demo"))


def test_what_could_not_be_checked_is_not_good() -> None:
    """No audit, no verdict."""
    assert result().exit_code == 3


def test_without_a_terminal_it_writes_lines_now_and_then() -> None:
    out: list[str] = []
    with PlainScreen(out.append) as screen:
        screen.say("it begins")
        for tenth in range(100):
            screen.show(
                Sight(
                    tenth / 10,
                    "under load",
                    "b0",
                    1,
                    ("b0", "b1"),
                    (("b0", "master", 5),),
                    10,
                    tenth,
                    0,
                    0,
                    5,
                )
            )
        screen.note("left out")
    assert len(out) == 3
    assert out[2].startswith("   5.0 s  under load: master b0, epoch 1, in sync 2")


@pytest.mark.live
@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_a_short_demo_from_beginning_to_end(tmp_path: Path) -> None:
    """Real processes, a real SIGKILL, a real audit."""
    out = tmp_path / "demo"
    arguments = ["--seconds", "6", "--rate", "200", "--size", "100", "--out", str(out)]
    run = CliRunner().invoke(demo, arguments, standalone_mode=False)
    assert run.exception is None
    assert run.return_value == 0, run.output
    told = json.loads((out / "demo.json").read_text())
    assert told["rpo"] == told["order_violations"] == told["duplicates"] == 0
    assert len(set(told["ends"].values())) == 1
    assert told["audit"]["verdict"] == "clean"
    assert told["audit"]["ledger"]["lines"] == told["acked"] > 200
    assert told["rto_ms"] > 0
    assert told["victim"] != told["successor"]
    assert (out / "audit" / "index.html").exists()
    assert not (out / "cluster").exists()
