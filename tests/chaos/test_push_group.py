"""The promise of the group of push consumers: what no member took is told; of its members some stay."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.drills.live import push_group
from chaos.drills.live.push_group import MEMBERS, PushGroup
from chaos.history import Happened, History, Invoke, Ok
from client.message import Queue
from runtime.os_env import OsEnv

QUEUE = Queue("chaos", "broker-a", 0)


def group() -> PushGroup:
    return PushGroup(lambda number: OsEnv(seed=number), ["127.0.0.1:1"], "chaos", random.Random(1))


def acked(*keys: str) -> History:
    events: list[Any] = []
    for at, key in enumerate(keys):
        events += [Invoke(0.0, "p", key, QUEUE, 1), Ok(1.0, "p", key, QUEUE, at, at)]
    return History(events)


def message(key: str) -> Any:
    return SimpleNamespace(msg_id=key)


async def test_what_no_member_took_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found, history = group(), acked("k1", "k2", "k3")
    monkeypatch.setattr(push_group, "GIVES_BACK", 0.0)
    assert await found.listen([message("k1")])
    [told] = found.not_handled(history, clocks_true=True)
    assert "2 of 3 acknowledged messages were never handled" in told
    assert "k2, k3" in told
    assert await found.listen([message("k2"), message("k3"), message("k3")])
    assert found.not_handled(history, clocks_true=True) == []


async def test_what_was_given_back_has_to_come_again_unless_a_clock_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, history = group(), acked("k1")
    monkeypatch.setattr(push_group, "GIVES_BACK", 1.0)
    assert not await found.listen([message("k1")])
    assert found.not_handled(history, clocks_true=True)
    assert found.not_handled(history, clocks_true=False) == []
    assert await found.listen([message("k1")]), "once is enough"
    assert found.not_handled(history, clocks_true=True) == []
    found.settle()
    assert await found.listen([message("k2")]), "at the end nothing is given back"


async def test_of_a_disk_that_lied_nothing_is_asked() -> None:
    history = acked("k1")
    history.add(Happened(1.0, "b0", "lying_sync", {"lying": True}))
    history.add(Happened(2.0, "b0", "power_fail"))
    assert group().not_handled(history, clocks_true=True) == []


async def test_members_come_and_go_until_the_group_settles_and_some_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here: list[object] = []

    class Member:
        def __init__(self, *_: object, **__: object) -> None: ...

        async def start(self) -> None:
            here.append(self)
            if len(here) == 1:
                raise ConnectionRefusedError("nobody listens")

        async def stop(self) -> None:
            here.remove(self)

    monkeypatch.setattr(push_group, "PushConsumer", cast(Any, Member))
    monkeypatch.setattr(push_group, "STAYS_S", (0.0, 0.001))
    found = group()
    running = asyncio.ensure_future(found.run())
    while found.came < MEMBERS + 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    found.settle()
    await running
    assert len(here) == MEMBERS
    assert found.failed == 1
    await found.close()
    assert here == []
