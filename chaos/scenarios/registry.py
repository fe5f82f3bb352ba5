"""Which scenarios are there?"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Final

from chaos import extensions
from chaos.scenarios import live_only  # noqa: F401 - a plan that is read may name its faults
from chaos.scenarios.disks import FLIPPED_BIT, FULL_DISK, POWER_OF_ALL, POWER_OF_ONE, SYNC_ERROR
from chaos.scenarios.kills import KILL_A_SLAVE, KILL_MASTER_AND_LEADER, KILL_THE_MASTER
from chaos.scenarios.majorities import ONE_OF_THREE, TWO_LOSE_POWER
from chaos.scenarios.old_disks import PUT_BACK
from chaos.scenarios.operations import ISOLATED_LEADER, NAMESERVERS_DIE, ROLLING_RESTART
from chaos.scenarios.outsiders import ONLY_OUTSIDERS, SLAVE_THAT_FORGOT
from chaos.scenarios.partitions import CUT_LINKS, ISOLATED_MASTER, TWO_ROOMS
from chaos.scenarios.pauses import CLOCKS, PAUSED_MASTER, SLOW, STOOD_STILL
from chaos.scenarios.plan import Plan, Scenario
from chaos.scenarios.swarm import SWARM
from model.errors import ConfigError

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
    PUT_BACK,
    SWARM,
)
SCENARIOS: Final[dict[str, Scenario]] = {scenario.name: scenario for scenario in _ALL}


def known() -> dict[str, Scenario]:
    """Those of the suite and of other packages. Raises ConfigError when one of those cannot be loaded."""
    own = extensions.scenarios()
    if both := own.keys() & SCENARIOS.keys():
        raise ConfigError(f"another package has a scenario of the suite's name: {', '.join(sorted(both))}")
    return {**SCENARIOS, **own}


def find(name: str) -> Scenario:
    """By name, or the one that ``FILE.py`` defines. Raises KeyError whose text names the nearest scenario,
    and ConfigError for a file that defines none."""
    if name in SCENARIOS:
        return SCENARIOS[name]
    if name.endswith(extensions.FILE):
        return extensions.scenario_in(Path(name))
    all_of_them = known()
    if name not in all_of_them:
        near = difflib.get_close_matches(name, all_of_them, 1, 0.3)
        hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(all_of_them)}"
        raise KeyError(f"no scenario {name}{hint}")
    return all_of_them[name]


__all__ = ["SCENARIOS", "Plan", "Scenario", "find", "known"]
