"""What may still happen on a connection?"""

from __future__ import annotations

import enum
from typing import Final


class State(enum.Enum):
    """Of a connection; it goes down this list, and may skip (``Connection._go``)."""

    CONNECTING = "there is no transport yet"
    OPEN = "commands go both ways"
    FINISHING = "it closes when the calls under way have their answers"
    CLOSED = "nothing can be sent any more"


ORDER: Final = {state: at for at, state in enumerate(State)}
