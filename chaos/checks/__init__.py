"""Which promise was broken, and by what? Pure functions over histories and logs; none asks the cluster."""

from chaos.checks.all import AT_ANY_TIME, CHECKERS, Evidence, Promised, check_all, check_so_far, judged
from chaos.checks.violation import Violation

__all__ = [
    "AT_ANY_TIME",
    "CHECKERS",
    "Evidence",
    "Promised",
    "Violation",
    "check_all",
    "check_so_far",
    "judged",
]
