"""The promise to everybody else: of requests that have begun, those that are ready go on a share a turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from remoting.transport.order import WAITS
from remoting.transport.steps import CALLED_LEAST, TURN_MS, Steps
from runtime.report.slow_turns import SLOW_MS, SlowTurns

STEP_MS = TURN_MS * 0.4
A_TURN = 3
"""Steps of this length that a turn has time for."""
MANY = 150


class Asking:
    def __init__(self, name: str, *, of_peer: bool = False, claims: bool = False) -> None:
        self.remote = name
        self.attributes: dict[str, Any] = {}
        self.held = list[bool]()
        self.share = SimpleNamespace(reads=None if of_peer else object(), goes_first=of_peer or claims)

    def hold(self, held: bool) -> None:
        self.held.append(held)


class World:
    """A clock that only requests move, and who took a step in which turn of the loop."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.turn = 0
        self.order: list[str] = []
        self.turns: Counter[int] = Counter()
        self.slow = SlowTurns("test", lambda: self.now_ms)
        self.steps = Steps(self.slow)
        self.woken = asyncio.Event()

    def begin(self, connection: Asking, cost_ms: float = STEP_MS, name: str = "") -> asyncio.Task[str]:
        """A request that waits until ``woken``."""

        async def work() -> str:
            await self.woken.wait()
            self.order.append(name or connection.remote)
            self.turns[self.turn] += 1
            self.now_ms += cost_ms
            return "done"

        return asyncio.create_task(self._run(connection, work()))

    async def _run(self, connection: Asking, work: Any) -> str:
        result: str = await self.steps.run(connection, work, "WORK")
        return result

    async def go_round(self, times: int = 1) -> None:
        for _ in range(times):
            self.turn += 1
            await asyncio.sleep(0)


async def test_requests_that_are_ready_together_go_on_a_share_a_turn() -> None:
    world, count = World(), MANY
    connection = Asking("a")
    tasks = [world.begin(connection) for _ in range(count)]
    await world.go_round()
    world.woken.set()
    await world.go_round(count)
    assert len(world.order) == count, "some go on in each turn"
    assert [task.result() for task in tasks] == ["done"] * count
    # The last ones of a turn may be counted with the first of the next one.
    assert max(world.turns.values()) <= 2 * A_TURN
    assert world.slow.total == 0


async def test_connections_take_turns() -> None:
    world = World()
    many, few = Asking("many"), Asking("few")
    for _ in range(MANY):
        world.begin(many)
    for _ in range(3):
        world.begin(few)
    await world.go_round()
    world.woken.set()
    await world.go_round(2 * MANY)
    assert len(world.order) == MANY + 3
    assert [at for at, name in enumerate(world.order) if name == "few"][-1] < 2 * A_TURN + 2 * 3


async def test_nothing_is_read_of_one_whose_sends_wait_until_all_have_gone_on() -> None:
    """What it sent would take the ordinary way behind them: so many at once would for ever."""
    world = World()
    connections = sends, other = Asking("sends"), Asking("other")
    sends.attributes[WAITS] = MANY
    for connection in connections * MANY:
        world.begin(connection)
    await world.go_round()
    world.woken.set()
    await world.go_round(2)
    assert sum(sends.held) > 0
    await world.go_round(2 * MANY)
    assert len(world.order) == 2 * MANY
    assert sends.held.count(True) == sends.held.count(False)
    assert other.held == []


async def test_a_peer_waits_for_no_client() -> None:
    world = World()
    for _ in range(MANY):
        world.begin(Asking("client"))
    world.begin(Asking("peer", of_peer=True))
    await world.go_round()
    world.woken.set()
    await world.go_round(2)
    assert "peer" in world.order[: A_TURN + 1]


async def test_who_says_that_it_is_a_peer_is_called_every_second_time_and_clients_the_others() -> None:
    world = World()
    clients = [Asking("client") for _ in range(MANY)]
    for connection in clients:
        world.begin(connection)
    few, last = 4, Asking("claims", claims=True)
    for _ in range(few):
        world.begin(last)
    await world.go_round()
    world.woken.set()
    await world.go_round(2 * MANY)
    assert len(world.order) == MANY + few
    before = CALLED_LEAST + A_TURN
    assert world.order[: before + 2 * few].count("claims") == few
    assert world.order[: before + 2 * few].count("client") >= few


async def test_what_a_connection_asked_for_before_it_was_a_peers_goes_on_first() -> None:
    world, connection = World(), Asking("a")
    first = [world.begin(connection) for _ in range(3 * A_TURN)]
    await world.go_round()
    world.woken.set()
    await world.go_round()
    connection.share.reads = None
    world.begin(connection, name="last")
    await world.go_round(20)
    assert world.order == ["a"] * len(first) + ["last"]


@pytest.mark.parametrize("turns", range(4))
async def test_one_that_is_cancelled_while_it_waits_keeps_no_other_from_its_turn(turns: int) -> None:
    world = World()
    tasks = [world.begin(Asking(str(n % 7))) for n in range(MANY)]
    await world.go_round()
    world.woken.set()
    await world.go_round(turns)
    cancelled = [task for task in tasks[::2] if task.cancel()]
    await world.go_round(MANY)
    assert all(task.done() for task in tasks)
    assert len(world.order) == len(tasks) - sum(task.cancelled() for task in cancelled)
    assert len(world.order) >= MANY // 2
    assert (world.steps._called, world.steps._line, world.steps._waiting) == (0, {}, {})
    assert not world.steps._first


@pytest.mark.parametrize("held", [True, False])
async def test_a_connection_that_cannot_be_held_or_let_go_keeps_no_other_from_its_turn(held: bool) -> None:
    world = World()

    class Broken(Asking):
        def hold(self, held_now: bool) -> None:
            super().hold(held_now)
            if held_now is held:
                raise OSError("its transport is gone")

    broken = Broken("broken")
    broken.attributes[WAITS] = True
    tasks = [world.begin(broken if n % 3 else Asking(f"{n}")) for n in range(MANY)]
    await world.go_round()
    world.woken.set()
    await world.go_round(2 * MANY)
    assert all(task.done() for task in tasks)
    assert sum(task.exception() is None for task in tasks) >= MANY // 3
    assert broken.held.count(True) == broken.held.count(False) > 0
    assert (world.steps._called, world.steps._line, world.steps._waiting) == (0, {}, {})


async def test_a_long_step_is_told_with_its_request_and_its_client() -> None:
    world = World()
    world.woken.set()
    task = world.begin(Asking("10.0.0.7:5"), SLOW_MS + 1)
    await world.go_round(2)
    assert task.done()
    assert world.slow.status()["last"] == [{"what": "WORK", "from": "10.0.0.7:5", "ms": SLOW_MS + 1}]
