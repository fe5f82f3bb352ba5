"""What of the protocol this model restates, as switches: each can be turned off, to prove that
the explorer looks at it.

Everything else is the real code: the replica table, the election rules, ``AckPolicy``, ``consistent_point``.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Rules(NamedTuple):
    """True = as keelmq does it."""

    open_proposals_count: bool = True
    """A member of a proposal whose fate is open holds what is acknowledged."""
    proposals_are_held: bool = True
    """An open proposal is forgotten only when it cannot arrive any more."""
    lease_at_broker: bool = True
    """A master that waits for no other member acknowledges only with a lease."""
    lease_is_waited_for: bool = True
    """The Controllers wait for the lease of a master that could acknowledge alone."""
    suspects_register: bool = True
    """A broker whose log may lack its end says so."""
    empty_log_is_suspect: bool = True
    """So does one whose log is gone, though its identity is not."""
    restarted_asks_anew: bool = True
    """A master that was killed leads on in a new epoch only."""
    epoch_is_noted: bool = True
    """In majority mode an acknowledgement counts only after the slave noted the master's epoch."""
    cut_before_append: bool = True
    """A slave cuts its log at the consistent point before it appends."""
    tables_before_membership: bool = True
    """A slave is proposed only when it has the master's tables."""
    tables_before_answer: bool = True
    """A change of the tables is answered when every counted member has it."""
    ends_count_by_member: bool = True
    """Only what members acknowledged counts for answers."""
    confirmed_bounds_reads: bool = True
    """Consumers read below the confirmed offset only."""


AS_KEELMQ: Final = Rules()
