"""The promise of the simulated loop: virtual time, lives to kill and to pause, one trace per seed."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from chaos.sim.invariants import watch
from chaos.sim.loop import START_S, BrokenInvariant, SimLoop, SimulationError


def run(loop: SimLoop, work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def test_a_sleep_takes_virtual_time_only() -> None:
    loop = SimLoop(1)

    async def main() -> float:
        await asyncio.sleep(3600)
        return loop.time()

    assert run(loop, main()) == START_S + 3600


def test_a_timeout_of_asyncio_follows_the_virtual_clock() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(6)

    run(SimLoop(1), main())


def test_a_killed_life_runs_no_finally_block() -> None:
    loop = SimLoop(1)
    seen: list[str] = []

    async def server() -> None:
        try:
            while True:
                await asyncio.sleep(1)
                seen.append("tick")
        finally:
            seen.append("finally")

    async def main() -> None:
        life = loop.new_life("a")
        loop.spawn(life, server(), name="server")
        await asyncio.sleep(2.5)
        loop.kill(life)
        await asyncio.sleep(10)
        assert seen == ["tick", "tick"]

    run(loop, main())


def test_a_paused_life_catches_up_in_order_after_its_resume() -> None:
    loop = SimLoop(1)
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        life = loop.new_life("a")

        def note(name: str) -> None:
            seen.append((name, loop.time()))

        async def inside() -> None:
            running = asyncio.get_running_loop()
            for name, delay in (("first", 1.0), ("second", 2.0), ("third", 9.0)):
                running.call_later(delay, note, name)

        loop.spawn(life, inside(), name="inside")
        await asyncio.sleep(0.5)
        loop.pause(life)
        await asyncio.sleep(4.5)
        assert seen == []
        loop.resume(life)
        await asyncio.sleep(10)

    run(loop, main())
    assert [name for name, _ in seen] == ["first", "second", "third"]
    assert [at for _, at in seen] == [START_S + 5, START_S + 5, START_S + 9]


def test_what_a_task_of_a_life_starts_belongs_to_that_life() -> None:
    loop = SimLoop(1)
    seen: list[str] = []

    async def child() -> None:
        await asyncio.sleep(1)
        seen.append("child")

    async def parent() -> None:
        await asyncio.gather(child(), child())

    async def main() -> None:
        life = loop.new_life("a")
        loop.spawn(life, parent(), name="parent")
        await asyncio.sleep(0.5)
        loop.kill(life)
        await asyncio.sleep(5)

    run(loop, main())
    assert seen == []


def test_a_program_that_waits_for_nothing_is_a_deadlock_with_names() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationError, match="deadlock"):
        run(loop, main())


def test_an_endless_loop_at_one_instant_is_noticed() -> None:
    async def main() -> None:
        running = asyncio.get_running_loop()

        def again() -> None:
            running.call_soon(again)

        again()
        await asyncio.sleep(1)

    with pytest.raises(SimulationError, match="endless loop"):
        run(SimLoop(1), main())


def test_threads_do_not_exist() -> None:
    async def main() -> None:
        with pytest.raises(SimulationError, match=r"Env\.offload"):
            await asyncio.to_thread(print)

    run(SimLoop(1), main())


def interleaving(seed: int) -> tuple[list[str], int]:
    """The order in which tasks of three lives wake at equal times, and the trace."""
    loop = SimLoop(seed)
    seen: list[str] = []

    async def node(name: str) -> None:
        for step in range(4):
            await asyncio.sleep(1)
            seen.append(f"{name}{step}")

    async def main() -> None:
        for name in "abc":
            loop.spawn(loop.new_life(name), node(name), name=name)
        await asyncio.sleep(10)

    run(loop, main())
    return seen, loop.trace


def test_one_seed_gives_one_order_and_one_trace() -> None:
    assert interleaving(7) == interleaving(7)
    assert len({tuple(interleaving(seed)[0]) for seed in range(8)}) > 1
    assert len({interleaving(seed)[1] for seed in range(8)}) > 1


def test_handles_of_one_life_keep_their_order() -> None:
    loop = SimLoop(3)
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def node(name: str) -> None:
        for number in range(50):
            asyncio.get_running_loop().call_soon(seen[name].append, number)

    async def main() -> None:
        for name in "ab":
            loop.spawn(loop.new_life(name), node(name), name=name)
        await asyncio.sleep(1)

    run(loop, main())
    assert seen == {"a": list(range(50)), "b": list(range(50))}


def test_a_set_of_tasks_is_iterated_in_one_order_whatever_the_memory_looks_like() -> None:
    def order() -> list[str]:
        loop = SimLoop(1)
        ballast: list[list[int]] = []

        async def main() -> list[str]:
            tasks = set()
            for number in range(40):
                ballast.append([number] * (number % 7 + order.calls))  # type: ignore[attr-defined]
                tasks.add(loop.create_task(asyncio.sleep(1), name=str(number)))
            names = [task.get_name() for task in tasks]
            await asyncio.wait(tasks)
            return names

        return list(run(loop, main()))

    orders = []
    for order.calls in (1, 90, 1000):  # type: ignore[attr-defined]
        orders.append(order())
    assert orders[0] == orders[1] == orders[2]


def test_an_error_no_one_catches_is_noted_with_its_life() -> None:
    loop = SimLoop(1)

    async def main() -> None:
        life = loop.new_life("broker-1")
        loop.call_soon(lambda: 1 // 0, context=life.context.copy())
        await asyncio.sleep(1)

    run(loop, main())
    assert len(loop.errors) == 1
    assert "broker-1" in loop.errors[0]
    assert "ZeroDivisionError" in loop.errors[0]


class Account:
    """Promises never to be overdrawn once an instant is over."""

    def __init__(self) -> None:
        self.balance = 10
        self.checks = 0

    def check_invariants(self) -> None:
        self.checks += 1
        assert self.balance >= 0, f"overdrawn: {self.balance}"


def test_a_broken_invariant_stops_the_world_at_its_instant() -> None:
    loop = SimLoop(1)
    life = loop.new_life("bank")
    watch(Account)
    made: list[Account] = []

    async def spend() -> None:
        made.append(Account())
        for _ in range(10):
            made[0].balance -= 20  # within an instant a rule may be broken for a moment
            made[0].balance += 17
            await asyncio.sleep(1)

    async def main() -> None:
        loop.spawn(life, spend(), name="spend")
        await asyncio.sleep(100)

    with pytest.raises(BrokenInvariant, match=r"bank at 3000\.000 ms: overdrawn: -2"):
        run(loop, main())
    assert made[0].checks == 4


def test_only_what_lives_in_a_process_is_checked_and_only_while_it_is_there() -> None:
    loop = SimLoop(1)
    life = loop.new_life("bank")
    watch(Account)
    outside = Account()

    async def spend(kept: list[Account]) -> None:
        kept.append(Account())
        await asyncio.sleep(1)
        kept[0].balance = -1
        kept.clear()
        await asyncio.sleep(1)

    async def main() -> None:
        loop.spawn(life, spend([]), name="spend")
        await asyncio.sleep(100)

    run(loop, main())
    assert outside.checks == 0
    assert life.checked == []
