"""What a scenario, fault or check of another package imports; docs/chaos.md shows each.

from keelmq.drills import Plan, Scenario, Step, faults, then
"""

from __future__ import annotations

from chaos import faults
from chaos.checks import Evidence, Violation
from chaos.faults import Fault, OwnFault, Step, ordered, then
from chaos.scenarios import live_only
from chaos.scenarios.plan import Plan, Scenario
from chaos.workload import Load

__all__ = [
    "Evidence",
    "Fault",
    "Load",
    "OwnFault",
    "Plan",
    "Scenario",
    "Step",
    "Violation",
    "faults",
    "live_only",
    "ordered",
    "then",
]
