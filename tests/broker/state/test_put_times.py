"""The promise of broker.state.put_times and stats: what tools read about a broker's work is what it did."""

from __future__ import annotations

from pathlib import Path

from broker.state.put_times import MINUTE_MS, PutTimes
from broker.state.stats import Stats
from model.codes import Request
from remoting import bodies
from tests.broker.helpers import client_of, running


def test_times_fall_where_rocketmq_puts_them() -> None:
    times = PutTimes()
    for took_ms in (0.4, 1.0, 9.9, 10.0, 99.0, 150, 499, 999, 1500, 2500, 3500, 4999, 9999, 10_000, 70_000):
        times.waited(took_ms)
    times.none()
    assert times.text() == (
        "[<=0ms]:2 [0~10ms]:2 [10~50ms]:1 [50~100ms]:1 [100~200ms]:1 [200~500ms]:1 [500ms~1s]:1 [1~2s]:1"
        " [2~3s]:1 [3~4s]:1 [4~5s]:1 [5~10s]:1 [10s~]:2"
    )
    assert times.longest_ms == 70_000


def test_a_minute_ends_and_its_quantiles_are_told() -> None:
    times = PutTimes()
    times.tick(0)
    for _ in range(985):
        times.none()
    for _ in range(14):
        times.waited(3.21)
    times.waited(777)
    times.tick(MINUTE_MS - 1)
    assert (times.p99_ms, times.p999_ms) == (0.0, 0.0), "the minute is not over"
    times.tick(MINUTE_MS)
    assert (times.p99_ms, times.p999_ms) == (3.3, 3.3)
    assert times.text().startswith("[<=0ms]:0 [0~10ms]:0 ")
    times.waited(777)
    times.tick(2 * MINUTE_MS)
    assert (times.p99_ms, times.p999_ms) == (780.0, 780.0)
    assert times.seen.to_json()["counts"][-1] == 1001, "since the start"


def test_rates_are_over_ten_seconds_a_minute_and_ten() -> None:
    stats = Stats()
    assert stats.rates(0.0).put == (0.0, 0.0, 0.0)
    for second in range(701):
        stats.tick(second * 1000)
        stats.tick(second * 1000 + 200)  # not a sample of its own
        if second < 650:
            stats.put(100, 100)
        else:
            stats.got(32)
            stats.missed_total += 1
    rates = stats.rates(700_000)
    assert rates.put == (0.0, 100 * 10 / 60, 100 * 550 / 600)
    assert rates.found[0] == rates.missed[0] == 1.1, "eleven in the ten seconds before the last sample"
    assert rates.got[0] == 32 * 1.1


async def test_the_runtime_of_a_broker_says_what_was_done(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for _ in range(3):
            await client.send("T")
        await client.send("T", properties="DELAY\x013\x02")
        broker.delays.set(3, 0)
        await broker.store.caught_up()
        await client.pull("T", 0)
        await client.pull("T", 3)
        stats = broker.context.stats
        assert (stats.found_total, stats.missed_total, stats.get_total) == (1, 1, 3)
        runtime = bodies.loads((await client.call(Request.GET_BROKER_RUNTIME_INFO)).body)["table"]
        counts = dict(part.rsplit(":", 1) for part in runtime["putMessageDistributeTime"].split(" "))
        assert len(counts) == 13
        assert (
            sum(map(int, counts.values())) == broker.context.pending_acks.waits.seen.to_json()["counts"][-1]
        )
        assert runtime["scheduleMessageOffset_3"] == "0,1"
        for name in ("putTps", "getTotalTps", "getFoundTps", "getMissTps", "getTransferredTps"):
            assert len(runtime[name].split(" ")) == 3
