"""The promises of the broker's tables: what the files hold, who wins, and what a failover must not lose."""

from __future__ import annotations

import asyncio
import errno
import json
from pathlib import Path
from typing import Any, cast

import pytest

from broker.state.clients import Client, Clients, Subscription
from broker.state.locks import LOCK_LIVES_MS, QueueLocks
from broker.tables.files import ConfigFile, Source
from broker.tables.groups import Groups
from broker.tables.offsets import OffsetTable
from broker.tables.topics import Topics
from broker.upkeep.delay import DelayOffsets
from model.config import BrokerConfig
from model.errors import Refused
from model.message import java_hash
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting import bodies
from remoting.service import Connection
from runtime.os_env import OsEnv
from runtime.tasks import Tasks
from runtime.turns import Slice
from tests.broker.helpers import eventually
from tests.fakes.broker.store import FakeConnection
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv


def now_ms() -> int:
    return 1_700_000_000_000


def config(**keys: str) -> BrokerConfig:
    return BrokerConfig.from_mapping(keys)


# Topics


def test_a_first_send_creates_the_topic_as_the_default_topic_allows() -> None:
    topics = Topics(config(), now_ms)
    topics.boot(None)
    made = topics.create_for_send("New", "TBW102", 4)
    assert (made.read_queues, made.write_queues, made.perm) == (4, 4, 6)
    assert topics.create_for_send("Wide", "TBW102", 100).write_queues == 8


@pytest.mark.parametrize(
    ("name", "default", "keys"),
    [
        ("New", "Nothing", {}),
        ("New", "SELF_TEST_TOPIC", {}),
        ("New", "TBW102", {"autoCreateTopicEnable": "false"}),
        ("b d", "TBW102", {}),
    ],
)
def test_a_topic_nobody_allowed_does_not_exist(name: str, default: str, keys: dict[str, str]) -> None:
    topics = Topics(config(**keys), now_ms)
    topics.boot(None)
    with pytest.raises(Refused) as refused:
        topics.create_for_send(name, default, 4)
    assert refused.value.code == 17
    assert topics.get(name) is None


def test_every_change_raises_the_version_and_a_new_master_outranks_all_before() -> None:
    topics = Topics(config(), now_ms)
    topics.boot(None)
    heard: list[frozenset[str]] = []
    topics.on_change.append(heard.append)
    before = topics.version
    topics.put(TopicConfig("A"))
    assert topics.version.order() > before.order()
    assert heard == [frozenset({"A"})]
    topics.set_epoch(7)
    assert topics.version.state_version == 7


def test_a_table_survives_its_file_and_a_slave_takes_it_as_a_whole() -> None:
    topics = Topics(config(), now_ms)
    topics.boot(None)
    topics.put(TopicConfig("A", 3, 5, 4, attributes={"message.type": "FIFO"}))
    stored = bodies.loads(bodies.dumps_dialect(topics.to_json(), indent=True))
    again = Topics(config(), now_ms)
    assert again.boot(stored) is False
    assert again.table == topics.table
    slave = Topics(config(), now_ms)
    slave.boot(None)
    slave.put(TopicConfig("OnlyHere"))
    assert slave.adopt(stored) is True
    assert slave.table == topics.table
    assert slave.version == topics.version
    assert slave.adopt(stored) is False


def test_what_only_others_know_of_a_topic_or_a_group_is_kept_and_handed_on() -> None:
    """A real master's tables, through a keelmq slave that becomes master, back to a real one."""
    version = {"counter": 9, "stateVersion": 2, "timestamp": 5}
    told = {
        "dataVersion": version,
        "topicConfigTable": {
            "A": TopicConfig("A", attributes={"message.type": "FIFO"}).to_json() | {"liteTopic": {"ttl": 5}}
        },
    }
    topics = Topics(config(), now_ms)
    assert topics.adopt(told) is True
    assert topics.to_json() == told
    topics.widen([("A", 20)])
    assert topics.to_json()["topicConfigTable"]["A"]["liteTopic"] == {"ttl": 5}

    policy = {"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 7, "max": 9, "multiplier": 2}}
    known = SubscriptionGroupConfig("g", attributes={"priority.factor": "3"}).to_json()
    assert known["groupRetryPolicy"] == {"type": "CUSTOMIZED"}
    group = known | {"groupRetryPolicy": policy, "subscriptionDataSet": [{"topic": "A"}], "new": 1}
    asked = {
        "dataVersion": version,
        "forbiddenTable": {"g": {"A": 4}},
        "subscriptionGroupTable": {"g": group},
    }
    groups = Groups(config(), now_ms)
    assert groups.adopt(asked) is True
    assert groups.to_json() == asked
    assert groups.adopt(asked) is False
    assert groups.adopt(asked | {"forbiddenTable": {}}) is True
    again = Groups(config(), now_ms)
    again.boot(bodies.loads(bodies.dumps_dialect(asked, indent=True)))
    assert again.to_json()["subscriptionGroupTable"]["g"] == group
    assert again.to_json()["forbiddenTable"] == {"g": {"A": 4}}
    again.delete("g")
    assert again.to_json()["forbiddenTable"] == {}


def test_a_successor_knows_the_topics_its_log_holds() -> None:
    topics = Topics(config(), now_ms)
    topics.boot(None)
    topics.put(TopicConfig("Narrow", 2, 2))
    topics.widen([("Late", 9), ("Late", 1), ("Narrow", 3), ("%RETRY%g", 0)])
    late, narrow, retry = (topics.get(n) for n in ("Late", "Narrow", "%RETRY%g"))
    assert late is not None
    assert late.read_queues == 10
    assert narrow is not None
    assert (narrow.read_queues, narrow.write_queues) == (4, 2)
    assert retry is not None
    assert retry.write_queues == 1


# Groups


def test_an_unknown_group_is_made_at_its_first_use_if_it_may() -> None:
    groups = Groups(config(), now_ms)
    groups.boot(None)
    assert groups.find("mine") is not None
    assert groups.find("no spaces") is None
    closed = Groups(config(autoCreateSubscriptionGroup="false"), now_ms)
    closed.boot(None)
    assert closed.find("mine") is None
    assert closed.find("TOOLS_CONSUMER") is not None


def test_groups_survive_their_file() -> None:
    groups = Groups(config(), now_ms)
    groups.boot(None)
    groups.find("mine")
    again = Groups(config(), now_ms)
    assert again.boot(bodies.loads(bodies.dumps_dialect(groups.to_json()))) is False
    assert again.table == groups.table


# Consumer and delay offsets


def test_offsets_have_the_shape_of_the_original_file() -> None:
    offsets = OffsetTable(now_ms)
    offsets.commit("g", "T", 0, 6)
    offsets.commit("g", "T", 3, 7)
    text = bodies.dumps_dialect(offsets.to_json())
    assert b'"offsetTable":{"T@g":{0:6,3:7}}' in text
    assert b'"groupTopicMap":{"g":["T"]}' in text
    again = OffsetTable(now_ms)
    again.load(bodies.loads(text))
    assert again.entries() == offsets.entries()


async def test_offsets_beyond_a_shortened_log_are_cut_back() -> None:
    offsets = OffsetTable(now_ms)
    offsets.commit("g", "T", 0, 10)
    offsets.commit("g", "T", 1, 3)
    assert await offsets.clamp(lambda topic, queue_id: 5, Slice(now_ms)) == 1
    assert offsets.queues("g", "T") == {0: 5, 1: 3}


def test_offsets_of_a_deleted_topic_or_group_go() -> None:
    offsets = OffsetTable(now_ms)
    for group, topic in (("g", "A"), ("g", "B"), ("h", "A")):
        offsets.commit(group, topic, 0, 1)
    offsets.drop_topic("B")
    offsets.drop_group("h")
    assert offsets.entries() == [("A", "g", 0, 1)]
    assert offsets.topics_of("g") == ["A"]
    assert offsets.groups_of("A") == ["g"]


def test_delay_offsets_keep_bare_levels_as_keys() -> None:
    delays = DelayOffsets(now_ms)
    delays.set(3, 7)
    text = bodies.dumps_dialect(delays.to_json())
    assert b'"offsetTable":{3:7}' in text
    again = DelayOffsets(now_ms)
    again.load(bodies.loads(text))
    assert again.table == {3: 7}
    assert delays.adopt(bodies.loads(text)) is False


# Files


async def test_a_torn_file_is_read_from_its_backup_and_two_torn_ones_are_left_alone(tmp_path: Path) -> None:
    content: dict[str, Any] = {"a": 1}
    tasks = Tasks("t")
    path = tmp_path / "config" / "x.json"
    file = ConfigFile(OsEnv(), str(path), Source(lambda: content), tasks, delay_s=0.001)
    assert file.load() is None
    file.changed()
    await file.flush()
    content["a"] = 2
    file.changed()
    await file.flush()
    assert json.loads(path.read_text()) | {"keelmqCrc32": ""} == {"a": 2, "keelmqCrc32": ""}
    path.write_bytes(b'{"a":')
    assert file.load() == {"a": 2}
    backup = tmp_path / "config" / "x.json.bak"
    for one in (path, backup):
        one.write_bytes(b'{"a":')
    assert file.load() is None
    assert file.lost is not None
    file.changed()
    await file.flush()
    assert path.read_bytes() == b'{"a":'  # nothing is put in its place before it was copied
    file.found()
    await file.flush()
    assert json.loads(backup.read_text())["a"] == 2
    await tasks.cancel()


@pytest.mark.parametrize("name", ["topics.json", "delayOffset.json", "consumerOffset.json"])
async def test_a_table_read_after_a_failed_sync_survives_a_power_failure(name: str) -> None:
    """The new file has its name in the page cache only: a restart in the same boot reads it all the same."""
    disk, path, tasks = FaultyDisk(), f"/store/config/{name}", Tasks("t")
    content: dict[str, Any] = {"a": 1}
    file = ConfigFile(FaultyEnv(disk), path, Source(lambda: content), tasks, delay_s=3600)
    file.changed()
    await file.flush()
    content["a"] = 2
    file.changed()
    disk.fail = lambda what, path: errno.EIO if what == "sync_dir" else None
    with pytest.raises(OSError, match="Input/output"):
        await file.flush()
    disk.fail = lambda what, path: None
    again = ConfigFile(FaultyEnv(disk.killed()), path, Source(dict), tasks)
    assert again.load() == {"a": 2}
    assert ConfigFile(FaultyEnv(disk.crash()), path, Source(dict), tasks).load() == {"a": 2}
    await tasks.cancel()


async def test_changes_that_come_together_are_written_together(tmp_path: Path) -> None:
    written = 0

    def content() -> dict[str, Any]:
        nonlocal written
        written += 1
        return {"n": written}

    tasks = Tasks("t")
    file = ConfigFile(OsEnv(), str(tmp_path / "x.json"), Source(content), tasks, delay_s=0.02)
    for _ in range(50):
        file.changed()
    await eventually((tmp_path / "x.json").exists, "the file is written")
    await asyncio.sleep(0.05)
    assert written == 1
    await tasks.cancel()


# Locks


def test_a_queue_has_one_owner_until_it_is_silent_for_a_minute() -> None:
    locks = QueueLocks()
    queue = ("b", "T", 0)
    assert locks.lock("g", "one", [queue], 0) == [queue]
    assert locks.lock("g", "two", [queue], 10) == []
    assert locks.lock("h", "two", [queue], 10) == [queue]
    assert locks.lock("g", "one", [queue], 50_000) == [queue]
    assert locks.lock("g", "two", [queue], LOCK_LIVES_MS + 1) == []
    assert locks.lock("g", "two", [queue], 50_000 + LOCK_LIVES_MS + 1) == [queue]


def test_only_the_owner_unlocks() -> None:
    locks = QueueLocks()
    queue = ("b", "T", 0)
    locks.lock("g", "one", [queue], 0)
    locks.unlock("g", "two", [queue])
    assert locks.group_has_locks("g", 1)
    locks.unlock("g", "one", [queue])
    assert not locks.group_has_locks("g", 1)


# Clients


def test_a_tag_expression_is_parsed_as_the_original_does() -> None:
    found = Subscription.of("T", "A || B||", "TAG")
    assert found.codes == {java_hash("A"), java_hash("B")}
    assert Subscription.of("T", "*", None).codes == frozenset()
    with pytest.raises(ValueError, match="names no tag"):
        Subscription.of("T", "||", "TAG")


def consumer(group: str, *topics: str, version: int = 1) -> dict[str, Any]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [{"topic": t, "subString": "*", "subVersion": version} for t in topics],
    }


def client(client_id: str, connection: FakeConnection, seen_ms: float = 0) -> Client:
    return Client(client_id, cast(Connection, connection), "JAVA", 479, seen_ms)


@pytest.mark.parametrize("version", [1e308, 2**63, 1.5, [1], "x"])
def test_a_version_that_no_newer_one_could_follow_is_refused(version: Any) -> None:
    clients = Clients()
    with pytest.raises(ValueError, match=r"subVersion|invalid literal"):
        clients.consumer(consumer("g", "A", version=version), client("c1", FakeConnection()))
    assert clients.consumers == {}
    assert clients.consumer(consumer("g", "A", version=2**63 - 1), client("c1", FakeConnection()))


def test_members_come_go_and_change_what_they_subscribe_to() -> None:
    clients = Clients()
    first, second = FakeConnection(), FakeConnection("127.0.0.1:40001")
    assert clients.consumer(consumer("g", "A"), client("c1", first)) is True
    assert clients.consumer(consumer("g", "A"), client("c1", first)) is False
    assert clients.consumer(consumer("g", "A"), client("c2", second)) is True
    assert clients.consumers["g"].ids() == ["c1", "c2"]
    assert clients.consumer(consumer("g", "A", "B", version=2), client("c2", second)) is True
    assert clients.subscription("g", "B") is not None
    assert clients.closed(cast(Connection, first)) == ["g"]
    assert clients.unregister(cast(Connection, second), None, "g") == ["g"]
    assert clients.consumers == {}


def test_a_client_that_stops_beating_expires() -> None:
    clients = Clients()
    silent, alive = FakeConnection(), FakeConnection("127.0.0.1:40001")
    clients.consumer(consumer("g", "A"), client("c1", silent, 0))
    clients.producer("p", client("c1", silent, 0))
    clients.producer("p", client("c2", alive, 500))
    found = [connection for connection in clients.connections() if clients.is_silent(connection, 100)]
    assert found == [cast(Connection, silent)]
