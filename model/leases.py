"""For how long may a master lead without a new word?

What a Controller grants and what the word of all members is worth without one are the same time
(docs/decisions/0005-lease.md).
"""

from typing import Final

SHARE: Final = 0.8
"""Of the heartbeat timeout: a silent master's lease is over before its silence counts."""
DURATION_MAX_MS: Final = 8000


def duration_ms(timeout_ms: int) -> int:
    """How long a broker with this heartbeat timeout may lead without a new word."""
    return int(min(timeout_ms * SHARE, DURATION_MAX_MS))
