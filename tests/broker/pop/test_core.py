"""The promise of the revive core: nothing that was popped is done before it is acknowledged or safe
elsewhere."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.requests.consumers.pop.codec import Ack, Checkpoint
from broker.requests.consumers.pop.core import FAR_MIN, GRACE_MS, LATE_MAX, OpenCheckpoints
from broker.requests.consumers.pop.positions import Positions, passed


def point(start: int, at_ms: int = 0, count: int = 2, invisible_ms: int = 1000) -> Checkpoint:
    return Checkpoint(start, at_ms, invisible_ms, 0, "T", "g", "b", list(range(count)))


def ack(start: int, *offsets: int, at_ms: int = 0) -> Ack:
    return Ack(list(offsets), start, "g", "T", 0, at_ms, "b", batch=True)


def test_a_checkpoint_is_due_when_its_time_is_over_and_not_before() -> None:
    queue = OpenCheckpoints()
    queue.on_checkpoint(point(0), 0)
    assert queue.due(999 + GRACE_MS, 0) is None
    found = queue.due(1000 + GRACE_MS, 0)
    assert found is not None
    assert found.unacked() == [0, 1]
    assert queue.progress(0) == -1, "nothing is done yet"
    queue.settled(found, 500)
    assert queue.progress(499) == -1, "what came back is not confirmed"
    assert queue.progress(500) == 0
    queue.check_invariants()


def test_what_is_acknowledged_is_done() -> None:
    queue = OpenCheckpoints()
    queue.on_checkpoint(point(0), 0)
    queue.on_checkpoint(point(2), 1)
    queue.on_ack(ack(2, 2, 3))
    queue.read = 4
    assert len(queue) == 1
    assert queue.progress(0) == -1, "the first one is open"
    queue.on_ack(ack(0, 0))
    queue.on_ack(ack(0, 1, 77))
    assert queue.progress(0) == 3
    assert queue.due(10**9, 0) is None


def test_what_cannot_be_read_is_tried_later() -> None:
    queue = OpenCheckpoints()
    queue.on_checkpoint(point(0), 0)
    first = queue.due(5000, 0)
    assert first is not None
    queue.later(first, 5000, 9000)
    for clock_ms in (5000, 9000, -(10**8), 10**8):
        assert queue.due(clock_ms, 8999) is None
        assert queue.due(clock_ms, 9000) is first, "whatever the clock says by then"
    queue.check_invariants()


def test_what_a_clock_that_was_ahead_popped_is_due_when_its_time_went_by_since_that_was_seen() -> None:
    queue, hour_ms = OpenCheckpoints(), 3_600_000
    queue.on_checkpoint(point(0, at_ms=hour_ms), 0)
    queue.on_checkpoint(point(2, at_ms=50), 1)
    queue.on_checkpoint(point(4, at_ms=60_000), 2)
    assert queue.due(100, 7000) is None, "it is seen now"
    assert queue.due(200, 7999 + GRACE_MS) is None
    queue.check_invariants()
    found = queue.due(200, 8000 + GRACE_MS)
    assert found is not None
    assert found.start == 0
    queue.settled(found, 0)
    assert queue.due(1049 + GRACE_MS, 9000 + GRACE_MS) is None, "the others wait for their time by the clock"
    assert [queue.due(at_ms, 10**9) is not None for at_ms in (1050 + GRACE_MS, 10**9)] == [True, True]
    queue.check_invariants()


def test_a_clock_that_goes_back_for_a_moment_brings_nothing_back_early() -> None:
    queue, day_ms = OpenCheckpoints(), 86_400_000
    queue.on_checkpoint(point(0, at_ms=day_ms, invisible_ms=5000), 0)
    queue.on_checkpoint(point(2, at_ms=day_ms + 200, invisible_ms=9000), 1)
    assert queue.due(day_ms + 1000, 1000) is None
    assert queue.due(1000, 1100) is None, "it is a day behind"
    assert queue.due(day_ms + 4999 + GRACE_MS, 4999 + GRACE_MS) is None
    found = queue.due(day_ms + 5000 + GRACE_MS, 5000 + GRACE_MS)
    assert found is not None
    queue.settled(found, 0)
    assert queue.due(day_ms + 9199 + GRACE_MS, 10**6) is None, "it is told by the clock again"
    assert queue.due(2000, 10**6) is None, "and by what went by where that goes back again"
    assert queue.due(2000, 10**6 + 8999 + GRACE_MS) is None
    assert queue.due(2000, 10**6 + 9000 + GRACE_MS) is not None
    queue.check_invariants()


def test_what_cannot_be_read_and_was_popped_by_a_clock_ahead_is_tried_later_and_told_of() -> None:
    queue = OpenCheckpoints()
    queue.on_checkpoint(point(0, at_ms=3_600_000), 0)
    assert queue.due(100, 0) is None
    found = queue.due(200, 1000 + GRACE_MS)
    assert found is not None
    queue.later(found, 200, 12_000)
    assert queue.due(300, 11_999) is None
    assert queue.late(500) == (1, 300)
    assert queue.due(300, 12_000) is found
    queue.on_ack(ack(0, 0, 1, at_ms=3_600_000))
    assert queue.due(300, 13_000) is None
    queue.check_invariants()


def test_what_is_late_is_told_until_it_came_back() -> None:
    queue, due_ms = OpenCheckpoints(), 1000 + GRACE_MS
    for at, of_ms in enumerate((0, 300, 600)):
        queue.on_checkpoint(point(at, at_ms=of_ms), at)
    assert queue.late(due_ms - 1) == (0, 0)
    assert queue.late(due_ms + 300) == (2, 300)
    first = queue.due(due_ms + 300, 0)
    assert first is not None
    queue.later(first, due_ms + 300, 10_000)
    assert queue.late(due_ms + 400) == (2, 400), "one that cannot be read is late since its time"
    queue.settled(first, 0)
    queue.on_ack(ack(1, 1, 2, at_ms=300))
    assert queue.late(due_ms + 650) == (1, 50)


def test_of_many_that_are_late_the_first_is_among_those_counted() -> None:
    queue = OpenCheckpoints()
    for at in range(LATE_MAX + 50):
        queue.on_checkpoint(point(at, at_ms=at), at)
    assert queue.late(10**6) == (LATE_MAX, 10**6 - 1000 - GRACE_MS)


def test_one_that_is_far_behind_is_written_anew_once_and_keeps_its_acks() -> None:
    queue = OpenCheckpoints()
    queue.on_checkpoint(point(0, invisible_ms=10**9), 0)
    queue.on_ack(ack(0, 1))
    queue.read = FAR_MIN + 4
    assert queue.far() is None
    queue.read = FAR_MIN + 5
    found = queue.far()
    assert found is not None
    assert queue.far() is None, "it is on its way"
    assert queue.progress(0) == -1, "until it is read at its new place"
    queue.on_checkpoint(Checkpoint.parse(found.encode()), queue.read)
    assert queue.progress(0) == FAR_MIN + 4
    assert len(queue) == 1
    queue.on_ack(ack(0, 0))
    assert len(queue) == 0, "the other one was acknowledged before"


def test_one_written_anew_that_was_due_meanwhile_is_not_opened_again() -> None:
    queue = OpenCheckpoints()
    queue.on_checkpoint(point(0), 0)
    queue.read = FAR_MIN + 5
    found = queue.far()
    assert found is not None
    queue.settled(found, 7)
    queue.on_checkpoint(Checkpoint.parse(found.encode()), queue.read)
    assert len(queue) == 0
    assert queue.progress(7) == queue.read - 1


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_whoever_reads_on_from_the_progress_brings_back_what_was_not_acknowledged(
    seed: int, pops: int
) -> None:
    """A successor that begins at any progress finds what the first one had not brought into safety."""
    chance = random.Random(seed)
    log: list[Checkpoint | Ack] = []
    wanted: set[int] = set()
    for at in range(pops):
        log.append(point(2 * at, at_ms=at))
        wanted |= {2 * at, 2 * at + 1}
        for _ in range(chance.randrange(3)):
            start = 2 * chance.randrange(at + 1)
            offset = start + chance.randrange(2)
            log.append(ack(start, offset, at_ms=start // 2))
            wanted.discard(offset)
    brought: list[list[int]] = []
    first, log_end = OpenCheckpoints(), 0
    stops = chance.randrange(len(log) + 1)
    acked = {offset for item in log if isinstance(item, Ack) for offset in item.offsets}

    def feed(queue: OpenCheckpoints, until: int) -> None:
        while queue.read < until:
            item, at = log[queue.read], queue.read
            if isinstance(item, Checkpoint):
                queue.on_checkpoint(Checkpoint.parse(item.encode()), at)
            else:
                queue.on_ack(item)
            queue.read = at + 1
            queue.check_invariants()

    feed(first, stops)
    confirmed = 0
    for _ in range(chance.randrange(5)):
        found = first.due(10**9, 0)
        if found is not None:
            log_end += 1
            brought.append(found.unacked())
            first.settled(found, log_end)
            if chance.random() < 0.5:
                confirmed = log_end
    done = first.progress(confirmed)
    second = OpenCheckpoints()
    second.read = done + 1
    came = {offset for back in brought[:confirmed] for offset in back}
    feed(second, len(log))
    while (found := second.due(10**9, 0)) is not None:
        came.update(found.unacked())
        second.settled(found, 1)
    assert wanted <= came, "nothing is lost"
    assert came <= wanted | acked, "and nothing comes that was not popped"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=40))
def test_offsets_move_in_the_order_of_the_log_and_only_when_it_is_confirmed(
    steps: list[tuple[str, int, bool]],
) -> None:
    positions, end = Positions(), 0
    told: dict[str, int] = {}
    for at, (name, grows, confirms) in enumerate(steps, 1):
        end += grows
        positions.popped((name, "g", 0), at, end)
        positions.check_invariants()
        assert positions.get((name, "g", 0)) == at
        if confirms:
            for (topic, _, _), offset in positions.confirmed(end):
                assert offset > told.get(topic, 0)
                told[topic] = offset
            assert len(positions) == 0
            assert positions.get((name, "g", 0)) is None
    positions.drop(("a", "g", 0))
    positions.check_invariants()
    positions.clear()
    positions.check_invariants()


def test_a_group_is_behind_its_last_pops_unless_it_was_reset_since() -> None:
    pops = [(0, 3), (4, 4), (7, 9)]
    assert passed(None, pops) == 10, "its offset never came"
    assert passed(0, pops) == 10, "what a filter left out lies between"
    assert passed(4, pops) == 10
    assert passed(10, pops) == 10
    assert passed(5, pops) == 5, "it was reset to where nobody popped since"
    assert passed(50, pops) == 50
    assert passed(0, [(4, 5), (0, 1)]) == 2, "it was reset before the last pop"
    assert passed(None, []) is None
