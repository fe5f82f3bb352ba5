"""``keelmq consumer create``: a group where brokers make none by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from admin.exits import DONE, USAGE, run
from cli.main import command
from client.admin import AdminClient
from client.consumer_groups import ConsumerGroups
from runtime.os_env import OsEnv
from tests.client.servers import Pair
from tests.client.servers import run as with_servers


def test_a_group_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(servers: Pair) -> None:
        create = ["consumer", "create", "billing", "--retries", "3", "--namesrv", servers.namesrv]
        async with AdminClient(OsEnv(), servers.namesrv) as admin:
            groups = ConsumerGroups(admin)
            assert "billing" not in await groups.names()
            assert await asyncio.to_thread(run, command(), create) == DONE
            assert "billing" in await groups.names()
        assert await asyncio.to_thread(run, command(), create) == USAGE

    with_servers(tmp_path, work, auto_create_group=False)
    said = capsys.readouterr()
    assert "billing is made on " in said.out
    assert "there is a consumer group billing already" in said.err
