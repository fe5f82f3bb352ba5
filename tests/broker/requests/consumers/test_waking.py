"""The promise of what waits to everybody else: many that wait make no turn of the loop long, and who waits
for a search by an expression keeps nobody from an answer. To those that wait: they miss nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.requests.consumers.held import Held, HeldPulls
from broker.requests.consumers.pull import NOT_DUE_AT_ONCE, PullProcessor
from broker.requests.consumers.waking import ROUND, Searches, Waking
from broker.state.clients import Subscription
from broker.state.effort import ROUND as SEARCH_ROUND
from broker.state.effort import Effort
from model.codes import Request
from model.config import BrokerConfig
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader
from remoting.service import Connection
from runtime.tasks import Tasks
from runtime.turns import SLICE_MS, Slice
from tests.broker.helpers import Client, client_of, eventually, records, running
from tests.fakes.broker.store import FakeConnection

# -- the order of what was noted


async def walked(steps: Callable[[Waking[str], str], Iterator[None]], *keys: str) -> None:
    tasks = Tasks("test")
    waking: Waking[str] = Waking(tasks, lambda: 0.0, lambda key: steps(waking, key))
    for key in keys:
        waking.note(key)
    await tasks.join()
    assert not waking._line
    assert not waking._again


async def test_what_comes_while_it_is_gone_through_is_gone_through_again() -> None:
    seen: list[str] = []

    def steps(waking: Waking[str], key: str) -> Iterator[None]:
        for number in range(3):
            seen.append(f"{key}{number}")
            if len(seen) == 2:
                waking.note(key)
                waking.note(key)
            yield

    await walked(steps, "a", "a")
    assert seen == ["a0", "a1", "a2"] * 2, "once more, from the first one on"


async def test_one_that_very_many_wait_for_does_not_hold_up_the_others() -> None:
    seen: list[str] = []

    def steps(waking: Waking[str], key: str) -> Iterator[None]:
        for _ in range(1 if key == "few" else 1000):
            seen.append(key)
            yield

    await walked(steps, "many", "few")
    assert (seen.index("few"), len(seen)) == (ROUND, 1001)


async def test_a_look_that_fails_is_its_keys_own(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    def steps(waking: Waking[str], key: str) -> Iterator[None]:
        seen.append(key)
        if key == "bad":
            raise KeyError(key)
        yield

    await walked(steps, "bad", "good")
    assert seen == ["bad", "good"]
    assert "those that wait for bad" in caplog.text


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30), st.integers(0, 30))
def test_nothing_noted_is_missed_and_nothing_looked_at_in_vain(
    notes: list[tuple[str, int]], clear_at: int
) -> None:
    """Each key has five steps, and the loop goes round after each step."""

    async def work() -> None:
        now = 0.0
        came: dict[str, int] = {}
        seen: dict[str, list[int]] = {}
        passes = 0

        def clock() -> float:
            nonlocal now
            now += SLICE_MS
            return now

        def steps(key: str) -> Iterator[None]:
            nonlocal passes
            passes += 1
            found = seen[key] = [0] * 5
            for place in range(5):
                found[place] = came[key]
                yield

        tasks = Tasks("test")
        waking = Waking(tasks, clock, steps)
        noted = 0
        for number, (key, pauses) in enumerate(notes):
            if number == clear_at:
                waking.clear()
                came.clear()
            noted += not waking.is_noted(key)
            came[key] = number
            waking.note(key)
            for _ in range(pauses):
                await asyncio.sleep(0)
        await tasks.join()
        assert {key: [last] * 5 for key, last in came.items()} == {key: seen[key] for key in came}
        assert passes <= noted

    asyncio.run(work())


# -- held pulls


class Looking(PullProcessor):
    """Nothing came for any pull. A look takes a millisecond."""

    def __init__(self, pulls: int, connection: object = None) -> None:
        self.now_ms = 0.0
        self.steps: list[str] = []
        bounds = {"maxHeldPulls": str(pulls), "maxHeldPullsPerConnection": str(pulls)}
        context = SimpleNamespace(
            env=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            config=BrokerConfig.from_mapping(bounds),
            store=SimpleNamespace(on_arrive=[]),
            offsets=SimpleNamespace(on_reset=[]),
            effort=Effort(lambda: self.now_ms),
        )
        super().__init__(cast(Any, context))
        for _ in range(pulls):
            self._held.add(self.one(cast(Connection, connection or FakeConnection())))

    def one(self, connection: Connection, tags: str = "a || b") -> Held:
        header = PullHeader("cg", "T", 0, 0, 32)
        topic, group = TopicConfig("T"), SubscriptionGroupConfig("cg")
        wanted = Subscription.of("T", tags, "TAG")
        return Held(connection, Command(11), header, wanted, topic, group, 0, 60_000.0, 60_000.0)

    def _look(self, held: Held, *, put_off: bool = False) -> Any:
        self.now_ms += 1
        self.steps.append("look")
        return object()

    def _passes(self, got: Any, held: Held) -> bool:
        return False

    def _waits(self, got: Any, held: Held) -> bool:
        return True

    async def breathed(self) -> None:
        self.steps.append("breath")


def test_held_pulls_keep_their_places_while_they_are_looked_at_again() -> None:
    """New pulls that come meanwhile do not get the places of those that wait on."""
    processor = Looking(3)
    newcomer = processor.one(cast(Connection, FakeConnection()))
    for _ in processor._steps(("T", 0)):
        assert not processor._has_room(newcomer)
        processor._held.check_invariants()
    assert (processor.held, processor.steps) == (3, ["look"] * 3)


async def test_pulls_that_are_woken_together_are_looked_at_a_slice_a_turn() -> None:
    processor = Looking(50)
    looked: list[int] = []
    processor._arrived([("T", 0, 1, code) for code in range(4096)])
    while not looked or looked[-1] < 50:
        await asyncio.sleep(0)
        looked.append(len(processor.steps))
    assert max(after - before for before, after in zip([0, *looked], looked, strict=False)) <= SLICE_MS
    await processor._tasks.join()
    assert processor.steps == ["look"] * 50, "once, however many messages came"


async def test_of_pulls_that_are_due_one_is_looked_at_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have ten thousand tags, and each second all that are due are looked at again."""
    processor = Looking(100)
    for place in (10, 11, 50):
        processor._held.of(("T", 0))[place].check_ms = 0
    monkeypatch.setattr(Slice, "breathe", lambda slice_: processor.breathed())
    await processor.check()
    passed = ["breath"] * (100 // NOT_DUE_AT_ONCE + 1)
    assert sorted(processor.steps) == sorted([*["look", "breath"] * 3, *passed])
    assert "look look" not in " ".join(processor.steps), "a breath after each"
    processor._held.check_invariants()
    assert processor.held == 100


async def test_pulls_that_are_not_due_are_gone_past_a_few_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """100,000 may wait for one queue, and are gone past each second."""

    class Peer:
        @property
        def closed(self) -> bool:
            processor.steps.append("past")
            return False

    processor = Looking(1000, Peer())
    monkeypatch.setattr(Slice, "breathe", lambda slice_: processor.breathed())
    await processor.check()
    between = " ".join(processor.steps).split("breath")
    assert max(part.count("past") for part in between) <= NOT_DUE_AT_ONCE
    assert processor.steps.count("past") == 1000


def test_a_pull_goes_from_among_many_in_one_step() -> None:
    """All that waited for a queue were walked for those of them that were due."""

    class Walked(dict[Held, None]):
        def __iter__(self) -> Iterator[Held]:
            raise AssertionError("all are walked")

    pulls: HeldPulls = Looking(1000)._held
    many, waiting = pulls.of(("T", 0)), pulls._queues["T", 0]
    waiting.pulls = Walked(waiting.pulls)
    assert all(pulls.remove(held) for held in many[::2])
    assert pulls.count == 500


# -- searches


async def pull(client: Client, queue_id: int, offset: int, expression: str | None = None) -> Command:
    header = PullHeader("cg", "T", queue_id, offset, 32, PULL_SUSPEND | PULL_SUBSCRIPTION, 0, 60_000)
    header.subscription = "*" if expression is None else expression
    header.expression_type = "TAG" if expression is None else "SQL92"
    connection = await client.connection()
    return await connection.call(Command(int(Request.PULL_MESSAGE), header.to_ext()), 60)


async def test_a_search_of_very_many_steps_keeps_no_client_waiting_and_misses_nothing() -> None:
    tasks, effort, seen = Tasks("test"), Effort(lambda: 0.0), list[str]()

    def search(key: str) -> Iterator[None]:
        for _ in range(3 * SEARCH_ROUND):
            seen.append(key)
            yield

    searches: Searches[str] = Searches(tasks, effort, search)
    for key in ("gone", "many"):
        searches.note(key)
    await asyncio.sleep(0)
    assert seen, "it began"
    for _ in range(2):
        async with effort.turn(cast(Any, FakeConnection())):
            assert len(seen) % SEARCH_ROUND == 0
            searches.note("many")
    assert len(seen) <= 3 * SEARCH_ROUND
    searches.note("gone")
    searches.forget("gone")
    await tasks.join()
    assert seen.count("many") == 6 * SEARCH_ROUND, "once more, from the first one on"
    assert seen.count("gone") < 3 * SEARCH_ROUND
    assert [searches._line, searches._begun, searches._again] == [{}, {}, set()]


async def test_other_pulls_do_not_wait_for_the_search_of_an_expression(tmp_path: Path) -> None:
    """Neither those that are woken nor those whose time is over, with an expression or without."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        for queue_id in range(3):
            await client.send("T", queue_id=queue_id, properties="n\x010\x02")
        await broker.store.caught_up()
        pulls = broker.processors.pulls
        chosen = [asyncio.create_task(pull(client, 0, 1, f"n = {number}")) for number in (1, 2)]
        never = asyncio.create_task(pull(client, 1, 1, "n = 3"))
        plain, late = (asyncio.create_task(pull(client, queue_id, 1)) for queue_id in (0, 2))
        await eventually(lambda: pulls.held == 5, "all wait")
        async with broker.context.effort.turn(cast(Any, FakeConnection())):
            await client.send("T", b"x", properties="n\x011\x02")
            assert [record.body for record in records((await plain).body)] == [b"x"]
            assert not chosen[0].done()
            for queue_id in range(3):
                for held in pulls._held.of(("T", queue_id)):
                    if held.subscription.expression != "n = 1":
                        held.deadline_ms = 0
            await pulls.check()
            for task, code in ((chosen[1], 20), (never, 19), (late, 19)):
                answer = await task
                assert (answer.code, answer.ext["nextBeginOffset"]) == (code, "1")
            assert (pulls.held, chosen[0].done()) == (1, False)
        assert [record.body for record in records((await chosen[0]).body)] == [b"x"]
        pulls._held.check_invariants()
