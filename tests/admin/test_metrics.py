"""The promise of admin.host.metrics: real servers' statuses have the words it looks for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from admin.host.metrics import Metrics
from admin.host.tls import WithTls
from model.config import NamesrvConfig
from namesrv.service import NameServer
from runtime.os_env import OsEnv
from runtime.tls.state import TlsState
from tests.admin.statuses import BROKER, Server, names_in
from tests.broker.helpers import client_of, running


def test_a_real_broker_shows_every_metric_of_a_broker(tmp_path: Path) -> None:
    async def body() -> bytes:
        async with running(tmp_path) as broker, client_of(broker) as client:
            await client.send("T")
            broker.ha.links.turned_away.total = 3
            broker.env.events.add("repaired")
            await broker.upkeep.sampling.sample()
            tls = TlsState({"tls.server.mode": "permissive", "tls.test.mode.enable": "true"})
            return Metrics("broker", WithTls(broker, tls)).text()

    text = asyncio.run(body())
    assert names_in(text) == names_in(Metrics("broker", Server(BROKER)).text())
    assert {
        "keelmq_broker_writable 1.0",
        "keelmq_broker_ha_links_turned_away_total 3.0",
        'keelmq_events_total{kind="repaired"} 1.0',
        'keelmq_events_total{kind="truncated"} 0.0',
    } <= set(text.decode().splitlines())


def test_a_real_nameserver_shows_its_connections_and_events() -> None:
    async def body() -> Any:
        env = OsEnv()
        env.events.add("route_changed", group="g")
        return Metrics("namesrv", NameServer(env, NamesrvConfig())).text()

    lines = set(asyncio.run(body()).decode().splitlines())
    assert {"keelmq_namesrv_connections 0.0", 'keelmq_events_total{kind="route_changed"} 1.0'} <= lines
