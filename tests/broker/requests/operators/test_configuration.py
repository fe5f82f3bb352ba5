"""The promise of broker.requests.operators.configuration: a key that changes while the broker runs holds from
then on and after the next start, and any other is refused with the reason."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from admin.host.kept_file import keep
from broker.membership.controllers import Controllers
from broker.requests.operators.configuration import RULES
from model.codes import Request
from model.config import BrokerConfig
from model.errors import ConfigError
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.broker.helpers import Client, client_of, elected, running


async def change(client: Client, *lines: str) -> tuple[int, str]:
    answer = await client.call(Request.UPDATE_BROKER_CONFIG, {}, "\n".join(lines).encode())
    return answer.code, answer.remark or ""


def other(name: str, text: str) -> str:
    """Another value that the key takes."""
    named = {"controllerAddr": "", "deleteWhen": "05", "defaultMessageRequestMode": "POP", "namesrvAddr": ""}
    if name in named:
        return named[name]
    return {"true": "false", "false": "true"}.get(text) or str(int(text) + 1)


async def test_every_key_that_may_change_takes_another_value_and_is_shown_with_it(tmp_path: Path) -> None:
    async with running(tmp_path, totalReplicas="3") as broker, client_of(broker) as client:
        held = broker.config.to_mapping()
        wanted = {name: other(name, held[name]) for name in sorted(RULES.live)}
        assert await change(client, *(f"{name}={text}" for name, text in wanted.items())) == (0, "")
        shown = (await client.call(Request.GET_BROKER_CONFIG)).body.decode().splitlines()
        assert {f"{name}={text}" for name, text in wanted.items()} <= set(shown)


async def test_copies_that_an_ok_means_change_while_a_broker_leads(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        assert await change(client, "minInSyncReplicas=2") == (0, "")
        answer = await client.send("T")
        assert (answer.code, "in-sync replicas not enough" in (answer.remark or "")) == (1, True)
        assert await change(client, "minInSyncReplicas=1") == (0, "")
        assert (await client.send("T")).code == 0


async def test_changes_by_the_hundred_make_a_few_lines_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(100):
            assert await change(client, f"fileReservedTime={number + 100}") == (0, "")
    assert 0 < caplog.text.count("configuration changed by") < 50


async def test_how_long_an_answer_waits_for_slaves_changes(tmp_path: Path) -> None:
    async with running(tmp_path, slaveTimeout="600000") as broker, client_of(broker) as client:
        await broker.lead(elected(1, 1, {1, 2}, 1))
        assert await change(client, "slaveTimeout=50") == (0, "")
        assert (await client.send("T")).code == 12


async def test_what_slaves_may_be_sent_a_second_changes(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        budget = broker.context.ha.links._resources.budget
        assert budget.take(1 << 30) == 1 << 30
        assert await change(client, "haFlowControlEnable=true", "maxHaTransferByteInSecond=10240") == (0, "")
        assert budget.take(1 << 30) == 1024, "a tenth of a second at once"


async def test_a_changed_key_is_in_the_file_for_the_next_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# ours\nfileReservedTime = 48\nbrokerName=broker-t\n")
    async with running(tmp_path / "store") as broker, client_of(broker) as client:
        broker.processors.configuration.keep = partial(keep, file)
        same = f"listenPort={broker.config.listen_port}"
        assert await change(client, "fileReservedTime=24", "deleteWhen=05", same) == (0, "")
    assert file.read_text() == "# ours\nfileReservedTime=24\nbrokerName=broker-t\ndeleteWhen=05\n"
    assert file.with_name("broker.conf.bak").read_text().startswith("# ours\nfileReservedTime = 48\n")


async def test_a_file_that_cannot_be_written_is_told_and_tried_again_with_the_next_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written: list[dict[str, str]] = []

    def keep_later(changes: Mapping[str, str]) -> None:
        written.append(dict(changes))
        if len(written) == 1:
            raise PermissionError("Read-only file system")

    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.processors.configuration.keep = keep_later
        told = "fileReservedTime: changed until this broker ends only: Read-only file system"
        assert await change(client, "fileReservedTime=24") == (0, told)
        assert told in caplog.text
        assert await change(client, "deleteWhen=05") == (0, "")
        assert await change(client, "deleteWhen=06") == (0, "")
    both = {"fileReservedTime": "24", "deleteWhen": "05"}
    assert written == [{"fileReservedTime": "24"}, both, {"deleteWhen": "06"}]


async def test_a_key_that_cannot_be_kept_keeps_no_other_out_of_the_file(tmp_path: Path) -> None:
    kept: dict[str, str] = {}

    def keep_all_but_one(changes: Mapping[str, str]) -> None:
        if "deleteWhen" in changes:
            raise ConfigError("no room")
        kept.update(changes)

    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.processors.configuration.keep = keep_all_but_one
        told = "deleteWhen: changed until this broker ends only: no room"
        assert await change(client, "deleteWhen=05", "fileReservedTime=24") == (0, told)
        assert await change(client, "maxMessageSize=1024") == (0, told)
    assert kept == {"fileReservedTime": "24", "maxMessageSize": "1024"}


async def test_a_value_that_no_file_holds_is_refused_and_a_file_that_is_no_text_is_told(
    tmp_path: Path,
) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('# one\u2028\u0085line\nbrokerName = "broker-t"\n', encoding="utf-8")
    async with running(tmp_path / "store") as broker, client_of(broker) as client:
        broker.processors.configuration.keep = partial(keep, file)
        for character in ("\x7f", "\x01", "\u2066"):
            code, _ = await change(client, f"namesrvAddr=a{character}:1", "fileReservedTime=24")
            assert (code, broker.config.file_reserved_hours) == (29, 72)
        assert await change(client, "fileReservedTime=24") == (0, "")
        text = '# one\u2028\u0085line\nbrokerName = "broker-t"\nfileReservedTime = "24"\n'
        assert file.read_text(encoding="utf-8") == text
        file.write_bytes(b"# caf\xe9\n")
        code, told = await change(client, "fileReservedTime=25")
        assert (code, "until this broker ends only" in told) == (0, True)


async def test_numbers_as_great_as_any_of_rocketmq_are_taken_and_served_with(tmp_path: Path) -> None:
    greatest = {
        name: str(2**63 - 1) for name in ("transactionCheckInterval", "reviveInterval", "slaveTimeout")
    }
    async with running(tmp_path, **greatest) as broker, client_of(broker) as client:
        assert (await client.send("T")).code == 0
        fields = BrokerConfig.keys()
        numbers = [name for name in sorted(RULES.live) if type(fields[name].default) is int]
        lines = [f"{name}={fields[name].metadata['most']}" for name in numbers]
        assert await change(client, *lines, "minInSyncReplicas=1") == (0, "")
        assert (await client.send("T")).code == 0
        await asyncio.sleep(0.05)
        assert broker.health() is None
        for name in numbers:
            assert (await change(client, f"{name}={2**63}"))[0] == 29


async def test_the_originals_black_list_is_refused_whatever_the_value(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for line in ("rocketmqHome=/x", "brokerConfigPath=/x", "configBlackList="):
            answer = await change(client, line, "fileReservedTime=24")
            assert answer == (16, "Can not update config in black list.")
        assert broker.config.file_reserved_hours == 72


async def test_a_secret_that_is_sent_back_as_it_was_shown_stays(tmp_path: Path) -> None:
    user = '{"username":"root","password":"secret"}'
    async with running(tmp_path, initAuthenticationUser=user) as broker, client_of(broker) as client:
        assert await change(client, "initAuthenticationUser=***", "fileReservedTime=24") == (0, "")
        assert broker.config.init_authentication_user == user
        code, remark = await change(client, "initAuthenticationUser={}")
        assert (code, "initAuthenticationUser cannot be changed" in remark) == (16, True)


def test_controllers_are_those_that_the_configuration_names_now() -> None:
    config = BrokerConfig(controller_addr="127.0.0.1:1;127.0.0.1:2")
    controllers = Controllers(OsEnv(), config, cast(RemotingClient, None))
    controllers.leader = "127.0.0.1:1"
    config.controller_addr = "127.0.0.1:2;127.0.0.1:3"
    controllers.reconfigure()
    assert controllers.all() == ["127.0.0.1:2", "127.0.0.1:3"], "its leader is none of them any more"
