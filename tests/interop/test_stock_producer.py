"""The promise to a Java producer nobody tuned: with a group address a failover costs it next to nothing."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import pytest

from bench.stock_producer import Send, markdown, measure

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

SIDE = "keelmq_group_address"


@pytest.mark.covers(
    "A producer goes on at the group's address when the master moves", client="Java 5.5.0", sides="keelmq"
)
@pytest.mark.parametrize("scenario", ["kill-master", pytest.param("handover", marks=pytest.mark.more)])
def test_a_stock_producer_goes_on_at_the_group_address_long_before_it_asks_for_the_route(
    real_rocketmq: Path, scenario: str
) -> None:
    # The fault comes a second after the first send: the client looks at the route 29 s later.
    asked = argparse.Namespace(repeat=1, rate=20, before=1.0)
    row = asyncio.run(measure(SIDE, scenario, asked))
    assert "error" not in row, row
    assert row["recovered"]
    assert row["lost"] == 0
    (drill,) = row["drills"]
    # A second of sends before the fault and twenty in a row after it; until its next look at the route it
    # would fail hundreds.
    assert drill["acked"] > 20
    assert drill["failed"] < drill["acked"]
    assert f"| {scenario} | {SIDE} | 1 |" in markdown([{"work": scenario, SIDE: row}])


def test_only_lines_of_the_producer_are_sends() -> None:
    assert Send.parse("ok 10 12 k0 3 7") == Send(True, 10, 12, ("k0", "3", "7"))
    assert not Send.parse("failed 10 12 No_route").ok
    with pytest.raises(ValueError, match="not a send"):
        Send.parse("maybe 10 12")
