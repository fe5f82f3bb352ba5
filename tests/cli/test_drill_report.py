"""The promise of a drill's page: all that was seen is on one axis of time; the verdict is the result's."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from chaos.drills.campaign import Campaign
from chaos.drills.compare import load
from chaos.drills.drill import summary
from chaos.drills.junit import junit
from chaos.drills.live.kept import never_began
from chaos.drills.live.scenario import DrillResult, DrillSpec
from chaos.drills.load import DrillPlan
from chaos.drills.measure import Drill, by_queue, judge, outages
from chaos.drills.timeline import strikes_ms, timeline
from chaos.faults import Isolate, Step
from chaos.history import (
    CONTROLLER_ROLE,
    ENDED_FAULT,
    LAUNCHED,
    Fail,
    Happened,
    History,
    Invoke,
    Observed,
    Ok,
    Read,
    Unknown,
)
from chaos.live.outcome import Outcome
from chaos.scenarios import Plan
from cli.drill_report import VERDICTS, _beside, overview, page
from client.message import Queue
from model.errors import MqError
from tests.browser import CONTRAST, WIDTHS, browser
from tests.live.commands import Shell

QUEUE = Queue("chaos", "broker-a", 0)


def history() -> History:
    """Acknowledged every 10 ms, but for 80 ms from 500 on, when the master was isolated."""
    events: list[Any] = []
    for at in range(0, 1000, 10):
        if not 500 <= at < 580:
            events.append(Invoke(at, "p0", f"k{at}", QUEUE, 1))
            events.append(Ok(at + 4.0, "p0", f"k{at}", QUEUE, at // 10, at, "127.0.0.1:1"))
        elif at == 500:
            events += [Invoke(494.0, "p1", "r", QUEUE, 1), Fail(580.0, "p1", "r", "the master is gone")]
        if at % 100 == 0:
            master = "broker-a-0" if at < 500 else "broker-a-1"
            for name in ("broker-a-0", "broker-a-1"):
                role, epoch = ("master" if name == master else "slave"), 1 + (at >= 500)
                events.append(Observed(at, name, 1, role, epoch, 0, 0))
    events += [Happened(500.0, "broker-a-0", "isolate"), Happened(900.0, "", "heal")]
    events += [Happened(950.0, "broker-a-1", "reset_links")]
    return History(events)


def result(**drill: Any) -> dict[str, Any]:
    plan = Plan([Step(500, Isolate("master"))])
    seen: dict[str, Any] = {"acked": 92, "rto_ms": 90.0, "judged": True, "checks": ["lost", "phantom"]}
    found = DrillResult(Drill(**seen | drill), Outcome(), history(), {}, 1000.0)
    told = found.to_json(DrillSpec(scenario="isolated", seed=4, plan=plan))
    # Nothing was read back in this history: that all was there is the drill's word.
    return told | {"per_queue": [queue | {"lost": 0} for queue in told["per_queue"]]}


def test_an_outage_of_80_ms_is_a_gap_of_the_timeline() -> None:
    found = timeline(history(), 1000.0)
    assert found["gaps"] == [[494.0, 584.0]]
    assert sum(found["acks"]) == 92
    assert found["acks"][25:28] == [0, 0, 0]
    assert (found["latency_p50_ms"], found["latency_p99_ms"]) == (4.0, 4.0)
    assert max(found["latency_max_ms"]) == 4.0


def test_faults_last_until_their_repair_and_roles_until_the_next() -> None:
    found = timeline(history(), 1000.0)
    spans = [(one["fault"], one["node"], one["from_ms"], one["to_ms"]) for one in found["faults"]]
    assert spans == [("isolate", "broker-a-0", 500.0, 900.0), ("reset_links", "broker-a-1", 950.0, 950.0)]
    roles = [(one["node"], one["role"], one["epoch"], one["from_ms"], one["to_ms"]) for one in found["roles"]]
    assert roles == [
        ("broker-a-0", "master", 1, 0, 500),
        ("broker-a-0", "slave", 2, 500, 900),
        ("broker-a-1", "slave", 1, 0, 500),
        ("broker-a-1", "master", 2, 500, 900),
    ]


@pytest.mark.parametrize("end", ["no_descriptors", "kill", "stop", "power_fail"])
def test_a_process_lacks_descriptors_until_it_gets_them_back_or_ends(end: str) -> None:
    fields = {"lacking": False} if end == "no_descriptors" else {}
    struck = [Happened(10.0, "b1", "no_descriptors", {"lacking": True}), Happened(20.0, "b2", end, fields)]
    struck += [Happened(30.0, "b1", end, fields)]
    first = timeline(History(struck), 100.0)["faults"][0]
    assert (first["fault"], first["from_ms"], first["to_ms"]) == ("no_descriptors", 10.0, 30.0)


def test_a_fault_that_no_step_ends_lasts_until_it_ended_and_a_clock_until_it_is_right_again() -> None:
    struck = [
        Happened(10.0, "b1", "rolling_change", {"values": {}}),
        Happened(11.0, "b2", "sync_error", {"count": 1}),
        Happened(12.0, "b1", "clock_jump", {"by_ms": 5000}),
        Happened(13.0, "b1", "wipe"),
        Happened(20.0, "b1", ENDED_FAULT, {"fault": "sync_error"}),
        Happened(21.0, "b2", ENDED_FAULT, {"fault": "sync_error"}),
        Happened(22.0, "b1", "clock_jump", {"by_ms": -5000}),
        Happened(23.0, "b1", "restart"),
        Happened(24.0, "b1", ENDED_FAULT, {"fault": "rolling_change"}),
    ]
    spans = [(one["fault"], one["to_ms"]) for one in timeline(History(struck), 100.0)["faults"]]
    assert spans == [("rolling_change", 24.0), ("sync_error", 21.0), ("clock_jump", 22.0), ("wipe", 23.0)]


def ended(fault: str, at_ms: float, **more: Any) -> Happened:
    return Happened(at_ms, "b1", ENDED_FAULT, {"fault": fault, **more})


BACK = Happened(6000.0, "b1", LAUNCHED)


@pytest.mark.parametrize(
    ("struck", "spans"),
    [
        (
            [Happened(25.0, "b1", "kill", {"by": "replace"}), BACK, ended("replace", 9000.0)],
            [("replace", 0.0, 6000.0)],
        ),
        (
            [
                Happened(25.0, "b1", "stop", {"by": "leave"}),
                ended("leave", 4000.0),
                Happened(4500.0, "b1", "join"),
                BACK,
            ],
            [("leave", 0.0, 6000.0)],
        ),
        (
            [Happened(25.0, "b1", "stop", {"by": "leave"}), ended("leave", 4000.0, refused=True)],
            [("leave", 0.0, 10_000.0)],
        ),
        ([Happened(5500.0, "b1", "restart"), BACK], [("kill", 0.0, 6000.0)]),
        ([Happened(5500.0, "b1", "restart")], [("kill", 0.0, 5500.0)]),
        ([Happened(12_000.0, "b1", LAUNCHED)], [("kill", 0.0, 10_000.0)]),
    ],
)
def test_a_server_that_an_operator_ends_is_one_strike_and_is_away_until_it_is_started(
    struck: list[Happened], spans: list[tuple[str, float, float]]
) -> None:
    first = Happened(0.0, "b1", spans[0][0])
    found = timeline(History([first, *struck]), 10_000.0)
    assert [(one["fault"], one["from_ms"], one["to_ms"]) for one in found["faults"]] == spans
    assert strikes_ms(found) == [0.0]


@pytest.mark.parametrize("fault", ["leave", "replace", "rolling_change", "upgrade", "hand_over"])
def test_what_an_operator_was_refused_before_he_touched_a_server_is_no_strike(fault: str) -> None:
    events = [Happened(10.0, "b1", fault), ended(fault, 4000.0, refused=True), BACK]
    assert strikes_ms(timeline(History(events), 9000.0)) == []
    done = [Happened(10.0, "b1", fault), ended(fault, 4000.0), BACK]
    assert strikes_ms(timeline(History(done), 9000.0)) == [10.0]
    seen: list[Any]
    if fault == "hand_over":  # it was not told in time, and came about
        seen = [Observed(at, "b2", 1, "master", epoch, 0, 0) for at, epoch in ((5.0, 3), (3000.0, 4))]
    else:
        seen = [Happened(500.0, "b2", "stop", {"by": fault})]
    assert strikes_ms(timeline(History([*events, *seen]), 9000.0)) != []


@pytest.mark.parametrize("by", [{}, {"by": "leave"}])
def test_a_server_that_stood_still_and_was_told_to_stop_is_away_by_that_until_it_is_started(
    by: dict[str, str],
) -> None:
    paused = Happened(10.0, "b1", "pause")
    stop = Happened(4000.0, "b1", "stop", by)
    spans = timeline(History([paused, stop, BACK]), 9000.0)["faults"]
    assert [(one["fault"], one["to_ms"]) for one in spans] == [("pause", 4000.0), ("stop", 6000.0)][
        : 2 - len(by)
    ]
    alone = timeline(History([paused, BACK]), 9000.0)["faults"]
    assert [one["to_ms"] for one in alone] == [6000.0]


@pytest.mark.parametrize("fault", ["rolling_change", "upgrade"])
def test_each_server_that_is_restarted_in_turn_is_a_strike_and_is_away_until_it_is_started(
    fault: str,
) -> None:
    events = [Happened(0.0, "b1", fault, {"values": {}}), ended(fault, 5000.0)]
    for at_ms, node in ((100.0, "b2"), (2100.0, "b1")):
        events += [Happened(at_ms, node, "stop", {"by": fault}), Happened(at_ms + 900, node, LAUNCHED)]
    found = timeline(History(events), 9000.0)
    spans = [(one["fault"], one["node"], one["from_ms"], one["to_ms"]) for one in found["faults"]]
    assert spans == [
        (fault, "b1", 0.0, 5000.0),
        ("stop", "b2", 100.0, 1000.0),
        ("stop", "b1", 2100.0, 3000.0),
    ]
    assert strikes_ms(found) == [100.0, 2100.0]
    alone = timeline(History(events[:2]), 9000.0)
    assert strikes_ms(alone) == [0.0], "no server's stop is known"


def test_what_struck_one_start_ends_with_the_next_and_not_with_what_is_mended_after_the_load() -> None:
    struck = [
        Happened(10.0, "b1", "lost_log"),
        Happened(11.0, "b2", "torn_write"),
        Happened(12.0, "b3", "memory_limit", {"lacking": True}),
        Happened(13.0, "b4", "read_only_disk", {"read_only": True}),
        Happened(14.0, "b5", "clock_drift", {"rate": 1.1}),
        Happened(20.0, "b1", "restart"),
        Happened(21.0, "b2", "restart"),
        Happened(22.0, "b3", "kill"),
        Happened(23.0, "b4", "read_only_disk", {"read_only": False}),
        Happened(24.0, "b5", "clock_drift", {"rate": 1.0}),
    ]
    spans = {one["fault"]: one["to_ms"] for one in timeline(History(struck), 100.0)["faults"]}
    assert spans == {
        "lost_log": 20.0,
        "torn_write": 21.0,
        "memory_limit": 22.0,
        "read_only_disk": 23.0,
        "clock_drift": 24.0,
        "kill": 100.0,
    }


def test_an_outage_that_does_not_end_is_a_gap_and_a_send_without_an_answer_was_waited_for() -> None:
    queue = Queue("t", "g", 0)
    events: list[Any] = []
    for at in range(0, 100, 10):
        events += [Invoke(at, "p", f"k{at}", queue, 1), Ok(at + 2.0, "p", f"k{at}", queue, at, at)]
    events += [Invoke(100.0, "p", "a", queue, 1), Unknown(700.0, "p", "a", "timeout")]
    events += [Invoke(700.0, "p", "b", queue, 1)]
    found = timeline(History(events), 1000.0)
    assert found["gaps"] == [[100.0, 1000.0]]
    assert (found["latency_p50_ms"], found["latency_p99_ms"]) == (2.0, 600.0)


def test_a_page_says_whose_client_sent_and_read() -> None:
    told = result() | {"client": "java", "java_client": {"version": "5.5.0"}}
    assert "on keelmq, load by the official Java client 5.5.0, seed" in page(told, "run.json")
    assert "official Java client" not in page(result(), "run.json")


def test_each_strikes_outage_is_counted_for_each_queue() -> None:
    one, other = Queue("t", "g", 0), Queue("t", "g", 1)
    events: list[Any] = []
    for queue, back in ((one, 300.0), (other, 400.0)):
        asked = 0.0
        for at in (*range(0, 200, 10), *range(int(back), 1000, 10)):
            key = f"{queue.queue_id}-{at}"
            events += [Invoke(asked, "p", key, queue, 1), Ok(float(at), "p", key, queue, at, at)]
            asked = at
    assert outages(History(events), [190.0, 600.0], 990.0) == [110.0, 210.0, 10.0, 10.0]
    events += [Happened(190.0, "b", "reset_links"), Happened(600.0, "b", "reset_links")]
    result = DrillResult(Drill(), Outcome(), History(events), {}, 990.0)
    told = result.to_json(DrillSpec(scenario="x", seed=1, plan=Plan([])))
    assert told["rto_strikes_ms"] == [110.0, 210.0, 10.0, 10.0]
    assert (told["rto_p50_ms"], told["rto_p99_ms"], told["rto_max_ms"]) == (10.0, 210.0, 210.0)


def test_each_queue_has_its_own_outages_and_losses() -> None:
    one, other = Queue("t", "g", 0), Queue("t", "g", 1)
    events: list[Any] = []
    for queue, back in ((one, 300), (other, 400)):
        asked = 0.0
        for at in (*range(0, 200, 10), *range(back, 1000, 10)):
            key = f"{queue.queue_id}-{at}"
            events += [Invoke(asked, "p", key, queue, 1), Ok(float(at), "p", key, queue, at, at)]
            asked = at
            if queue == one or at != 500:
                events.append(Read(1000.0, "c", key, queue, at, 1, final=True))
    every = History(events)
    found = by_queue(every, every, [190.0, 600.0], 990.0, judged=True)
    assert [(row["queue"], row["lost"], row["rto_p50_ms"], row["rto_max_ms"]) for row in found] == [
        ("t@g/0", 0, 10.0, 110.0),
        ("t@g/1", 1, 10.0, 210.0),
    ]
    assert [row["lost"] for row in by_queue(every, every, [], 990.0, judged=False)] == [None, None]
    spec = DrillSpec(scenario="x", seed=1, plan=Plan([]))
    told = DrillResult(Drill(full_again_ms=1.0, judged=True), Outcome(), History(events), {}, 990.0)
    assert [row["lost"] for row in told.to_json(spec)["per_queue"]] == [0, 1]
    assert "<td>t@g/1</td>" in page(told.to_json(spec), "run.json")
    told.drill.judged = False
    assert [row["lost"] for row in told.to_json(spec)["per_queue"]] == [None, None], "nobody knows"


@pytest.mark.parametrize("all_gone", [False, True])
def test_the_queues_of_a_run_have_lost_and_acknowledged_what_the_run_has(all_gone: bool) -> None:
    """What is only at another offset is lost; what a client that ignores routes was told counts, too."""
    one, other = Queue("t", "g", 0), Queue("t", "g", 1)
    events: list[Any] = []
    for at, (process, queue) in enumerate(
        [("p", one), ("stubborn0", one), ("stubborn1", other), ("p", other)]
    ):
        events += [Invoke(at, process, f"k{at}", queue, 1), Ok(at + 1.0, process, f"k{at}", queue, at, at)]
    if not all_gone:
        events += [Read(9.0, "c", "k0", one, 5, 1, final=True), Read(9.0, "c", "k3", other, 3, 1, final=True)]
    drill = Drill(full_again_ms=1.0)
    judge(drill, History(events))
    told = DrillResult(drill, Outcome(), History(events), {}, 9.0)
    found = told.to_json(DrillSpec(scenario="x", seed=1, plan=Plan([])))
    rows = [(row["acked"], row["lost"]) for row in found["per_queue"]]
    assert rows == [(2, 2), (2, 2 if all_gone else 1)]
    assert (found["acked_total"], found["lost_total"]) == tuple(map(sum, zip(*rows, strict=True)))


def test_two_results_stand_beside_each_other_and_a_folder_is_one_side(tmp_path: Path) -> None:
    one, other, folder = tmp_path / "ours.json", tmp_path / "theirs.json", tmp_path / "matrix"
    one.write_text(json.dumps(result()))
    lost = [{"checker": "lost", "text": "<k1> is gone"}]
    theirs = result(violations=lost) | {"target": "rocketmq", "lost_total": 1, "broken": {"lost": 1}}
    other.write_text(json.dumps(theirs))
    out = tmp_path / "both.html"
    Shell()("drill", "report", str(one), str(other), "--out", str(out))
    text = out.read_text(encoding="utf-8")
    assert "A promise was broken." in text
    assert text.count('role=img aria-label="') == 2, "both are drawn"
    assert text.count("<td>isolated</td><td>ours.json (keelmq)</td>") == 1
    assert text.count("<td>isolated</td><td>theirs.json (rocketmq)</td>") == 1
    assert "&lt;k1&gt; is gone" in text
    assert "chaos@broker-a/0" in text
    assert not any(word in text for word in ("http:", "https:", "src=", "<script"))
    folder.mkdir()
    for seed in (1, 2):
        (folder / f"kill-{seed}.json").write_text(json.dumps(result() | {"scenario": "matrix/kill/default"}))
    said = Shell()("drill", "report", str(folder), "--junit", str(tmp_path / "all.xml")).strip()
    text = Path(said).read_text(encoding="utf-8")
    assert said == str(tmp_path / "matrix.html")
    assert "<td>kill/default</td><td>matrix (keelmq)</td><td class=n>2</td>" in text
    assert "role=img" not in text, "of many none is drawn"
    assert 'tests="2"' in (tmp_path / "all.xml").read_text()
    wrong = folder / "wrong.json"
    wrong.write_text("{}")
    assert "wrong.json is no result of a drill" in Shell()("drill", "report", str(folder), code=64)
    assert "There are no results." in overview([("empty", {})])


def test_a_run_thatnever_began_has_its_place_on_a_page(tmp_path: Path) -> None:
    spec = DrillSpec(scenario="matrix/kill/default", seed=2, plan=Plan([]))
    never = never_began(spec, MqError("no port is free"))
    former = {**spec.to_json(), "drills": [{"unfinished": "no port is free"}], "unfinished_total": 1}
    for name, one in (("former", former), ("never", never), ("began", result())):
        (tmp_path / f"{name}.json").write_text(json.dumps(one))
    out = str(tmp_path / "all.html")
    Shell()("drill", "report", str(tmp_path), "--out", out)
    assert Path(out).read_text(encoding="utf-8").count("no port is free") == 2
    assert "The drill did not come to its end." in page(never, "never.json")


def test_a_side_without_a_result_is_wrong_and_two_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b", "empty"):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "run.json").write_text(json.dumps(result()))
    one, other = (str(tmp_path / name / "run.json") for name in "ab")
    out = tmp_path / "both.html"
    said = Shell()("drill", "report", one, str(tmp_path / "empty"), "--out", str(out), code=64)
    assert "empty holds no result" in " ".join(said.split())
    assert not out.exists()
    Shell()("drill", "report", one, other, "--out", str(out))
    text = out.read_text(encoding="utf-8")
    assert f"{one} (keelmq) beside {other} (keelmq)" in text


def test_the_page_needs_nothing_from_outside_and_says_what_came() -> None:
    text = page(result(), "run.json")
    assert "Nothing acknowledged is missing." in text
    assert "broker-a-1 master, epoch 2: 500 to 900 ms" in text
    assert "isolate broker-a-0: 500 to 900 ms" in text
    assert text.count("no acknowledgement for 90 ms") == 6, (
        "a row each for acks, latency, two faults, two brokers"
    )
    assert not any(word in text for word in ("http:", "https:", "src=", "<script"))


def test_a_page_stands_alone() -> None:
    machine = {"cpus": 2, "system": "Linux-6", "load_1_min": 24.3}
    told = result() | {"at": "2026-11-29T11:39:45+00:00", "release": "abc1234", "machine": machine}
    text = page(told, "run.json")
    for name, value in (
        ("when", "2026-11-29T11:39:45+00:00"),
        ("release", "abc1234"),
        ("machine", "2 CPUs, Linux-6"),
        ("its load (1 min)", "24.3"),
        ("system", "keelmq"),
    ):
        assert f"<td>{name}</td><td>{value}</td>" in text
    share = f"{told['availability']:.1%}"
    assert f"<b>{share}</b><span>available while faults act" in text
    assert "<b>100.0%</b><span>available before them" in text
    assert "What ran" in page({**result(), "machine": None}, "run.json"), "of former results, too"


def test_controllers_have_rows_with_who_leads() -> None:
    events: list[Any] = [
        Happened(5.0, "namesrv-0", CONTROLLER_ROLE, {"role": "leader", "term": 1}),
        Happened(5.0, "namesrv-1", CONTROLLER_ROLE, {"role": "follower", "term": 1}),
        Happened(500.0, "namesrv-0", CONTROLLER_ROLE, {"role": "silent", "term": 0}),
        Happened(600.0, "namesrv-1", CONTROLLER_ROLE, {"role": "leader", "term": 2}),
        Happened(950.0, "namesrv-0", CONTROLLER_ROLE, {"role": "follower", "term": 2}),
    ]
    spans = timeline(History([*history().events, *events]), 1000.0)["controllers"]
    assert [tuple(one.values()) for one in spans] == [
        ("namesrv-0", "leader", 1, 5.0, 500.0),
        ("namesrv-0", "follower", 2, 950.0, 1000.0),
        ("namesrv-1", "follower", 1, 5.0, 600.0),
        ("namesrv-1", "leader", 2, 600.0, 1000.0),
    ]
    told = result()
    told["timeline"]["controllers"] = spans
    text = page(told, "run.json")
    assert "namesrv-0 leads, term 1: 5 to 500 ms" in text
    assert "namesrv-1 leads, term 2: 600 to 1000 ms" in text
    del told["timeline"]["controllers"]
    assert "namesrv-0" not in page(told, "run.json"), "of former results nobody knows"


@pytest.mark.more
async def test_the_page_fits_and_is_readable_at_two_widths_light_and_dark(tmp_path: Path) -> None:
    told = tmp_path / "run.html"
    told.write_text(page(result(), "run.json"), encoding="utf-8")
    (kept := tmp_path / "run.json").write_text(json.dumps(result()))
    both = tmp_path / "both.html"
    both.write_text(overview([("a.json", load(kept)), ("b.json", load(kept))]), encoding="utf-8")
    async with browser(tmp_path / "profile") as tab:
        for width in WIDTHS:
            for dark, shown in ((dark, shown) for dark in (False, True) for shown in (told, both)):
                await tab.show(shown.as_uri(), width, dark)
                where = f"{shown.stem} at {width}, {'dark' if dark else 'light'}"
                assert await tab.run("document.documentElement.scrollWidth <= innerWidth"), where
                assert await tab.run(CONTRAST) == [], where
                gap = "document.querySelector('.gap').getBoundingClientRect()"
                assert await tab.run(f"{gap}.width >= 1 && {gap}.height > 20"), f"80 ms are seen {where}"
                await tab.shot(tmp_path / f"{shown.stem}-{width}-{'dark' if dark else 'light'}.png")
        assert tab.complaints == []


def test_a_broken_promise_and_what_was_refused_are_told() -> None:
    broken = result(violations=[{"checker": "one_master_per_epoch", "text": "<b> and c"}])
    text = page(broken, "run.json")
    assert "A promise was broken." in text
    assert "&lt;b&gt; and c" in text
    stopped = {"at_ms": 900.0, "violations": [], "last": {"broker-a-1": ["promoted <epoch=2>"], "drill": []}}
    text = page(broken | {"stopped": stopped}, "run.json")
    assert "left out after 900 ms" in text
    assert "promoted &lt;epoch=2&gt;" in text
    assert "<td>drill</td>" not in text
    refused = result() | {
        "faults": {"refused": [{"fault": "cut", "reason": "needs root"}]},
        "refused_total": 1,
    }
    assert "needs root" in page(refused, "run.json")
    assert "some faults could not be carried out" in page(refused, "run.json")


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"lied": ["broker-a-0"]}, "Not judged for losses, as the disk of broker-a-0 lied and lost power."),
        ({"drills": [{**asdict(Drill(acked=92))}]}, "Not judged for losses."),
        ({"drills": [], "acked_total": 0}, "The drill did not come to its end."),
        ({"campaign": True, "unfinished": None, "judged": False}, "Not judged for losses."),
    ],
)
def test_a_run_that_was_not_judged_for_losses_lost_nobody_knows_what(
    told: dict[str, Any], word: str, tmp_path: Path
) -> None:
    text = page(result() | told, "run.json")
    assert word in text
    assert "Nothing acknowledged is missing." not in text
    assert ">unknown</b>" in text, "RPO"
    assert "<td>lost</td><td>not judged</td>" in text
    assert ("<td>phantom</td><td>held</td>") in text
    (tmp_path / "1.json").write_text(json.dumps(result() | told))
    both = overview([("one", load(tmp_path))])
    assert "<td class=n>-</td>" in both
    assert VERDICTS["not judged" if told.get("drills") != [] else "unfinished"][1] in both
    assert ('errors="1"' if told.get("drills") == [] else 'skipped="1"') in junit([result() | told])


def test_a_campaign_is_judged_over_all_its_drills() -> None:
    campaign = Campaign([Drill(acked=5), Drill(acked=6)], Drill(acked=11, judged=True))
    told = campaign.to_json(DrillPlan(scenario="kill-master"), "keelmq")
    assert "Nothing acknowledged is missing." in page(told, "run.json")
    campaign.total.judged = False
    assert "Not judged for losses." in page(campaign.to_json(DrillPlan(scenario="x"), "keelmq"), "run.json")


def test_the_checks_are_written_as_junit_xml_beside_the_page(tmp_path: Path) -> None:
    out, xml = tmp_path / "run.json", tmp_path / "run.xml"
    out.write_text(json.dumps(result(violations=[{"checker": "lost", "text": "k1"}])))
    Shell()("drill", "report", str(out), "--junit", str(xml))
    assert 'failures="1"' in xml.read_text()
    assert (tmp_path / "run.html").exists()


def test_the_result_of_another_drill_has_a_page_too(tmp_path: Path) -> None:
    drills = [Drill(rto_ms=60.0, acked=10, victim="broker-a-0"), Drill(unfinished="not full again")]
    out = tmp_path / "kill.json"
    out.write_text(json.dumps(summary(DrillPlan(scenario="kill-master"), "rocketmq", drills)))
    said = Shell()("drill", "report", str(out)).strip()
    text = Path(said).read_text(encoding="utf-8")
    assert said == str(tmp_path / "kill.html")
    assert "kill-master on rocketmq" in text
    assert "not full again" in text


def test_the_page_of_a_folder_lies_beside_it_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "matrix.v2"
    folder.mkdir()
    assert _beside(folder) == tmp_path / "matrix.v2.html"
    assert _beside(Path(".")).name == f"{Path.cwd().name}.html"
    assert _beside(Path("/")).name == "drills.html"
    assert _beside(tmp_path / "run.json") == tmp_path / "run.html"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "line 1 column 1"),
        (b"[]", "Expected `object`"),
        (b"{}", "it has no drills"),
        (b'{"drills": 3}', "Expected `array`, got `int` - at `$.drills`"),
        (b'{"drills": [], "faults": {"refused": ["kill: no"]}}', "at `$.faults.refused[0]`"),
        (b'{"drills": [], "stopped": {"at_ms": 5, "why": "x"}}', "`last` - at `$.stopped`"),
        (b'{"drills": [], "availability": NaN}', "NaN is no number"),
        (b"[" * 200_000, "it is nested too deep"),
        (b"\xff\xfe" * 5000, "it is not text"),
    ],
)
def test_what_is_no_result_is_wrong_usage(content: bytes, why: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_bytes(content)
    said = Shell()("drill", "report", str(wrong), code=64)
    assert "no result of a drill" in said
    assert why in said
    assert len(said) < 500
