"""The promise to a group at its first start: it begins where the original would let it begin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.service import Broker
from model.codes import Request, Response
from remoting.headers import PullHeader
from runtime.os_env import OsEnv
from tests.broker.helpers import Client, client_of, heartbeat, running

ASK = {"consumerGroup": "new", "topic": "T", "queueId": "0"}


async def first_offset(client: Client, **ext: str) -> int | str | None:
    """Where a new group begins: an offset, or the remark of a broker that leaves it to the group."""
    answer = await client.call(Request.QUERY_CONSUMER_OFFSET, ASK | ext)
    if answer.code == Response.QUERY_NOT_FOUND:
        return answer.remark
    assert answer.code == 0
    return int(answer.ext["offset"])


async def send(broker: Broker, client: Client, count: int) -> None:
    for _ in range(count):
        assert (await client.send("T", b"x" * 100)).code == 0
    await broker.store.caught_up()


NOT_FOUND = "Not found, maybe this group consumer boot first"


async def test_a_new_group_reads_a_queue_from_its_start_only_while_that_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """accessMessageInMemoryMaxRatio percent of the machine's memory hold the end of the log; a byte more, and
    a group that asked for "last" begins at the end, as it asked."""

    async with running(tmp_path, accessMessageInMemoryMaxRatio=10) as broker, client_of(broker) as client:
        assert await first_offset(client) == 0  # nothing was sent: nothing is passed over
        await send(broker, client, 20)
        behind = broker.store.log.end - broker.store.log.min_offset
        monkeypatch.setattr(OsEnv, "memory_bytes", lambda env: behind * 10)
        assert await first_offset(client) == 0
        monkeypatch.setattr(OsEnv, "memory_bytes", lambda env: behind * 10 - 1)
        assert await first_offset(client) == NOT_FOUND
        # Another queue is not old because the log is long ...
        assert (await client.send("T", queue_id=1)).code == 0
        await broker.store.caught_up()
        assert await first_offset(client, queueId="1") == 0
        # ... and a group that has been here is told where it was.
        broker.groups.find(ASK["consumerGroup"])
        ext = {**ASK, "commitOffset": "3"}
        assert (await client.call(Request.UPDATE_CONSUMER_OFFSET, ext)).code == 0
        assert await first_offset(client) == 3


async def test_a_tool_that_wants_no_zero_gets_none(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        await send(broker, client, 1)
        assert await first_offset(client) == 0
        assert await first_offset(client, setZeroIfNotFound="false") == NOT_FOUND


@pytest.mark.parametrize(("bits", "code"), [(4, Response.NO_PERMISSION), (3, Response.SUCCESS)])
async def test_what_a_real_broker_forbade_a_group_to_read_stays_forbidden(
    tmp_path: Path, bits: int, code: int
) -> None:
    (tmp_path / "config").mkdir()
    stored = {
        "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1},
        "forbiddenTable": {"new": {"T": bits}},
        "subscriptionGroupTable": {"new": {"groupName": "new"}},
    }
    (tmp_path / "config" / "subscriptionGroup.json").write_text(json.dumps(stored))
    async with running(tmp_path) as broker, client_of(broker) as client:
        await send(broker, client, 1)
        await client.call(Request.HEART_BEAT, {}, heartbeat("c1", "new", "T"))
        answer = await client.call(Request.PULL_MESSAGE, PullHeader("new", "T", 0, 0, 32).to_ext())
        assert answer.code == code, answer.remark
