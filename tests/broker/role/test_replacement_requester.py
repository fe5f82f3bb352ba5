"""The promise of broker.role.replacement_requester: a master looks ten times a second whether it can serve,
from the moment it leads; a slave does not look at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.role import replacement_requester
from broker.role.replacement_requester import LOOK_S, ReplacementRequester
from runtime.os_env import OsEnv
from tests.waiting import until


async def test_a_slave_rests_until_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    machine = SimpleNamespace(is_master=False)
    unused = cast(Any, None)
    requester = ReplacementRequester(
        cast(Any, SimpleNamespace(env=OsEnv())), cast(Any, machine), unused, unused, unused, lambda: None
    )

    async def look() -> None:
        looks.append(machine.is_master)

    monkeypatch.setattr(requester, "look", look)
    monkeypatch.setattr(replacement_requester, "LOOK_S", LOOK_S / 10)
    running = asyncio.create_task(requester.run())
    await until(lambda: looks == [False], "it looks once")
    await asyncio.sleep(LOOK_S)
    assert looks == [False]
    machine.is_master = True
    requester.on_change()
    await until(lambda: looks[1:4] == [True] * 3, "it looks again and again")
    machine.is_master = False
    requester.on_change()
    await until(lambda: looks[-1] is False, "it looks once more")
    count = len(looks)
    await asyncio.sleep(LOOK_S)
    assert len(looks) == count
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
