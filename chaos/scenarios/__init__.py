"""Which stories can go wrong? Each scenario is a sentence, and draws its details from a seed."""

from chaos.scenarios.registry import SCENARIOS, Plan, Scenario, find, known

__all__ = ["SCENARIOS", "Plan", "Scenario", "find", "known"]
