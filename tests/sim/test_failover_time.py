"""The promise: how long a failover takes, whatever machine the tests run on: time is virtual here.

The bounds are those of bench/failover.py's targets for the median, or what a standstill adds to them.
"""

from __future__ import annotations

import pytest

from chaos.drills.measure import ORDERLY
from chaos.drills.simulated.virtual import KINDS, rto_ms, run
from chaos.history import Happened, History, Ok
from client.message import Queue

pytestmark = pytest.mark.sim

QUIET_MAX_MS = {
    "kill-master": 250,
    "freeze-master": 2000,
    "stop-master": 100,
    "kill-leader-and-master": 500,
}
STANDSTILL_MAX_MS = 900


@pytest.mark.parametrize("kind", KINDS)
def test_on_a_quiet_machine(kind: str) -> None:
    outcome = run(kind, "quiet", 0)
    assert outcome.violations == ()
    assert outcome.rto_ms is not None
    assert 0 < outcome.rto_ms <= QUIET_MAX_MS[kind]
    assert outcome.acked > 300
    assert outcome.failed == 0
    if kind in ORDERLY:
        assert outcome.unknown == 0


def test_a_machine_that_stands_still_adds_no_more_than_that() -> None:
    outcome = run("kill-master", "standstills", 0)
    assert outcome.violations == ()
    assert outcome.rto_ms is not None
    assert outcome.rto_ms <= QUIET_MAX_MS["kill-master"] + STANDSTILL_MAX_MS
    assert outcome.failed == 0


def test_the_time_counts_from_the_last_answer_before_to_the_first_of_another_master() -> None:
    queue = Queue("t", "g", 0)

    def ok(at_ms: float, address: str) -> Ok:
        return Ok(at_ms, "p", str(at_ms), queue, int(at_ms), 0, address)

    struck = Happened(100.0, "b1", "kill", {})
    acks = [ok(90.0, "old"), ok(95.0, "old"), ok(101.0, "old"), ok(160.0, "new"), ok(170.0, "new")]
    assert rto_ms(History([*acks[:2], struck, *acks[2:]]), "kill-master") == 65.0
    assert rto_ms(History([*acks[:2], struck, acks[2]]), "kill-master") is None
    assert rto_ms(History(acks), "kill-master") is None
