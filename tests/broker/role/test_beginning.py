"""The promise of a broker that was elected and cannot begin: another one leads, if there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.role import beginning, manager
from broker.role.beginning import PAUSE_MAX_MS, PAUSE_MS, WAIT_MS, Beginning
from controller.groups.commands import ElectMaster
from model.codes import Request
from remoting.codec import Command
from tests.fakes.broker.role import GROUP, FakeControllers, Life
from tests.waiting import until


def test_it_asks_when_that_lasts_and_again_after_pauses_that_grow() -> None:
    tries = Beginning()
    assert not tries.asks(0), "nothing failed"
    now_ms = 0.0
    for wait_ms in [WAIT_MS, *(min(PAUSE_MS * 2**n, PAUSE_MAX_MS) for n in range(7))]:
        tries.on_failed(now_ms)
        assert not tries.asks(now_ms + wait_ms - 1)
        now_ms += wait_ms
        assert tries.asks(now_ms)
        assert not tries.asks(now_ms)
    tries.on_over()
    assert not tries.asks(now_ms + PAUSE_MAX_MS)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginning, "WAIT_MS", 50.0)
    monkeypatch.setattr(manager, "RETRY_FIRST_MS", 10)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("noted", [False, True], ids=["", "the epoch is noted"])
async def test_one_that_cannot_begin_is_replaced_by_a_member(tmp_path: Path, noted: bool) -> None:
    async with FakeControllers() as controllers, Life(tmp_path / "1", controllers) as first:
        await first.becomes("master", 1)
        async with Life(tmp_path / "2", controllers) as second:
            await second.becomes("slave", 1)
            await controllers_take_both(controllers)
            second.host.fail_lead = 1_000_000
            if noted:
                second.store.epochs.append(2, 0)
            controllers.answers[Request.CONTROLLER_ELECT_MASTER] = lambda request: anew(controllers, request)
            vote = ElectMaster(group=GROUP, broker_id=2, designate=True, alive=(1, 2), all_ack=True)
            controllers.table._once(vote)
            assert controllers.group.master == 2
            await first.becomes("master", 3)
            await second.becomes("slave", 3)


async def controllers_take_both(controllers: FakeControllers) -> None:
    group = controllers.group
    await until(lambda: set(controllers.alive) == {1, 2})
    group.members = [1, 2]


def anew(controllers: FakeControllers, request: Command) -> Command:
    ext = request.ext
    assert (ext["restarted"], ext["cannotBegin"], ext["masterEpoch"]) == ("true", "true", "2")
    answer = controllers.table._once(
        ElectMaster(
            group=GROUP,
            broker_id=int(ext["brokerId"]),
            restarted=True,
            log_epoch=int(ext["logEpoch"]),
            alive=tuple(controllers.alive),
            all_ack=True,
        )
    )
    answer.ext["masterHaAddress"] = controllers.group.replicas[1].ha_address
    return request.reply(answer.code, ext=answer.ext)
