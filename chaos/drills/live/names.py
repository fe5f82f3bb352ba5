"""What is struck, and what cuts its links: the words of plans, results and pages."""

from __future__ import annotations

from typing import Final

OURS: Final = "keelmq"
THEIRS: Final = "rocketmq"
STAGING: Final = "staging"
SWITCH: Final = "switch"
TOXIPROXY: Final = "toxiproxy"
