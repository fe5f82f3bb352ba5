"""The promise of a slave without a link to its master: it says so, and not louder than it deserves."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from broker import service
from ha.slave import follower
from model.ids import BrokerId, Epoch
from tests.broker.helpers import role_state, running
from tests.fakes.ha.group import Node
from tests.lines import lines_of
from tests.ports import free_port
from tests.waiting import until


async def lines_of_a_slave(
    port: int, caplog: pytest.LogCaptureFixture, count: int
) -> list[logging.LogRecord]:
    """What a slave logs whose master, at this port, takes no connections."""
    node = Node(2)
    caplog.set_level(logging.INFO, logger="ha.slave.follower")
    await node.ha.start()
    await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{port}")
    try:
        await until(lambda: len(lines_of(caplog)) >= count, "it logged")
        await asyncio.sleep(0.3)
    finally:
        await node.ha.stop()
    return lines_of(caplog)


async def test_a_link_that_is_missing_for_the_time_of_an_election_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    port = free_port()
    (line,) = await lines_of_a_slave(port, caplog, 1)
    assert (line.levelname, line.getMessage()) == (
        "INFO",
        f"not following 127.0.0.1:{port}: Connection refused",
    )


async def test_one_that_is_missing_for_longer_is_warned_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(follower, "ORDINARY_MS", 200.0)
    lines = await lines_of_a_slave(free_port(), caplog, 2)
    assert [line.levelname for line in lines] == ["INFO", "WARNING"]


async def test_another_master_is_nothing_to_tell_of(caplog: pytest.LogCaptureFixture) -> None:
    held = asyncio.Event()

    async def holds(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held.set()
        await reader.read()
        writer.close()

    caplog.set_level(logging.INFO, logger="ha.slave.follower")
    node, port, other = Node(2), free_port(), free_port()
    server = await asyncio.start_server(holds, "127.0.0.1", port)
    async with server:
        await node.ha.start()
        await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{port}")
        await held.wait()
        await node.ha.become_slave(BrokerId(2), Epoch(2), f"127.0.0.1:{other}")
        await until(lambda: lines_of(caplog), "it logged")
        assert [line.getMessage() for line in lines_of(caplog)] == [
            f"not following 127.0.0.1:{other}: Connection refused"
        ]
        await node.ha.stop()


async def test_a_slave_of_a_dead_master_is_not_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOST_MS", 200.0)
    port = free_port()
    async with running(tmp_path) as broker:
        broker.role_state.set(role_state("slave", 2, 1, "127.0.0.1:1"))
        await broker.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{port}")
        assert broker.health() is None, "an election takes a moment"
        await until(lambda: broker.health() is not None, "it says so")
        assert (
            broker.health() == f"does not follow its master at 127.0.0.1:{port} for 0 s: Connection refused"
        )
        broker.role.reason = "no broker of broker-a may become master"
        assert "Connection refused; no broker of broker-a may become master" in str(broker.health())
