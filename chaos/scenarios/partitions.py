"""What survives when nodes live but cannot hear each other?"""

from __future__ import annotations

import random

from chaos.faults import MORE_WAYS, Cut, Heal, Isolate, Kill, Look, ResetLinks, Restart, Step, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario


def _isolated_master(rng: random.Random) -> Plan:
    """The master alone; sometimes with one Controller on its side, sometimes one direction only."""
    at = rng.randint(800, 2500)
    until = at + rng.randint(1000, 6000)
    direction = rng.choice(MORE_WAYS)
    steps = [Step(at, Isolate("master", direction), "old"), Step(until, Heal())]
    return Plan(ordered(steps), load_ms=max(6000, until + 1500), **ground(rng))


def _master_with_a_slave(rng: random.Random) -> Plan:
    """Two rooms: master, one slave and one NameServer here; everything else there. Clients see both."""
    at = rng.randint(800, 2500)
    until = at + rng.randint(1500, 6000)
    here, there = ["=old", "=friend", "n0"], ["=other", "n1", "n2"]
    steps = [Step(at, Look("master"), "old"), Step(at, Look("slave"), "friend")]
    steps += [Step(at, Look("slave"), "other")]
    steps += [Step(at, Cut(one, other)) for one in here for other in there]
    steps += [Step(until, Heal())]
    return Plan(ordered(steps), load_ms=max(6000, until + 1500), **ground(rng))


def _cut_links(rng: random.Random) -> Plan:
    """Single links, one way or both, at random; so that each node sees a different cluster."""
    nodes = ["master", "slave", "slave", "leader", "namesrv", "broker"]
    steps: list[Step] = []
    at = rng.randint(500, 1500)
    while at < 5000:
        one, other = rng.sample(nodes, 2)
        fault = Cut(one, other, rng.choice(("both", "out", "in")))
        steps.append(Step(at, fault))
        if rng.random() < 0.3:
            steps.append(Step(at + rng.randint(300, 2500), Heal()))
        if rng.random() < 0.2:
            steps.append(
                Step(at + rng.randint(0, 500), ResetLinks(rng.choice(("master", "slave", "leader"))))
            )
        at += rng.randint(300, 1500)
    if rng.random() < 0.3:
        steps += then(rng.randint(1000, 4000), Kill("master"), rng.randint(500, 2000), Restart, "killed")
    return Plan(ordered(steps), load_ms=7000, **ground(rng))


ISOLATED_MASTER = Scenario(
    "isolated_master_confirms_nothing_its_successor_lacks",
    "a master cut off from the rest acknowledges nothing more, and its successor has all it acknowledged",
    _isolated_master,
)
TWO_ROOMS = Scenario(
    "master_and_one_controller_in_the_smaller_room",
    "a master that keeps a slave and one Controller on its side confirms nothing the other side lacks",
    _master_with_a_slave,
)
CUT_LINKS = Scenario(
    "links_fail_one_way_and_both",
    "whatever links are cut, for whatever time, nothing acknowledged is lost",
    _cut_links,
)
