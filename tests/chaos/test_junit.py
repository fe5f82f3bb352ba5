"""The promise of JUnit XML: each run is a test case, and what went wrong is what a CI server shows."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest

from chaos.drills.drill import summary
from chaos.drills.junit import junit
from chaos.drills.load import DrillPlan
from chaos.drills.measure import PROMISES, Drill


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
