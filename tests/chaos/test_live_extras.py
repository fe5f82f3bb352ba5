"""The promise of what a live run asks for besides: what was answered shows everywhere, or is a violation."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.drills.live import extras as live
from chaos.drills.live.extras import LiveExtras, LiveSite
from chaos.extras import Extras
from chaos.history import Happened, History
from model.codes import Request
from model.errors import Unknown
from runtime.os_env import OsEnv
from tests.fakes.live import FakeCluster


class FakeAdmin:
    """Every broker has two topics, the second one a group less."""

    def __init__(self, env: object, namesrv: object) -> None:
        self.session = self

    async def __aenter__(self) -> FakeAdmin:
        return self

    async def __aexit__(self, *error: object) -> None: ...

    async def call(self, address: str, code: int, ext: object) -> SimpleNamespace:
        if code == Request.GET_ALL_TOPIC_CONFIG:
            body: dict[str, Any] = {"topicConfigTable": {"extras": {}, "topic-1": {}}, "dataVersion": {}}
        elif address.endswith("42"):
            body = {"subscriptionGroupTable": {}}
        else:
            body = {"subscriptionGroupTable": {"group-2": {}}}
        return SimpleNamespace(body=json.dumps(body).encode())


class Load:
    topic = "chaos"

    def __init__(self) -> None:
        self.history = History()
        self.now_ms = 0.0

    def clock(self) -> float:
        self.now_ms += 1.0
        return self.now_ms


class Group:
    """Of push consumers: nobody comes."""

    handled: frozenset[str] = frozenset()
    came = 0

    def __init__(self, *_: object) -> None: ...

    async def run(self) -> None: ...

    def settle(self) -> None: ...

    def not_handled(self, history: History, *, clocks_true: bool) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def _no_consumers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PushGroup", Group)


def extras_of(directory: Path, *, asked: bool) -> LiveExtras:
    load = cast(Any, Load())
    return LiveExtras(lambda n: OsEnv(seed=n), FakeCluster(directory), load, random.Random(1), asked=asked)


async def test_the_tables_of_every_broker_that_runs_are_compared_with_what_was_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "AdminClient", FakeAdmin)
    cluster, history = FakeCluster(tmp_path), History()
    one, other, third = cluster.layout.broker_nodes
    cluster.running[third.name] = 0
    site = LiveSite(OsEnv(seed=1), cluster, history)
    assert other.address.endswith("42"), "the fake's second broker"
    found = await site.tables()
    assert set(found) == {one.name, other.name}
    asked = Extras(site, OsEnv(seed=2), random.Random(1))
    assert await asked.look() == []
    asked.shown["topics"]["topic-9"] = asked.shown["groups"]["group-2"] = cast(Any, None)
    asked.hidden_topics.add("topic-1")
    assert sorted(await asked.look()) == [
        f"group group-2 was made and is not at {other.name}",
        f"topic topic-1 was deleted and is at {one.name}",
        f"topic topic-1 was deleted and is at {other.name}",
        f"topic topic-9 was made and is not at {one.name}",
        f"topic topic-9 was made and is not at {other.name}",
    ]
    assert site.clocks_true()
    history.add(Happened(1.0, one.name, "clock_jump"))
    assert not site.clocks_true()


async def test_what_does_not_show_in_time_is_a_violation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.0)
    said: list[Any] = [Unknown("no answer"), ["late"], []]

    async def missing(**_: bool) -> list[str]:
        now = said.pop(0)
        if isinstance(now, Exception):
            raise now
        return cast(list[str], now)

    async def run() -> None: ...

    extras = extras_of(tmp_path, asked=True)
    monkeypatch.setattr(extras._extras, "run", run)
    monkeypatch.setattr(extras._extras, "_missing", missing)
    extras.start()
    assert await extras.not_kept() == []
    assert extras.unread is None
    monkeypatch.setattr(live, "SHOWN_S", 0.001)
    said += [["k1 was answered OK, not in extras"]] * 5
    assert await extras.not_kept() == [{"checker": "extras", "text": "k1 was answered OK, not in extras"}]
    said[:] = [OSError("refused")] * 5
    assert await extras.not_kept() == []
    assert extras.unread == "what was asked for besides cannot be read back: refused"
    assert extras.errors() == []


async def test_asking_that_died_is_a_violation_whether_the_group_is_full_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        raise KeyError("attempts")

    extras = extras_of(tmp_path, asked=True)
    monkeypatch.setattr(extras._extras, "run", run)
    extras.start()
    assert extras.errors() == []
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert extras.errors() == [{"checker": "no_errors", "text": "extras ended: KeyError('attempts')"}]


async def test_nothing_is_asked_for_unless_it_is_told_to(tmp_path: Path) -> None:
    extras = extras_of(tmp_path, asked=False)
    extras.start()
    await asyncio.sleep(0)
    assert await extras.not_kept() == []
    assert (extras.done, extras.unread, extras.errors()) == ({}, None, [])
    await extras.close()
