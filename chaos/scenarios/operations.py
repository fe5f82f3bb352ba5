"""What do clients notice of work that operators do on purpose?"""

from __future__ import annotations

import random
from typing import Final

from chaos.faults import WAYS, Cut, Heal, Isolate, Kill, Pause, Restart, Resume, Step, Stop, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario


def _rolling_restart(rng: random.Random) -> Plan:
    """Every broker, or every NameServer, is stopped in an orderly way and started again, one by one."""
    nodes = rng.choice((["b1", "b2", "b3"], ["n0", "n1", "n2"], ["master", "master"]))
    rng.shuffle(nodes)
    steps: list[Step] = []
    at = rng.randint(500, 1500)
    for number, node in enumerate(nodes):
        name = f"node{number}"
        steps += [Step(at, Stop(node), name), Step(at + rng.randint(300, 1500), Restart(f"={name}"))]
        at += rng.randint(1800, 2500)
    return Plan(ordered(steps), load_ms=at + 500, **ground(rng))


STALL_MAX_MS: Final = 2000
"""Without NameServers clients go by the routes they know: no send waits for one."""


def _nameservers_die(rng: random.Random) -> Plan:
    """NameServers with their Controllers die one after the other, at most two at once."""
    steps: list[Step] = []
    at = rng.randint(500, 1500)
    for number in range(rng.randint(1, 3)):
        steps += then(at, Kill("namesrv"), rng.randint(200, 1500), Restart, f"node{number}")
        at += rng.randint(600, 2000)
    return Plan(ordered(steps), stall_max_ms=STALL_MAX_MS, **ground(rng))


def _isolated_leader(rng: random.Random) -> Plan:
    """The Controllers' leader is cut off, from all or from the other Controllers, with its connections open,
    and often sleeps meanwhile; the master dies, and others elect its successor."""
    at = rng.randint(800, 2000)
    sleeps = rng.random() < 0.5
    if sleeps:
        # When it wakes, requests wait for it, and nothing tells it that it was replaced.
        until = at + rng.randint(2500, 5000)
        steps = [
            Step(at, Cut("leader", "namesrvs")),
            *then(at, Pause("leader"), until - at, Resume, "leader"),
        ]
        steps.append(Step(until + rng.randint(100, 1000), Heal()))
    else:
        until = at + rng.randint(800, 4000)
        direction = rng.choice(WAYS)
        how = rng.choice((Isolate("leader", direction), Cut("leader", "namesrvs", direction)))
        steps = [Step(at, how), Step(until, Heal())]
    dies: list[Step] = []
    if sleeps or rng.random() < 0.6:
        dies = then(at + rng.randint(0, 1000), Kill("master"), rng.randint(200, 2000), Restart, "master")
    return Plan(ordered(steps, dies), load_ms=max(6000, until + 1500), **ground(rng))


ROLLING_RESTART = Scenario(
    "a_rolling_restart_loses_nothing",
    "servers stopped and started one after the other lose nothing and keep serving",
    _rolling_restart,
)
NAMESERVERS_DIE = Scenario(
    "dying_nameservers_stop_no_sends",
    "clients and brokers go on while NameServers and Controllers die and come back",
    _nameservers_die,
)
ISOLATED_LEADER = Scenario(
    "a_cut_off_controller_leader_tells_nothing_old",
    "a Controller that cannot reach the others neither elects nor answers from memory",
    _isolated_leader,
)
