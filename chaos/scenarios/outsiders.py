"""Who may lead when the members of the SyncStateSet are gone, or came back with less than they had?"""

from __future__ import annotations

import random

from chaos.faults import Cut, Heal, Kill, Look, PowerFail, Restart, Step, ordered, then
from chaos.scenarios.draws import ground
from chaos.scenarios.plan import Plan, Scenario


def _only_outsiders(rng: random.Random) -> Plan:
    """Both slaves die, the master goes on alone, then dies too; the slaves come back first."""
    at = rng.randint(500, 1200)
    alone = at + rng.randint(1000, 2500)
    back = alone + rng.randint(100, 800)
    steps = [
        Step(at, Look("master"), "master"),
        Step(at, Kill("slave"), "one"),
        Step(at + rng.randint(1, 500), Kill("slave"), "two"),
        Step(alone, Kill("=master")),
        Step(back, Restart("=one")),
        Step(back + rng.randint(0, 300), Restart("=two")),
        Step(back + rng.randint(800, 3000), Restart("=master")),
    ]
    return Plan(ordered(steps), load_ms=back + 4000, **ground(rng))


def _slave_that_forgot(rng: random.Random) -> Plan:
    """A slave loses its power, is back before anyone missed it, and then the master dies.

    Not drawn: the other slave dead and the master dying before this one has told that it was down. A
    Controller then elects it from memory, nobody else is left to ask, and with ASYNC_FLUSH it leads on.
    """
    at = rng.randint(1200, 2500)
    back = at + rng.randint(20, 300)
    steps = [
        Step(at, Look("master"), "master"),
        Step(at, PowerFail("slave"), "slave"),
        Step(back, Restart("=slave")),
    ]
    if rng.random() < 0.5:
        steps += then(at - rng.randint(50, 400), Kill("slave"), 4000, Restart, "other")
        dies = back + rng.randint(600, 1500)
    else:
        dies = at + rng.randint(5, 1500)
    if rng.random() < 0.5:
        # It cannot fetch from the master what it lost.
        steps += [Step(back - 10, Cut("=slave", "=master")), Step(dies + 1500, Heal())]
    steps += [Step(dies, Kill("=master")), Step(dies + rng.randint(1000, 2500), Restart("=master"))]
    return Plan(ordered(steps), load_ms=7000, **ground(rng))


ONLY_OUTSIDERS = Scenario(
    "nobody_outside_the_syncstateset_is_elected",
    "when the last member dies, the group waits for it rather than elect a broker that lacks messages",
    _only_outsiders,
)
SLAVE_THAT_FORGOT = Scenario(
    "a_slave_that_lost_its_end_is_not_elected_for_it",
    "a member that came back from a power failure with less than it acknowledged leads nobody",
    _slave_that_forgot,
)
