"""What survives when processes are killed while messages flow?"""

from __future__ import annotations

import random
from typing import Final

from chaos.faults import Cut, Heal, Kill, Look, Restart, Step, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario

STALL_MAX_MS: Final = 3000


def _kill_the_master(rng: random.Random) -> Plan:
    """The master dies at any moment and comes back later; by swarm a slave or the Controllers' leader too."""
    at = rng.randint(800, 2500)
    dead_ms = rng.randint(100, 3000)
    stall_max_ms: int | None = STALL_MAX_MS
    parts = [then(at, Kill("master"), dead_ms, Restart, "first")]
    if rng.random() < 0.5:
        # What it wrote last has not reached the slaves: their links are cut a moment before.
        cut = at - rng.randint(20, 500)
        heal = at + rng.randint(50, dead_ms + 500)
        parts = [
            [Step(cut, Look("master"), "first"), Step(cut, Cut("=first", "brokers")), Step(heal, Heal())],
            [Step(at, Kill("=first")), Step(at + dead_ms, Restart("=first"))],
        ]
        stall_max_ms = None
    if rng.random() < 0.35:
        stall_max_ms = None  # with two of three gone there may be nobody to elect
        other = rng.choice(("slave", "slave", "leader"))
        begin = at + rng.randint(-700, 1500)
        parts.append(then(begin, Kill(other), rng.randint(200, 2500), Restart, "other"))
    if rng.random() < 0.3:
        # Its successor dies too.
        stall_max_ms = None
        again = at + rng.randint(1200, 2500)
        parts.append(then(again, Kill("master"), rng.randint(200, 1500), Restart, "second"))
    return Plan(ordered(*parts), stall_max_ms=stall_max_ms, **ground(rng))


def _kill_a_slave(rng: random.Random) -> Plan:
    at = rng.randint(500, 1500)
    parts = [then(at, Kill("slave"), rng.randint(100, 5000), Restart, "first")]
    if rng.random() < 0.5:
        begin = at + rng.randint(0, 2000)
        parts.append(then(begin, Kill("slave"), rng.randint(100, 2000), Restart, "second"))
    return Plan(ordered(*parts), stall_max_ms=STALL_MAX_MS, **ground(rng))


def _kill_master_and_leader(rng: random.Random) -> Plan:
    at = rng.randint(800, 2500)
    later = at + rng.choice((0, 0, rng.randint(1, 300)))
    return Plan(
        ordered(
            then(at, Kill("master"), rng.randint(300, 2500), Restart, "master"),
            then(later, Kill("leader"), rng.randint(300, 2500), Restart, "leader"),
        ),
        load_ms=7000,
        **ground(rng),
    )


KILL_THE_MASTER = Scenario(
    "kill_the_master_under_load",
    "an acknowledged message survives the death of the master that acknowledged it",
    _kill_the_master,
)
KILL_A_SLAVE = Scenario(
    "a_dying_slave_stops_no_writes_for_long",
    "when a slave dies, it leaves the SyncStateSet, writes go on, and it catches up later",
    _kill_a_slave,
)
KILL_MASTER_AND_LEADER = Scenario(
    "master_and_controller_leader_die_together",
    "the death of the master and of the Controllers' leader at once gives no offset to two messages",
    _kill_master_and_leader,
)
