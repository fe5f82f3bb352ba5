"""The promise of broker.tables.change_file: a change of a large table is one line, and no crash loses it."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.tables import files as module
from broker.tables.change_file import UP_TO, ChangeFile, decode, encode, read
from broker.tables.files import ConfigFile, Source
from broker.tables.topics import Topics
from model.config import BrokerConfig
from model.errors import DiskError
from model.topic import AUTO_CREATE_TOPIC, TopicConfig
from remoting import bodies
from runtime.os_env import OsEnv
from runtime.tasks import Tasks
from tests.broker.helpers import client_of, config_for, running
from tests.fakes.disk.memory import FaultyDisk, FaultyEnv
from tests.waiting import until

PATH = "/store/config/topics.json"
CHANGES = f"{PATH}.changes"
ROUNDS = 15


class Table:
    """Topics and their file on one disk."""

    def __init__(self, disk: FaultyDisk) -> None:
        self.tasks = Tasks("t")
        self.topics = Topics(BrokerConfig(), lambda: 0)
        topics = self.topics
        source = Source(
            lambda: topics.to_text(indent=True),
            lambda slice_: topics.prepare(slice_, indent=True),
            lambda: topics.mark,
            topics.since,
        )
        self.file = ConfigFile(FaultyEnv(disk), PATH, source, self.tasks, delay_s=3600, retry_s=3600)

    def load(self) -> None:
        self.topics.boot(self.file.load())
        for change in self.file.later:
            self.topics.apply(change)
        self.file.loaded()
        self.topics.on_change.append(lambda names: self.file.changed())

    @property
    def own(self) -> list[str]:
        return sorted(
            name for name in self.topics.table if name.startswith("T") and name != AUTO_CREATE_TOPIC
        )


async def large(disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A table whose changes go to the change file."""
    monkeypatch.setattr(module, "WHOLE_BYTES", 100)
    table = Table(disk)
    table.load()
    for name in ("T0", "T00"):
        table.topics.put(TopicConfig(name))
        await table.file.flush()
    assert UP_TO.encode() in disk.nodes[PATH].cache
    return table


STEPS = ["put T1", "put T2", "drop T1", "merge", "put T3", "put T4", "merge", "put T5"]


async def take(table: Table, step: str) -> None:
    what, _, name = step.partition(" ")
    if what == "put":
        table.topics.put(TopicConfig(name))
    elif what == "drop":
        table.topics.delete(name, {0: 7}, {})
    await (table.file.merge() if what == "merge" else table.file.flush())


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_a_crash_at_any_write_loses_no_change_that_was_written(
    seed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    table = await large(disk, monkeypatch)
    states = [table.own]  # after each step
    crashes: list[tuple[FaultyDisk, int]] = []

    def note(what: str, path: str) -> None:
        disk.fail = lambda what, path: None
        crashes.extend(((disk.crash(seed), len(states)), (disk.copy().killed(), len(states))))
        disk.fail = note

    disk.fail = note
    for step in STEPS:
        await take(table, step)
        states.append(table.own)
    disk.fail = lambda what, path: None
    assert len(crashes) > 60
    for crashed, done in crashes:
        again = Table(crashed)
        again.load()
        assert again.own in states[done - 1 : done + 1]
        assert again.file.lost is None
        if "T1" not in again.own and done > 3:
            assert again.topics.first_offset("T1", 0) == 7
        # And it goes on from there.
        again.topics.put(TopicConfig("Tnext"))
        await again.file.flush()
        third = Table(crashed.crash(seed))
        third.load()
        assert third.own == again.own
        await again.tasks.cancel()
    await table.tasks.cancel()


@pytest.mark.parametrize("what", ["pwrite", "sync", "sync_dir", "truncate", "remove", "replace"])
async def test_a_write_that_fails_once_is_made_up_for(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for failing in range(12):
        disk = FaultyDisk()
        table = await large(disk, monkeypatch)
        seen = 0

        def fail(op: str, path: str, failing: int = failing) -> int | None:
            nonlocal seen
            seen += op == what
            return errno.EIO if op == what and seen == failing + 1 else None

        disk.fail = fail
        for step in STEPS:
            try:
                await take(table, step)
            except OSError:
                await (table.file.merge() if step == "merge" else table.file.flush())
        disk.fail = lambda op, path: None
        for after in (disk.crash(), disk.killed()):
            again = Table(after)
            again.load()
            assert again.own == table.own == ["T0", "T00", "T2", "T3", "T4", "T5"]
            await again.tasks.cancel()
        await table.tasks.cancel()


async def test_a_table_that_rocketmq_wrote_since_is_believed_and_not_its_former_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    table = await large(disk, monkeypatch)
    await take(table, "put T1")
    assert CHANGES in disk.nodes
    theirs = bodies.believed_object(bytes(disk.nodes[PATH].cache))
    assert "T1" not in theirs["topicConfigTable"], "after a crash RocketMQ lacks what stands beside the table"
    for name in (UP_TO, "keelmqCrc32"):
        del theirs[name]
    theirs["topicConfigTable"]["Theirs"] = TopicConfig("Theirs").to_json()
    for path in (PATH, PATH + ".bak"):
        file = disk.open(path)
        file.truncate(0)
        file.pwrite(bodies.dumps_dialect(theirs, indent=True), 0)
    again = Table(disk)
    again.load()
    assert again.own == ["T0", "T00", "Theirs"]
    assert not disk.exists(CHANGES)
    await again.tasks.cancel()
    await table.tasks.cancel()


async def test_a_damaged_line_is_mended_or_the_table_is_lost_and_a_torn_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = FaultyDisk()
    table = await large(disk, monkeypatch)
    for step in ("put T1", "put T2"):
        await take(table, step)
    whole = bytes(disk.nodes[CHANGES].cache)

    def loaded(data: bytes) -> Table:
        copy = disk.copy()
        copy.nodes[CHANGES].cache[:] = data
        found = Table(copy)
        found.load()
        return found

    flipped = bytearray(whole)
    flipped[30] ^= 4
    assert loaded(bytes(flipped)).own == ["T0", "T00", "T1", "T2"]
    assert loaded(whole[:-5]).own == ["T0", "T00", "T1"]
    assert loaded(whole + bytes(100)).own == ["T0", "T00", "T1", "T2"]
    lost = loaded(whole[:20] + b"####" + whole[24:])
    assert lost.file.lost is not None
    assert "damaged at byte 0" in lost.file.lost
    await table.tasks.cancel()


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3), max_size=6),
    st.integers(0, 500),
    st.integers(0, 6),
)
def test_any_cut_of_a_change_file_gives_a_beginning_of_it(
    changes: list[dict[str, Any]], cut: int, base: int
) -> None:
    lines = [encode(number, change) for number, change in enumerate(changes, 1)]
    assert [decode(line[:-1]) for line in lines] == list(enumerate(changes, 1))
    data = b"".join(lines)[:cut]
    found, last, end = read(data, base)
    whole = sum(len(b"".join(lines[: n + 1])) <= cut for n in range(len(lines)))
    assert found == changes[base:whole]
    assert last == max(base, whole)
    assert end == len(b"".join(lines[:whole]))


def test_a_line_that_stands_after_one_that_cannot_be_read_tells_of_damage() -> None:
    with pytest.raises(DiskError, match="byte 0"):
        read(b"nonsense\n" + encode(1, {}), 0)
    with pytest.raises(DiskError, match="change 1 follows 2"):
        read(encode(2, {}) + encode(1, {}), 0)


def test_what_a_failed_write_left_is_covered_by_the_next_table() -> None:
    disk = FaultyDisk()
    disk.makedirs("/store/config")
    file = ChangeFile(disk, PATH)
    file.append({"a": 1})
    disk.fail = lambda what, path: errno.EIO if what == "sync" else None
    with pytest.raises(OSError, match="Input/output"):
        file.append({"a": 2})
    disk.fail = lambda what, path: None
    assert file.covered() == 2
    assert ChangeFile(disk, PATH).load(2) == []


async def test_a_stop_leaves_all_of_it_in_the_file_that_rocketmq_reads(tmp_path: Path) -> None:
    config = tmp_path / "config"
    async with running(tmp_path) as broker, client_of(broker):
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(1000)))
        file = broker.tables.files["topics"]
        await file.flush()
        broker.topics.put(TopicConfig("A"))
        await file.flush()
        broker.topics.put(TopicConfig("B"))
        await file.flush()
        assert (config / "topics.json.changes").stat().st_size < 2000
        assert b'"B"' not in (config / "topics.json").read_bytes()
        assert broker.tables.files["topics"].lost is None
    assert not (config / "topics.json.changes").exists()
    stored = bodies.believed_object((config / "topics.json").read_bytes())
    assert {"A", "B", "T999"} <= set(stored["topicConfigTable"])
    async with running(tmp_path) as broker:
        assert {"A", "B", "T999"} <= set(broker.topics.table)


async def test_what_a_start_adds_to_a_large_table_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 100)
    async with running(tmp_path) as broker:
        for name in ("A", "B"):
            broker.topics.put(TopicConfig(name))
            await broker.tables.files["topics"].flush()
    path = tmp_path / "config" / "topics.json"
    assert UP_TO.encode() in path.read_bytes()
    async with running(tmp_path, brokerClusterName="renamed") as broker:
        await broker.tables.files["topics"].flush()
        assert b'"renamed"' in path.read_bytes()


async def costs_of_changes(tmp_path: Path, count: int) -> AsyncIterator[float]:
    """Each: seconds of this process for one change of one entry, with its write."""
    env, tasks = OsEnv(), Tasks("t")
    topics = Topics(config_for(tmp_path), env.now_ms)
    topics.put(*(TopicConfig(f"T{n}") for n in range(count)))
    source = Source(
        lambda: topics.to_text(indent=True),
        lambda slice_: topics.prepare(slice_, indent=True),
        lambda: topics.mark,
        topics.since,
    )
    file = ConfigFile(env, str(tmp_path / f"{count}" / "topics.json"), source, tasks, delay_s=3600)
    topics.on_change.append(lambda names: file.changed())
    for n in range(3):
        topics.put(TopicConfig(f"warm{n}"))
        await file.flush()
    for n in range(ROUNDS):
        began = time.process_time()
        topics.put(TopicConfig(f"more{n}"))
        await file.flush()
        yield time.process_time() - began
    await tasks.cancel()


async def test_a_change_among_20000_topics_costs_what_one_among_20_does(tmp_path: Path) -> None:
    """In turns, so a machine that is slow for a while is slow for both."""
    among_few, among_many = costs_of_changes(tmp_path, 20), costs_of_changes(tmp_path, 20_000)
    pairs = [(await anext(among_few), await anext(among_many)) for _ in range(ROUNDS)]
    assert await anext(among_few, None) is await anext(among_many, None) is None
    few, many = min(one for one, _ in pairs), min(other for _, other in pairs)
    assert many < 3 * few, f"{many * 1000:.2f} ms among 20,000, {few * 1000:.2f} ms among 20"


async def test_changes_beside_a_table_reach_it_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MERGE_S", 0.2)
    async with running(tmp_path) as broker:
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(1000)))
        file = broker.tables.files["topics"]
        for name in ("A", "B"):
            await file.flush()
            broker.topics.put(TopicConfig(name))
        path = tmp_path / "config" / "topics.json"
        await until(lambda: b'"B"' in path.read_bytes())
