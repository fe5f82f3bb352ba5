"""Which scenarios are there?"""

from __future__ import annotations

import difflib
from typing import Final

from chaos.scenarios.disks import FLIPPED_BIT, FULL_DISK, POWER_OF_ALL, POWER_OF_ONE, SYNC_ERROR
from chaos.scenarios.kills import KILL_A_SLAVE, KILL_MASTER_AND_LEADER, KILL_THE_MASTER
from chaos.scenarios.majorities import ONE_OF_THREE, TWO_LOSE_POWER
from chaos.scenarios.operations import ISOLATED_LEADER, NAMESERVERS_DIE, ROLLING_RESTART
from chaos.scenarios.outsiders import ONLY_OUTSIDERS, SLAVE_THAT_FORGOT
from chaos.scenarios.partitions import CUT_LINKS, ISOLATED_MASTER, TWO_ROOMS
from chaos.scenarios.pauses import CLOCKS, PAUSED_MASTER, SLOW, STOOD_STILL
from chaos.scenarios.plan import Plan, Scenario
from chaos.scenarios.swarm import SWARM

_ALL: Final = (
    KILL_THE_MASTER,
    KILL_A_SLAVE,
    KILL_MASTER_AND_LEADER,
    ISOLATED_MASTER,
    TWO_ROOMS,
    CUT_LINKS,
    PAUSED_MASTER,
    STOOD_STILL,
    CLOCKS,
    SLOW,
    POWER_OF_ONE,
    POWER_OF_ALL,
    FULL_DISK,
    SYNC_ERROR,
    FLIPPED_BIT,
    ONLY_OUTSIDERS,
    SLAVE_THAT_FORGOT,
    TWO_LOSE_POWER,
    ONE_OF_THREE,
    ROLLING_RESTART,
    NAMESERVERS_DIE,
    ISOLATED_LEADER,
    SWARM,
)
SCENARIOS: Final[dict[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}


def find(name: str) -> Scenario:
    """Raises KeyError whose text names the nearest scenario."""
    try:
        return SCENARIOS[name]
    except KeyError:
        near = difflib.get_close_matches(name, SCENARIOS, 1, 0.3)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(SCENARIOS)}"
        raise KeyError(f"no scenario {name}{hint}") from None


__all__ = ["SCENARIOS", "Plan", "Scenario", "find"]
