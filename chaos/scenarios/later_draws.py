"""What else does the swarm draw, after all the rest: pops that an operator moves, clocks that are set at a
master that dies, keys that change at a restart, epoch files that are lost, and what waits meanwhile?

Each comes from a source of its own, so that a seed that does not draw it stays as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from chaos.faults import (
    ClockJump,
    Fault,
    Kill,
    PowerFail,
    Reconfigure,
    Restart,
    RollingChange,
    Step,
    Stop,
    ordered,
)
from chaos.scenarios.last_draws import DOWN_MS
from chaos.scenarios.lost_epochs import COPIES, HOW, LoseEpochs
from chaos.scenarios.plan import Plan

CLOCKS_SHARE: Final = 0.12
POPS_SHARE: Final = 0.12
WAITS_SHARE: Final = 0.12
KEYS_SHARE: Final = 0.12
LOST_EPOCHS_SHARE: Final = 0.06
OFTEN_TIMES: Final = 3
"""So much oftener a seed pops and waits when its clocks, keys or epochs are struck."""

SET_BY_MS: Final = (-86_400_000, -3_600_000, -70_000, -2000, -300, 300, 2000, 70_000, 3_600_000, 86_400_000)
HOUR_MS: Final = 3_600_000
OF_THE_GROUP: Final = frozenset({"master", "slave", "b1", "b2", "b3"})
DRIFTS_BY_MS: Final = (-80, -20, 5, 20, 80)
DRIFT_STEP_MS: Final = 50

OFTEN: Final = {"reviveInterval": "200"}
ASKS_SOON: Final = {
    "recallMessageEnable": "true",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "500",
    "transactionCheckMax": "1000",
    "timerPrecisionMs": "100",
}
WINDOWS: Final = ("172800", "172800", "10", "5")
"""Slots of 0.1 s: a message rolls within its few seconds, or not."""

ANY_TIME: Final[Sequence[Mapping[str, str]]] = (
    *({"reviveQueueNum": number} for number in ("1", "3", "16")),
    *({"messageDelayLevel": levels} for levels in ("1s 2s 3s", "2s 1s 5s", "3s 3s 3s")),
    *({"flushDiskType": kind} for kind in ("SYNC_FLUSH", "ASYNC_FLUSH")),
    *({"flushIntervalCommitLog": ms} for ms in ("20", "3000")),
    *({"flushConsumerOffsetInterval": ms} for ms in ("300", "20000")),
    {"enabledAppendPropCRC": "true"},
    {"autoReseed": "true"},
    {"checkCRCOnRecover": "false"},
    {"controllerHeartBeatTimeoutMills": "3000"},
    {"brokerElectionPriority": "1"},
)
"""What may be another at any start (docs/defaults.md). ``mappedFileSizeConsumeQueue`` may not, and
``mappedFileSizeCommitLog`` is the same on every replica of a group."""
RETENTION: Final = {"fileReservedTime": "1", "deleteWhen": ";".join(f"{hour:02}" for hour in range(24))}
"""An hour, looked at in each: nothing of a run is as old, unless a clock that was set says so."""
ORDERLY: Final[Sequence[Mapping[str, str]]] = (
    *({"timerPrecisionMs": ms} for ms in ("100", "200", "1000")),
    *({"timerRollWindowSlot": slots} for slots in ("5", "20", "172800")),
)
"""By orderly restarts only."""
_PLAIN: Final = {
    "allAckInSyncStateSet": "false",
    "majorityAck": "false",
    "inSyncReplicas": "1",
    "minInSyncReplicas": "1",
    "brokerRole": "SYNC_MASTER",
}


def _modes(brokers: int) -> Sequence[tuple[Mapping[str, str], int | None]]:
    """Rules of acknowledgement that MODES of the swarm has not, and how many brokers each tolerates."""
    return (
        ({**_PLAIN, "allAckInSyncStateSet": "true", "minInSyncReplicas": str(brokers)}, None),
        ({**_PLAIN, "inSyncReplicas": str(brokers)}, brokers),
        ({**_PLAIN, "inSyncReplicas": "2", "minInSyncReplicas": "2"}, 2),
        ({**_PLAIN, "minInSyncReplicas": "2"}, 2),
        ({**_PLAIN, "majorityAck": "true", "totalReplicas": str(brokers + 1)}, None),
        ({**_PLAIN, "majorityAck": "true", "minInSyncReplicas": str(brokers)}, None),
    )


def draw_later(plan: Plan, rest: float) -> None:
    """``rest``: what the seed has left to draw from."""
    if plan.set_kept:
        return  # what ends a life would be a reason to drop a member
    faults = [
        drawn(plan, "set clocks", rest, CLOCKS_SHARE, with_set_clocks),
        drawn(plan, "changed keys", rest, KEYS_SHARE, with_changed_keys),
        drawn(plan, "lost epochs", rest, LOST_EPOCHS_SHARE, with_lost_epochs),
    ]
    often = OFTEN_TIMES if any(faults) else 1
    works = [
        drawn(plan, "pops", rest, POPS_SHARE * often, with_pops),
        drawn(plan, "waits", rest, WAITS_SHARE * often, with_waits),
    ]
    if any(works):
        _with_more_time(plan, random.Random(f"more time {rest}"))


def drawn(
    plan: Plan, name: str, rest: float, share: float, add: Callable[[Plan, random.Random], None]
) -> bool:
    """Whether the seed draws it, from a source of its own."""
    rng = random.Random(f"{name} {rest}")
    is_drawn = rng.random() < share
    if is_drawn:
        add(plan, rng)
    return is_drawn


def _with_more_time(plan: Plan, rng: random.Random) -> None:
    """A world that is well is left alone for long enough to be given something."""
    plan.load_ms += rng.choice((0, 500, 2000))
    if plan.calm_ms is not None and rng.random() < 0.6:
        plan.calm_ms = max(plan.calm_ms, rng.choice((400, 1000)))


def _added(plan: Plan, steps: Sequence[Step]) -> None:
    plan.steps = ordered([*plan.steps, *steps])
    plan.load_ms = max(plan.load_ms, max(step.at_ms for step in plan.steps) + 200)


def with_set_clocks(plan: Plan, rng: random.Random) -> None:
    """A clock is set, or drifts, at a broker that dies about then, mostly the master; before it is back the
    clock may be right again. About when something else happens."""
    steps: list[Step] = []
    for number in range(rng.choice((1, 1, 2, 3))):
        at = max(300, rng.choice(plan.steps).at_ms + rng.randint(-600, 600))
        target, bound = rng.choice(("master",) * 6 + ("slave", "leader")), f"set{number}"
        if rng.random() < 0.3:
            by_ms, count = rng.choice(DRIFTS_BY_MS), rng.randint(8, 40)
            steps.append(Step(at, ClockJump(target, by_ms), bound))
            times = range(at + DRIFT_STEP_MS, at + count * DRIFT_STEP_MS, DRIFT_STEP_MS)
            steps += [Step(when, ClockJump(f"={bound}", by_ms)) for when in times]
        else:
            by_ms = rng.choice(SET_BY_MS)
            steps.append(Step(at, ClockJump(target, by_ms), bound))
            if rng.random() < 0.5:
                steps.append(Step(at + rng.randint(50, 2500), ClockJump(f"={bound}", -by_ms)))
        if rng.random() < 0.7:
            dies = at + rng.choice((rng.randint(0, 60), rng.randint(0, 600), rng.randint(0, 2000)))
            death: Fault = rng.choice((Kill, Kill, PowerFail, Stop))(f"={bound}")
            back = dies + rng.randint(*rng.choice(DOWN_MS))
            steps += [Step(dies, death), Step(back, Restart(f"={bound}"))]
    _added(plan, steps)
    plan.errors_expected |= any(step.fault.target == "leader" for step in steps)


def with_changed_keys(plan: Plan, rng: random.Random) -> None:
    """Some brokers come back from what befell them with other keys, or an operator restarts all in turn."""
    back = _that_come_back(plan)
    steps: list[Step] = []
    for _ in range(rng.choice((1, 2, 2, 4))):
        lot = rng.random()
        if lot < 0.2:
            values, tolerates = rng.choice(_modes(plan.brokers))
            plan.serves_ms = None
            if tolerates is not None:
                plan.tolerates = min(tolerates, plan.tolerates or tolerates)
        elif lot < 0.35:
            values = rng.choice(ORDERLY)
        elif lot < 0.5 and not _hour_set(plan):
            values = RETENTION
        else:
            values = rng.choice(ANY_TIME)
        if back and values not in ORDERLY and rng.random() < 0.7:
            steps += [
                Step(max(0, chosen.at_ms - 1), Reconfigure(chosen.fault.target, values))
                for chosen in rng.sample(back, min(len(back), rng.choice((1, 2, 5))))
            ]
        else:
            steps.append(Step(rng.randint(300, max(300, plan.load_ms)), RollingChange("b1", values)))
    _added(plan, steps)


def _that_come_back(plan: Plan) -> list[Step]:
    """Restarts of brokers of the first group that were killed, stopped or lost their power."""
    deaths = [step for step in plan.steps if isinstance(step.fault, Kill | PowerFail | Stop)]
    dead = {step.bind for step in deaths if step.fault.target in OF_THE_GROUP}
    return [step for step in plan.steps if isinstance(step.fault, Restart) and step.fault.target[1:] in dead]


def _hour_set(plan: Plan) -> bool:
    return any(isinstance(step.fault, ClockJump) and step.fault.by_ms >= HOUR_MS for step in plan.steps)


def with_lost_epochs(plan: Plan, rng: random.Random) -> None:
    """One or two that are down lose a copy of their epochs, or both of one."""
    back = _that_come_back(plan)
    if not back:
        return
    steps: list[Step] = []
    for chosen in rng.sample(back, min(len(back), rng.choice((1, 1, 2)))):
        copies, how = rng.choice(list(COPIES)), rng.choice(HOW)
        if (copies, how) == ("both", "gone") or (copies == "both" and steps):
            copies = "first"  # both gone is not covered; without any epochs there is nobody to copy them from
        steps.append(Step(max(0, chosen.at_ms - 1), LoseEpochs(chosen.fault.target, copies, how)))
    _added(plan, steps)
    plan.errors_expected = True


def with_pops(plan: Plan, rng: random.Random) -> None:
    """A group pops all the time; mostly an operator moves it, and a member pulls."""
    parts = ["pop"]
    parts += [part for part in ("reset", "reset", "delete", "hide") if rng.random() < 0.5]
    parts += ["pull"] if rng.random() < 0.35 else []
    plan.pops = sorted(set(parts))
    plan.broker = {**plan.broker, **OFTEN}


def with_waits(plan: Plan, rng: random.Random) -> None:
    plan.waits = True
    plan.broker = {**plan.broker, **ASKS_SOON, "timerRollWindowSlot": rng.choice(WINDOWS)}
    plan.load = replace(plan.load, per_second=min(plan.load.per_second, 20.0))
