"""A verdict lists every promise: held, broken, or not judged. What nobody looked at is not held."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any
from xml.etree import ElementTree

from chaos.checks import CHECKERS, Evidence, Promised, judged
from chaos.drills.junit import junit
from chaos.drills.live.kept import never_began
from chaos.drills.live.scenario import DrillResult, DrillSpec, _judge
from chaos.drills.live.verdicts import BESIDE, told, words
from chaos.drills.measure import Drill
from chaos.history import ControllerAnswer, History, Invoke, Observed, Read
from chaos.live.outcome import Outcome
from chaos.scenarios import Plan
from cli.drill_report import page
from tests.chaos.good import QUEUES, good_events, good_evidence


def run(**more: Any) -> dict[str, Any]:
    drill = Drill(full_again_ms=1.0)
    broken = _judge(drill, History(good_events()), QUEUES, 400.0, Plan([]))
    found = DrillResult(drill, Outcome(), History(good_events()), {}, 400.0, broken)
    found.spent_s = {"healing": 1.5, "reading": 2.0}
    return found.to_json(DrillSpec(scenario="x", seed=1, plan=Plan([]))) | more


def test_what_has_nothing_to_look_at_is_not_judged() -> None:
    every = set(CHECKERS)
    good = good_evidence()
    assert every - set(judged(good)) == {"serves_with_a_majority", "set_kept"}
    theirs = Evidence(History([e for e in good_events() if not isinstance(e, Observed | ControllerAnswer)]))
    assert every - set(judged(theirs)) == {
        "serves_with_a_majority",
        "set_kept",
        "controllers_agree",
        "one_master_per_epoch",
        "confirmed_never_back",
        "replicas_identical",
        "replicas_converged",
    }
    left = set(judged(good)) - set(judged(replace(good, complete=False)))
    assert left == {"lost", "read_then_gone", "replicas_converged"}
    liars = judged(replace(good, forgiven=Promised(lied=True)))
    assert set(liars) == {"phantom", "one_master_per_epoch", "controllers_agree", "no_errors"}


def test_a_result_says_of_every_promise_what_came_of_it() -> None:
    checks = run()["checks"]
    assert set(checks) >= {*CHECKERS, *BESIDE}
    assert (checks["lost"], checks["no_errors"]) == ("held", "held")
    assert {checks[name] for name in (*BESIDE, "replicas_converged")} == {"not judged"}
    assert words(["lost"], {"lost": 2, "a stranger's": 1})["lost"] == "broken"
    assert words(["lost"], {"a stranger's": 1})["a stranger's"] == "broken"


def test_a_page_and_its_xml_list_them() -> None:
    text = page(run(), "run.json")
    for name, word in run()["checks"].items():
        assert f"<td>{name}</td><td>{word}</td>" in text
    broken = run(broken={"lost": 30}, violations=[{"checker": "lost", "text": "k1 is gone"}])
    assert "<td>lost</td><td>broken: 30</td><td>k1 is gone<br>" in page(broken, "run.json")
    (case,) = ElementTree.fromstring(junit([run()]).encode())
    assert case.get("time") == "3.5"
    lines = (case.findtext("system-out") or "").splitlines()
    assert {"lost: held", "replicas_converged: not judged"} <= set(lines)


def test_a_result_of_before_has_the_seven_that_it_counted() -> None:
    former = run()
    del former["checks"]
    former["drills"] = [asdict(Drill(judged=True))]
    text = page(former, "run.json")
    assert "<td>lost</td><td>held</td>" in text
    assert "no_errors" not in text


def test_a_screen_names_what_was_not_judged() -> None:
    assert told({"lost": "held", "order": "held", "consumed": "not judged", "extras": "broken"}) == (
        "2 promises held; not judged: consumed"
    )


def test_of_a_history_without_events_nothing_is_held() -> None:
    """What nobody sent was not lost, and what nobody read was not made up: no check has looked."""
    assert judged(Evidence(History([]))) == []
    good = good_events()
    unread = set(judged(Evidence(History([e for e in good if not isinstance(e, Read)]))))
    assert not unread & {"phantom", "duplicates", "read_then_gone", "dense_offsets"}
    assert {"lost", "producer_order", "real_time_order", "acknowledged_twice", "offset_reuse"} <= unread
    unacked = set(judged(Evidence(History([e for e in good if isinstance(e, Invoke | Read)]))))
    assert not unacked & {"lost", "producer_order", "real_time_order", "acknowledged_twice"}
    assert {"phantom", "duplicates", "offset_reuse", "no_errors"} <= unacked
    keys = frozenset(e.key for e in good if isinstance(e, Invoke))
    assert "lost" not in judged(replace(good_evidence(), forgiven=Promised(gone=keys)))


def test_of_a_drill_that_came_to_no_end_and_names_no_checks_nothing_is_held() -> None:
    spec = DrillSpec(scenario="x", seed=1, plan=Plan([]))
    text = page(never_began(spec, OSError("no room")), "run.json")
    assert "<td>phantom</td><td>not judged</td>" in text
    assert "<td>held</td>" not in text
