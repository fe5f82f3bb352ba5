"""The promise to a well-behaved producer: whatever a client does beside it, it hardly feels it, and no master
is elected.

Each attack of ``bench/attackers.py`` runs against a group of three real processes for ``SECONDS``; beside it
a producer sends every 10 ms: none of its sends fails, no master is elected, no replica is damaged or left
behind. On a quiet machine its p99, with all retries, stays below 250 ms: tests that run beside each other are
none, so that is looked at with ``KEELMQ_QUIET=1`` only. ``KEELMQ_ATTACK_S`` makes the attacks longer;
``bench/attacks.py`` prints the figures.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.local.cluster import LocalCluster
from bench.attackers import ATTACKS
from bench.attacks import Range

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

QUIET = bool(os.environ.get("KEELMQ_QUIET"))
SECONDS = float(os.environ.get("KEELMQ_ATTACK_S", "1.5"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with tempfile.TemporaryDirectory(prefix="keelmq-attacks-") as where:
        found = LocalCluster.create(Path(where))
        try:
            asyncio.run(found.up())
            yield found
        finally:
            found.down()


@pytest.mark.parametrize("name", ATTACKS)
def test_a_normal_producer_hardly_feels_it(cluster: LocalCluster, name: str) -> None:
    async def attacked() -> None:
        async with Range(cluster) as place:
            row = await place.attack(name, SECONDS, alone_s=0.1)
        assert row.broken(timed=QUIET) == [], row
        assert any(row.seen.values()), "it did something"

    asyncio.run(attacked())
