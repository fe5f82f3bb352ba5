"""The promise of ``keelmq maintenance``: a master hands over first, and nothing changes where it cannot."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from admin.commands import maintenance as commands
from admin.commands.maintenance import maintenance
from admin.exits import DONE, UNFINISHED, USAGE
from admin.exits import run as run_command
from admin.handover import CannotHandOver, HandedOver
from admin.tls import client_env
from client.admin import AdminClient, SyncState
from model.errors import Unknown
from tests.fakes.controller.live import G, World, run


def asked(world: World) -> Any:
    found = object.__new__(commands._Site)
    found.at = found.names = [world.leader_address()]
    found.key = None
    return found


def test_a_slave_is_put_into_maintenance_by_its_id_or_address(tmp_path: Path) -> None:
    async def main(world: World) -> None:
        _, two, _ = await world.brokers_up()
        dry = await commands._on(asked(world), "c", G, "2", True)
        assert (dry["changed"], world.group()["maintenance"]) == (False, [])
        for name in ("2", two.address):
            done = await commands._on(asked(world), "c", G, name, False)
            assert done == {"group": G, "broker": 2, "handedOverTo": None, "changed": True}
        assert world.group()["maintenance"] == [2]
        assert list((await asked(world).state(G)).maintenance) == [2]
        with pytest.raises(commands.CannotMaintain, match="no broker 9; it has 1 at"):
            await commands._on(asked(world), "c", G, "9", False)

    run(tmp_path, main)


def test_a_master_hands_over_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(world: World) -> None:
        await world.brokers_up()
        seen = []

        async def refused(*args: Any, **more: Any) -> HandedOver:
            seen.append(list(world.group()["maintenance"]))
            raise CannotHandOver("nobody is level")

        async def done(*args: Any, **more: Any) -> HandedOver:
            return HandedOver(G, 1, 3, 2, 15.0)

        monkeypatch.setattr(commands, "hand_over", refused)
        with pytest.raises(CannotHandOver):
            await commands._on(asked(world), "c", G, "1", False)
        assert seen == [[1]], "in maintenance before, so that nobody elects it in between"
        assert world.group()["maintenance"] == []
        await asked(world).set("c", G, 1, True)
        with pytest.raises(CannotHandOver):
            await commands._on(asked(world), "c", G, "1", False)
        assert world.group()["maintenance"] == [1], "somebody else's word of it is not taken back"
        await asked(world).set("c", G, 1, False)
        await asked(world).set("c", G, 2, True)
        dry = await commands._on(asked(world), "c", G, "1", True)
        assert dry["handedOverTo"] == 3
        monkeypatch.setattr(commands, "hand_over", done)
        assert (await commands._on(asked(world), "c", G, "1", False))["handedOverTo"] == 3
        assert world.group()["maintenance"] == [1, 2]

    run(tmp_path, main)


def test_one_that_lost_its_lead_meanwhile_stays_in_maintenance_and_nobody_else_hands_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(world: World) -> None:
        await world.brokers_up()
        site, before = asked(world), await asked(world).state(G)
        read, given = site.state, iter([before])

        async def state(name: str) -> Any:  # first as it was before the election
            return next(given, None) or await read(name)

        monkeypatch.setattr(site, "state", state)
        async with AdminClient(client_env(), site.names) as admin:
            assert (await admin.elect(site.at, "c", G, 2))[0] == 2
        assert (await commands._on(site, "c", G, "1", False))["handedOverTo"] == 2
        assert (world.group()["master"], world.group()["maintenance"]) == (2, [1])

    run(tmp_path, main)


def test_what_cannot_be_taken_back_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Controllers lose their leader behind the change: that nothing changed would be wrong."""

    async def main(world: World) -> None:
        await world.brokers_up()
        site = asked(world)
        looked = site.state

        async def refused(*args: Any, **more: Any) -> HandedOver:
            async def no_leader(group: str) -> SyncState:
                raise CannotHandOver("no Controller is leader")

            site.state = no_leader
            raise CannotHandOver("no Controller is leader")

        monkeypatch.setattr(commands, "hand_over", refused)
        with pytest.raises(Unknown, match="broker 1 may be in maintenance, and still master"):
            await commands._on(site, "c", G, "1", False)
        assert list((await looked(G)).maintenance) == [1]

    run(tmp_path, main)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_says_what_may_have_changed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    calls = []

    class Site(commands._Site):
        async def state(self, name: str) -> Any:
            return SyncState(name, 1, "a:1", 1, 1, {1: "a:1", 2: "b:1"}, {}, {1: True, 2: True}, {}, {})

        async def set(self, cluster: str, name: str, broker_id: int, on: bool) -> None:
            calls.append((name, broker_id, on))

    async def hand_over(*args: Any, **more: Any) -> HandedOver:
        os.kill(os.getpid(), number)
        await asyncio.sleep(10)
        raise AssertionError("nobody heard the signal")

    monkeypatch.setattr(commands, "_Site", Site)
    monkeypatch.setattr(commands, "hand_over", hand_over)
    where = ["--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:2", "--group", G]
    before = signal.signal(signal.SIGTERM, lambda *_: None)  # for a command that does not hear it
    try:
        assert run_command(maintenance, ["on", "1", *where]) == UNFINISHED
    finally:
        signal.signal(signal.SIGTERM, before)
    assert calls == [(G, 1, True)]
    assert capsys.readouterr().err == (
        "keelmq: interrupted: broker 1 may be in maintenance, and still master;"
        " end that with keelmq maintenance off\n"
    )


def test_off_is_told_and_wrong_uses_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    class Site(commands._Site):
        async def state(self, name: str) -> Any:
            return SyncState(name, 1, "a:1", 1, 1, {1: "a:1", 2: "b:1"}, {}, {1: True, 2: True}, {}, {})

        async def set(self, cluster: str, name: str, broker_id: int, on: bool) -> None:
            calls.append((cluster, name, broker_id, on))

    monkeypatch.setattr(commands, "_Site", Site)
    where = ["--controllers", "127.0.0.1:1", "--namesrv", "127.0.0.1:2"]
    assert run_command(maintenance, ["off", "2", "--group", G, *where, "--json"]) == DONE
    assert json.loads(capsys.readouterr().out) == {"group": G, "broker": 2}
    assert calls == [("DefaultCluster", G, 2, False)]
    assert run_command(maintenance, ["off", "2", *where]) == USAGE
    assert run_command(maintenance, ["on", "2", "--controllers", "127.0.0.1:1"]) == USAGE
    assert run_command(maintenance, ["on", "2", "--dir", str(tmp_path / "none")]) == USAGE
    assert run_command(maintenance, ["off", "9", "--group", G, *where]) == UNFINISHED
    errors = capsys.readouterr().err
    assert "no broker 9" in errors
    assert "Traceback" not in errors
