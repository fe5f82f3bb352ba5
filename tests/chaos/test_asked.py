"""chaos.drills.asked promises: an outage begins with a send that goes unanswered; not asked, none."""

from __future__ import annotations

import math
from typing import Any

from chaos.drills.asked import by_queue, longest, over_all
from chaos.drills.live.scenario import DrillResult, DrillSpec, _judge
from chaos.drills.measure import Drill
from chaos.drills.measure import by_queue as rows_of
from chaos.drills.timeline import availability, availability_before, timeline
from chaos.history import Fail, Happened, History, Invoke, Ok, Unknown
from chaos.live.outcome import Outcome
from chaos.scenarios import Plan
from client.message import Queue

ONE, OTHER = Queue("t", "g", 0), Queue("t", "g", 1)


def sent(queue: Queue, at: float, acked: float | None, moved: Queue | None = None) -> list[Any]:
    key = f"{queue.queue_id}-{at}"
    events: list[Any] = [Invoke(at, "p", key, queue, 1)]
    return events + ([] if acked is None else [Ok(acked, "p", key, moved or queue, int(at), int(at))])


def in_order(*parts: list[Any]) -> History:
    return History(sorted((event for part in parts for event in part), key=lambda event: event.at_ms))


def test_an_outage_begins_with_a_send_that_goes_unanswered() -> None:
    told = by_queue(in_order(sent(ONE, 100, 102), sent(ONE, 6268, 6311)))[ONE]
    assert told == [(100, 102), (6268, 6311)], "from 102 to 6,268 nobody asked"
    assert longest(told, 1000, 9000) == 43


def test_while_a_send_is_under_way_it_lasts_from_one_acknowledgement_to_the_next() -> None:
    told = by_queue(in_order(sent(ONE, 100, 900), sent(ONE, 150, 200), sent(ONE, 300, 350)))[ONE]
    assert told == [(100, 200), (200, 350), (350, 900)]


def test_a_refusal_ends_no_outage() -> None:
    for end in (Fail(140, "p", "a", "no"), Unknown(140, "p", "a", "silent")):
        told = by_queue(in_order([Invoke(100, "p", "a", ONE, 1), end], sent(ONE, 400, 410)))[ONE]
        assert told == [(100, 410)]


def test_one_that_does_not_end_lasts_to_the_end() -> None:
    spans = by_queue(in_order(sent(ONE, 100, None)))[ONE]
    assert spans == [(100, math.inf)]
    assert longest(spans, 0, 5000) == 4900


def test_a_send_that_another_queue_took_leaves_its_own_unanswered() -> None:
    told = by_queue(in_order(sent(ONE, 100, 150, OTHER), sent(ONE, 200, 230)))
    assert told == {ONE: [(100, 230)], OTHER: []}


def test_what_is_heard_of_late_is_in_its_place() -> None:
    late = History([*sent(ONE, 300, 350), *sent(ONE, 100, 200)])
    assert by_queue(late)[ONE] == [(100, 200), (300, 350)]


def test_all_queues_as_one_serve_when_any_does() -> None:
    told = over_all(in_order(sent(ONE, 100, 900), sent(OTHER, 300, 310)))
    assert told == [(100, 310), (310, 900)]
    assert over_all(History()) == []


def run(strike_ms: float, *parts: list[Any]) -> dict[str, Any]:
    struck = [Happened(strike_ms, "b", "kill"), Happened(strike_ms + 1, "b", "restart")]
    history, drill = in_order(struck, *parts), Drill(full_again_ms=1.0)
    _judge(drill, history, [ONE, OTHER], 9000.0, Plan([]))
    return DrillResult(drill, Outcome(), history, {}, 9000.0).to_json(
        DrillSpec(scenario="x", seed=1, plan=Plan([]))
    )


def test_a_queue_that_nobody_asked_has_no_rto() -> None:
    told = run(1000, sent(ONE, 100, 102), sent(OTHER, 100, 102), sent(ONE, 6268, 6311))
    assert told["rto_strikes_ms"] == [43]
    assert (told["rto_max_ms"], told["drills"][0]["rto_ms"]) == (43, 43)
    assert told["drills"][0]["rto_queues_ms"] == [43, None]
    assert told["drills"][0]["stall_ms"] == 43
    assert [row["rto_max_ms"] for row in told["per_queue"]] == [43, None]


def test_rows_of_queues_have_the_outages_of_clients_that_follow_routes() -> None:
    every = in_order(sent(ONE, 100, 102), sent(OTHER, 2000, 2500))
    rows = rows_of(in_order(sent(ONE, 100, 102)), every, [50.0], 9000.0, judged=False)
    assert [(row["acked"], row["rto_max_ms"]) for row in rows] == [(1, 2), (1, None)]


def test_a_thin_load_without_an_outage_is_available_all_the_time() -> None:
    """One send in 400 ms, each answered at once: three of four windows hold no acknowledgement."""
    parts = [sent(ONE, at, at + 5) for at in range(60, 9000, 400)]
    parts.append(sent(ONE, 1198, 1203))  # begun in one window and acknowledged in the next
    told = timeline(in_order([Happened(1000, "b", "kill")], *parts), 9000.0)
    assert availability(told) == 1.0
    assert told["gaps"] == []


def test_a_window_counts_as_not_available_only_while_somebody_waits() -> None:
    struck = [Happened(1000, "b", "kill"), Happened(1001, "b", "restart")]
    told = timeline(in_order(struck, sent(ONE, 1000, 1990), sent(ONE, 4010, 4015)), 9000.0)
    assert availability(told) == round(2 / 11, 4), "9 windows without, that of 1,990 and that of 4,015"
    assert told["gaps"] == [[1000.0, 1990.0]]


def test_what_the_machine_gives_without_a_fault_is_told_beside() -> None:
    slow = [sent(ONE, 10, 250), sent(ONE, 310, 320), sent(ONE, 1000, 1300)]
    told = timeline(in_order([Happened(500, "b", "kill")], *slow), 2000.0)
    assert availability_before(told) == 0.5
    assert availability_before(timeline(in_order(*slow), 2000.0)) is None
    assert run(500, *slow)["availability_before"] == 0.5


def test_a_result_of_before_keeps_its_windows() -> None:
    """Which of them were asked is not known."""
    told = timeline(in_order([Happened(1000, "b", "kill")], sent(ONE, 1000, 1010)), 2000.0)
    del told["asked"]
    assert availability(told) == 0.1
