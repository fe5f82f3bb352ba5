"""Which promise was broken, and by what? Pure functions over histories and logs; none asks the cluster."""

from chaos.checks.all import CHECKERS, Evidence, check_all
from chaos.checks.violation import Violation

__all__ = ["CHECKERS", "Evidence", "Violation", "check_all"]
