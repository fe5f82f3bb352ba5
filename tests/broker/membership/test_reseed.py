"""The promise: who puts the log aside (``autoReseed``) is suspect until what was confirmed is copied."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from broker.membership.view import View
from model.codes import Request
from model.errors import MqError
from model.ids import BrokerId, Epoch
from tests.fakes.broker.role import FakeControllers, Life
from tests.plain import broker_ids
from tests.waiting import until


@asynccontextmanager
async def pair(tmp_path: Path, controllers: FakeControllers, **keys: Any) -> AsyncIterator[tuple[Life, Life]]:
    """A master with the id 1 and its slave, which begins after it: else either may get the id. ``keys``: of
    the slave's configuration."""
    async with Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers, **keys) as second:
            await second.becomes("slave")
            yield first, second


async def test_the_controllers_and_the_disk_know_before_the_log_goes(tmp_path: Path) -> None:
    async with (
        FakeControllers() as controllers,
        pair(tmp_path, controllers, auto_reseed=True) as (first, second),
    ):
        assert first.host.propose is not None
        await first.host.propose(broker_ids({1, 2}), controllers.group.members_epoch)
        assert controllers.group.members == [1, 2]
        assert not second.role._membership.suspect
        before = second.ha.conditions.before_reseed
        assert before is not None

        assert second.role.machine._examined
        await before()

        assert not second.role.machine._examined, "it asks again before it leads"
        assert second.role._membership.suspect
        noted = msgspec.json.decode((Path(second.config.store_path) / "bootId.json").read_bytes())
        assert noted["doubtful"] is True, "a restart in the middle of the copy leaves it suspect"
        assert controllers.group.suspect == [2]
        assert controllers.group.members == [1], "what it has now proves nothing about what it acknowledged"
        views = len(controllers.requests)
        await until(lambda: len(controllers.requests) > views + 4, "more views came")
        assert second.role._membership.suspect, "being no member ends no suspicion"

        await first.host.propose(frozenset({1, 2}), controllers.group.members_epoch)
        await until(lambda: not second.role._membership.suspect, "the master took it in: it has all")


async def test_a_view_from_before_ends_no_suspicion(tmp_path: Path) -> None:
    async with (
        FakeControllers() as controllers,
        pair(tmp_path, controllers, sync_broker_metadata_ms=60_000) as (_, second),
    ):
        membership = second.role._membership
        stale = View(Epoch(1), BrokerId(1), "a:1", "a:2", broker_ids({1, 2}), 9, second.env.monotonic_ms())
        await membership.before_reseed()
        await membership.on_view(stale)
        assert membership.suspect


async def test_a_view_that_is_read_while_it_registers_ends_no_suspicion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would register as sound, and its log would go."""
    async with (
        FakeControllers() as controllers,
        pair(tmp_path, controllers, sync_broker_metadata_ms=60_000) as (_, second),
    ):
        membership = second.role._membership
        register = membership._register

        async def overtaken(broker_id: BrokerId, *, lost: bool = False) -> View:
            asked_ms = second.env.monotonic_ms() + 1
            await membership.on_view(
                View(Epoch(1), BrokerId(1), "a:1", "a:2", broker_ids({1, 2}), 9, asked_ms)
            )
            return await register(broker_id, lost=lost)

        monkeypatch.setattr(membership, "_register", overtaken)
        await membership.before_reseed()
        assert membership.suspect
        assert controllers.group.suspect == [2]


async def test_while_no_controller_answers_the_log_stays(tmp_path: Path) -> None:
    async with FakeControllers() as controllers, pair(tmp_path, controllers) as (_, second):
        controllers.answers[int(Request.CONTROLLER_REGISTER_BROKER)] = lambda request: request.reply(
            1, remark="no majority"
        )
        with pytest.raises(MqError, match="no majority"):
            await second.role._membership.before_reseed()


async def test_a_log_goes_only_when_the_disk_says_so_also_at_the_second_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        FakeControllers() as controllers,
        pair(tmp_path, controllers, sync_broker_metadata_ms=60_000) as (_, second),
    ):
        membership = second.role._membership
        whole = membership._reboot._write

        def full(noted: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(membership._reboot, "_write", full)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                await membership.before_reseed()
            assert membership.suspect, "it says so while it runs"
        monkeypatch.setattr(membership._reboot, "_write", whole)
        await membership.before_reseed()
        noted = msgspec.json.decode((Path(second.config.store_path) / "bootId.json").read_bytes())
        assert noted["doubtful"] is True


async def test_a_note_that_hangs_and_comes_late_is_no_word_on_a_log_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was elected, its disk hung while it noted that its log was whole, and another one led. Then its log
    had to go: the Controllers heard that it was sound, and the late note said so, too."""
    async with (
        FakeControllers() as controllers,
        pair(tmp_path, controllers, sync_broker_metadata_ms=60_000) as (_, second),
    ):
        membership, goes_on = second.role._membership, threading.Event()
        await membership.before_reseed()
        whole = membership._reboot._write

        def hang(noted: Any) -> None:
            if not noted.suspect:
                assert goes_on.wait(30)
            whole(noted)

        monkeypatch.setattr(membership._reboot, "_write", hang)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await membership.forget_suspicion()
        goes = asyncio.create_task(membership.before_reseed())
        await asyncio.sleep(0.02)
        assert not goes.done(), "the log stays until it is known what the disk says"
        goes_on.set()
        await goes
        assert (membership.suspect, controllers.group.suspect) == (True, [2])
        noted = msgspec.json.decode((Path(second.config.store_path) / "bootId.json").read_bytes())
        assert noted["doubtful"] is True


async def test_a_sound_broker_waits_for_no_thread_to_forget_a_suspicion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with FakeControllers() as controllers, pair(tmp_path, controllers) as (first, _):
        membership = first.role._membership
        monkeypatch.setattr(membership, "_notes", None)
        assert not membership.suspect
        await membership.forget_suspicion()
