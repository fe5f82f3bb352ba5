"""The promise of remoting.transport.calls that a connection's end is told to its callers a part a turn."""

from __future__ import annotations

import asyncio

import pytest

from model.errors import Unknown
from remoting.transport import calls as calls_module
from remoting.transport.calls import Calls


async def test_the_end_of_a_connection_is_told_to_a_part_of_its_callers_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls_module, "FAILED_A_TURN", 3)
    calls = Calls()
    answers = [calls.begin(326, 10.0, "there")[1] for _ in range(8)]
    calls.fail("it ended")
    told = []
    for _ in range(3):
        told.append([answer.done() for answer in answers].count(True))
        await asyncio.sleep(0)
    assert told == [3, 6, 8]
    assert len(calls) == 0
    assert all(isinstance(answer.exception(), Unknown) for answer in answers)
