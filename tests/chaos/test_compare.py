"""The promise of compare: what became worse decides the exit code, what nobody measured decides nothing."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chaos.drills.compare import Side, load, measured, regressions
from model.errors import ConfigError
from tests.live.commands import Shell

GOOD: dict[str, Any] = {
    "runs": 4,
    "acked": 1000,
    "lost": 0,
    "broken": 0,
    "unfinished": 0,
    "availability": 0.99,
    "rto_p50_ms": 200.0,
    "rto_max_ms": 400.0,
    "latency_p99_ms": 20.0,
}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({}, None),
        ({"lost": 1}, 2),
        ({"broken": 1}, 2),
        ({"unfinished": 1}, 3),
        ({"availability": 0.97}, 1),
        ({"availability": 0.985}, None),
        ({"rto_p50_ms": 320.0}, 1),
        ({"rto_p50_ms": 290.0}, None),
        ({"rto_p50_ms": None}, None),
        ({"latency_p99_ms": 60.0}, None),
        ({"latency_p99_ms": 90.0}, 1),
        ({"rto_max_ms": 9000.0}, None),
    ],
)
def test_what_became_worse_has_a_code(changed: dict[str, Any], code: int | None) -> None:
    found = list(regressions(Side(**GOOD), Side(**GOOD | changed), 0.5))
    assert [one for one, _ in found] == ([] if code is None else [code])


@pytest.mark.parametrize(("windows", "codes"), [(130, []), (5000, [1])])
def test_availability_of_few_windows_differs_by_chance(windows: int, codes: list[int]) -> None:
    one, other = (Side(**GOOD | {"availability": share, "windows": windows}) for share in (0.765, 0.728))
    assert [code for code, _ in regressions(one, other, 0.5)] == codes


def test_times_that_were_counted_otherwise_are_not_held_against_each_other(tmp_path: Path) -> None:
    former, now = Side(**GOOD | {"of_asked": False}), Side(**GOOD | {"of_asked": True})
    worse = {"availability": 0.2, "rto_p50_ms": 9000.0}
    assert not list(regressions(former, Side(**asdict(now) | worse), 0.5))
    assert len(list(regressions(now, Side(**asdict(now) | worse), 0.5))) == 2
    told = {"acks": [1] * 60, "faults": [{"from_ms": 0.0, "to_ms": 1000.0}], "latency_p99_ms": 9.0}
    path = kept(tmp_path / "a.json", "x", timeline=told)
    side = measured([json.loads(path.read_text())])
    assert side is not None
    assert (side.of_asked, side.windows) == (False, 12)
    both = [json.loads(path.read_text()) | {"timeline": told | {"asked": [1] * 10 + [0] * 50}}]
    later = measured(both)
    assert later is not None
    assert (later.of_asked, later.windows) == (True, 2)


def test_counts_are_held_against_the_number_of_runs() -> None:
    before = Side(**GOOD | {"unfinished": 1})
    assert not list(regressions(before, Side(**GOOD | {"unfinished": 2, "runs": 8}), 0.5))
    assert list(regressions(before, Side(**GOOD | {"unfinished": 2}), 0.5))


def kept(path: Path, scenario: str, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "scenario": scenario,
        "target": "keelmq",
        "drills": [{"rto_ms": 100.0, "unfinished": None}],
        "acked_total": 500,
        "lost_total": 0,
        "unfinished_total": 0,
    }
    path.write_text(json.dumps(result | more))
    return path


def test_runs_that_were_not_judged_are_no_runs_without_a_loss(tmp_path: Path) -> None:
    liar = {"drills": [{"rto_ms": 100.0, "unfinished": None, "judged": True}], "lied": ["broker-a-0"]}
    a, b = kept(tmp_path / "a.json", "lying_sync"), kept(tmp_path / "b.json", "lying_sync", **liar)
    out = tmp_path / "out.json"
    said = Shell()("drill", "compare", str(a), str(b), "--json", str(out), code=3)
    assert "not judged: 0 in 1 runs, now 1 in 1" in said
    after = json.loads(out.read_text())["faults"][0]["after"]
    assert (after["lost"], after["judged"], after["unjudged"], after["runs"]) == (None, 0, 1, 1)
    unfinished = [{"unfinished": "not full", "judged": False}]
    kept(b, "lying_sync", drills=unfinished, unfinished_total=1)
    assert measured([json.loads(b.read_text())]) == Side(**NEVER)
    before, later = Side(**GOOD | {"lost": 2}), Side(**GOOD | {"lost": 1, "judged": 1})
    assert [code for code, _ in regressions(before, later, 0.5)] == [2], "one of one, not of four"


NEVER: dict[str, Any] = dict.fromkeys(GOOD) | {
    "runs": 1,
    "judged": 0,
    "acked": 500,
    "broken": 0,
    "unfinished": 1,
}


def test_two_directories_are_compared_fault_by_fault(tmp_path: Path) -> None:
    for name in ("a", "b"):
        kept(tmp_path / name / "1.json", "matrix/kill/default")
    kept(tmp_path / "a" / "2.json", "matrix/wipe/default", lost_total=3)
    a, b, out = str(tmp_path / "a"), str(tmp_path / "b"), tmp_path / "out.json"
    assert "nothing became worse" in Shell()("drill", "compare", a, b, "--json", str(out))
    told = json.loads(out.read_text())
    assert [row["fault"] for row in told["faults"]] == ["kill/default", "wipe/default"]
    assert json.loads(Shell()("drill", "compare", a, b, "--json", "-")) == told, "nothing else is on stdout"
    assert told["faults"][1]["after"] is None, "what one side lacks is shown, and judged by nobody"
    kept(tmp_path / "b" / "2.json", "matrix/kill/default", broken={"lost": 0, "phantom": 2})
    kept(tmp_path / "b" / "3.json", "matrix/wipe/default", lost_total=4)
    said = Shell()("drill", "compare", a, b, code=2)
    assert "worse kill/default: other violations" in said
    assert "worse wipe/default: lost: 3 in 1 runs, now 4 in 1" in said


@pytest.mark.parametrize("columns", [80, 200])
def test_no_number_is_cut_on_a_narrow_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    fault = "isolated_master_confirms_nothing_its_successor_lacks"
    a = kept(tmp_path / "a.json", fault, acked_total=1_234_567, drills=[{"rto_ms": 12_345.0}])
    b = kept(tmp_path / "b.json", fault, acked_total=7_654_321, drills=[{"rto_ms": 12_346.0}])
    said = Shell()("drill", "compare", str(a), str(b))
    assert all(text in said for text in (fault, "acknowledged", "1,234,567", "7,654,321", "12,345", "12,346"))
    assert "…" not in said


def test_both_systems_are_compared_by_the_drills_they_share(tmp_path: Path) -> None:
    ours = kept(tmp_path / "ours.json", "kill-master")
    theirs = kept(
        tmp_path / "theirs.json",
        "kill-master",
        target="rocketmq",
        drills=[{"rto_ms": 15_000.0}],
        lost_total=0,
    )
    page = tmp_path / "both.md"
    said = Shell()("drill", "compare", str(ours), str(theirs), "--markdown", str(page), code=1)
    head, _, *rows = page.read_text().splitlines()
    assert head.startswith("| fault | side | runs | acknowledged | lost |")
    assert {row.count("|") for row in rows} == {head.count("|")}
    assert ["(keelmq)" in row for row in rows] == [at % 2 == 0 for at in range(len(rows))]
    assert "(rocketmq)" in said
    assert "RTO p50, ms: 100, now 15,000" in said
    Shell()("drill", "compare", str(theirs), str(ours), code=0)
    other = kept(tmp_path / "other.json", "freeze-master")
    assert "no fault in common" in Shell()("drill", "compare", str(ours), str(other), code=3)


def test_modes_are_compared_by_what_they_promise_and_latencies_within_one_system(tmp_path: Path) -> None:
    for mode in ("default", "majority"):
        kept(tmp_path / "a" / f"{mode}.json", f"matrix/kill/{mode}")
    for mode in ("default", "master-alone", "all-ack"):
        name = f"matrix/kill/{mode}"
        kept(tmp_path / "b" / f"{mode}.json", name, target="rocketmq", lost_total=int(mode != "all-ack"))
    assert {name: len(found) for name, found in load(tmp_path / "b").items()} == {
        "kill/master-alone": 2,
        "kill/default": 1,
    }
    assert "nothing became worse" in Shell()("drill", "compare", str(tmp_path / "a"), str(tmp_path / "b"))
    slow = Side(**GOOD | {"latency_p99_ms": 900.0, "target": "rocketmq"})
    assert not list(regressions(Side(**GOOD), slow, 0.5))


def test_what_is_no_result_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[]")
    assert "no result of a drill" in Shell()("drill", "compare", str(wrong), str(wrong), code=64)


@pytest.mark.parametrize(
    "more",
    [
        {"lost_total": "x"},
        {"acked_total": float("inf")},
        {"drills": [{"rto_ms": "x"}, {"rto_ms": 1}]},
        {"timeline": [1]},
        {"availability": "high"},
    ],
    ids=["text", "endless", "mixed", "timeline", "share"],
)
def test_what_holds_a_number_that_is_none_is_no_result(tmp_path: Path, more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"wrong\.json is no result of a drill"):
        load(kept(tmp_path / "wrong.json", "kill-master", **more))
