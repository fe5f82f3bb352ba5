"""What survives when power fails, disks fill up, and syncs return errors?"""

from __future__ import annotations

import random

from chaos.faults import DiskFull, FlipBit, Kill, PowerFail, Restart, Step, SyncError, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario
from chaos.workload import Load

SYNC_FLUSH = {"flushDiskType": "SYNC_FLUSH"}


def _one_machine(rng: random.Random) -> Plan:
    """One machine loses its power, so the others keep what it forgot; often it is a master's, back before
    anybody missed it."""
    at = rng.randint(800, 2500)
    target, down, broker = "master", rng.randint(200, 1200), {}
    if rng.random() < 0.6:
        target = rng.choice(("master", "slave", "leader"))
        down, broker = rng.randint(300, 2500), rng.choice((SYNC_FLUSH, {}))
    return Plan(
        then(at, PowerFail(target), down, Restart, "first"), load_ms=7000, broker=broker, **ground(rng)
    )


def _all_machines(rng: random.Random) -> Plan:
    """Everything loses power within moments, with SYNC_FLUSH: what was acknowledged is on disks."""
    at = rng.randint(1000, 2500)
    spread = rng.choice((0, 0, 50, 400))
    nodes = ["n0", "n1", "n2", "b1", "b2", "b3"]
    steps: list[Step] = []
    for node in nodes:
        down = at + rng.randint(0, spread)
        steps.append(Step(down, PowerFail(node)))
        steps.append(Step(at + spread + rng.randint(200, 2000), Restart(node)))
    return Plan(ordered(steps), load_ms=8000, broker=SYNC_FLUSH, **ground(rng))


def _full_disk(rng: random.Random) -> Plan:
    target = rng.choice(("master", "slave"))
    at = rng.randint(500, 2500)
    steps = [
        Step(at, DiskFull(target), "full"),
        Step(at + rng.randint(500, 3000), DiskFull("=full", full=False)),
    ]
    return Plan(steps, load_ms=7000, **ground(rng))


def _sync_error(rng: random.Random) -> Plan:
    """A failed sync: the broker must not say OK, must step down, and may come back only after a restart."""
    at = rng.randint(500, 2500)
    if rng.random() < 0.25:
        target = rng.choice(("master", "master", "slave"))
        parts = [
            [Step(at, SyncError(target, rng.choice((1, 1, 3))), "bad"), Step(at + 3000, PowerFail("=bad"))],
            [Step(at + 3500, Restart("=bad"))],
        ]
        broker = rng.choice((SYNC_FLUSH, {}))
        return Plan(ordered(*parts), load_ms=8000, broker=broker, errors_expected=True, **ground(rng))
    # Everywhere: no other replica makes up for what one of them lost. Syncs are slow and bodies fill pages,
    # so that the three lose the same bytes, and nothing written later makes their pages dirty again. It is
    # drawn more often than the other: a broker that syncs again is found by one of three such seeds alone.
    parts = []
    for name in ("b1", "b2", "b3"):
        parts.append([Step(at + rng.randint(0, 10), SyncError(name)), Step(at + 2000, PowerFail(name))])
        parts.append([Step(at + 2500 + rng.randint(0, 500), Restart(name))])
    drawn = ground(rng)
    drawn["offload_ms"] = (20.0, 60.0)
    load = Load(body_bytes=(2000, 6000))
    return Plan(ordered(*parts), load=load, load_ms=8000, broker=SYNC_FLUSH, errors_expected=True, **drawn)


def _flipped_bit(rng: random.Random) -> Plan:
    """While a slave is down, one bit on its disk changes, in what can be made anew from the log."""
    at = rng.randint(1500, 3500)
    prefix = rng.choice(("consumequeue/", "index/", "checkpoint"))
    steps = [
        Step(at, Kill("slave"), "slave"),
        Step(at + 100, FlipBit("=slave", f"/store/{prefix}")),
        Step(at + rng.randint(200, 1500), Restart("=slave")),
    ]
    return Plan(steps, errors_expected=True, **ground(rng))


POWER_OF_ONE = Scenario(
    "power_fails_on_one_machine",
    "a machine that loses power loses nothing its group acknowledged, and rejoins",
    _one_machine,
)
POWER_OF_ALL = Scenario(
    "power_fails_everywhere_with_sync_flush",
    "with SYNC_FLUSH every acknowledged message survives a power failure of all machines",
    _all_machines,
)
FULL_DISK = Scenario(
    "a_full_disk_refuses_and_recovers",
    "a broker whose disk is full refuses writes, and serves again when there is space",
    _full_disk,
)
SYNC_ERROR = Scenario(
    "a_failed_sync_is_never_answered_ok",
    "a broker whose sync failed acknowledges nothing that could be gone, and steps down",
    _sync_error,
)
FLIPPED_BIT = Scenario(
    "a_flipped_bit_in_queues_or_index_changes_no_message",
    "a slave whose queues, index or checkpoint changed while it was down serves what was written",
    _flipped_bit,
)
