"""The promises of chaos.drills: how times are measured, and which promises count as broken."""

import io

import pytest
from rich.console import Console

from chaos.drills.commands import exit_code
from chaos.drills.drill import acked_again, summary
from chaos.drills.load import DrillPlan
from chaos.drills.measure import PROMISES, Drill, Strike, judge, longest_gap, measure, percentile
from chaos.drills.screen import cannot_go_on, show_campaign, show_drill, verdict
from chaos.history import Fail, History, Invoke, Ok, Read, Unknown
from chaos.worlds.live import Timeline, Victim
from client.message import Queue

OLD, NEW = "h:1", "h:2"
VICTIM = Victim("broker-a-0", OLD)
QUEUES = [Queue("T", "broker-a", 0), Queue("T", "broker-a", 1)]


class Story:
    """A history told in one line per send; every acknowledged message is read back unless told otherwise."""

    def __init__(self) -> None:
        self.history = History()
        self._ends = dict.fromkeys(QUEUES, 0)
        self._count = 0

    def ok(self, queue: Queue, begun_ms: float, ended_ms: float, by: str, *, kept: bool = True) -> None:
        self._count += 1
        key, offset = f"k{self._count}", self._ends[queue]
        self._ends[queue] += 1
        self.history.add(Invoke(begun_ms, "p", key, queue, 7))
        self.history.add(Ok(ended_ms, "p", key, queue, offset, offset * 100, by))
        if kept:
            self.history.add(Read(99_999, "c", key, queue, offset, 7, final=True))


def measured(story: Story, scenario: str = "kill-master", until_ms: float = 10_000) -> Drill:
    drill = Drill()
    strike = Strike(
        scenario=scenario,
        victim=VICTIM,
        fault_ms=1000,
        until_ms=until_ms,
        timeline=Timeline(1, 2, 3, 4),
    )
    measure(drill, story.history, QUEUES, strike)
    return drill


def test_rto_runs_from_the_last_ack_before_to_the_first_of_the_new_master_per_queue() -> None:
    story = Story()
    for queue, back_ms in zip(QUEUES, (1500.0, 1800.0), strict=True):
        story.ok(queue, 890, 900, OLD)
        story.ok(queue, 985, 990, OLD)
        story.ok(queue, 991, back_ms, NEW)
    drill = measured(story)
    assert drill.rto_queues_ms == [510, 810]
    assert drill.rto_ms == 810
    assert drill.since_request_ms == 800
    assert drill.first_ack_ms == 500
    assert (drill.noticed_ms, drill.elected_ms, drill.promoted_ms, drill.routed_ms) == (1, 2, 3, 4)


def test_an_answer_of_the_old_master_read_after_the_fault_ends_no_outage() -> None:
    story = Story()
    for queue in QUEUES:
        story.ok(queue, 985, 990, OLD)
        story.ok(queue, 995, 1001, OLD)
        story.ok(queue, 1002, 2000, NEW)
    drill = measured(story)
    assert drill.rto_ms == 1010
    assert drill.first_ack_ms == 1000


def test_a_master_that_was_asked_to_go_is_out_from_its_last_answer_on() -> None:
    story = Story()
    for queue in QUEUES:
        story.ok(queue, 985, 990, OLD)
        story.ok(queue, 1020, 1040, OLD)
        story.ok(queue, 1060, 1100, NEW)
        story.ok(queue, 1101, 1110, NEW)
    assert measured(story, "handover").since_request_ms == 100
    assert measured(story, "handover").rto_ms == measured(story, "stop-master").rto_ms == 60
    assert measured(story, "kill-master").rto_ms == 110


def test_a_queue_that_never_came_back_has_no_rto_and_neither_has_the_drill() -> None:
    story = Story()
    story.ok(QUEUES[0], 985, 990, OLD)
    story.ok(QUEUES[0], 995, 1500, NEW)
    story.ok(QUEUES[1], 985, 990, OLD)
    drill = measured(story)
    assert drill.rto_queues_ms == [510, None]
    assert drill.rto_ms is None


def test_where_the_master_stays_the_longest_gap_counts_not_the_first_ack() -> None:
    story = Story()
    for queue in QUEUES:
        for begun in (980.0, 1010.0, 1020.0, 4020.0, 4040.0):
            story.ok(queue, begun, begun + 5, OLD)
    assert measured(story, "freeze-slave", until_ms=4050).rto_ms == 3000


@pytest.mark.parametrize(
    ("times", "gap"), [([], 1000), ([900], 1100), ([900, 1300], 700), ([900, 1300, 1400], 600)]
)
def test_the_gap_is_measured_from_the_last_ack_before_the_fault_to_the_end(
    times: list[float], gap: float
) -> None:
    assert longest_gap(times, 1000, 2000) == gap


def test_a_send_on_its_way_when_a_slave_froze_proves_no_recovery() -> None:
    story = Story()
    plan = DrillPlan(scenario="freeze-slave", queues=2)
    story.ok(QUEUES[0], 999, 1003, OLD)
    assert acked_again(story.history, plan, VICTIM, 1000) == set()
    story.ok(QUEUES[0], 1100, 1103, OLD)
    assert acked_again(story.history, plan, VICTIM, 1000) == {QUEUES[0]}


def test_a_clean_history_breaks_nothing() -> None:
    story = Story()
    story.ok(QUEUES[0], 1, 2, OLD)
    story.ok(QUEUES[0], 3, 4, OLD)
    story.history.add(Invoke(5, "p", "lost reply", QUEUES[0], 7))
    story.history.add(Unknown(6, "p", "lost reply", "no answer"))
    story.history.add(Invoke(7, "p", "refused", QUEUES[0], 7))
    story.history.add(Fail(8, "p", "refused", "no master"))
    drill = Drill()
    judge(drill, story.history)
    assert (drill.acked, drill.unknown, drill.failed) == (2, 1, 1)
    assert not drill.violated
    assert drill.violations == []


def test_each_broken_promise_is_counted_under_its_name() -> None:
    story = Story()
    story.ok(QUEUES[0], 1, 2, OLD, kept=False)
    drill = Drill()
    story.ok(QUEUES[1], 1, 2, OLD)
    story.history.add(Read(99_999, "c", "nobody's", QUEUES[1], 1, 7, final=True))
    story.history.add(Read(99_999, "c", "k2", QUEUES[1], 2, 7, final=True))
    story.history.add(Read(50, "c", "k9", QUEUES[1], 0, 7))
    judge(drill, story.history)
    assert (drill.lost, drill.duplicates) == (1, 1)
    assert drill.phantom == 2
    assert drill.offset_reuse == 1
    assert drill.read_then_gone == 1
    assert drill.violated


def test_an_empty_reading_with_acknowledged_messages_is_a_loss() -> None:
    story = Story()
    story.ok(QUEUES[0], 1, 2, OLD, kept=False)
    drill = Drill()
    judge(drill, story.history)
    assert drill.lost == 1
    failed = Drill(unfinished="could not be read")
    judge(failed, story.history)
    assert failed.lost == 0


def test_what_a_group_that_is_not_full_does_not_show_is_neither_lost_nor_fine() -> None:
    story = Story()
    story.ok(QUEUES[0], 1, 2, OLD)
    story.ok(QUEUES[1], 3, 4, OLD, kept=False)
    drill = Drill(unfinished="not full again: two of three")
    judge(drill, story.history, full=False)
    assert (drill.lost, drill.read_then_gone, drill.violations) == (0, 0, [])
    assert drill.unfinished == "not full again: two of three; 1 acknowledged messages could not be read"
    unsaid = Drill()
    judge(unsaid, story.history, full=False)
    assert unsaid.unfinished is not None, "never fine"
    assert "none lost" not in verdict(drill)
    assert exit_code([drill], 1) == exit_code([unsaid], 1) == 3


def test_a_message_stored_twice_is_one_also_while_the_group_is_not_full() -> None:
    story = Story()
    story.ok(QUEUES[0], 1, 2, OLD)
    story.history.add(Read(99_999, "c", "k1", QUEUES[0], 1, 7, final=True))
    drill = Drill(unfinished="not full")
    judge(drill, story.history, full=False)
    assert drill.duplicates == 1


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(i) for i in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([5.0], 99)) == (50, 99, 5)
    assert percentile([], 50) is None


def test_the_result_has_the_members_scripts_read() -> None:
    drills = [Drill(rto_ms=50.0), Drill(rto_ms=80.0, lost=2, order_violations=1), Drill(unfinished="x")]
    result = summary(DrillPlan(scenario="kill-master", seed=9), "keelmq", drills)
    assert result["scenario"] == "kill-master"
    assert (result["rto_p50_ms"], result["rto_p99_ms"], result["rto_max_ms"]) == (50, 80, 80)
    assert (result["lost_total"], result["order_violations_total"]) == (2, 1)
    wanted = (
        "rto_ms since_request_ms noticed_ms elected_ms promoted_ms routed_ms first_ack_ms acked unknown "
        "failed lost phantom duplicates order_violations offset_reuse"
    )
    assert set(result["drills"][0]) >= set(wanted.split())


def test_the_exit_code_says_what_happened() -> None:
    assert exit_code([Drill(), Drill()], 2) == 0
    assert exit_code([Drill(), Drill(offset_reuse=1)], 2) == 2
    assert exit_code([Drill(), Drill(unfinished="x")], 2) == 3
    assert exit_code([Drill()], 2) == 3


def test_what_others_wrote_is_shown_as_it_is_and_is_no_markup() -> None:
    """`[/tmp/x]` would end a style that nobody began: the report of a violation would break off."""
    text = "[/tmp/x] holds [red] twice"
    drill = Drill(unfinished=text, violations=[{"checker": "lost", "text": text}])
    shown = io.StringIO()
    console = Console(file=shown, width=200)
    show_drill(console, "kill-master", 0, 1, drill)
    totals = dict.fromkeys(
        (
            "acked_total",
            "failed_total",
            "unknown_total",
            "seconds",
            "read_back",
            *(f"{n}_total" for n in PROMISES),
        ),
        0,
    )
    show_campaign(console, {**totals, "drills": [], "unfinished": text, "violations": drill.violations})
    cannot_go_on(console, ValueError(text), "[/staging]: ")
    lines = [line for line in shown.getvalue().splitlines() if text in line]
    assert lines == [
        *(f"lost: {text}", f"not finished: {text}") * 2,
        f"[/staging]: cannot go on: {text}",
    ]
