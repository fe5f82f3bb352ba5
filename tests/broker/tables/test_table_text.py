"""The promise of broker.tables.table_text: a change among 20,000 entries costs one entry, on disk, in answers
and in a copy, and what is written is what the whole table would be."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.tables.groups import Groups
from broker.tables.moved import REPLACED_MAX, Moved
from broker.tables.offsets import PART_MAX, OffsetTable
from broker.tables.topics import Topics
from model.codes import Request
from model.config import BrokerConfig
from model.topic import SubscriptionGroupConfig, TopicConfig
from remoting import bodies
from remoting.codec import Command
from runtime.turns import Slice
from tests.broker.helpers import client_of, eventually, pair, running, topic
from tests.broker.turn_meter import metered, tried_again
from tests.fakes.broker.store import FakeConnection

NAMES = st.sampled_from(["a", "b", "B", "ab", "%RETRY%a", "z", "\u00e9"])
CHANGES = st.lists(
    st.tuples(st.sampled_from(["put", "delete", "copy", "version"]), NAMES, st.integers(1, 9)), max_size=30
)
MANY = 20_000


def config() -> BrokerConfig:
    return BrokerConfig.from_mapping({"storePathRootDir": "/nowhere"})


def written(table: dict[str, Any], indent: bool) -> bytes:
    return bodies.dumps_dialect(table, indent=indent)


def sent(answer: dict[str, Any]) -> dict[str, Any]:
    found = bodies.believed_object(bodies.dumps_dialect(answer))
    assert isinstance(found, dict)
    return found


def same(ours: Any, theirs: Any) -> None:
    for table in (ours, theirs):
        table.text.check_invariants()
        for indent in (False, True):
            assert written(table.to_text(indent), indent) == written(table.to_json(), indent)
    assert ours.to_json() == theirs.to_json()


@given(CHANGES)
def test_topics_are_written_and_copied_in_parts_as_they_would_be_whole(changes: list[Any]) -> None:
    ours, theirs = Topics(config(), lambda: 1), Topics(config(), lambda: 2)
    ours.boot(None)
    known: int | None = None
    for what, name, number in [*changes, ("copy", "", 0)]:
        if what == "put":
            ours.put(TopicConfig(name, number, number))
        elif what == "delete":
            ours.delete(name, {0: number}, {})
        elif what == "version":
            ours.set_epoch(number)
        else:
            answer, known = ours.changed_since(known)
            theirs.adopt(sent(answer))
            same(ours, theirs)
            ours._moved.check_invariants()


@given(CHANGES)
def test_groups_are_written_and_copied_in_parts_as_they_would_be_whole(changes: list[Any]) -> None:
    ours, theirs = Groups(config(), lambda: 1), Groups(config(), lambda: 2)
    ours.boot(None)
    known: int | None = None
    for what, name, number in [*changes, ("copy", "", 0)]:
        if what == "put":
            ours.put(SubscriptionGroupConfig(name, retry_queues=number))
        elif what == "delete":
            ours.delete(name)
        elif what == "version":
            ours.set_epoch(number)
        else:
            answer, known = ours.changed_since(known)
            theirs.adopt(sent(answer))
            same(ours, theirs)
            ours._moved.check_invariants()


@given(
    st.lists(st.tuples(st.sampled_from(["put", "topic", "group", "copy"]), NAMES, NAMES, st.integers(0, 9)))
)
def test_offsets_are_written_and_copied_in_parts_as_they_would_be_whole(changes: list[Any]) -> None:
    ours, theirs = OffsetTable(lambda: 1), OffsetTable(lambda: 2)
    known: int | None = None
    for what, name, group, number in [*changes, ("copy", "", "", 0)]:
        if what == "put":
            ours.commit(group, name, number % 3, number)
        elif what == "topic":
            ours.drop_topic(name)
        elif what == "group":
            ours.drop_group(group)
        else:
            answer = ours.changed_since(known)
            if known is not None:
                part = ours.since(known)
                assert part is not None
                assert sent(part) == sent(answer), "what is written is what is copied"
            known = ours.mark
            theirs.adopt(sent(answer))
            ours.check_invariants()
            theirs.check_invariants()
            for indent in (False, True):
                assert written(ours.to_text(indent), indent) == written(ours.to_json(), indent)
            assert ours.to_json()["offsetTable"] == theirs.to_json()["offsetTable"]


def test_more_changes_than_a_part_takes_are_written_with_the_whole_table() -> None:
    """A part is made in one go: the offsets of a group of 20,000 topics, deleted, held the loop for 47 ms."""
    ours = OffsetTable(lambda: 1)
    for n in range(PART_MAX + 1):
        ours.commit("g", f"t{n}", 0, 1)
    mark = ours.mark
    for n in range(PART_MAX):
        ours.drop("g", f"t{n}")
    part = ours.since(mark)
    assert part is not None
    assert len(sent(part)["offsetTable"]) == PART_MAX
    ours.drop("g", f"t{PART_MAX}")
    assert ours.since(mark) is None
    asyncio.run(ours.prepare_since(mark, Slice(lambda: 0.0)))


def test_what_was_replaced_is_copied_whole() -> None:
    moved = Moved[str]()
    moved.add(["a"])
    assert moved.since(0) == ["a"]
    moved.forget()
    assert moved.since(1) is None
    mark = moved.mark
    moved.add(["b"])
    assert (moved.since(mark), moved.since(moved.mark + 1), moved.since(None)) == (["b"], None, None)
    moved.check_invariants()


@pytest.mark.timeout(120)
@tried_again
async def test_a_change_among_20000_topics_and_groups_holds_nobody_up(tmp_path: Path) -> None:
    """Tables are written, listed and copied while others have their turns."""
    async with running(tmp_path) as broker, client_of(broker) as client:
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(MANY)))
        broker.groups.put(*(SubscriptionGroupConfig(f"g{n}") for n in range(MANY)))
        for n in range(MANY):
            broker.offsets.commit(f"g{n}", f"T{n}", 0, n)
        files = [broker.tables.files[name] for name in ("topics", "groups", "offsets")]
        async with metered() as meter:
            await asyncio.gather(*(file.flush() for file in files))
            assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("One"))).code == 0
        meter.check()
        async with metered() as meter:
            for n in range(20):
                assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(f"More{n}"))).code == 0
                broker.offsets.commit("g1", "T1", 0, n)
                await asyncio.gather(*(file.flush() for file in files))
        meter.check()
        changes = Path(broker.tables.files["topics"].path + ".changes").read_bytes()
        assert b'"More19"' in changes


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "code",
    [
        Request.GET_ALL_TOPIC_CONFIG,
        Request.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Request.GET_ALL_CONSUMER_OFFSET,
    ],
)
@tried_again
async def test_a_table_of_20000_is_listed_in_slices_and_often(tmp_path: Path, code: int) -> None:
    async with running(tmp_path) as broker:
        broker.topics.put(*(TopicConfig(f"T{n}") for n in range(MANY)))
        broker.groups.put(*(SubscriptionGroupConfig(f"g{n}") for n in range(MANY)))
        for n in range(MANY):
            broker.offsets.commit(f"g{n}", f"T{n}", 0, n)
        ask = broker.processors.handlers[int(code)]
        async with metered() as meter:
            answers = await asyncio.gather(
                *(ask(FakeConnection(), Command(int(code))) for _ in range(30))  # type: ignore[arg-type]
            )
        meter.check()
        found = bodies.believed_object(answers[-1].body)  # type: ignore[union-attr]
        table = found.get("topicConfigTable") or found.get("subscriptionGroupTable") or found["offsetTable"]
        assert len(table) >= MANY


async def test_a_slave_is_sent_the_change_and_not_the_table(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two), client_of(one) as client:
        one.topics.put(*(TopicConfig(f"T{n}") for n in range(500)))
        one.groups.put(*(SubscriptionGroupConfig(f"g{n}") for n in range(500)))
        await one.context.copies.wait_for_copies("topics")
        await eventually(lambda: two.topics.get("T499") is not None, "the slave has them")
        sizes = []
        handlers, code = one.processors.handlers, int(Request.KEELMQ_COPY_TABLES)
        question = handlers[code]

        async def measured(*args: Any) -> Command | None:
            found = await question(*args)
            sizes.append(0 if found is None else len(found.body))
            return found

        handlers[code] = measured
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("One"))).code == 0
        assert (await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "T7"})).code == 0
        group = bodies.dumps({"groupName": "one"})
        assert (await client.call(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)).code == 0
        await eventually(lambda: "one" in two.groups.table, "the slave has that, too")
        assert two.topics.to_json() == one.topics.to_json()
        assert two.groups.to_json() == one.groups.to_json()
        assert sizes
        assert max(sizes) < 4000, "each of them is one entry"


@tried_again
async def test_a_slave_takes_a_table_of_20000_in_slices(tmp_path: Path) -> None:
    """Half a second of parsing: on a busy machine it lost its link for that, and began anew."""
    async with running(tmp_path) as broker:
        entries = {f"T{n}": TopicConfig(f"T{n}").to_json() for n in range(20_000)}
        groups = {f"G{n}": SubscriptionGroupConfig(f"G{n}").to_json() for n in range(20_000)}
        body: dict[str, Any] = {
            "topics": {"topicConfigTable": {**entries, "wrong": 5}},
            "groups": {"subscriptionGroupTable": groups},
        }
        async with metered() as meter:
            await broker.upkeep.metadata._parse(body)
        meter.check()
        parsed = body["topics"]["topicConfigTable"]
        assert parsed["wrong"] == 5, "it is refused when it is adopted"
        assert {type(parsed[name]) for name in entries} == {TopicConfig}
        assert {type(one) for one in body["groups"]["subscriptionGroupTable"].values()} == {
            SubscriptionGroupConfig
        }


def test_a_table_that_is_replaced_by_an_equal_one_is_neither_written_nor_told_anew() -> None:
    """A slave copies all of a new master's tables: 20,000 topics were written and registered again."""
    ours, theirs = Topics(BrokerConfig(), lambda: 1), Topics(BrokerConfig(), lambda: 1)
    for table in (ours, theirs):
        table.put(*(TopicConfig(f"T{n}") for n in range(REPLACED_MAX + 2)))
    mark = ours.mark
    theirs.put(TopicConfig("T1", 9, 9), TopicConfig("New"))
    theirs.delete("T2", {0: 1}, {})
    theirs.set_epoch(7)
    assert ours.adopt(sent(theirs.to_text()))
    part = ours.since(mark)
    assert part is not None
    assert part["part"] == ["New", "T1", "T2"]
    assert sent(ours.to_text()) == sent(theirs.to_text())
    ours.check_invariants()
    assert ours.adopt(sent(Topics(BrokerConfig(), lambda: 1).to_text()))
    assert ours.since(mark) is None, "another table"
    ours.check_invariants()


def test_where_expired_queues_ended_is_told_with_each_change() -> None:
    ours, theirs, written = (Topics(BrokerConfig(), lambda: 1) for _ in range(3))
    theirs.put(TopicConfig("T"), TopicConfig("Gone"))
    theirs.note_expired({"T": {0: 5}, "Gone": {2: 3}})
    assert ours.adopt(sent(theirs.to_text()))
    assert written.adopt(sent(theirs.to_json()))
    _, told = theirs.changed_since(None)
    noted = theirs.mark
    theirs.note_expired({"T": {0: 4}})
    assert theirs.mark == noted, "no news: it ended later"
    theirs.note_expired({"T": {0: 9, 1: 1}, "Light": {0: 7}})
    theirs.delete("Gone", {2: 3, 4: 8}, {})
    assert theirs.starts == {"T": {0: 9, 1: 1}, "Light": {0: 7}, "Gone": {2: 3, 4: 8}}
    part, _ = theirs.changed_since(told)
    assert part["part"] == ["Gone", "Light", "T"]
    assert ours.adopt(sent(part))
    change = theirs.since(noted)
    assert change is not None
    written.apply(sent(change))
    for table in (ours, written):
        assert table.starts == theirs.starts
        assert sent(table.to_text()) == sent(theirs.to_text()) == sent(theirs.to_json())
        table.check_invariants()
    theirs.check_invariants()
    booted = Topics(BrokerConfig(), lambda: 1)
    booted.boot(sent(theirs.to_text()))
    assert booted.starts == theirs.starts


def test_what_a_master_does_not_know_stays_true() -> None:
    ours, theirs = Topics(BrokerConfig(), lambda: 1), Topics(BrokerConfig(), lambda: 1)
    for table in (ours, theirs):
        table.put(TopicConfig("T"), TopicConfig("Gone"))
    ours.note_expired({"T": {0: 5}, "Light": {0: 2}})
    ours.delete("Gone", {0: 3}, {})
    known = {"T": {0: 5}, "Light": {0: 2}, "Gone": {0: 3}}
    theirs.set_epoch(3)
    mark = theirs.mark
    real = sent(theirs.to_text())
    assert "keelmqExpiredQueues" not in real
    assert ours.adopt(real)
    assert ours.starts == known
    theirs.put(TopicConfig("T", 9, 9))
    part = sent(theirs.changed_since(mark)[0])
    older = {name: value for name, value in part.items() if name != "keelmqExpiredQueues"}
    assert ours.adopt(older), "a keelmq master's: it knows of no deletion"
    assert ours.starts == {name: known[name] for name in ("T", "Light")}
    assert ours.adopt(part), "this one knows, and says that there is nothing"
    assert ours.starts == {name: known[name] for name in ("Light",)}, "and that nothing was deleted"
    assert ours.adopt(sent(theirs.changed_since(None)[0])) is False
    ours.check_invariants()


async def test_ends_beyond_where_a_queue_goes_on_are_cut_to_it() -> None:
    slice_ = Slice(lambda: 0.0)
    topics = Topics(BrokerConfig(), lambda: 1)
    topics.put(TopicConfig("Gone"))
    topics.delete("Gone", {0: 43, 1: 2}, {})
    topics.note_expired({"T": {0: 9}})
    version = topics.version
    await topics.clamp_ends(lambda name, queue_id: 43, slice_)
    assert topics.version == version
    await topics.clamp_ends(lambda name, queue_id: 7, slice_)
    assert topics.starts == {"Gone": {0: 7, 1: 2}, "T": {0: 7}}
    assert topics.first_offset("Gone", 0) == 7
    topics.check_invariants()


def test_groups_that_are_replaced_by_equal_ones_are_not_told_anew() -> None:
    ours, theirs = Groups(BrokerConfig(), lambda: 1), Groups(BrokerConfig(), lambda: 1)
    for table in (ours, theirs):
        table.put(*(SubscriptionGroupConfig(f"g{n}") for n in range(3)))
    mark = ours.mark
    theirs.put(SubscriptionGroupConfig("g1", retry_max_times=3))
    theirs.set_epoch(7)
    assert ours.adopt(sent(theirs.to_text()))
    assert ours.changed_since(mark)[0]["part"] == ["g1"]
    assert sent(ours.to_text()) == sent(theirs.to_text())
    ours.check_invariants()
