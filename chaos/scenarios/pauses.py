"""What survives when processes stop for a while, clocks jump, machines are slow?"""

from __future__ import annotations

import random
from typing import Final

from chaos.faults import ClockJump, Kill, Pause, Restart, Resume, SlowDisk, SlowNetwork, Step, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario

NAMESRVS: Final = ("n0", "n1", "n2")
BROKERS: Final = ("b1", "b2", "b3")
MODES: Final[tuple[dict[str, str], ...]] = (
    {},
    {"allAckInSyncStateSet": "false", "inSyncReplicas": "2"},
    {"allAckInSyncStateSet": "false", "majorityAck": "true"},
)
JUMPS_MS: Final = (-3_600_000, -60_000, -2000, 2000, 60_000, 3_600_000)


def _paused_master(rng: random.Random) -> Plan:
    """SIGSTOP until after its successor was elected, or just before: it wakes up with answers to give."""
    at = rng.randint(800, 2500)
    asleep = rng.choice((rng.randint(100, 1500), rng.randint(2000, 6000)))
    parts = [then(at, Pause("master"), asleep, Resume, "old")]
    if rng.random() < 0.3:
        begin = at + rng.randint(0, 3000)
        parts.append(then(begin, Pause("slave"), rng.randint(200, 2500), Resume, "slave"))
    if rng.random() < 0.3:
        parts.append(
            then(at + rng.randint(0, 2000), Pause("leader"), rng.randint(200, 2500), Resume, "leader")
        )
    return Plan(ordered(*parts), load_ms=max(6000, at + asleep + 1500), **ground(rng))


def _stood_still(rng: random.Random) -> Plan:
    """All processes, all brokers or one process stop, as on a machine whose disk hangs or that is copied, and
    go on in any order; then the master dies, in the confusion behind it or when all is calm again."""
    at, asleep = rng.randint(800, 2500), rng.randint(5500, 20_000)
    # The master may stop when nothing of the others is on its way to it any more. Together with the time in
    # which they wake it is less than the silence that counts: only standing still is to be excused here.
    last, wakes = rng.choice((5, 200, 400)), rng.choice((0, 20, 300))
    awake = at + last + asleep + wakes
    kind = rng.choice(("all",) * 6 + ("brokers", "one"))
    if kind == "one":
        steps = then(at, Pause(rng.choice(("master", "slave", "leader"))), awake - at, Resume, "one")
    else:
        controllers = NAMESRVS if kind == "all" else ()
        steps = [Step(at + rng.randint(0, 5), Pause(name)) for name in (*controllers, "slave", "slave")]
        steps.append(Step(at + last, Pause("master")))
        steps += [Step(awake - rng.randint(0, wakes), Resume(name)) for name in (*controllers, *BROKERS)]
    dies = awake + rng.choice((rng.randint(0, 1500), rng.randint(3000, 6000)))
    return Plan(
        ordered(steps, then(dies, Kill("master"), rng.randint(500, 3000), Restart, "killed")),
        load_ms=dies + 4000,
        broker=rng.choice(MODES),
        set_kept=kind == "all",
        **ground(rng),
    )


def _clocks(rng: random.Random) -> Plan:
    """Wall clocks jump by up to an hour, either way, on any node; then the master dies."""
    targets = ["master", "slave", "slave", "leader", "namesrv"]
    steps = [
        Step(rng.randint(300, 4000), ClockJump(rng.choice(targets), rng.choice(JUMPS_MS)))
        for _ in range(rng.randint(1, 4))
    ]
    dies = then(rng.randint(1500, 3500), Kill("master"), rng.randint(200, 2500), Restart, "killed")
    return Plan(ordered(steps, dies), **ground(rng))


def _slow(rng: random.Random) -> Plan:
    """A slow disk or slow links on the master or a slave, ended later; then the master dies."""
    steps: list[Step] = []
    for number in range(rng.randint(1, 3)):
        at, name = rng.randint(300, 3000), f"slow{number}"
        target = rng.choice(("master", "slave"))
        if rng.random() < 0.5:
            steps += [
                Step(at, SlowDisk(target, rng.choice((50, 300, 1500))), name),
                Step(at + rng.randint(500, 3000), SlowDisk(f"={name}", 0.0)),
            ]
        else:
            steps += [
                Step(at, SlowNetwork(target, rng.choice((20, 100, 400))), name),
                Step(at + rng.randint(500, 3000), SlowNetwork(f"={name}", 0.0)),
            ]
    parts = [steps]
    if rng.random() < 0.6:
        parts.append(then(rng.randint(1000, 4000), Kill("master"), rng.randint(200, 2500), Restart, "killed"))
    return Plan(ordered(*parts), load_ms=7000, **ground(rng))


PAUSED_MASTER = Scenario(
    "a_paused_master_wakes_up_deposed",
    "a master that was stopped while another was elected acknowledges nothing when it goes on",
    _paused_master,
)
STOOD_STILL = Scenario(
    "the_whole_machine_stands_still_and_goes_on",
    "processes that stood still take nobody for dead who stood still with them, and lose nothing when the "
    "master dies behind it",
    _stood_still,
)
CLOCKS = Scenario(
    "clocks_jump_and_nothing_depends_on_them",
    "wall clocks that jump by an hour change no election and lose no message",
    _clocks,
)
SLOW = Scenario(
    "slow_disks_and_links_delay_and_lose_nothing",
    "a slow replica is waited for or leaves the SyncStateSet, and nothing acknowledged is lost",
    _slow,
)
