"""The promise of controller.raft under faults: what was acknowledged stays, once, in one order."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from tests.fakes.controller.raft_sim import Group

pytestmark = pytest.mark.sim


async def storm(group: Group, seconds: float) -> None:
    """Faults of every kind, a few times a second."""
    rng, loop = group.random, group.loop
    until = loop.time() + seconds
    while loop.time() < until:
        await asyncio.sleep(rng.uniform(0.05, 0.6))
        member = rng.choice(list(group.members.values()))
        other = rng.choice([m for m in group.members.values() if m is not member])
        what = rng.choice(("kill", "power", "pause", "cut", "one way", "heal", "start", "all down", "quiet"))
        if what in ("kill", "power") and member.raft is not None:
            member.kill(power=what == "power")
        elif what == "all down" and rng.random() < 0.3:
            for each in group.members.values():
                if each.raft is not None:
                    each.kill(power=rng.random() < 0.7)
        elif what == "pause" and member.life is not None and not member.life.paused:
            life = member.life
            loop.pause(life)
            loop.call_later(
                rng.uniform(0.1, 2.0), lambda life=life: loop.resume(life) if life.alive else None
            )
        elif what == "cut":
            group.fabric.cut(member.name, other.name)
            group.fabric.cut(other.name, member.name)
        elif what == "one way":
            group.fabric.cut(member.name, other.name)
        elif what == "heal":
            group.fabric.heal_all()
        for each in group.members.values():
            if each.raft is None and rng.random() < 0.5:
                await each.start()


def run(seed: int, *, count: int = 3, seconds: float = 15.0) -> Group:
    group = Group(seed, count, compact_entries=20)

    async def main() -> None:
        clients = [asyncio.ensure_future(group.write_for_ever()) for _ in range(3)]
        clients.append(asyncio.ensure_future(group.read_for_ever()))
        await storm(group, seconds)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        await group.settle()

    group.play(main)
    return group


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(6, 12))]
)
def test_acknowledged_commands_survive_kills_power_failures_pauses_and_cuts(seed: int) -> None:
    group = run(seed)
    assert group.verdict() == {}
    assert len(group.acked) > 20


def test_five_members_keep_the_same_promises() -> None:
    group = run(77, count=5)
    assert group.verdict() == {}
    assert len(group.acked) > 20


def test_one_seed_gives_one_history() -> None:
    first, second = run(3, seconds=6), run(3, seconds=6)
    assert first.acked == second.acked
    assert [m.applied for m in first.members.values()] == [m.applied for m in second.members.values()]
    assert first.fabric.delivered == second.fabric.delivered


def test_members_that_all_stood_still_keep_their_links() -> None:
    """None of them can say whether the others were silent."""
    group = Group(5)
    lost: list[tuple[str, str]] = []

    async def main() -> None:
        for member in group.members.values():
            await member.start()
        await group.wait_leader()
        await asyncio.sleep(1)
        for name, member in group.members.items():
            assert member.raft is not None
            transport = member.raft._transport

            def note(name: str, down: Callable[[str], None], peer: str) -> None:
                lost.append((name, peer))
                down(peer)

            owner = transport._owner
            transport._owner = replace(owner, on_down=partial(note, name, owner.on_down))
        for member in group.members.values():
            assert member.life is not None
            group.loop.pause(member.life)
        await asyncio.sleep(20)
        for member in group.members.values():
            assert member.life is not None
            group.loop.resume(member.life)
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        assert await group.propose()

    try:
        group.loop.run_until_complete(main())
    finally:
        group.loop.close()
    assert lost == []
