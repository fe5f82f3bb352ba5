"""Whatever a request says, a server answers or ends the connection; its own code is not what breaks."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from model.codes import Request
from model.config import NamesrvConfig
from namesrv.service import NameServer
from remoting.codec import encode
from runtime.os_env import OsEnv
from tests.broker.helpers import running
from tests.fakes.controller.live import World
from tests.fuzz.hostile import requests
from tests.fuzz.hostile.wire import Wire

ROUNDS = 8
AT_ONCE = 8
ANSWERS_S = 0.05
"""Held pulls are not waited for."""
CODES = (*map(int, Request), *requests.NO_CODES)


async def drive(address: str, seed: int, codes: Iterable[int]) -> None:
    """Ask for each of ``codes``, in any order. No key is set: peers' requests are decoded, too."""
    chance = random.Random(seed)
    drawn = [requests.draw(chance, code) for code in codes for _ in range(ROUNDS)]
    chance.shuffle(drawn)
    for at in range(0, len(drawn), AT_ONCE):
        async with Wire(address) as wire:
            try:
                await wire.send(b"".join(map(encode, drawn[at : at + AT_ONCE])))
            except OSError:
                continue  # one of them was a reason to end it
            await wire.answers(AT_ONCE, ANSWERS_S)


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() + str(record.exc_info or "") for record in caplog.records if record.exc_info]


async def test_a_broker_answers_hostile_requests_of_every_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with running(tmp_path) as broker:
        await drive(f"127.0.0.1:{broker.port}", 13, CODES)
    assert not errors(caplog)


async def test_a_nameserver_answers_hostile_requests_of_every_code(caplog: pytest.LogCaptureFixture) -> None:
    server = NameServer(OsEnv(seed=1), NamesrvConfig.from_mapping({"listenPort": "0"}))
    await server.start()
    try:
        await drive(server.address, 14, CODES)
    finally:
        await server.stop()
    assert not errors(caplog)


async def test_a_controller_answers_hostile_requests_of_every_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, 1)
    await world.start()
    try:
        await drive(world.addresses["n0"], 15, CODES)
    finally:
        for controller in world.running.values():
            await controller.stop()
    assert not errors(caplog)
