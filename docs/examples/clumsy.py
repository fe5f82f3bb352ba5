"""A scenario with a fault and a check of its own: keelmq drill run clumsy.py"""

import random
import signal
from dataclasses import dataclass

from keelmq.drills import Evidence, Load, OwnFault, Plan, Scenario, Step, Violation, faults, then


@dataclass(frozen=True, slots=True)
class Stumble(OwnFault):
    name = "stumble"

    def simulated(self, cluster, node):
        return cluster.kill(node)

    async def live(self, cluster, node):
        return cluster.send_signal(node, signal.SIGKILL)


def draw(rng: random.Random) -> Plan:
    steps = then(rng.randint(800, 1500), Stumble("slave"), 1500, faults.Restart, "fallen")
    return Plan([*steps, Step(steps[-1].at_ms + 500, faults.HandOver("master"))], load=Load(producers=2))


def something_was_sent(evidence: Evidence) -> list[Violation]:
    return [] if evidence.history.sends() else [Violation("something_was_sent", "nothing was")]


CLUMSY = Scenario("a_clumsy_operator_loses_nothing", "a slave falls, and the master is handed over", draw)
