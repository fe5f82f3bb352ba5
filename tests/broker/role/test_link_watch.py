"""The promise of broker.role.link_watch: a living replica that does not follow its master is named."""

from __future__ import annotations

import asyncio

import pytest

from broker.role.link_watch import AGAIN_MS, MISSING_MS, LinkWatch, Missing
from model.ids import BrokerId
from tests.lines import lines_of
from tests.plain import broker_ids


def look(missing: Missing, alive: set[int], linked: set[int], now_ms: float) -> list[tuple[BrokerId, float]]:
    return missing.look(broker_ids(alive), broker_ids(linked), now_ms)


def test_a_replica_is_named_once_it_lived_without_a_link_for_long_and_not_again_soon() -> None:
    missing = Missing()
    assert look(missing, {1, 2, 3}, {1, 2}, 0) == []
    assert look(missing, {1, 2, 3}, {1, 2}, MISSING_MS - 1) == []
    assert look(missing, {1, 2, 3}, {1, 2}, MISSING_MS) == [(3, MISSING_MS)]
    assert look(missing, {1, 2, 3}, {1, 2}, MISSING_MS + AGAIN_MS - 1) == []
    assert look(missing, {1, 2, 3}, {1, 2}, MISSING_MS + AGAIN_MS) == [(3, MISSING_MS + AGAIN_MS)]


def test_a_link_or_a_death_in_between_begins_the_time_anew() -> None:
    for alive, linked in (({1, 3}, {1, 3}), ({1}, {1})):
        missing = Missing()
        look(missing, {1, 3}, {1}, 0)
        look(missing, alive, linked, MISSING_MS - 1)
        assert look(missing, {1, 3}, {1}, MISSING_MS) == []
        assert look(missing, {1, 3}, {1}, 2 * MISSING_MS) == [(3, MISSING_MS)]


def test_only_a_master_asks_and_a_silent_controller_is_no_reason_to_warn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        now, asked = [0.0], [0]
        linked: list[frozenset[BrokerId] | None] = [None]
        answers = True

        async def alive() -> frozenset[BrokerId]:
            asked[0] += 1
            if not answers:
                raise ConnectionError("no Controller")
            return broker_ids({1, 2})

        watch = LinkWatch(lambda: now[0], alive, lambda: linked[0])
        await watch.look()
        assert asked == [0]
        linked[0] = broker_ids({1})
        await watch.look()
        now[0] = MISSING_MS
        answers = False
        await watch.look()
        assert not lines_of(caplog)
        answers = True
        await watch.look()

    asyncio.run(body())
    assert [r.levelname for r in lines_of(caplog)] == ["WARNING"]
    assert "replica 2 has no HA link" in lines_of(caplog)[0].message
