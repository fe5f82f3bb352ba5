"""What may happen to a group, if nobody writes the story? Each seed draws it freely.

A seed turns some kinds of faults on and draws how they come: in bursts, each with a few kinds, a width, a
way to choose its targets, and for each kind how long what it broke stays broken. Nothing here knows which
schedule once broke a promise; the tests show that those are among what is drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.faults import (
    ClockJump,
    Cut,
    Direction,
    DiskFull,
    Fault,
    FlipBit,
    HandOver,
    Heal,
    Isolate,
    Kill,
    Look,
    LyingSync,
    Partition,
    Pause,
    PowerFail,
    ReadError,
    Reconfigure,
    ResetLinks,
    Restart,
    Resume,
    RollingChange,
    SlowDisk,
    SlowNetwork,
    Step,
    Stop,
    SyncError,
    Upgrade,
    Wipe,
    WriteError,
    ordered,
)
from chaos.scenarios.draws import ground
from chaos.scenarios.kills import STALL_MAX_MS
from chaos.scenarios.last_draws import (
    DOWN_MS,
    EPOCHS_ROT_SHARE,
    FILLS_SHARE,
    MORE_BROKERS_SHARE,
    Range,
    with_a_disk_that_fills,
    with_more_brokers,
    with_rotten_epochs,
)
from chaos.scenarios.later_draws import draw_later, drawn
from chaos.scenarios.plan import Plan, Scenario
from chaos.workload import Load

WIDTHS_MS: Final[Sequence[Range]] = ((0, 10), (0, 60), (0, 400), (0, 1500))
SIDE_DOWN_MS: Final[Sequence[Range]] = (*DOWN_MS, (3000, 5000))
APART_MS: Final[Sequence[Range]] = ((300, 1500), (2000, 4000), (3000, 5000))
"""Some of them longer than a lease and an election."""
BEFORE_MS: Final[Sequence[Range]] = ((-2500, -400), (-400, -60), (-60, 60), (60, 400), (400, 1500))
LOAD_MS_MAX: Final = 9000


@dataclass(frozen=True, slots=True)
class Mode:
    """``tolerates`` as in ``Plan``. Every key is set, so that a change leaves nothing of the former mode."""

    name: str
    weight: int
    tolerates: int | None
    values: Mapping[str, str]


def _mode(name: str, weight: int, tolerates: int | None, **values: str) -> Mode:
    plain = {"allAckInSyncStateSet": "false", "majorityAck": "false", "inSyncReplicas": "1"}
    return Mode(name, weight, tolerates, {**plain, "brokerRole": "SYNC_MASTER", **values})


MODES: Final = (
    _mode("all", 8, None, allAckInSyncStateSet="true"),
    _mode("all of two", 2, None, allAckInSyncStateSet="true", minInSyncReplicas="2"),
    _mode("majority", 5, None, majorityAck="true"),
    _mode("counted 2", 2, 2, inSyncReplicas="2"),
    _mode("counted 1", 3, 1),
    _mode("async", 3, 1, brokerRole="ASYNC_MASTER"),
)


class Draw:
    """One seed's choices; ``steps`` grows."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.steps: list[Step] = []
        self.brokers = [f"b{number}" for number in range(1, rng.choice((2, 3, 3, 3, 3)) + 1)]
        self.modes = rng.choices(MODES, [mode.weight for mode in MODES])
        self.wiped = False
        self.until_ms = LOAD_MS_MAX
        self.standing: list[Step] = []
        """Steps of standing still: nobody is to be taken for dead by them."""
        self.slow_syncs = False
        """Syncs take long and bodies are large: one sync covers much, and later ones touch other pages."""
        self._bound = 0

    def bind(self) -> str:
        self._bound += 1
        return f"x{self._bound}"

    def span(self, spans: Sequence[Range]) -> int:
        return self.rng.randint(*self.rng.choice(spans))

    def add(
        self, at_ms: int, fault: Fault, repair: Callable[[str], Fault] | None = None, after: int = 0
    ) -> str:
        """A fault, and what ends it later; returns the name of the node it hits."""
        bound = self.bind()
        self.steps.append(Step(at_ms, fault, bound))
        if repair is not None:
            self.steps.append(Step(at_ms + after, repair(f"={bound}")))
        return f"={bound}"


APART: Final = ("controllers", "servers", "peers", "slaves", "minority", "minority")
"""Shapes of a partition that leave a node its clients."""

Kind = Callable[[Draw, int, str, int], None]
"""Adds what happens to a target at a time, and what ends it so many ms later."""


def _kill(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, Kill(target), Restart, down)


def _power(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, PowerFail(target), Restart, down)


def _stop(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, Stop(target), Restart, down)


def _pause(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, Pause(target), Resume, down)


def _stand_still(draw: Draw, at: int, target: str, down: int) -> None:
    """The whole machine stands still: all stop, the master last, and go on in any order, after longer than
    the silence that would count."""
    rng = draw.rng
    if draw.standing:
        return
    last, wakes = rng.choice((5, 200, 400)), rng.choice((0, 20, 300))
    awake = at + last + rng.randint(5500, 8000) + wakes
    controllers = ("n0", "n1", "n2")
    slaves = ["slave"] * (len(draw.brokers) - 1)
    steps = [Step(at + rng.randint(0, 4), Pause(name)) for name in (*controllers, *slaves)]
    steps.append(Step(at + last, Pause("master")))
    steps += [Step(awake - rng.randint(0, wakes), Resume(name)) for name in (*controllers, *draw.brokers)]
    draw.standing = steps
    draw.steps += steps
    draw.until_ms = awake + 4000


def _isolate(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, Isolate(target, draw.rng.choice(("both", "both", "in", "out"))))
    draw.steps.append(Step(at + down, Heal()))


def _partition(draw: Draw, at: int, target: str, down: int) -> None:
    shape = draw.rng.choice((*APART[:5], "halves", "bridge", "ring", "clients"))
    draw.add(at, Partition(target, shape, draw.rng.choice(("both", "both", "in", "out"))))
    draw.steps.append(Step(at + down, Heal()))


def _cut(draw: Draw, at: int, target: str, down: int) -> None:
    other = draw.rng.choice((*draw.brokers, "n0", "n1", "n2", "leader", "master"))
    draw.add(at, Cut(target, other, draw.rng.choice(("both", "in", "out"))))
    draw.steps.append(Step(at + down, Heal()))


def _slow_network(draw: Draw, at: int, target: str, down: int) -> None:
    extra = draw.rng.choice((5.0, 50.0, 300.0))
    draw.add(at, SlowNetwork(target, extra), lambda name: SlowNetwork(name, 0.0), down)


def _reset(draw: Draw, at: int, target: str, down: int) -> None:
    for _ in range(draw.rng.randint(1, 3)):
        draw.steps.append(Step(at, ResetLinks(target)))
        at += draw.rng.randint(5, 400)


def _slow_disk(draw: Draw, at: int, target: str, down: int) -> None:
    extra = draw.rng.choice((20.0, 200.0, 1000.0))
    draw.add(at, SlowDisk(target, extra), lambda name: SlowDisk(name, 0.0), down)


def _disk_full(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, DiskFull(target), lambda name: DiskFull(name, full=False), down)


def _sync_error(draw: Draw, at: int, target: str, down: int) -> None:
    """A broker whose sync failed takes no writes before a restart; what it wrote goes with the power."""
    name = draw.add(at, SyncError(target, draw.rng.choice((1, 1, 3))))
    draw.add(at + down, draw.rng.choice((Kill, PowerFail))(name), Restart, draw.span(DOWN_MS))


def _write_error(draw: Draw, at: int, target: str, down: int) -> None:
    """As after a failed sync, a broker takes no writes before a restart."""
    name = draw.add(at, WriteError(target, draw.rng.choice((1, 1, 3))))
    draw.add(at + down, draw.rng.choice((Kill, PowerFail))(name), Restart, draw.span(DOWN_MS))


def _read_error(draw: Draw, at: int, target: str, down: int) -> None:
    """What cannot be read now is there a moment later: sometimes while the log is recovered, too."""
    if draw.rng.random() < 0.5:
        draw.add(at, ReadError(target, draw.rng.choice((1, 2, 8))))
        return
    name = draw.add(at, draw.rng.choice((Kill, PowerFail))(target), Restart, down)
    draw.steps.append(Step(at + down - 1, ReadError(name, draw.rng.choice((1, 2, 8)))))


def _lying_sync(draw: Draw, at: int, target: str, down: int) -> None:
    draw.add(at, LyingSync(target), lambda name: LyingSync(name, lying=False), down)


def _flip_bit(draw: Draw, at: int, target: str, down: int) -> None:
    """In what can be made anew from the log, while its broker is down."""
    prefix = draw.rng.choice(("consumequeue/", "index/", "checkpoint"))
    name = draw.add(at, Kill(draw.rng.choice(draw.brokers)), Restart, down + 20)
    draw.steps.append(Step(at + 10, FlipBit(name, f"/store/{prefix}")))


def _clock_jump(draw: Draw, at: int, target: str, down: int) -> None:
    jump = draw.rng.choice((-3_600_000, -2000, 2000, 3_600_000))
    draw.add(at, ClockJump(target, jump))


def _reconfigure(draw: Draw, at: int, target: str, down: int) -> None:
    """One broker comes back in another mode; the mode of the epoch's master counts."""
    mode = draw.rng.choice(MODES)
    draw.modes.append(mode)
    name = draw.add(at, draw.rng.choice((Kill, Stop))(draw.rng.choice(draw.brokers)), Restart, down)
    draw.steps.append(Step(at + down - 1, Reconfigure(name, mode.values)))


def _rolling_change(draw: Draw, at: int, target: str, down: int) -> None:
    mode = draw.rng.choice(MODES)
    draw.modes.append(mode)
    draw.steps.append(Step(at, RollingChange("b1", mode.values)))


def _wipe(draw: Draw, at: int, target: str, down: int) -> None:
    """One disk in a run is replaced: another one with it is what no rule survives."""
    if draw.wiped:
        return
    draw.wiped = True
    node = draw.rng.choice((*draw.brokers, "n0", "n1", "n2"))
    name = draw.add(at, draw.rng.choice((Kill, PowerFail))(node), Restart, down)
    draw.steps.append(Step(at + max(1, down // 2), Wipe(name)))


def _hand_over(draw: Draw, at: int, target: str, down: int) -> None:
    draw.steps.append(Step(at, HandOver("b1")))


KINDS: Final[Mapping[str, tuple[int, Kind]]] = {
    # How often each is on, of ten seeds.
    "kill": (6, _kill),
    "power_fail": (5, _power),
    "stop": (3, _stop),
    "pause": (3, _pause),
    "stand_still": (1, _stand_still),
    "isolate": (3, _isolate),
    "partition": (3, _partition),
    "cut": (2, _cut),
    "slow_network": (2, _slow_network),
    "reset_links": (2, _reset),
    "slow_disk": (2, _slow_disk),
    "disk_full": (4, _disk_full),
    "sync_error": (4, _sync_error),
    "lying_sync": (1, _lying_sync),
    "flip_bit": (1, _flip_bit),
    "clock_jump": (1, _clock_jump),
    "reconfigure": (1, _reconfigure),
    "rolling_change": (1, _rolling_change),
    "wipe": (1, _wipe),
    "hand_over": (2, _hand_over),
}
_ONE_IS_ENOUGH: Final = frozenset({"all", "counted 1", "async"})
_DEATHS: Final = ("kill", "power_fail", "stop")
_LOUD: Final = frozenset({"sync_error", "flip_bit", "disk_full", "lying_sync"})


def _targets(draw: Draw) -> list[str]:
    """Whom one burst strikes: one node, several brokers, all brokers, Controllers, or anything."""
    rng = draw.rng
    lot = rng.random()
    if lot < 0.35:
        return [rng.choice(("master", "master", "slave", "leader"))]
    if lot < 0.55:
        return rng.sample(draw.brokers, rng.randint(1, len(draw.brokers)))
    if lot < 0.80:
        return rng.sample(draw.brokers, len(draw.brokers))
    if lot < 0.90:
        return ["master", rng.choice(("leader", "n0", "n1", "n2"))]
    servers = [*draw.brokers, "n0", "n1", "n2"]
    return rng.sample(servers, rng.randint(2, len(servers)))


def _burst(draw: Draw, at: int, on: Sequence[str]) -> None:
    rng = draw.rng
    width = rng.choice(WIDTHS_MS)
    kinds = rng.sample(on, min(len(on), rng.choice((1, 2, 2, 3, 4))))
    downs = {kind: rng.choice(SIDE_DOWN_MS) for kind in kinds}
    for target in _targets(draw):
        kind = rng.choice(kinds)
        KINDS[kind][1](draw, at + rng.randint(*width), target, rng.randint(*downs[kind]))


def _one_and_the_rest(draw: Draw, at: int, on: Sequence[str]) -> None:
    """One broker is struck by one kind, a moment earlier or later all others by another, and each side stays
    down for a time of its own: who is back first may have the shorter log."""
    rng = draw.rng
    lone = rng.choice(draw.brokers)
    deaths = [kind for kind in _DEATHS if kind in on] or ["kill"]
    first = rng.choice([kind for kind in on if kind in _SIDES] or deaths)
    second = rng.choice([kind for kind in deaths if kind != first] or deaths)
    before, apart = draw.span(BEFORE_MS), rng.choice((0, 0, 60, 300))
    at = max(at, 300 - before)
    KINDS[first][1](draw, at, lone, draw.span(SIDE_DOWN_MS))
    downs = rng.choice(SIDE_DOWN_MS)
    for other in draw.brokers:
        if other != lone:
            dies = at + before + rng.randint(0, apart)
            KINDS[second][1](draw, dies, other, rng.randint(*downs))


def _behind(draw: Draw, at: int, on: Sequence[str]) -> None:
    """One broker does not hear the others, and before it does again all others are gone: it lacks what they
    answered meanwhile."""
    rng = draw.rng
    late = rng.choice(draw.brokers)
    deaths = [kind for kind in _DEATHS if kind in on] or ["kill"]
    dies, down = at + draw.span(BEFORE_MS[3:]), draw.span(SIDE_DOWN_MS[1:])
    draw.add(
        at, Partition(late, rng.choice(("peers", "peers", "slaves")), rng.choice(("both", "both", "in")))
    )
    draw.steps.append(Step(dies + max(0, down + rng.randint(-1000, 500)), Heal()))
    for other in draw.brokers:
        if other != late:
            KINDS[rng.choice(deaths)][1](draw, dies + rng.randint(0, 40), other, down + rng.randint(0, 600))


def _in_turn(draw: Draw, at: int, on: Sequence[str]) -> None:
    """One broker after the other, the next one before or soon after the former is back."""
    rng = draw.rng
    deaths = [kind for kind in _DEATHS if kind in on] or ["kill"]
    for broker in rng.sample(draw.brokers, len(draw.brokers)):
        down = draw.span(DOWN_MS[:2])
        KINDS[rng.choice(deaths)][1](draw, at, broker, down)
        at += rng.choice((rng.randint(0, down), down + rng.randint(0, 800)))


def _loop(draw: Draw, at: int, on: Sequence[str]) -> None:
    """All brokers go at once, and some die again and again as soon as they are back: an election may find
    one that does not hear of it any more."""
    rng = draw.rng
    deaths = [kind for kind in _DEATHS if kind in on] or ["kill"]
    first, again = rng.choice(deaths), rng.randint(1, 3)
    for broker in draw.brokers:
        dies = at + rng.randint(0, 60)
        for kind in (first, *("kill",) * rng.randint(0, again)):
            down = rng.randint(20, 300)
            KINDS[kind][1](draw, dies, broker, down)
            dies += down + draw.span(((50, 300), (200, 900)))


def _apart(draw: Draw, at: int, on: Sequence[str]) -> None:
    """A master or a leader no longer reaches servers of some kind, its clients still reach it, and a new one
    is needed on the other side. Sometimes it sleeps for most of that time."""
    rng = draw.rng
    target = rng.choice(("master", "master", "leader", "leader", rng.choice(draw.brokers)))
    healed = at + draw.span(APART_MS)
    shape = rng.choice(APART)
    direction: Direction = rng.choice(("both", "both", "both", "in", "out"))
    name = draw.add(at, Partition(target, shape, direction))
    draw.steps.append(Step(healed, Heal()))
    if rng.random() < (0.6 if target == "leader" else 0.3):
        draw.steps.append(Step(at + rng.randint(0, 300), Pause(name)))
        draw.steps.append(Step(healed - rng.randint(50, 900), Resume(name)))
    if target == "leader" or rng.random() < 0.2:
        deaths = [kind for kind in _DEATHS if kind in on] or ["kill"]
        KINDS[rng.choice(deaths)][1](draw, at + rng.randint(0, 1000), "master", draw.span(DOWN_MS))


def _disks(draw: Draw, at: int, on: Sequence[str]) -> None:
    """All brokers' disks have the same trouble within a moment, as disks of one make have; later the machines
    lose power or are killed. No replica makes up for what another one lost."""
    rng = draw.rng
    troubles = [kind for kind in _DISK_TROUBLES if kind in on] or list(_DISK_TROUBLES)
    trouble, death = rng.choice(troubles), rng.choice((PowerFail, PowerFail, Kill))
    dies, apart = at + rng.randint(200, 2500), rng.choice((10, 10, 300))
    draw.slow_syncs = rng.random() < 0.6
    for broker in draw.brokers:
        strikes, down = at + rng.randint(0, apart), draw.span(DOWN_MS)
        if trouble == "sync_error":
            draw.add(strikes, SyncError(broker, rng.choice((1, 1, 3))))
        else:
            KINDS[trouble][1](draw, strikes, broker, dies - strikes + rng.randint(0, down))
        draw.add(dies + rng.randint(0, apart), death(broker), Restart, down)


def _one_gone(draw: Draw, at: int, on: Sequence[str]) -> None:
    """One process is gone for longer than the others may need to go on without it."""
    target = draw.rng.choice(("slave", "slave", "slave", "master"))
    _kill(draw, at, target, draw.rng.randint(3500, 5500))


_DISK_TROUBLES: Final = ("sync_error", "disk_full", "slow_disk")
_SIDES: Final = (*_DEATHS, "pause", "isolate", "slow_network", "cut", "partition", "slow_disk")
_SHAPES: Final = {
    _burst: 8,
    _one_and_the_rest: 4,
    _behind: 4,
    _in_turn: 2,
    _loop: 2,
    _apart: 4,
    _disks: 2,
    _one_gone: 2,
}
"""How one part of a run is struck, and its weight."""


def _set_kept(draw: Draw, steps: Sequence[Step]) -> bool:
    """Until the first death nothing happens but standing still."""
    if not draw.standing:
        return False
    for step in steps:
        if isinstance(step.fault, Kill | PowerFail | Stop):
            return True
        if step not in draw.standing:
            return False
    return True


def _bursts(draw: Draw) -> None:
    """All faults of a run, and what ends them."""
    rng = draw.rng
    on = [kind for kind, (share, _) in KINDS.items() if rng.random() * 10 < share] or ["kill"]
    at = rng.randint(300, 1500)
    if rng.random() < 0.06:
        _stand_still(draw, at, "", 0)
        at = draw.until_ms - rng.randint(1000, 4000)
    for _ in range(rng.choice((1, 1, 2, 2, 3))):
        rng.choices(list(_SHAPES), list(_SHAPES.values()))[0](draw, at, on)
        at += draw.span(((50, 400), (400, 1500), (1500, 3000)))
        if at > draw.until_ms - 3000:
            break
    if rng.random() < 0.2:
        draw.steps.insert(0, Step(0, Look("master"), "first"))
        draw.add(at, Kill("=first"), Restart, draw.span(DOWN_MS))


NEIGHBOURS: Final = ("c1", "c2")
NEIGHBOUR_SHARE: Final = 0.15
_AT_NEIGHBOURS: Final = (
    *_DEATHS,
    "pause",
    "isolate",
    "partition",
    "cut",
    "slow_network",
    "slow_disk",
    "reset_links",
)


def _with_a_neighbour(plan: Plan, draw: Draw, rng: random.Random) -> None:
    """A second group, struck as well, mostly about when the first one is. All is drawn after the rest."""
    plan.neighbour = True
    if plan.set_kept:
        return  # what parts rooms or ends a life would be a reason to drop a member
    draw.rng, draw.brokers, others = rng, list(NEIGHBOURS), list(plan.steps)
    draw.steps = []
    on = rng.sample(_AT_NEIGHBOURS, rng.randint(1, 4))
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        at = max(300, rng.choice(others).at_ms + rng.randint(-400, 1500))
        downs = rng.choice(SIDE_DOWN_MS)
        for target in rng.sample(NEIGHBOURS, rng.randint(1, 2)):
            KINDS[rng.choice(on)][1](draw, at + rng.randint(0, 400), target, rng.randint(*downs))
    plan.steps = ordered([*others, *(step for step in draw.steps if step.at_ms < draw.until_ms)])
    plan.load_ms = max(plan.load_ms, max(step.at_ms for step in plan.steps) + 200)


DISK_ERRORS: Final[Sequence[Kind]] = (_write_error, _read_error)
DISK_ERRORS_SHARE: Final = 0.2


def _with_disk_errors(plan: Plan, draw: Draw, rng: random.Random) -> None:
    """Writes and reads fail as well, about when something else happens. All is drawn after the rest."""
    if plan.set_kept:
        return  # as for a neighbour
    draw.rng, others = rng, list(plan.steps)
    draw.steps = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind, at = rng.choice(DISK_ERRORS), rng.choice(others).at_ms + rng.randint(-400, 400)
        for target in _targets(draw):
            kind(draw, max(300, at + rng.randint(0, 60)), target, draw.span(DOWN_MS))
    plan.steps = ordered([*others, *(step for step in draw.steps if step.at_ms < draw.until_ms)])
    plan.load_ms = max(plan.load_ms, max(step.at_ms for step in plan.steps) + 200)
    plan.errors_expected = True


NEIGHBOUR_RULES: Final = ("all of two", "majority")
"""Besides all: with two brokers and ``SYNC_FLUSH`` each of them keeps on both disks what it answers."""


def _neighbour_rule(plan: Plan, rng: random.Random) -> None:
    """Half of the second groups have another rule than all."""
    if plan.neighbour and rng.random() < 0.5:
        name = rng.choice(NEIGHBOUR_RULES)
        plan.neighbour_broker = next(dict(mode.values) for mode in MODES if mode.name == name)


UPGRADE_SHARE: Final = 0.03


def _swarm(rng: random.Random) -> Plan:
    draw = Draw(rng)
    _bursts(draw)
    steps = [step for step in ordered(draw.steps) if step.at_ms < draw.until_ms]
    calm_ms = rng.choice((50, 100, 100, 100, 200, 200, 400, 1000, None))
    first = draw.modes[0]
    tolerates = [mode.tolerates for mode in draw.modes if mode.tolerates is not None]
    flushes = ("ASYNC_FLUSH", "ASYNC_FLUSH", "SYNC_FLUSH")
    broker = {**first.values, "flushDiskType": rng.choice(flushes[draw.slow_syncs :])}
    unclean = rng.random() < 0.07
    world = ground(rng)
    if draw.slow_syncs:
        world["offload_ms"] = (20.0, 60.0)
    plan = Plan(
        steps,
        load=Load(
            producers=3,
            per_second=rng.choice((10.0, 20.0, 40.0)),
            queues=rng.choice((1, 2, 4)),
            body_bytes=(2000, 6000) if draw.slow_syncs else (16, 256),
        ),
        load_ms=max(step.at_ms for step in steps) + rng.randint(200, 900),
        broker=broker,
        controller={"enableElectUncleanMaster": "true"} if unclean else {},
        errors_expected=bool(_LOUD & {step.fault.name for step in steps}),
        brokers=len(draw.brokers),
        learners=int(rng.random() < 0.1),
        tolerates=min(tolerates, default=None),
        extras=rng.random() < 0.3,
        controllers_first=rng.random() < 0.75,
        calm_ms=None if draw.standing else calm_ms,
        serves_ms=STALL_MAX_MS if all(mode.name in _ONE_IS_ENOUGH for mode in draw.modes) else None,
        set_kept=_set_kept(draw, steps),
        swarm=True,
        one_client=rng.random() < 0.7,
        **world,
    )
    _drawn_last(plan, draw, rng.random(), unclean)
    return plan


def _drawn_last(plan: Plan, draw: Draw, rest: float, unclean: bool) -> None:
    """From sources of their own: whatever these draw, nothing else changes."""
    steps = plan.steps
    drawn(plan, "more brokers", rest, MORE_BROKERS_SHARE, with_more_brokers)
    errors = random.Random(f"disk errors {rest}")
    if errors.random() < DISK_ERRORS_SHARE:
        _with_disk_errors(plan, draw, errors)
    # An unclean election is allowed for all groups or none: where it is, none promises to keep what was
    # answered.
    lot = random.Random(rest)
    if lot.random() < NEIGHBOUR_SHARE and not unclean:
        _with_a_neighbour(plan, draw, lot)
    _neighbour_rule(plan, random.Random(f"neighbour's rule {rest}"))
    upgrade = random.Random(f"upgrade {rest}")
    if upgrade.random() < UPGRADE_SHARE and not plan.set_kept:
        plan.steps = ordered([*plan.steps, Step(upgrade.randint(300, plan.load_ms), Upgrade("b1"))])
    drawn(plan, "rotten epochs", rest, EPOCHS_ROT_SHARE, lambda _, rng: with_rotten_epochs(plan, steps, rng))
    drawn(plan, "a disk that fills", rest, FILLS_SHARE, with_a_disk_that_fills)
    draw_later(plan, rest)


SWARM: Final = Scenario(
    "swarm", "whatever is drawn, nothing is lost that the mode did not promise away", _swarm
)
