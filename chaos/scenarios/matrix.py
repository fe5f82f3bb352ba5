"""One kind of fault, in one mode of replication, again and again: the plans of ``keelmq drill matrix``.

Each strike hits one server and is mended; the next one waits for the full group. What is lost then, no mode
promises away: a single server was hit, and in mode *counted* 2 another one has each acknowledged message.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from chaos import faults
from chaos.faults import Fault, Step, then
from chaos.partitions import SHAPES
from chaos.scenarios.draws import ground
from chaos.scenarios.live_only import (
    ClockDrift,
    Join,
    Leave,
    LostLog,
    MemoryLimit,
    ReadOnlyDisk,
    Replace,
    TornWrite,
)
from chaos.scenarios.plan import Plan
from chaos.workload import Load

MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "default": {},
    "majority": {"allAckInSyncStateSet": "false", "majorityAck": "true"},
    "counted": {"allAckInSyncStateSet": "false", "inSyncReplicas": "2"},
}
THEIR_MODES: Final[Mapping[str, Mapping[str, str]]] = {
    "master-alone": {"allAckInSyncStateSet": "false"},
    "all-ack": {"allAckInSyncStateSet": "true"},
}
"""RocketMQ's: the master alone acknowledges, as by default, or all members of the SyncStateSet."""
MODES_OF: Final = {"keelmq": MODES, "rocketmq": THEIR_MODES}
ONE_CUT_OFF: Final = ("clients", "controllers", "slaves", "servers", "peers")
"""Shapes that part one server from others. Of two rooms, the one that has both copies may be left behind in
mode *counted*."""
BROKEN: Final[Mapping[str, Callable[[str, int], Fault]]] = {
    "sync_error": faults.SyncError,
    "write_error": faults.WriteError,
    "read_error": faults.ReadError,
}
"""A broker whose disk fails so may serve no more until an operator restarts it."""
SMALL_SEGMENTS: Final = {"mappedFileSizeCommitLog": "65536"}
"""Blocks of a segment are had when it is made: a full disk is met at the next one, a second or two later."""
FLAPS: Final = 5
FAULT_OF: Final[Mapping[str, str]] = {"flapping": "partition"}
"""The fault of a kind that is named otherwise."""
TAIL_MS: Final = 1500
GAP_MS: Final = (300, 1500)
UPGRADE_MS: Final = 1000
"""Between the way back and the next upgrade, which waits for the full group as well."""

Draw = Callable[[random.Random, int, str], list[Step]]
"""One strike that begins ``at_ms``, and what mends it; the third argument is the mode."""


def plan(kind: str, mode: str, seed: int, strikes: int, target: str = "keelmq") -> Plan:
    """``strikes`` faults of one kind, drawn from the seed: the same for RocketMQ, whatever its mode, as for
    keelmq by default. Raises KeyError."""
    rng = random.Random(f"{kind}/{'default' if target == 'rocketmq' else mode}/{seed}")
    steps: list[Step] = []
    at_ms = 1000
    for number in range(strikes):
        own = [_named(step, number) for step in KINDS[kind](rng, at_ms, mode)]
        if kind == "upgrade" and number:  # from one release to the other, from the second on there and back
            back = Step(at_ms, faults.Upgrade("master", back=True))
            own = [back, *(replace(step, at_ms=at_ms + UPGRADE_MS) for step in own)]
        steps += own
        at_ms = own[-1].at_ms + rng.randint(*GAP_MS)
    return Plan(
        steps,
        load=Load(producers=4, per_second=25.0, queues=4),
        load_ms=at_ms + TAIL_MS,
        broker={**MODES_OF[target][mode], **(SMALL_SEGMENTS if kind == "disk_full" else {})},
        unsynced_excused=kind in ("power_fail", "lying_sync", "torn_write"),
        errors_expected=kind in ("disk_full", "no_descriptors", *BROKEN),
        **ground(rng),
    )


def _named(step: Step, number: int) -> Step:
    """A strike's own names: a node that an earlier one hit is not meant."""
    target = f"{step.fault.target}{number}" if step.fault.target.startswith("=") else step.fault.target
    bind = f"{step.bind}{number}" if step.bind else ""
    return Step(step.at_ms, replace(step.fault, target=target), bind)


def _whom(rng: random.Random) -> str:
    return rng.choice(("master", "master", "master", "slave", "leader"))


def _broker(rng: random.Random) -> str:
    return rng.choice(("master", "master", "slave"))


def _ended(fault: Callable[[str], Fault], repair: type[Fault], low_ms: int, high_ms: int) -> Draw:
    def draw(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
        return then(at_ms, fault(_whom(rng)), rng.randint(low_ms, high_ms), repair, "hit")

    return draw


def _partition(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    shape = rng.choice(ONE_CUT_OFF if mode == "counted" else SHAPES)
    way = rng.choice(faults.WAYS)
    cut = faults.Partition(_whom(rng), shape, way)
    return [Step(at_ms, cut, "hit"), Step(at_ms + rng.randint(1500, 6000), faults.Heal())]


def _emptied(fault: Callable[[str], Fault]) -> Draw:
    """Of a broker that is down."""

    def draw(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
        return [
            Step(at_ms, faults.Kill(_broker(rng)), "hit"),
            Step(at_ms + 800, fault("=hit")),
            Step(at_ms + 900, faults.Restart("=hit")),
        ]

    return draw


def _torn_write(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    return [
        Step(at_ms, faults.PowerFail(_broker(rng)), "hit"),
        Step(at_ms + 800, TornWrite("=hit")),
        Step(at_ms + 1200, faults.Restart("=hit")),
    ]


def _disk_full(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    """Longer than what is written meanwhile has room in the segments that are there (SMALL_SEGMENTS)."""
    end_ms = at_ms + rng.randint(4000, 8000)
    return [
        Step(at_ms, faults.DiskFull(_whom(rng)), "hit"),
        Step(end_ms, faults.DiskFull("=hit", full=False)),
    ]


def _no_descriptors(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    end_ms = at_ms + rng.randint(1500, 5000)
    return [
        Step(at_ms, faults.NoDescriptors(_whom(rng)), "hit"),
        Step(end_ms, faults.NoDescriptors("=hit", lacking=False)),
    ]


def _broken(fault: Callable[[str, int], Fault]) -> Draw:
    def draw(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
        stop_ms = at_ms + rng.randint(1500, 4000)
        return [
            Step(at_ms, fault(_broker(rng), rng.randint(1, 3)), "hit"),
            Step(stop_ms, faults.Kill("=hit")),
            Step(stop_ms + 200, faults.Restart("=hit")),
        ]

    return draw


def _lying_sync(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    """A lie that costs something: what was not written is gone with the power."""
    off_ms = at_ms + rng.randint(1500, 4000)
    return [
        Step(at_ms, faults.LyingSync(_broker(rng)), "hit"),
        Step(off_ms, faults.PowerFail("=hit")),
        Step(off_ms + rng.randint(300, 1500), faults.Restart("=hit")),
    ]


def _slow_disk(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    slow = faults.SlowDisk(_broker(rng), float(rng.randint(20, 400)))
    end_ms = at_ms + rng.randint(1500, 4000)
    return [Step(at_ms, slow, "hit"), Step(end_ms, faults.SlowDisk("=hit", 0.0))]


def _slow_network(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    slow = faults.SlowNetwork(_whom(rng), float(rng.randint(5, 300)))
    return [Step(at_ms, slow, "hit"), Step(at_ms + rng.randint(1500, 4000), faults.Heal())]


def _spoiled(fault: Callable[[str, random.Random], Fault]) -> Draw:
    def draw(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
        spoiled = fault(_whom(rng), rng)
        return [Step(at_ms, spoiled, "hit"), Step(at_ms + rng.randint(1500, 6000), faults.Heal())]

    return draw


def _once(fault: Callable[[str], Fault]) -> Draw:
    def draw(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
        return [Step(at_ms, fault(_whom(rng)), "hit"), Step(at_ms + 1500, faults.Look("=hit"))]

    return draw


def _clock_jump(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    jump = faults.ClockJump(_whom(rng), rng.choice((-3_600_000, -5_000, 5_000, 3_600_000)))
    back = faults.ClockJump("=hit", -jump.by_ms)
    return [Step(at_ms, jump, "hit"), Step(at_ms + 2000, back)]


def _clock_drift(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    drift = ClockDrift(_whom(rng), rng.choice((0.9, 0.99, 1.01, 1.1)))
    return [Step(at_ms, drift, "hit"), Step(at_ms + rng.randint(2000, 6000), ClockDrift("=hit", 1.0))]


def _read_only_disk(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    stop_ms = at_ms + rng.randint(1500, 4000)
    return [
        Step(at_ms, ReadOnlyDisk(_broker(rng)), "hit"),
        Step(stop_ms, faults.Kill("=hit")),
        Step(stop_ms + 500, ReadOnlyDisk("=hit", read_only=False)),
        Step(stop_ms + 600, faults.Restart("=hit")),
    ]


def _flapping(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    """The same server is cut off and heard again, FLAPS times."""
    shape, way = rng.choice(ONE_CUT_OFF), rng.choice(faults.WAYS)
    steps: list[Step] = []
    for number in range(FLAPS):
        whom, bind = ("=hit", "") if number else (_whom(rng), "hit")
        steps.append(Step(at_ms, faults.Partition(whom, shape, way), bind))
        steps.append(Step(at_ms + rng.randint(200, 1200), faults.Heal()))
        at_ms = steps[-1].at_ms + rng.randint(200, 1000)
    return steps


def _rolling(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    return [Step(at_ms, faults.RollingChange("master", dict(MODES.get(mode, {}))))]


def _leave(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    back_ms = at_ms + rng.randint(3000, 8000)
    return [Step(at_ms, Leave(_broker(rng)), "hit"), Step(back_ms, Join("=hit"))]


def _replace(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    return [Step(at_ms, Replace(_broker(rng)))]


def _upgrade(rng: random.Random, at_ms: int, mode: str) -> list[Step]:
    return [Step(at_ms, faults.Upgrade("master"))]


KINDS: Final[Mapping[str, Draw]] = {
    "kill": _ended(faults.Kill, faults.Restart, 200, 3000),
    "stop": _ended(faults.Stop, faults.Restart, 200, 3000),
    "pause": _ended(faults.Pause, faults.Resume, 300, 5000),
    "partition": _partition,
    "slow_network": _slow_network,
    "lose_packets": _spoiled(lambda whom, rng: faults.LosePackets(whom, rng.choice((0.02, 0.1, 0.3)))),
    "double_packets": _spoiled(lambda whom, rng: faults.DoublePackets(whom, rng.choice((0.1, 0.5, 1.0)))),
    "reorder_packets": _spoiled(
        lambda whom, rng: faults.ReorderPackets(whom, rng.choice((5.0, 30.0, 100.0)))
    ),
    "narrow_links": _spoiled(lambda whom, rng: faults.NarrowLinks(whom, rng.choice((8.0, 32.0, 128.0)))),
    "reset_links": _once(faults.ResetLinks),
    "power_fail": _ended(faults.PowerFail, faults.Restart, 300, 3000),
    "wipe": _emptied(faults.Wipe),
    "lost_log": _emptied(LostLog),
    "torn_write": _torn_write,
    "disk_full": _disk_full,
    "no_descriptors": _no_descriptors,
    **{name: _broken(fault) for name, fault in BROKEN.items()},
    "lying_sync": _lying_sync,
    "slow_disk": _slow_disk,
    "clock_jump": _clock_jump,
    "clock_drift": _clock_drift,
    "memory_limit": _broken(MemoryLimit),
    "read_only_disk": _read_only_disk,
    "flapping": _flapping,
    "rolling_change": _rolling,
    "leave": _leave,
    "replace": _replace,
    "hand_over": _once(faults.HandOver),
    "upgrade": _upgrade,
}
