"""The promise of ``keelmq bench``: a stall counts for every send that was planned in it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin.load import sending
from admin.load.latency import Latencies
from admin.load.reading import Reading
from admin.load.sending import MARK, NAME, Plan, Sending
from client.consuming.pull import Pulled, PullStatus
from client.message import Message, Queue, SendFailed, SendResult, SendStatus, SendUnknown
from model.errors import Unknown


@given(st.lists(st.floats(0.001, 60_000), min_size=1, max_size=200), st.floats(0.01, 1))
def test_a_percentile_is_exact_to_one_percent_and_never_too_low(took_ms: list[float], part: float) -> None:
    found = Latencies()
    for one in took_ms:
        found.add(one)
    exact = sorted(took_ms)[max(0, -int(-part * len(took_ms) // 1) - 1)]
    assert exact * 0.999999 <= found.at(part) <= exact * 1.0101
    assert found.to_json() is not None
    assert found.at(1) == pytest.approx(max(took_ms), rel=1e-9)


def test_without_any_there_is_no_percentile() -> None:
    assert Latencies().to_json() is None


def plan(**changes: Any) -> Plan:
    values = {"rate": 100.0, "seconds": 1.0, "in_flight": 1000, "size_min": 32, "size_max": 64}
    return Plan(topic="t", **values | changes)


RESULT = SendResult(SendStatus.SEND_OK, Queue("t", "broker-a", 0), 0, "id", "offset id")


class Answers:
    """Takes messages; ``stall_s``: everything sent until then is answered at its end."""

    def __init__(self, stall_s: float = 0.0, error: Exception | None = None) -> None:
        self.taken: list[Message] = []
        self.taken_s: list[float] = []
        self._until = time.perf_counter() + stall_s
        self._error = error
        self.out = self.out_max = 0

    async def send(self, message: Message) -> SendResult:
        self.taken.append(message)
        self.taken_s.append(time.perf_counter())
        self.out += 1
        self.out_max = max(self.out_max, self.out)
        await asyncio.sleep(max(0.001, self._until - time.perf_counter()))
        self.out -= 1
        if self._error is not None:
            raise self._error
        return RESULT


async def test_a_stall_counts_for_every_send_that_was_planned_in_it() -> None:
    """Half of the time nothing is answered. One send at a time: a closed loop would see one slow answer."""
    answers = Answers(stall_s=0.5)
    sent = await Sending(plan(in_flight=1), answers.send).run()
    assert sent.acknowledged == sent.total == 100
    assert sent.latency.at(0.5) > 50
    assert sent.latency.at(0.25) > sent.service.at(0.25)
    assert sent.service.at(0.9) < 100
    assert answers.out_max == 1


async def test_as_fast_as_it_goes_keeps_so_many_under_way_and_ends_in_time() -> None:
    answers = Answers()
    began_s = time.perf_counter()
    sent = await Sending(plan(rate=None, seconds=0.3, in_flight=5), answers.send).run()
    assert answers.out_max == 5
    assert sent.acknowledged == len(answers.taken) > 5
    assert 0.3 <= sent.seconds <= time.perf_counter() - began_s
    late = [at_s for at_s in answers.taken_s if at_s > answers.taken_s[0] + sent.seconds]
    assert len(late) <= 5, "none is begun after the end but those that had their place"


@pytest.mark.parametrize(
    ("error", "failed", "unknown"),
    [(SendFailed("no", 1, ()), 20, 0), (SendUnknown("perhaps", ()), 0, 20), (Unknown("silence"), 0, 20)],
)
async def test_what_is_not_acknowledged_is_counted_by_what_is_known(
    error: Exception, failed: int, unknown: int
) -> None:
    sent = await Sending(plan(seconds=0.2), Answers(error=error).send).run()
    assert (sent.acknowledged, sent.failed, sent.unknown) == (0, failed, unknown)
    assert sent.first_error


async def test_what_has_no_answer_at_the_end_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "DRAIN_S", 0.1)
    sent = await Sending(plan(seconds=0.1), Answers(stall_s=60).send).run()
    assert (sent.total, sent.unknown) == (10, 10)
    assert sent.first_error == "no answer before the end"


async def test_bodies_have_the_sizes_asked_for_and_say_when_they_were_planned() -> None:
    answers = Answers()
    before_ns = time.time_ns()
    await Sending(plan(seconds=0.3, size_min=20, size_max=30), answers.send).run()
    assert {len(m.body) for m in answers.taken} <= set(range(20, 31))
    marks = [MARK.unpack_from(m.body) for m in answers.taken]
    assert {name for name, _ in marks} == {NAME}
    assert all(before_ns <= planned <= time.time_ns() for _, planned in marks)


class _Body:
    def __init__(self, body: bytes) -> None:
        self.body = body


class Queues:
    """A consumer of one queue: its first pull fails, later ones have what was put in."""

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies = bodies
        self.failed = False

    async def queues(self, topic: str) -> list[Queue]:
        return [Queue(topic, "broker-a", 0)]

    async def min_offset(self, queue: Queue) -> int:
        return 0

    async def max_offset(self, queue: Queue) -> int:
        return len(self.bodies)

    async def pull(self, queue: Queue, offset: int, *, suspend_ms: int) -> Pulled:
        if not self.failed:
            self.failed = True
            raise Unknown("the master is gone")
        end = len(self.bodies)
        found: list[Any] = [_Body(body) for body in self.bodies[offset:]]
        await asyncio.sleep(0.01)
        return Pulled(PullStatus.FOUND if found else PullStatus.NO_NEW, found, end, 0, end)


async def test_reading_counts_all_and_times_what_this_run_planned() -> None:
    queues: Any = Queues([b"foreign", MARK.pack(NAME, time.time_ns() - 3600 * 10**9)])
    reading = Reading(queues, "t", from_begin=True)
    await reading.start()
    await reading.until_end(5)
    planned_ns = time.time_ns()
    queues.bodies.append(MARK.pack(NAME, planned_ns) + b"more")
    await reading.until_marked(1, 5)
    read = await reading.stop()
    assert (read.messages, read.marked, read.problems, read.first_error) == (3, 1, 1, "the master is gone")
    assert 0 <= read.end_to_end.max_ms <= (time.time_ns() - planned_ns) / 1e6
