"""The promise of times: a strike is one, whatever its plan did to go on with it, and no outage is cut."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from admin.outfile import CannotWrite
from chaos.drills.live import commands
from chaos.drills.live.counted import Counted
from chaos.drills.live.results import available, outages_ms
from chaos.drills.live.scenario import DrillResult, DrillSpec
from chaos.drills.measure import Drill
from chaos.drills.timeline import ENDS, OFF, availability, strikes_ms, timeline
from chaos.faults import kind_of
from chaos.history import GOES_ON, LAUNCHED, Happened, History, Invoke, Ok
from chaos.live.outcome import Outcome
from chaos.scenarios.matrix import KINDS, plan
from client.message import Queue

ON = {GOES_ON: True}
SHORT = [Happened(1000.0, "b1", "kill"), Happened(1400.0, "b1", LAUNCHED)]
WIPE = [
    Happened(1000.0, "b1", "kill"),
    Happened(1800.0, "b1", "wipe", ON),
    Happened(1900.0, "b1", LAUNCHED),
]
DISK_ERROR = [
    Happened(1000.0, "b1", "sync_error", {"count": 1}),
    Happened(1100.0, "b1", "fault_ended", {"fault": "sync_error"}),
    Happened(3000.0, "b1", "kill", ON),
    Happened(3200.0, "b1", LAUNCHED),
]
FLAPS = [Happened(1000.0 + 100 * n, "b1", "partition", ON if n else {}) for n in range(5)]


def acked(until_ms: int, *silent: tuple[int, int], queues: int = 2) -> list[Any]:
    """An acknowledgement of each queue every 50 ms, but not in between. Each send begins with the
    acknowledgement before it; the last one has none."""
    events: list[Any] = []
    for number in range(queues):
        queue, asked = Queue("t", "g", number), 0.0
        for at in range(0, until_ms, 50):
            if not any(begin < at < end for begin, end in silent):
                key = f"{number}-{at}"
                events += [Invoke(asked, "p", key, queue, 1), Ok(float(at), "p", key, queue, at, at)]
                asked = float(at)
        events.append(Invoke(asked, "p", f"{number}-last", queue, 1))
    return events


@pytest.mark.parametrize("struck", [SHORT, WIPE, DISK_ERROR, FLAPS])
def test_what_a_plan_does_to_go_on_with_a_strike_is_no_strike_of_its_own(struck: list[Happened]) -> None:
    assert strikes_ms(timeline(History(struck), 9000.0)) == [1000.0]


def test_a_server_that_was_only_looked_at_before_is_struck_by_what_comes_first() -> None:
    struck = [Happened(100.0, "b1", "look"), Happened(900.0, "b1", "kill", ON)]
    assert strikes_ms(timeline(History(struck), 9000.0)) == [900.0]


def test_a_strike_has_one_outage_a_queue() -> None:
    history = History([*acked(20_000, (1000, 1400)), *WIPE])
    told = DrillResult(Drill(), Outcome(), history, {}, 20_000.0).to_json(
        DrillSpec(scenario="matrix/wipe/default", seed=1, plan=plan("wipe", "default", 1, 1))
    )
    assert (told["strikes_ms"], told["rto_strikes_ms"]) == ([1000.0], [400.0, 400.0])
    assert Counted.of([told]).rto_p50_ms == 400.0


def earlier(kind: str, struck: list[Happened], *silent: tuple[int, int]) -> dict[str, Any]:
    """A result as it was kept before it was noted who goes on with a strike."""
    unsaid = [
        Happened(e.at_ms, e.node, e.name, {k: v for k, v in e.fields.items() if k != GOES_ON}) for e in struck
    ]
    history = History([*acked(20_000, *silent), *unsaid])
    spec = DrillSpec(scenario=f"matrix/{kind}/default", seed=1, plan=plan(kind, "default", 1, 1))
    told = DrillResult(Drill(judged=True), Outcome(), history, {}, 20_000.0).to_json(spec)
    del told["strikes_ms"]
    return json.loads(json.dumps(told))  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "struck"), [("wipe", WIPE), ("sync_error", DISK_ERROR)])
def test_of_an_earlier_result_the_parts_of_a_strike_are_put_together(
    kind: str, struck: list[Happened]
) -> None:
    told = earlier(kind, struck, (1000, 1400))
    assert len(told["rto_strikes_ms"]) == 4, "two for one"
    assert outages_ms(told) == [400.0, 400.0]
    across = earlier(kind, struck, (900, 3900))
    assert outages_ms(across) == [3000.0, 3000.0], "also of one that lasted over both"
    assert outages_ms(earlier("kill", SHORT, (1000, 1400))) == [400.0, 400.0]


def test_an_outage_after_the_mend_is_not_cut() -> None:
    """Down for 69 s, restarted after 1: of all of them something is said."""
    late = [Happened(1000.0, "b1", "kill"), Happened(2000.0, "b1", LAUNCHED)]
    told = timeline(History([*acked(90_000, (1000, 70_000)), *late]), 90_000.0)
    assert availability(told) == pytest.approx(1 / 690, abs=1e-4)
    never = timeline(History([*acked(1001), *late]), 60_000.0)
    assert availability(never) == pytest.approx(1 / 590, abs=1e-4)
    short = timeline(History([*acked(90_000, (1000, 1400)), *SHORT]), 90_000.0)
    assert availability(short) == pytest.approx(51 / 54, abs=1e-4), "what was back at once has its 5 s"


def test_availability_of_an_earlier_result_is_counted_anew() -> None:
    told = earlier("kill", SHORT, (1000, 1400))
    assert available({**told, "availability": 0.1}) == told["availability"]
    assert available({"availability": 0.1}) == 0.1, "of one that kept no bins nothing else is known"


@pytest.mark.parametrize("name", OFF)
def test_what_is_switched_off_ends_by_its_own_name_and_is_a_field_of_its_fault(name: str) -> None:
    field, off = OFF[name]
    kind = kind_of(name)
    assert kind is not None
    assert kind("b1").to_json()[field] != off
    assert name in ENDS[name]
    told = timeline(
        History([Happened(1.0, "b1", name, kind("b1").to_json()), Happened(5.0, "b1", name, {field: off})]),
        9.0,
    )
    assert [(one["from_ms"], one["to_ms"]) for one in told["faults"]] == [(1.0, 5.0)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_of_so_many_strikes_that_was_carried_out_is_counted_as_so_many(kind: str) -> None:
    steps = plan(kind, "default", 3, 4).steps
    done: dict[str, int] = {}
    for step in steps:
        done[step.fault.name] = done.get(step.fault.name, 0) + 1
    told = {
        "scenario": f"matrix/{kind}/default",
        "drills": [asdict(Drill(judged=True))],
        "faults": {"done": done},
    }
    assert Counted.of([told]).strikes == 4


def test_the_small_result_is_there_when_there_is_no_room_for_the_history(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = DrillSpec(scenario="x", seed=1, plan=plan("kill", "default", 1, 1))
    told = DrillResult(Drill(lost=1), Outcome(), History(), {})
    monkeypatch.setattr(commands, "carried_out", lambda *_: told)

    def full(*_: object) -> None:
        raise CannotWrite("no space left")

    monkeypatch.setattr(commands, "write_history", full)
    out = tmp_path / "run.json"
    outs = commands.Outs(history=tmp_path / "h.jsonl", ledger=None, keep=None, json=out)
    assert commands._carry_out(lambda: spec, outs) == 2
    assert json.loads(out.read_text())["lost_total"] == 1

    def broken(*_: object) -> dict[str, Any]:
        raise ValueError("ours to mend")

    monkeypatch.setattr(DrillResult, "to_json", broken)
    assert commands._carry_out(lambda: spec, outs) == 2, "a broken promise stays one"
