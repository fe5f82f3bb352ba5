"""The promise of ``keelmq cluster restart --rolling``: under a sender no send fails and nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from client.consuming.pull import PullConsumer, PullStatus
from client.message import Message
from client.sending.producer import Producer
from runtime.os_env import OsEnv
from tests.live.commands import Shell

pytestmark = pytest.mark.live

PAUSE_S = 0.005


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    shell = Shell("--dir", str(tmp_path_factory.mktemp("cluster")))
    try:
        shell("cluster", "up")
        yield shell
    finally:
        shell("cluster", "down")


class Sender:
    """Sends one message after the other in a thread of its own until it is told to stop."""

    def __init__(self, namesrv: str) -> None:
        self.acknowledged: list[str] = []
        self.failed: list[str] = []
        self._namesrv = namesrv
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _run(self) -> None:
        async with Producer(OsEnv(), "rolling", self._namesrv) as producer:
            while not self._stop.is_set():
                body = str(len(self.acknowledged) + len(self.failed))
                try:
                    await producer.send(Message(topic="orders", body=body.encode()))
                    self.acknowledged.append(body)
                except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
                    self.failed.append(f"{body}: {error!r}")
                await asyncio.sleep(PAUSE_S)


async def stored(namesrv: str) -> list[str]:
    found: list[str] = []
    async with PullConsumer(OsEnv(), "reader", namesrv) as consumer:
        for queue in await consumer.queues("orders"):
            at = await consumer.min_offset(queue)
            while (pulled := await consumer.pull(queue, at)).status is PullStatus.FOUND:
                found += [message.body.decode() for message in pulled.messages]
                at = pulled.next_offset
    return found


def pids(status: dict[str, Any]) -> dict[str, int]:
    servers = [*status["controllers"], *status["groups"][0]["brokers"]]
    return {one["address"]: one["pid"] for one in servers}


def test_a_rolling_restart_under_a_sender_fails_no_send_and_loses_nothing(shell: Shell) -> None:
    shell("topic", "create", "orders")
    before = shell.json("cluster", "status")
    namesrv = ";".join(before["namesrv"])
    with Sender(namesrv) as sender:
        done = shell.json("cluster", "restart", "--rolling", "--set", "broker.maxMessageSize=1000000")
    after = shell.json("cluster", "status")
    assert sender.failed[:3] == []
    assert len(sender.acknowledged) > 100
    assert sorted(asyncio.run(stored(namesrv))) == sorted(sender.acknowledged)
    assert after["missing"] == ""
    assert not set(pids(before).values()) & set(pids(after).values())
    assert [one["newMaster"] for one in done["restarted"]].count(None) == len(done["restarted"]) - 1
    assert not any(one["killed"] for one in done["restarted"])


def test_a_frozen_slave_keeps_every_server_as_it_is(shell: Shell) -> None:
    before = shell.json("cluster", "status")
    slave = next(one for one in before["groups"][0]["brokers"] if one["role"] == "slave")
    os.kill(slave["pid"], signal.SIGSTOP)
    try:
        said = shell("cluster", "restart", "--rolling", code=3)
    finally:
        os.kill(slave["pid"], signal.SIGCONT)
    assert said.startswith("keelmq: nothing was restarted: waiting for")
    assert said.count("\n") == 1
    assert pids(shell.json("cluster", "status")) == pids(before)
