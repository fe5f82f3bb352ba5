"""The promise of the checks: a good run passes, and each way to spoil it is named by its checker."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from chaos.checks import AT_ANY_TIME, CHECKERS, Evidence, check_all, check_so_far
from chaos.checks.replicas import first_difference
from chaos.history import (
    ControllerAnswer,
    Fail,
    Happened,
    History,
    HistoryEvent,
    Invoke,
    Observed,
    Ok,
    Read,
    Unknown,
)
from client.message import Queue
from tests.chaos.good import QUEUES, SENDS, good_events, good_evidence, good_logs


def names(evidence: Evidence) -> set[str]:
    return {violation.checker for violation in check_all(evidence)}


def test_a_good_run_has_no_violation() -> None:
    assert check_all(good_evidence()) == []


def first(events: list[HistoryEvent], of: type, **fields: object) -> int:
    return next(
        number
        for number, event in enumerate(events)
        if isinstance(event, of) and all(getattr(event, name) == value for name, value in fields.items())
    )


def drop_final(events: list[HistoryEvent]) -> None:
    del events[first(events, Read, key="k7", final=True)]


def move_final(events: list[HistoryEvent]) -> None:
    at = first(events, Read, key="k19", final=True)
    read = events[at]
    assert isinstance(read, Read)
    events[at] = changed(read, queue_offset=read.queue_offset + 1)


def invent(events: list[HistoryEvent]) -> None:
    events.append(Read(999.0, "consumer", "nobody", QUEUES[0], 10, 1, final=True))


def change_bytes(events: list[HistoryEvent]) -> None:
    at = first(events, Read, key="k3", final=True)
    read = events[at]
    assert isinstance(read, Read)
    events[at] = changed(read, body_crc=7)


def refuse_a_stored_one(events: list[HistoryEvent]) -> None:
    at = first(events, Ok, key="k4")
    ok = events[at]
    assert isinstance(ok, Ok)
    events[at] = Fail(ok.at_ms, ok.process, ok.key, "no")


def store_twice(events: list[HistoryEvent]) -> None:
    events.append(Read(999.0, "consumer", "k18", QUEUES[1], 10, 1018, final=True))


def swap_offsets(events: list[HistoryEvent]) -> None:
    """Two messages of one producer change places, everywhere."""
    renamed = {"k0": "k16", "k16": "k0"}
    offsets = {
        key: event.queue_offset
        for key in renamed
        if isinstance(event := events[first(events, Ok, key=key)], Ok)
    }
    for number, event in enumerate(events):
        if isinstance(event, Ok | Read) and event.key in renamed:
            events[number] = changed(event, queue_offset=offsets[renamed[event.key]])


def give_one_offset_twice(events: list[HistoryEvent]) -> None:
    at = first(events, Invoke, key="k19")
    events.insert(at, Invoke(500.0, "p9", "extra", QUEUES[0], 1))
    events.append(Ok(501.0, "p9", "extra", QUEUES[0], 3, 100, "127.0.2.2:10911"))


def consume_and_lose(events: list[HistoryEvent]) -> None:
    events.insert(0, Invoke(1.0, "p9", "fleeting", QUEUES[0], 5))
    events.append(Read(50.0, "consumer", "fleeting", QUEUES[0], 77, 5))


def forget_the_end_of_the_reading(events: list[HistoryEvent]) -> None:
    """A consumer's reading back finds no queue at all, as if they were empty."""
    events[:] = [
        event
        for event in events
        if not (isinstance(event, Read) and event.final and event.source == "consumer")
    ]


def read_what_nobody_acknowledged_and_forget_it(events: list[HistoryEvent]) -> None:
    """A consumer read 0 to 5 of a queue that begins at 4 in the end; no answer of its sends arrived."""
    late = Queue("t", "broker-a", 7)
    for number in range(6):
        events.insert(2 * number, Invoke(1.0 + number, "p9", f"early{number}", late, 5))
        events.insert(2 * number + 1, Unknown(2.0 + number, "p9", f"early{number}", "timeout"))
        events.append(Read(50.0, "consumer", f"early{number}", late, number, 5))
    for source in ("consumer", "log of broker-2"):
        events += [
            Read(999.0, source, f"early{number}", late, number, 5, final=True) for number in range(4, 6)
        ]


def overtake(events: list[HistoryEvent]) -> None:
    """Another producer begins after an acknowledgement and gets a lower offset."""
    at = first(events, Ok, key="k17")
    ok = events[at]
    assert isinstance(ok, Ok)
    late = Queue("t", "broker-a", 5)
    events += [
        Invoke(600.0, "p0", "slow", late, 1),
        Ok(610.0, "p0", "slow", late, 9, 1, ""),
        Invoke(620.0, "p1", "quick", late, 1),
        Ok(630.0, "p1", "quick", late, 8, 1, ""),
    ]


def two_masters(events: list[HistoryEvent]) -> None:
    events.append(Happened(300.0, "broker-3", "promoted", {"epoch": 2}))


def two_elected(events: list[HistoryEvent]) -> None:
    events.append(Happened(300.0, "n1", "master_elected", {"group": "broker-a", "broker_id": 3, "epoch": 2}))


def unconfirm(events: list[HistoryEvent]) -> None:
    events.append(Observed(700.0, "broker-2", 1, "master", 2, 1500, 2000))


def succeed_with_less(events: list[HistoryEvent]) -> None:
    events.append(Observed(700.0, "broker-3", 1, "master", 3, 1000, 1800))


def answer_stale(events: list[HistoryEvent]) -> None:
    events.append(ControllerAnswer(900.0, 899.0, "probe", "broker-a", 1, 1, 1, (1, 2)))


def answer_differently(events: list[HistoryEvent]) -> None:
    events.append(ControllerAnswer(900.0, 899.0, "probe", "broker-a", 2, 2, 2, (2, 3)))


SPOILED: list[tuple[str, Callable[[list[HistoryEvent]], None]]] = [
    ("lost", drop_final),
    ("lost", move_final),
    ("lost", forget_the_end_of_the_reading),
    ("read_then_gone", forget_the_end_of_the_reading),
    ("read_then_gone", read_what_nobody_acknowledged_and_forget_it),
    ("dense_offsets", read_what_nobody_acknowledged_and_forget_it),
    ("phantom", invent),
    ("phantom", change_bytes),
    ("phantom", refuse_a_stored_one),
    ("duplicates", store_twice),
    ("producer_order", swap_offsets),
    ("real_time_order", overtake),
    ("offset_reuse", give_one_offset_twice),
    ("acknowledged_twice", give_one_offset_twice),
    ("read_then_gone", consume_and_lose),
    ("dense_offsets", drop_final),
    ("one_master_per_epoch", two_masters),
    ("one_master_per_epoch", two_elected),
    ("confirmed_never_back", unconfirm),
    ("confirmed_never_back", succeed_with_less),
    ("controllers_agree", answer_stale),
    ("controllers_agree", answer_differently),
]


@pytest.mark.parametrize(("checker", "spoil"), SPOILED, ids=[f"{c}-{f.__name__}" for c, f in SPOILED])
def test_each_spoiled_history_is_named_by_its_checker(
    checker: str, spoil: Callable[[list[HistoryEvent]], None]
) -> None:
    events = good_events()
    spoil(events)
    evidence = good_evidence()
    evidence.history.events = events
    assert checker in names(evidence)


@pytest.mark.parametrize(
    ("checker", "spoil"), [("", lambda events: None), *(one for one in SPOILED if one[0] in AT_ANY_TIME)]
)
def test_what_is_found_while_a_history_grows_is_found_at_its_end_too(
    checker: str, spoil: Callable[[list[HistoryEvent]], None]
) -> None:
    events = good_events()
    spoil(events)
    whole = replace(good_evidence(), history=History(events))
    found: set[str] = set()
    for end in range(len(events) + 1):
        found |= {one.checker for one in check_so_far(Evidence(History(events[:end])))}
    assert found <= names(whole)
    assert checker in found or not checker


def test_a_history_without_any_final_reading_has_lost_what_was_answered_and_read() -> None:
    history = History(event for event in good_events() if not (isinstance(event, Read) and event.final))
    found = [violation.checker for violation in check_all(Evidence(history))]
    assert (found.count("lost"), found.count("read_then_gone")) == (SENDS, SENDS // 2)


def test_what_lies_before_the_begin_of_a_queue_was_deleted_with_its_time() -> None:
    evidence = good_evidence()
    read_what_nobody_acknowledged_and_forget_it(evidence.history.events)
    late = Queue("t", "broker-a", 7)
    evidence.begins = {(source, late): 4 for source in evidence.sources}
    assert check_all(evidence) == []
    evidence.begins = {(source, late): 3 for source in evidence.sources}
    assert names(evidence) == {"read_then_gone", "dense_offsets"}


def test_replicas_that_differ_in_one_byte_below_confirmed_are_found() -> None:
    evidence = good_evidence()
    logs = good_logs()
    data = bytearray(logs[1].data)
    data[777] ^= 1
    logs[1] = replace(logs[1], data=bytes(data))
    evidence.logs = logs
    assert names(evidence) == {"replicas_identical"}
    assert first_difference(logs[0], logs[1], 0, 2048) == 777
    assert first_difference(logs[0], logs[1], 778, 2048) is None


def test_bytes_above_confirmed_may_differ_but_not_after_the_quiet_period() -> None:
    evidence = good_evidence()
    logs = good_logs()
    logs[1] = replace(logs[1], data=logs[1].data[:-8] + bytes(8), confirmed=2040)
    evidence.logs = logs
    assert names(evidence) == {"replicas_converged"}


def test_a_replica_that_stays_away_or_short_or_has_other_epochs_is_found() -> None:
    for spoiled in (
        replace(good_logs()[0], data=good_logs()[0].data[:-1], confirmed=2047),
        replace(good_logs()[0], epochs=((1, 0), (2, 999))),
    ):
        evidence = good_evidence()
        evidence.logs = [spoiled, *good_logs()[1:]]
        assert names(evidence) == {"replicas_converged"}
    evidence = good_evidence()
    evidence.members = ["broker-1", "broker-2"]
    assert names(evidence) == {"replicas_converged"}


def test_a_member_that_left_the_set_is_found_where_nothing_excuses_it() -> None:
    first_seen = ControllerAnswer(3.0, 2.5, "probe", "broker-a", 1, 1, 3, (1, 2))
    left = changed(first_seen, at_ms=5.0, set_epoch=4, members=(1,))
    returned = changed(left, at_ms=6.0, set_epoch=5, members=(1, 2))
    elected = changed(left, at_ms=7.0, epoch=2)
    evidence = Evidence(History(), complete=False, set_kept=True)
    for answers in ([first_seen, left, returned], [first_seen, returned], [first_seen, elected, left]):
        evidence.history.events = list(answers)
        assert [v.checker for v in check_all(evidence) if v.checker == "set_kept"] == ["set_kept"]
        evidence.history.events.insert(1, Happened(4.0, "b2", "resume", {}))
        assert "set_kept" in names(evidence), "who stood still is no cause"
        # A stop of a process that stands still does nothing: what came next is the cause.
        for fault in ("kill", "isolate"):
            evidence.history.events[1] = Happened(4.0, "b2", fault, {})
            assert "set_kept" not in names(evidence), "after another fault it may"
    evidence.history.events = [first_seen, elected, changed(elected, at_ms=8.0, set_epoch=5, members=(1, 2))]
    assert names(evidence) == set(), "an election may begin anew"


def test_every_checker_has_a_way_to_fail_in_these_tests() -> None:
    tests_of_their_own = {
        "replicas_identical",
        "replicas_converged",
        "no_errors",
        "set_kept",
        "serves_with_a_majority",
    }
    assert {checker for checker, _ in SPOILED} | tests_of_their_own == set(CHECKERS)


def test_an_uncaught_error_of_a_node_is_a_violation() -> None:
    evidence = good_evidence()
    evidence.errors = ["broker-1: ZeroDivisionError"]
    assert names(evidence) == {"no_errors"}


def test_unknown_sends_may_be_there_or_not() -> None:
    evidence = good_evidence()
    events = evidence.history.events
    events.insert(0, Invoke(1.0, "p9", "there", QUEUES[0], 5))
    events.insert(1, Invoke(2.0, "p9", "not-there", QUEUES[0], 6))
    events.insert(2, Unknown(3.0, "p9", "not-there", "timeout"))
    assert check_all(evidence) == []
    for source in ("consumer", "log of broker-2"):
        last = max(n for n, e in enumerate(events) if isinstance(e, Read) and e.source == source and e.final)
        at = max(
            n
            for n, e in enumerate(events[: last + 1])
            if isinstance(e, Read) and e.source == source and e.queue == QUEUES[0]
        )
        events.insert(at + 1, Read(999.0, source, "there", QUEUES[0], 10, 5, final=True))
    assert check_all(evidence) == []


def test_what_was_retried_after_an_unknown_attempt_may_be_stored_twice() -> None:
    evidence = good_evidence()
    events = evidence.history.events
    store_twice(events)
    at = first(events, Ok, key="k18")
    ok = events[at]
    assert isinstance(ok, Ok)
    events[at] = changed(ok, unknown_attempts=1)
    assert "duplicates" not in names(evidence)


def test_before_the_quiet_period_nothing_is_missed() -> None:
    evidence = good_evidence()
    evidence.complete = False
    drop_final(evidence.history.events)
    assert "lost" not in names(evidence)
