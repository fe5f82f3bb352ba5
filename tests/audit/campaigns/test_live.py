"""The promise of a continuous audit beside a real group: a failover is no fault, and a flipped byte is told.

``bench/audit_live.py`` has ten failovers, a byte of each replica, and RocketMQ's own servers.
"""

from __future__ import annotations

import asyncio

import pytest

from admin.host.serve import loop_factory
from bench import audit_live

pytestmark = [pytest.mark.live, pytest.mark.more, pytest.mark.timeout(240)]


def test_a_failover_is_no_fault_and_a_flipped_byte_is_told() -> None:
    options = audit_live.parsed(["--failovers", "1", "--flips", "1", "--segment-kib", "512", "--after", "1"])
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(audit_live.measured(options))
    assert found["false"] == []
    assert found["failovers"]["acked"] > 0
    assert [row["told_s"] is not None for row in found["flips"]["rows"]] == [True]
