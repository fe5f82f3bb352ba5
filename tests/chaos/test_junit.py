"""The promise of JUnit XML: each run is a test case, and what went wrong is what a CI server shows."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from chaos.drills import verdict
from chaos.drills.compare import measured, regressions
from chaos.drills.drill import summary
from chaos.drills.junit import junit
from chaos.drills.load import DrillPlan
from chaos.drills.measure import PROMISES, Drill
from chaos.drills.verdict import check_shape


def result(**more: Any) -> dict[str, Any]:
    return {"scenario": "matrix/kill/default", "seed": 4, "drills": [{}], "acked_total": 9, **more}


def test_each_run_is_a_case_with_what_went_wrong() -> None:
    refused = {"refused": [{"fault": "cut", "reason": "needs root"}]}
    text = junit(
        [
            result(),
            result(violations=[{"checker": "lost", "text": "k1 <\x00>"}], lost_total=1, target="rocketmq"),
            result(drills=[{"unfinished": "not full\nagain"}]),
            result(faults=refused),
        ]
    )
    suite = ElementTree.fromstring(text.encode())
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    good, broken, unfinished, skipped = suite
    assert [part.tag for part in good] == ["system-out"]
    assert (good.get("classname"), good.get("name")) == ("keelmq.matrix/kill/default", "seed 4")
    assert broken.findtext("failure") == "lost: k1 <?>\nlost: 1"
    assert broken.get("classname") == "rocketmq.matrix/kill/default"
    assert unfinished.find("error").get("message") == "not full"  # type: ignore[union-attr]
    assert skipped.findtext("skipped") == "cut: needs root"
    assert "acked: 9" in (good.findtext("system-out") or "")


@pytest.mark.parametrize("promise", PROMISES)
def test_every_broken_promise_of_a_plain_drill_is_a_failure(promise: str) -> None:
    drill = Drill()
    setattr(drill, promise, 1)
    assert drill.violated
    drill.violations = [{"checker": "some_check", "text": "k1 before k0"}]
    plan = DrillPlan(scenario="kill-master", seed=1)
    (case,) = ElementTree.fromstring(junit([summary(plan, "keelmq", [Drill(), drill])]).encode())
    assert case.findtext("failure") == f"some_check: k1 before k0\n{promise}: 1"


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({}, "held"),
        ({"drills": [{"judged": True, "violations": [{"checker": "x", "text": "y"}]}]}, "broken"),
        ({"drills": [{"judged": True, "lost": 5}]}, "broken"),
        ({"drills": [{"judged": True, "acknowledged_twice": 2}]}, "broken"),
        ({"per_queue": [{"queue": "q", "lost": 3}]}, "broken"),
        ({"broken": {"one_master_per_epoch": 3}}, "broken"),
        ({"faults": {"errors": ["broker-a-0 ended with 139"]}}, "broken"),
        ({"lost_total": 5}, "broken"),
        ({"checks": {"lost": "broken"}}, "broken"),
        ({"stopped": {"at_ms": 5.0, "last": {}}}, "broken"),
        ({"drills": [{"judged": True, "unfinished": "not full"}]}, "unfinished"),
        ({"unfinished_total": 1}, "unfinished"),
        ({"drills": []}, "unfinished"),
        ({"acked_total": 0}, "unfinished"),
        ({"faults": {"done": {}, "missed": {"kill": 2}}}, "unfinished"),
        ({"bug": "skip_sync"}, "unfinished"),
        ({"drills": [{"judged": False}]}, "not judged"),
        ({"untried": ["flip_bit"]}, "held, in part"),
    ],
)
def test_the_worst_that_a_result_says_is_its_word_for_all_that_read_it(
    changed: dict[str, Any], word: str
) -> None:
    """The page's headline, the case in JUnit and what compare counts cannot differ."""
    good = result(drills=[{"judged": True}], acked_total=9)
    found = good | changed
    check_shape(found)
    assert verdict.word(found) == word
    (case,) = ElementTree.fromstring(junit([found]).encode())
    tags = {"broken": "failure", "unfinished": "error", "not judged": "skipped", "held, in part": "skipped"}
    assert [part.tag for part in case if part.tag != "system-out"] == ([tags[word]] if word in tags else [])
    before, after = measured([good]), measured([found])
    assert before is not None
    assert after is not None
    assert any(code for code, _ in regressions(before, after, 0.25)) == (word in tags)


def test_what_breaks_order_is_counted_once() -> None:
    """By check, and in all."""
    found = result(broken={"producer_order": 8, "real_time_order": 19, "lost": 2}, order_violations_total=27)
    assert (verdict.others(found), verdict.broken(found)["lost"]) == (27, 2)
