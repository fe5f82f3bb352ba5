"""The promise of a broker's long-lived tasks: one bad turn is one bad turn, not the end of the task."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.context import BrokerContext
from broker.requests.transactions import Transactions
from broker.state.resting import Resting
from broker.upkeep import delay
from broker.upkeep.delay import DelayOffsets, DelayService
from broker.upkeep.table_sync import MetadataSync
from model.errors import PeerError
from model.message import SCHEDULE_TOPIC
from remoting.bodies import dumps
from remoting.codec import Command
from runtime.os_env import OsEnv
from tests.broker.helpers import eventually


@pytest.mark.parametrize("error", [ValueError("a message that is none"), RuntimeError("nobody foresaw this")])
async def test_delay_levels_go_on_when_one_message_or_one_look_back_fails(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(delay, "STEP_S", 0)

    store = SimpleNamespace(
        log=SimpleNamespace(end=0),
        dispatched=0,
        max_queue_offset=lambda topic, queue_id: 1,
        queues_of=lambda topic: [],
    )
    config = SimpleNamespace(delay_levels="1s 5s")
    service = DelayService(
        cast(BrokerContext, SimpleNamespace(env=OsEnv(), store=store, config=config)),
        DelayOffsets(lambda: 0),
        cast(Any, None),
        Resting([]).of(SCHEDULE_TOPIC),
    )
    looks: list[int] = []
    steps: list[int] = []

    async def look_back(level: int) -> None:
        looks.append(level)
        if looks == [1]:
            raise OSError("a page that cannot be read")

    def step(level: int) -> bool:
        steps.append(level)
        if steps == [2]:
            raise error
        return False

    service._skip_delivered = look_back  # type: ignore[method-assign]
    service.step = step  # type: ignore[method-assign]
    task = asyncio.create_task(service.run())
    await eventually(lambda: task.done() or len(steps) >= 5, "levels are delivered")
    assert not task.done()
    task.cancel()
    assert looks == [1, 2, 1], "each level looks back until it could, and once"
    assert steps[:5] == [2, 1, 2, 1, 2]


@pytest.mark.parametrize(
    "error", [ValueError("an operation that is none"), RuntimeError("nobody foresaw this")]
)
async def test_transactions_are_looked_at_again_after_an_operation_that_cannot_be_read(
    error: Exception,
) -> None:
    store = SimpleNamespace(
        min_queue_offset=lambda topic, queue_id: 0, dispatched=0, log=SimpleNamespace(end=0)
    )
    context = SimpleNamespace(
        env=OsEnv(),
        store=store,
        offsets=SimpleNamespace(get=lambda group, topic, queue_id: None),
        config=SimpleNamespace(transaction_check_interval_ms=0),
        refuse_write=lambda: None,
    )
    service = Transactions(cast(BrokerContext, context), cast(Any, None))
    reads: list[int] = []
    checks: list[int] = []

    async def read() -> None:
        reads.append(1)
        if len(reads) == 1:
            raise error

    service._read_ops = read  # type: ignore[method-assign]

    async def check() -> None:
        checks.append(1)

    service.check = check  # type: ignore[method-assign]
    task = asyncio.create_task(service.run())
    await eventually(lambda: task.done() or bool(checks), "halves are looked at")
    assert not task.done()
    task.cancel()


async def test_a_master_that_hands_on_a_table_that_is_none_is_asked_again() -> None:
    class Client:
        async def call(self, address: str, command: Command, timeout_s: float) -> Command:
            return command.reply(ext={"run": "r", "revision": "1"}, body=dumps({"topics": {}}))

    def adopt(table: dict[str, Any]) -> bool:
        raise KeyError("dataVersion")

    table = SimpleNamespace(adopt=adopt)
    context = SimpleNamespace(
        env=OsEnv(),
        config=SimpleNamespace(slave_metadata_ms=1000, broker_name="b"),
        role_state=SimpleNamespace(role="slave", master_address="m:1", broker_id=2, epoch=1),
        ha=SimpleNamespace(on_agreed=[], agreed=True),
        topics=table,
        groups=table,
        offsets=table,
    )
    files = SimpleNamespace(delays=table)
    sync = MetadataSync(cast(BrokerContext, context), cast(Any, files), cast(Any, Client()))
    with pytest.raises(PeerError, match="the table topics of the master is not one"):
        await sync.once()


async def test_a_slave_goes_on_copying_tables_after_an_error_that_nobody_foresaw() -> None:
    asked: list[str] = []

    class Client:
        async def call(self, address: str, command: Command, timeout_s: float) -> Command:
            asked.append(address)
            raise RuntimeError("nobody foresaw this")

    context = SimpleNamespace(
        env=OsEnv(),
        config=SimpleNamespace(slave_metadata_ms=1000, broker_name="b"),
        role_state=SimpleNamespace(role="slave", master_address="m:1", broker_id=2, epoch=1),
        ha=SimpleNamespace(on_agreed=[], agreed=True),
        topics=SimpleNamespace(adopt=None),
        groups=SimpleNamespace(adopt=None),
        offsets=SimpleNamespace(adopt=None),
    )
    tables = SimpleNamespace(delays=DelayOffsets(lambda: 0))
    sync = MetadataSync(cast(BrokerContext, context), cast(Any, tables), cast(Any, Client()))
    task = asyncio.create_task(sync.run())
    await eventually(lambda: task.done() or len(asked) >= 3, "the master is asked again")
    assert not task.done()
    task.cancel()
