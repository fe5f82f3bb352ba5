"""What was answered of the tables outlives an election from outside of the SyncStateSet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.membership.controllers import view_of
from broker.membership.view import TableSource
from broker.service import Broker
from broker.upkeep import table_sources
from broker.upkeep.table_sources import TableSources
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import MqError, PeerError
from model.ids import BrokerId, Epoch
from model.topic import DataVersion, SubscriptionGroupConfig
from remoting.bodies import dumps, loads
from remoting.codec import Command
from runtime.os_env import OsEnv
from tests.broker.helpers import client_of, running, topic


class Asked:
    """Answers for brokers: the epoch of its tables for one that lives, None for one that does not know the
    question; one that is not named is dead."""

    def __init__(self, **epochs: int | None) -> None:
        self._epochs = epochs
        self.asked: list[str] = []

    async def call(self, address: str, command: Command, timeout_s: float) -> Command:
        self.asked.append(address)
        if address not in self._epochs:
            raise ConnectionRefusedError("nobody listens")
        epoch = self._epochs[address]
        if epoch is None:
            return command.reply(Response.REQUEST_CODE_NOT_SUPPORTED)
        version = {"stateVersion": epoch, "timestamp": 1, "counter": 1}
        answer = command.reply()
        answer.body = dumps(
            {"topics": {"dataVersion": version}, "groups": {"dataVersion": version}, "of": address}
        )
        return answer


def source(epoch: int, *ids: int, life: str = "") -> TableSource:
    return TableSource(Epoch(epoch), {BrokerId(i): f"b{i}" for i in ids}, life)


async def taken(mine: int, client: Asked, *sources: TableSource) -> str | None:
    """Whose tables broker 9 takes, which has served last in epoch ``mine``."""
    config = BrokerConfig(cluster_name="c", broker_name="broker-a", store_path="store")
    nothing = cast(Any, SimpleNamespace(config=config, env=OsEnv()))
    found = await TableSources(nothing, nothing, cast(Any, client), nothing)._newest(
        BrokerId(9), mine, sources
    )
    return found[0][1]["of"] if found else None


@pytest.mark.parametrize(
    ("mine", "sources", "epochs", "expected"),
    [
        (5, [source(6, 1, 2)], {"b2": 5}, "b2"),  # one that has them is enough
        (6, [source(6, 1, 2)], {}, None),  # it took them before
        (5, [source(6, 1), source(7, 2)], {"b1": 5, "b2": 6}, "b2"),  # 2 took those of 1, and served
        (5, [source(6, 1), source(7, 2)], {"b1": 5, "b2": 4}, "b1"),  # 2 never served
        (5, [source(6, 9), source(7, 2)], {"b2": 4}, None),  # its own are the last that were served with
        (5, [source(6, 1), source(7, 9)], {"b1": 5}, "b1"),  # it was elected once, and never served
        (5, [source(6, 1)], {"b1": None}, None),  # a RocketMQ broker says nothing
        (5, [source(6, 1, 2)], {"b1": None, "b2": 5}, "b2"),  # another one does
    ],
)
async def test_the_last_tables_that_a_master_served_with_are_taken(
    mine: int, sources: list[TableSource], epochs: dict[str, int | None], expected: str | None
) -> None:
    assert await taken(mine, Asked(**epochs), *sources) == expected


async def test_epochs_of_another_life_of_the_controllers_say_nothing() -> None:
    """The tables of both were served with in epoch 9 of Controllers that lost everything since."""
    found = await taken(0, Asked(b1=9), source(2, 1, life="new"), source(3, 9, life="new"))
    assert found == "b1", "it is asked in epoch 3, and what it served with in epoch 9 is no newer source"
    assert DataVersion(9, 1, 1, "old", 9).taken_in("new") == 0
    assert DataVersion(9, 1, 1, "new", 2).next(5, 10).taken_in("new") == 2
    assert DataVersion.from_json(DataVersion(9, 1, 1, "new", 2).to_json()).taken_in("new") == 2
    assert DataVersion(9, 1, 1).taken_in("") == 9, "Controllers of an older version do not name their life"
    assert "keelmqLife" not in DataVersion(9, 1, 1).to_json()


async def test_nothing_is_served_while_nobody_answers_who_has_the_tables() -> None:
    with pytest.raises(MqError, match=r"b1: nobody listens.*keelmq group forget"):
        await taken(5, Asked(b3=5), source(6, 1, 2))


@contextlib.asynccontextmanager
async def giving(path: Path) -> AsyncIterator[tuple[Broker, list[TableSource]]]:
    """A broker with topic T, group G and an offset, and where to take them from in epoch 6."""
    async with running(path) as broker, client_of(broker) as client:
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))).code == 0
        broker.groups.put(SubscriptionGroupConfig("G"))
        broker.offsets.commit("G", "T", 0, 7)
        await broker.fence()
        broker.role_state.registered_as = BrokerId(1)
        yield broker, [TableSource(Epoch(6), {BrokerId(1): f"127.0.0.1:{broker.port}"}, "now")]


def on_disk(broker: Broker, name: str) -> int:
    """The epoch in whose beginning this table was taken over, in its file."""
    path = Path(broker.tables.files[name].path)
    return int(loads(path.read_bytes())["dataVersion"].get("keelmqTakenEpoch", 0)) if path.exists() else 0


async def test_any_role_gives_its_tables_whole(tmp_path: Path) -> None:
    async with giving(tmp_path / "1") as (_, sources), running(tmp_path / "2") as other:
        await other.take_tables(BrokerId(2), Epoch(6), sources)
        assert other.topics.get("T") is not None
        assert "G" in other.groups.table
        assert other.offsets.get("G", "T", 0) == 7
        assert [on_disk(other, name) for name in ("topics", "groups")] == [6, 6], "it asks no more"


async def test_what_was_taken_has_its_version_when_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill in between, or a disk that refuses, leaves tables that are asked for again."""
    async with giving(tmp_path / "1") as (_, sources), running(tmp_path / "2") as other:
        with monkeypatch.context() as patched:

            async def refuses() -> None:
                raise OSError("no space left")

            patched.setattr(other.tables.files["groups"], "write_now", refuses)
            with pytest.raises(OSError, match="no space"):
                await other.take_tables(BrokerId(2), Epoch(6), sources)
        assert on_disk(other, "topics") < 6
        await other.take_tables(BrokerId(2), Epoch(6), sources)
        assert [on_disk(other, name) for name in ("topics", "groups")] == [6, 6]


async def test_a_disk_that_is_slow_to_take_them_is_waited_for_and_one_that_hangs_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else led as long as it waited for its disk."""
    monkeypatch.setattr(table_sources, "DISK_S", 0.05)
    async with giving(tmp_path / "1") as (_, sources), running(tmp_path / "2") as other:
        groups, probe = other.tables.files["groups"], other.upkeep.table_sources.probe
        write, goes_on = groups.write_now, asyncio.Event()

        async def slow() -> None:
            await goes_on.wait()
            await write()

        async def hangs(within_s: float) -> None:
            raise TimeoutError("the disk hangs")

        monkeypatch.setattr(groups, "write_now", slow)
        with monkeypatch.context() as patched:
            patched.setattr(probe, "answers", hangs)
            with pytest.raises(TimeoutError, match="hangs"):
                await asyncio.wait_for(other.take_tables(BrokerId(2), Epoch(6), sources), 10)
        taking = asyncio.create_task(other.take_tables(BrokerId(2), Epoch(6), sources))
        await asyncio.sleep(0.3)
        assert not taking.done(), "the disk takes other writes"
        goes_on.set()
        await asyncio.wait_for(taking, 10)
        assert [on_disk(other, name) for name in ("topics", "groups")] == [6, 6]


async def test_an_old_disk_and_one_that_is_not_registered_give_nothing(tmp_path: Path) -> None:
    async with giving(tmp_path / "1") as (broker, sources), running(tmp_path / "2") as other:
        broker.role_state.registered_as = None
        with pytest.raises(MqError, match="not registered"):
            await other.take_tables(BrokerId(2), Epoch(6), sources)
        broker.role_state.registered_as, broker.role_state.old_disk = BrokerId(1), True
        await other.take_tables(BrokerId(2), Epoch(6), sources)
        assert other.topics.get("T") is None, "it leads with its own, which may be newer"


async def test_another_broker_at_the_address_gives_nothing_and_is_waited_for(tmp_path: Path) -> None:
    """The machine of 1 came back with an empty disk, as 4."""
    async with giving(tmp_path / "1") as (broker, sources), running(tmp_path / "2") as other:
        broker.role_state.registered_as = BrokerId(4)
        with pytest.raises(MqError, match="another broker: broker-t:4"):
            await other.take_tables(BrokerId(2), Epoch(6), sources)
        assert other.topics.get("T") is None


async def test_an_answer_of_another_broker_is_not_taken() -> None:
    class Another(Asked):
        async def call(self, address: str, command: Command, timeout_s: float) -> Command:
            answer = await super().call(address, command, timeout_s)
            answer.ext["brokerId"] = "4"
            return answer

    with pytest.raises(MqError, match="another broker answers"):
        await taken(5, Another(b1=5), source(6, 1))


async def test_a_broker_without_its_tables_gives_none(tmp_path: Path) -> None:
    async with giving(tmp_path) as (broker, _), client_of(broker) as client:
        broker.tables.files["groups"].lost = "subscriptionGroup.json: neither copy can be read"
        answer = await client.call(Request.KEELMQ_GIVE_TABLES, {})
        assert (answer.code, "neither copy" in (answer.remark or "")) == (Response.SYSTEM_ERROR, True)


def test_where_to_take_tables_from_is_read_as_the_controllers_write_it() -> None:
    def told(text: str) -> tuple[TableSource, ...]:
        ext = {"masterEpoch": "7", "tablesAt": text, "tablesLife": "h1:1;5"}
        return view_of(Command(1, ext, b""), 0.0).table_sources

    assert told("6@1=h1:1,3=h3:1;7@2=h2:1") == (
        TableSource(Epoch(6), {BrokerId(1): "h1:1", BrokerId(3): "h3:1"}, "h1:1;5"),
        TableSource(Epoch(7), {BrokerId(2): "h2:1"}, "h1:1;5"),
    )
    for text in ("6", "6@", "x@1=h", "6@1", "6@1=", ";"):
        with pytest.raises(PeerError, match="tables"):
            told(text)
