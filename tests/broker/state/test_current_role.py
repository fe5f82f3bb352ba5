"""The promises of broker.state.current_role about sends that wait for a handover: a bound of them all, with
their headers, and they go on in order, a share a turn."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import cast

import pytest

from broker.state import current_role
from broker.state.current_role import CurrentRole
from broker.state.role_state import Role, RoleState
from model.ids import BrokerId, Epoch
from remoting.codec import Command
from remoting.service import Connection
from runtime import turns
from tests.fakes.broker.store import FakeConnection

PEER = cast(Connection, FakeConnection())


async def turn() -> None:
    await asyncio.sleep(0)


async def test_what_waits_for_a_handover_is_bounded_with_its_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends of an empty body and properties of megabytes counted as nothing."""
    monkeypatch.setattr(current_role, "HELD_BYTES_MAX", 100_000)
    role = CurrentRole()
    role.handing_over = True
    send = Command(310, {"i": "x" * 40_000})
    calls = [asyncio.create_task(role.handed_over(PEER, send)) for _ in range(4)]
    await turn()
    assert [call.result() for call in calls if call.done()] == [False, False]
    role.handing_over = False
    assert await asyncio.gather(*calls) == [True, True, False, False]
    assert await role.handed_over(PEER, send) is False


async def test_only_so_many_wait_for_a_handover(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current_role, "HELD_MAX", 3)
    monkeypatch.setattr(current_role, "HOLD_S", 0.01)
    role = CurrentRole()
    role.handing_over = True
    calls = [asyncio.create_task(role.handed_over(PEER, Command(310))) for _ in range(5)]
    await turn()
    assert [call.done() for call in calls] == [False, False, False, True, True]
    assert await asyncio.gather(*calls) == [True, True, True, False, False], "their time is over"
    assert role.handing_over
    calls = [asyncio.create_task(role.handed_over(PEER, Command(310))) for _ in range(3)]
    await turn()
    assert not any(call.done() for call in calls), "there is room again"
    await asyncio.gather(*calls)


async def test_what_waited_for_a_handover_goes_on_a_share_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "SHARE_BYTES", 20_000)
    role = CurrentRole()
    role.handing_over = True
    went: list[int] = []

    async def send(number: int) -> None:
        assert await role.handed_over(PEER, Command(310, {"i": "x" * 6_000}))
        went.append(number)

    calls = [asyncio.create_task(send(number)) for number in range(10)]
    await turn()
    role.handing_over = False
    after = []
    while len(went) < 10:
        await turn()
        after.append(len(went))
    assert went == list(range(10))
    assert after[0] == 2, "the first go on at once"
    assert max(later - before for before, later in pairwise(after)) <= 2
    await asyncio.gather(*calls)


async def test_what_a_connection_sends_after_a_handover_goes_behind_what_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waited for a handover that came to nothing goes on over several turns."""
    monkeypatch.setattr(turns, "SHARE_BYTES", 20_000)
    role, mine, other = CurrentRole(), FakeConnection(), FakeConnection()
    role.handing_over = True
    went: list[int] = []

    async def send(number: int, connection: FakeConnection = mine) -> bool:
        waited = await role.handed_over(cast(Connection, connection), Command(310, {"i": "x" * 6_000}))
        went.append(number)
        return waited

    calls = [asyncio.create_task(send(number)) for number in range(6)]
    await turn()
    role.handing_over = False
    assert mine.held, "nothing more is read, which the fast path would store at once"
    calls.append(asyncio.create_task(send(6)))  # it was read a moment before
    assert await send(100, other) is False, "others do not wait"
    await turn()
    assert mine.held
    await asyncio.gather(*calls)
    assert went == [100, *range(7)]
    assert not mine.held
    assert await send(7) is False


@pytest.mark.parametrize("name", ["master", "slave", "fenced"])
async def test_writes_are_taken_exactly_where_none_is_refused(name: Role) -> None:
    role = CurrentRole()
    assert role.takes_writes == (role.refuse() is None)
    for handing_over in (False, True, False):
        role.set(RoleState(name, BrokerId(1), Epoch(1), None))
        role.handing_over = handing_over
        assert role.takes_writes == (role.refuse() is None) == (name == "master" and not handing_over)
