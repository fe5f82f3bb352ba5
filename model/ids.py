"""Which numbers mean what: offsets in bytes, offsets in messages, epochs, broker ids."""

from typing import Final, NewType

PhysicalOffset = NewType("PhysicalOffset", int)  # bytes since the start of the CommitLog
QueueOffset = NewType("QueueOffset", int)  # messages since the start of one queue
Epoch = NewType("Epoch", int)  # elections of one broker group
BrokerId = NewType("BrokerId", int)  # 1, 2, 3 ... given by the Controller, for ever

NOWHERE: Final = PhysicalOffset(-1)
"""Where a log ends that has not said so yet."""
NO_EPOCH: Final = Epoch(0)
"""Nobody was elected: there are no Controllers, or none was heard of."""

MASTER_ID: Final = BrokerId(0)  # what a master calls itself at the NameServers
"""A broker registers with id 0 while it is master, with its own id otherwise (facts: RocketMQ 5.x)."""


def is_number(text: str | bytes) -> bool:
    """Is it one of at most 20 plain digits, as in names of files? A text that rotted may be anything."""
    return len(text) <= 20 and text.isascii() and text.isdigit()
