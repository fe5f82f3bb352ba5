"""The promise of ``keelmq demo``: it replaces only its own folder, tells the truth, and needs no terminal."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from admin.exits import UNFINISHED
from chaos.drills.measure import Drill
from chaos.history import History, Invoke, Ok
from cli.chart import PHONE_PX, WIDTH, Axis, marks, ticks
from cli.demo import MARKER, demo, prepare, prepared, summary_lines
from cli.demo_report import bins, close_up, page
from cli.demo_run import Plan, Result
from cli.demo_screen import PlainScreen, Sight
from cli.dips import dips, latencies
from client.message import Queue
from model.errors import ConfigError
from tests.cli.demos import need_a_good_demo


def sends(*acks_ms: float, queue: int = 0, took_ms: float = 4.0) -> list[Invoke | Ok]:
    """Acknowledged at these times, by the first broker until 10 s."""
    place = Queue("demo", "broker-a", queue)
    found: list[Invoke | Ok] = []
    for n, at in enumerate(acks_ms):
        key, by = f"{queue}-{n}", "127.0.0.1:1" if at <= 10_000 else "127.0.0.1:2"
        found += [Invoke(at - took_ms, "p", key, place, 1), Ok(at, "p", key, place, n, n, by)]
    return found


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
    made.history = History(sends(9_990.0, 10_300.0, 29_999.0))
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


def test_a_demo_that_runs_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    with prepared(out):
        (out / "index.html").write_text("of the first")
        with pytest.raises(ConfigError, match=r"a demo runs in .*choose another --out"), prepared(out):
            pass
        assert (out / "index.html").read_text() == "of the first"
    with prepared(out):
        assert [p.name for p in out.iterdir()] == [MARKER]


def test_acknowledgements_are_counted_in_tenths_of_a_second() -> None:
    assert bins([0.0, 99.9, 100.0, 250.0, 999.0], 300.0) == [2, 1, 1, 0]


def test_the_page_stands_alone_and_shows_the_fault() -> None:
    text = page(result())
    assert not re.search(r"src=|@import|url\(|https?://", text)
    assert text.index('section class="verdict') < text.index("<svg")
    assert all(mark in text for mark in ("kill 10.00 s", "restart 20.00 s", "first ack +300 ms", "310 ms"))


def test_an_outage_of_80_ms_is_seen_on_a_phone() -> None:
    """As a hole in the row of each queue."""
    made = result(rto_ms=80.0, first_ack_ms=72.0, rto_queues_ms=[80.0] * 8)
    made.first_ack_ms = 10_072.0
    often = [at for at in range(0, 30_000, 8) if not 9_992 < at < 10_072]
    made.history = History([event for queue in range(8) for event in sends(*often, queue=queue)])
    close = close_up(made)
    assert [name for name, *_ in close["rows"]] == [f"queue {n}" for n in range(8)]
    for _, paths, rto in close["rows"]:
        at = sorted(float(x) for _, d in paths for x in re.findall(r"M(\S+) ", d))
        holes = sorted((b - a) * PHONE_PX / WIDTH for a, b in pairwise(at))
        assert holes[-1] > 40 > 10 > holes[-2], "in pixels"
        assert rto == "80 ms"


def test_texts_of_a_chart_never_lie_on_each_other() -> None:
    axis = Axis(0.0, 30_000.0)
    found = marks([("kill 10.00 s", "bad", 10_000.0), ("first ack", "good", 10_100.0)], axis)
    assert [one["lane"] for one in found] == [0, 1]
    (late,) = marks([("restart 29.90 s", "plain", 29_900.0)], axis)
    assert late["side"] == "ends", "it is not clipped"
    assert [one["text"] for one in ticks(axis)] == ["0 s", "10 s", "20 s", "30 s"]
    assert ticks(axis)[-1]["side"] == "ends"
    close = ticks(Axis(9_900.0, 10_200.0), zero_ms=10_000.0)
    assert [one["text"] for one in close] == ["-100 ms", "0 ms", "100 ms", "200 ms"]


def test_a_dip_has_the_reason_that_was_seen_or_none() -> None:
    made = result()
    often = [at for at in range(0, 30_000, 10) if not any(a < at < a + 100 for a in (5_000, 20_500, 25_000))]
    made.history = History(sends(*(at for at in often if not 10_000 < at < 10_300)))
    made.stalls = [(5_010.0, 5_090.0), (25_010.0, 25_020.0)]
    found = dips(made)
    assert [(dip["from_ms"], dip["ms"], dip["kind"]) for dip in found] == [
        (5_000, 100, "stall"),
        (10_000, 300, "failover"),
        (20_500, 100, "restart"),
        (25_000, 100, "unknown"),
    ]
    assert all(dip["why"] in page(made) for dip in found)


def test_latencies_are_values_that_were_measured() -> None:
    made = result()
    made.history = History([*sends(*range(1000)), *sends(2_000.0, queue=1, took_ms=70.0)])
    assert latencies(made) == {"p50": 4.0, "p90": 4.0, "p99": 4.0, "p99.9": 4.0, "max": 70.0}
    assert "70.0 ms" in page(made)


def test_what_was_not_seen_is_not_made_up() -> None:
    made = result(rto_ms=None, first_ack_ms=None)
    made.first_ack_ms, made.history = None, History()
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


class Stopped:
    """A cluster, and an engine, that does nothing."""

    closed = 0

    @classmethod
    def create(cls, _: Path) -> Stopped:
        return cls()

    def down(self) -> None:
        pass

    def close(self) -> None:
        Stopped.closed += 1


def test_a_run_that_did_not_settle_is_audited_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark starts when the load is over: a run that ended before has it started for the audit."""
    audited: list[object] = []

    async def unfinished(*_: object) -> Result:
        return result(unfinished="the SyncStateSet is not full after 60 s")

    monkeypatch.setattr("cli.demo.LocalCluster", Stopped)
    monkeypatch.setattr("cli.demo.run_cluster", unfinished)
    monkeypatch.setattr("cli.demo.start_engine", lambda _: Stopped())
    monkeypatch.setattr("cli.demo.audit_stores", lambda *given: audited.append(given[2]))
    run = CliRunner().invoke(demo, ["--out", str(tmp_path / "demo")], standalone_mode=False)
    assert run.exception is None
    assert run.return_value == UNFINISHED
    assert "not full after 60 s" in run.output
    assert isinstance(audited[0], Stopped)
    assert Stopped.closed == 1


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


@pytest.mark.more  # Every run looks at one from a wheel, in the same way: tests/packaging/test_wheel.py.
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
    need_a_good_demo(out)
