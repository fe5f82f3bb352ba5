"""The promise of the requests that wait: both systems hold all of them, and figures are of what was woken."""

from __future__ import annotations

from collections import Counter

import pytest

from bench.waits import ON_A_CONNECTION, percentiles, pop_of, pull_of
from model.codes import Request
from remoting.codec import decode

QUEUES, WAITING, HELD_OF_A_QUEUE = 4, 10_000, 1024


def test_no_group_has_more_pops_at_a_queue_than_a_broker_holds() -> None:
    ask = pop_of(QUEUES)
    frames = [
        decode(ask(connection, number))
        for connection in range(WAITING // ON_A_CONNECTION)
        for number in range(ON_A_CONNECTION)
    ]
    assert {frame.code for frame in frames} == {Request.POP_MESSAGE}
    held = Counter((frame.ext["consumerGroup"], frame.ext["queueId"]) for frame in frames)
    assert sum(held.values()) == WAITING
    assert max(held.values()) <= HELD_OF_A_QUEUE
    assert {decode(pull_of(QUEUES)(0, number)).ext["queueId"] for number in range(9)} == set("0123")


def test_figures_are_those_of_what_was_woken() -> None:
    found = percentiles([float(number) for number in range(1, 201)])
    assert found == {"wake_p50_ms": 101.0, "wake_p99_ms": 199.0, "wakes": 200.0}
    assert percentiles([3.0])["wake_p99_ms"] == 3.0
    with pytest.raises(RuntimeError, match="nothing was woken"):
        percentiles([])
