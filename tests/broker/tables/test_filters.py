"""The promise of ``config/consumerFilter.json``: RocketMQ's file, byte for byte, of what consumers told."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from broker.context import BrokerContext
from broker.requests.consumers import filter_data
from broker.requests.consumers.filter_data import FilterNews
from broker.state.clients import Subscription
from broker.state.effort import Effort
from broker.tables import filters
from broker.tables.files import ConfigFile, Source
from broker.tables.filters import EXPRESSION_MAX, KEPT_MS, FilterTable
from model.codes import Request
from model.sql92.bloom import bit_positions
from remoting import bodies
from runtime.tasks import Tasks
from store.files.sealed import seal
from tests import GOLDEN
from tests.broker.helpers import client_of, eventually, heartbeat, running
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv

# Written by RocketMQ 5.5.0: with consumers online, and by its next process 10 s after its start.
RUNNING = (GOLDEN / "consumer_filter" / "running.json").read_bytes()
RESTARTED = (GOLDEN / "consumer_filter" / "restarted.json").read_bytes()
PATH = "/s/config/consumerFilter.json"
T0 = 1_795_888_350_000


def sql(topic: str, expression: str, version: int, kind: str = "SQL92") -> dict[str, Subscription]:
    told = {"topic": topic, "subString": expression, "subVersion": version, "expressionType": kind}
    return {topic: Subscription.from_json(told)}


def register(table: FilterTable, group: str, wanted: dict[str, Subscription], now_ms: int) -> None:
    """A heartbeat of a member."""
    for subscription in wanted.values():
        table.take(group, subscription, now_ms)
    unregister(table, group, now_ms, wanted)


def unregister(table: FilterTable, group: str, now_ms: int, but: Collection[str] = ()) -> None:
    for data in table.left(group, but):
        table.died(data, now_ms)


def loaded(data: bytes, now_ms: int) -> FilterTable:
    table = FilterTable()
    table.load(json.loads(data), now_ms)
    table.check_invariants()
    return table


def entries(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for topic in table["filterDataByTopic"].values():
        yield from topic["groupFilterData"].values()


def told(table: FilterTable) -> dict[tuple[str, str], tuple[str, int, bool]]:
    """By group and topic: expression, version, whether it is dead."""
    found = json.loads(bodies.dumps(table.shown()))
    return {
        (one["consumerGroup"], one["topic"]): (one["expression"], one["clientVersion"], one["dead"])
        for one in entries(found)
    }


# What RocketMQ 5.5.0's own BloomFilter, made for 32 groups and an error rate of 20, generates.
@pytest.mark.parametrize(
    ("group", "topic", "bits"),
    [
        ("g", "T", (90, 68, 28)),
        ("group-16", "Topic16", (86, 92, 47)),
        ("%RETRY%orders-consumer", "orders-topic-eu-west", (40, 110, 106)),
        ("a_consumer_group_of_fifty_five_bytes_in_length_xx", "T%l|_-", (73, 51, 79)),
        ("grüppe-漢", "Tœpic-\U0001f600", (12, 0, 100)),
        ("123456789012345", "T", (63, 111, 96)),
        ("a-group-of-24-bytes-0", "T2", (22, 94, 89)),
        ("x" * 200, "y" * 127, (39, 15, 38)),
    ],
)
def test_the_bits_of_a_group_are_those_of_the_original(group: str, topic: str, bits: tuple[int, ...]) -> None:
    assert bit_positions(group, topic) == bits


async def test_a_file_of_rocketmq_is_read_and_written_back_the_same() -> None:
    env, table = FaultyEnv(FaultyDisk()), FilterTable()
    env.disk.makedirs("/s/config")
    env.disk.open(PATH, create=True).pwrite(RESTARTED, 0)
    file = ConfigFile(env, PATH, Source(table.shown), Tasks("test"))
    assert table.load(file.load(), env.now_ms()) is False
    assert len(table) == 5
    file.write_anew()
    await file.flush()
    for copy in (PATH, PATH + ".bak"):
        assert bytes(env.disk.nodes[copy].cache) == seal(RESTARTED), "and a CRC, which RocketMQ passes over"


def test_who_lived_at_the_last_write_is_dead_for_30_s_at_the_start() -> None:
    by_rocketmq = {(e["consumerGroup"], e["topic"]): e for e in entries(json.loads(RESTARTED))}
    died_ms = min(e["deadTime"] for e in by_rocketmq.values() if e["topic"] == "FilterT")
    ours = FilterTable()
    assert ours.load(json.loads(RUNNING), died_ms + 30_000) is True, "it is to be written"
    found = {(e["consumerGroup"], e["topic"]): e for e in entries(json.loads(bodies.dumps(ours.shown())))}
    for key, one in by_rocketmq.items():
        assert 0 <= one["deadTime"] - found[key]["deadTime"] <= 2, "it read the clock for each"
        assert {**found[key], "deadTime": 0} == {**one, "deadTime": 0}


def test_what_heartbeats_tell_is_kept_as_rocketmq_keeps_it() -> None:
    """The heartbeats that RocketMQ had when it wrote ``running.json``."""
    table = FilterTable()
    register(table, "g_sql", sql("FilterT", "a > 1 AND b = 'x\"y'", 100)
                   | sql("FilterU", "TAGS IN ('p', 'q') OR n BETWEEN 1 AND 3", 101)
                   | sql("FilterV", "A||B", 102, "TAG"), T0)  # fmt: skip
    register(table, "g_bad", sql("FilterT", "a >", 7), T0)
    register(table, "g_none", sql("FilterT", "", 7), T0)
    register(table, "g_ver", sql("FilterT", "c = 'grüß 漢'", 100), T0)
    register(table, "g_old", sql("FilterT", "a = 1", 200), T0)
    register(table, "g_tag", sql("FilterT", "*", 1, "TAG"), T0)
    assert {group for group, _ in told(table)} == {"g_sql", "g_ver", "g_old"}, "no wrong one, and no tags"
    register(table, "g_sql", sql("FilterT", "a > 1 AND b = 'x\"y'", 150), T0 + 1)  # the other topic died
    register(table, "g_ver", sql("FilterT", "c = 'other'", 100), T0 + 1)  # no newer version
    register(table, "g_bad", sql("FilterT", "b = 2", 7), T0 + 1)
    register(table, "g_old", sql("FilterT", "a <", 201), T0 + 1)
    assert table.get("g_old", "FilterT") is None, "a newer version that is wrong takes it away"
    register(table, "g_old", sql("FilterT", "a = 3", 202), T0 + 2)
    register(table, "g_bad", sql("FilterT", "b = 2", 8), T0 + 2)
    register(table, "g_old", sql("FilterT", "a = 4", 150), T0 + 3)  # an older version
    register(table, "g_ver", sql("FilterT", "c = 'later'", 100), T0 + 3)
    table.check_invariants()
    assert told(table) == {
        (e["consumerGroup"], e["topic"]): (e["expression"], e["clientVersion"], e["dead"])
        for e in entries(json.loads(RUNNING))
    }


def test_one_that_is_gone_is_kept_for_a_day_and_lives_again_when_it_comes_back() -> None:
    table, changes = FilterTable(), []
    table.on_change.append(lambda: changes.append(1))
    register(table, "g", sql("T", "a = 1", 5), T0)
    register(table, "h", sql("T", "a = 2", 5), T0)
    assert not table.is_news("g", sql("T", "a = 1", 5))
    unregister(table, "g", T0 + 1)
    unregister(table, "g", T0 + 2)
    assert len(changes) == 3
    assert table.is_news("g", sql("T", "a = 1", 5))
    register(table, "g", sql("T", "a = 1", 5), T0 + 3)
    assert told(table)["g", "T"] == ("a = 1", 5, False)
    unregister(table, "g", T0 + 4)
    unregister(table, "h", T0 + 5)
    table.clean(T0 + 3 + KEPT_MS)
    assert len(table) == 2
    table.clean(T0 + 4 + KEPT_MS)
    assert list(told(table)) == [("h", "T")]
    register(table, "h", sql("T", "a = 2", 6), T0 + 6)
    table.clean(T0 + 10 * KEPT_MS)
    assert told(table) == {("h", "T"): ("a = 2", 6, False)}, "who lives stays"


def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "FILTERS_MAX", 3)
    table = FilterTable()
    for number in range(3):
        register(table, f"g{number}", sql("T", "a = 1", 1), T0)
    register(table, "g3", sql("T", "a = 1", 1), T0)
    assert table.get("g3", "T") is None, "all live"
    unregister(table, "g1", T0 + 1)
    unregister(table, "g0", T0 + 2)
    register(table, "g3", sql("T", "a = 1", 1), T0 + 3)
    assert {group for group, _ in told(table)} == {"g0", "g2", "g3"}, "the one that died first made room"
    monkeypatch.setattr(filters, "TEXT_MAX", 100)
    register(table, "g2", sql("T", f"a = '{'x' * 80}'", 2), T0 + 4)
    assert table.get("g2", "T") is None
    register(table, "g4", sql("T", f"a = '{'x' * EXPRESSION_MAX}'", 1), T0 + 5)
    assert table.get("g4", "T") is None
    table.check_invariants()


@pytest.mark.parametrize(
    "odd",
    [
        {"bloomFilterData": {"bitNum": 120, "bitPos": [1, 2, 3]}},
        {"bloomFilterData": {"bitNum": 112, "bitPos": [1, 2]}},
        {"bloomFilterData": None},
        {"clientVersion": "x"},
        {"bornTime": 1e999},
    ],
)
def test_a_table_that_is_none_is_begun_anew(odd: dict[str, Any]) -> None:
    table = json.loads(RESTARTED)
    table["filterDataByTopic"]["FilterT"]["groupFilterData"]["g_old"] |= odd
    ours = FilterTable()
    assert ours.load(table, T0) is False
    assert len(ours) == 0
    table["filterDataByTopic"]["FilterT"]["groupFilterData"]["g_old"] = None
    table["filterDataByTopic"]["FilterV"] = None
    ours.load(table, T0)
    assert len(ours) == 4, "what is null is passed over, as RocketMQ does"


def test_any_order_of_what_comes_keeps_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "FILTERS_MAX", 6)
    chance, table = random.Random(1), FilterTable()
    for step in range(200):
        group, now_ms = f"g{chance.randrange(5)}", T0 + step * KEPT_MS // 50
        wanted: dict[str, Subscription] = {}
        for topic in chance.sample("TUV", chance.randrange(3)):
            wanted |= sql(topic, chance.choice(["a = 1", "abc = 'defg'", "a >"]), chance.randrange(4))
        news, before = table.is_news(group, wanted), told(table)
        if chance.random() < 0.2:
            unregister(table, group, now_ms)
        else:
            register(table, group, wanted, now_ms)
            assert news or told(table) == before
        table.clean(now_ms)
        table.check_invariants()
    again = loaded(bodies.dumps(table.shown()), T0)
    assert len(again) == len(table) > 0


# Behind heartbeats


class Context:
    """What ``FilterNews`` works with."""

    def __init__(self) -> None:
        self.env = FaultyEnv(now_ms=T0)
        self.filters = FilterTable()
        self.effort = Effort(self.env.monotonic_ms)


def news() -> tuple[FilterNews, Context]:
    context = Context()
    return FilterNews(cast(BrokerContext, context)), context


async def test_a_new_expression_is_compiled_behind_the_heartbeat() -> None:
    ours, context = news()
    ours.heard("g", sql("T", "behind = 1", 1))
    assert len(context.filters) == 0
    ours.left("g")  # and before its turn it left
    await eventually(lambda: ("g", "T") in told(context.filters), "it is registered")
    assert told(context.filters)["g", "T"] == ("behind = 1", 1, True)
    ours.heard("g", sql("T", "behind = 1", 2))
    assert told(context.filters)["g", "T"] == ("behind = 1", 2, False), "what is known needs no turn"
    ours.left("g")
    assert told(context.filters)["g", "T"][2], "nor does one that leaves"


async def test_a_broker_keeps_expressions_over_a_restart_and_shows_them(tmp_path: Path) -> None:
    def beat(version: int) -> bytes:
        told = json.loads(heartbeat("c1", "g_sql"))
        wanted = sql("FilterT", "a > 1 AND b = 'x\"y'", version)["FilterT"]
        told["consumerDataSet"][0]["subscriptionDataSet"] = [wanted.to_json()]
        return bodies.dumps(told)

    asked = {"topic": "FilterT", "queueId": "0", "index": "0", "count": "5", "consumerGroup": "g_sql"}
    async with running(tmp_path) as broker, client_of(broker) as client:
        await client.send("FilterT")
        await broker.store.caught_up()
        assert (await client.call(Request.HEART_BEAT, {}, beat(100))).code == 0
        await eventually(lambda: len(broker.context.filters) == 1, "it is registered")
        shown = bodies.loads((await client.call(Request.QUERY_CONSUME_QUEUE, asked)).body)["filterData"]
        # As RocketMQ 5.5.0 answers the same.
        assert re.sub(r"\d{13}", "N", shown) == (
            '{\n\t"bloomFilterData":{\n\t\t"bitNum":112,\n\t\t"bitPos":[65,39,0]\n\t},\n\t"bornTime":N,'
            '\n\t"clientVersion":100,\n\t"consumerGroup":"g_sql",\n\t"dead":false,\n\t"deadTime":0,'
            '\n\t"expression":"a > 1 AND b = \'x\\"y\'",\n\t"expressionType":"SQL92",\n\t"topic":"FilterT"\n}'
        )
    file = tmp_path / "config" / "consumerFilter.json"
    (kept,) = entries(json.loads(file.read_text()))
    assert (kept["consumerGroup"], kept["clientVersion"]) == ("g_sql", 100)
    async with running(tmp_path) as broker, client_of(broker) as client:
        assert told(broker.context.filters) == {("g_sql", "FilterT"): (kept["expression"], 100, True)}
        assert (await client.call(Request.HEART_BEAT, {}, beat(100))).code == 0
        await eventually(lambda: broker.context.filters.lives("g_sql"), "it lives again")
        found = broker.context.filters.get("g_sql", "FilterT")
        assert found is not None
        assert found.born_ms == kept["bornTime"]
        left = {"clientID": "c1", "consumerGroup": "g_sql"}
        assert (await client.call(Request.UNREGISTER_CLIENT, left)).code == 0
        assert not broker.context.filters.lives("g_sql")
    for copy in (file, file.with_suffix(".json.bak")):
        copy.write_bytes(b"no table")
    async with running(tmp_path) as broker:
        assert len(broker.context.filters) == 0, "heartbeats bring it again: it does not keep a broker down"


async def test_a_group_of_many_topics_is_taken_in_slices() -> None:
    ours, context = news()
    many: dict[str, Subscription] = {}
    for number in range(filter_data.AT_ONCE_MAX + 1):
        many |= sql(f"T{number}", "many = 1", 1)
    ours.heard("g", many)
    await eventually(lambda: len(context.filters) == len(many), "all are registered")
    ours.left("g")
    assert context.filters.lives("g")
    await eventually(lambda: not context.filters.lives("g"), "all are dead")
    few = dict(list(many.items())[:5])
    ours.heard("g", few)
    assert {topic for (_, topic), one in told(context.filters).items() if not one[2]} == set(few)


async def test_a_long_queue_of_expressions_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, context = news()
    monkeypatch.setattr(filter_data, "NEWS_BYTES_MAX", 3 * sql("T", "bounded = 1", 1)["T"].weight)
    for number in range(9):
        ours.heard(f"g{number}", sql("T", "bounded = 1", 1))
        ours.heard(f"g{number}", sql("T", "bounded = 2", 2))
    await eventually(lambda: len(context.filters) == 3, "three had room, each once")
    assert {version for _, version, _ in told(context.filters).values()} == {2}
    ours.heard("g8", sql("T", "bounded = 1", 1))
    await eventually(lambda: len(context.filters) == 4, "the next heartbeat brings it again")
