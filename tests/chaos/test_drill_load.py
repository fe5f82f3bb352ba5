"""The promise of a drill's topic: it is there, though a group refuses for a moment; else it is told why."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from chaos.drills import load
from chaos.drills.load import make_topic
from model.errors import MqError, Refused
from runtime.os_env import OsEnv

WORLD: Any = SimpleNamespace(namesrv=["h:1", "h:2"], group="broker-a")


class Admin:
    """A cluster that refuses ``refuses`` times, and routes after a while."""

    refuses = 0
    unrouted = 0
    asked: list[str]

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    async def __aenter__(self) -> Admin:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create_topic(self, topic: str, queues: int, *, brokers: list[str]) -> None:
        Admin.asked.append("create")
        if len(Admin.asked) <= Admin.refuses:
            raise Refused("no word from the Controllers")

    async def route(self, topic: str) -> Any:
        Admin.asked.append("route")
        Admin.unrouted -= 1
        return SimpleNamespace(writable=[] if Admin.unrouted >= 0 else [1, 2, 3, 4])


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    Admin.asked, Admin.refuses, Admin.unrouted = [], 0, 0
    monkeypatch.setattr(load, "AdminClient", Admin)
    monkeypatch.setattr(load, "ASK_AGAIN_S", 0.001)
    monkeypatch.setattr("admin.credentials.read", lambda: None)


def test_a_group_that_refuses_for_a_moment_is_asked_again() -> None:
    Admin.refuses, Admin.unrouted = 2, 1
    asyncio.run(make_topic(OsEnv(seed=1), WORLD, "t", 4))
    assert Admin.asked == ["create"] * 3 + ["route"] * 3


@pytest.mark.parametrize(("refuses", "unrouted"), [(10**9, 0), (0, 10**9)])
def test_one_that_goes_on_is_told(monkeypatch: pytest.MonkeyPatch, refuses: int, unrouted: int) -> None:
    monkeypatch.setattr(load, "TOPIC_S", 0.05)
    Admin.refuses, Admin.unrouted = refuses, unrouted
    with pytest.raises(MqError, match=r"no word from the Controllers|has not its queues"):
        asyncio.run(make_topic(OsEnv(seed=1), WORLD, "t", 4))
