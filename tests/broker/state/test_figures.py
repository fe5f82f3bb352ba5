"""The promise of a broker's figures: as many rows as are bearable, and nothing left out of the sums."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from broker.state.figures import OTHERS, Durations, Lag, Lags, QueueLag, Rows, largest_queues
from broker.state.pop_counts import CHECKPOINT, PopCounts
from runtime.turns import Slice
from tests.broker.helpers import client_of, running


@given(st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), max_size=6), max_size=6))
async def test_counters_are_bounded_and_sum_to_the_whole(looks: list[dict[str, int]]) -> None:
    rows, many, slice_ = Rows(3), Rows(3), Slice(lambda: 0.0)
    own: set[str] = set()
    for totals in looks:
        found = rows.of(totals)
        assert await many.of_many(totals, slice_) == found
        assert sum(found.values()) == sum(totals.values())
        named = set(found) - {OTHERS}
        own |= named
        assert len(own) <= 3, "who has a row keeps it: no counter changes what it counts"
        assert own & set(totals) == named


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 100)), max_size=20))
def test_durations_have_a_bounded_number_of_rows_and_none_is_left_out(seen: list[tuple[str, int]]) -> None:
    durations = Durations((10, 50), rows_max=3)
    for topic, seconds in seen:
        durations.observe(topic, seconds)
    rows = {row["topic"]: row for row in durations.to_json()}
    first = list(dict.fromkeys(topic for topic, _ in seen))
    assert list(rows) == [*first[:3], *([OTHERS] if len(first) > 3 else [])]
    assert sum(row["counts"][-1] for row in rows.values()) == len(seen)
    assert sum(row["sum"] for row in rows.values()) == sum(seconds for _, seconds in seen)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.integers(0, 9)), max_size=12))
def test_of_lags_the_largest_are_named_and_the_rest_is_one(rows: list[tuple[str, str, int]]) -> None:
    lags, kept = [Lag(group, topic, messages) for group, topic, messages in rows], Lags(4)
    for one in lags:
        kept.add(one)
        assert len(kept._kept) < 8, "whatever comes, it keeps a few"
    shown, others = kept.shown()
    assert len(shown) == min(4, len(lags))
    rest = others.messages if others is not None else 0
    assert sum(lag.messages for lag in shown) + rest == sum(lag.messages for lag in lags)
    assert all(lag.messages >= rest_of.messages for lag in shown for rest_of in lags if rest_of not in shown)


async def test_a_broker_tells_what_came_what_was_read_and_how_far_groups_are_behind(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        sampling = broker.upkeep.sampling
        await asyncio.sleep(0)  # the first look is at the start
        for _ in range(5):
            await client.send("T")
        await broker.store.caught_up()
        await client.pull("T", 0, count=2)
        broker.context.offsets.commit("cg", "T", 0, 2)
        await client.pull("T", 2, count=1)
        await sampling.sample()
        status = broker.status()
    found = status["figures"]
    assert found["topics"] == {"T": 5}
    assert found["reads"]["T@cg"] >= 3
    stored = status["putBytesTotal"]
    assert found["topicBytes"] == {"T": stored}
    assert status["sizes"]["counts"][-1] == 5
    assert status["sizes"]["sum"] == stored
    assert found["readBytes"]["T@cg"] * 5 == found["reads"]["T@cg"] * stored, "all are of one size"
    assert found["queueLags"] == [{"group": "cg", "topic": "T", "queueId": 0, "messages": 3}]
    assert status["ports"]["answered"]["PULL_MESSAGE"]["counts"][-1] == 2
    assert status["flush"]["counts"][-1] >= 0
    (lag,) = [row for row in found["lags"] if row["topic"] == "T"]
    assert (lag["group"], lag["messages"], lag["inflight"]) == ("cg", 3, 1)
    assert 0 <= lag["waitsMs"] <= lag["behindMs"] < 60_000
    assert found["disk"]["totalBytes"] >= found["disk"]["freeBytes"] > 0
    assert status["sendWait"]["counts"][-1] == 5
    assert status["ageWhenRead"]["counts"][-1] == 2


def test_of_queues_the_largest_lags_are_shown() -> None:
    rows = [QueueLag("g", "T", i, messages) for i, messages in enumerate((5, 9, 1, 9))]
    assert [row.queue_id for row in largest_queues(rows, 3)] == [1, 3, 0]


async def test_dead_letters_are_counted_by_their_group(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await asyncio.sleep(0)
        broker.context.stats.counters.add("TOPIC_PUT_NUMS", "%DLQ%cg", 4, 0)
        broker.context.stats.counters.add("TOPIC_PUT_NUMS", "T", 2, 0)
        await broker.upkeep.sampling.sample()
        assert broker.status()["figures"]["dead"] == {"%DLQ%cg": 4}


def test_pops_of_many_topics_and_groups_have_a_few_rows_and_one_for_the_rest() -> None:
    counts = PopCounts(pairs_max=2)
    for topic in ("a", "b", "c", "d", "a"):
        counts.put(topic, "g", CHECKPOINT)
        counts.read(topic, "g", CHECKPOINT, 3)
        counts.revived(topic, "g", 2)
    told = counts.to_json()
    for rows, times in ((told["put"], 1), (told["read"], 1), (told["revived"], 2)):
        found = {(row["topic"], row["group"]): row["total"] for row in rows}
        assert found == {("a", "g"): 2 * times, ("b", "g"): times, (OTHERS, OTHERS): 2 * times}
    assert {row["queueId"] for row in told["read"]} == {3}
