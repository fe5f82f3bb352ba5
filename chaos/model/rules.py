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
    forgetful_waits_for_all: bool = True
    """One that may have forgotten leads only after every lease that was granted, not just the last one."""
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
    old_views_are_ignored: bool = True
    """A view of an older epoch, or with an older SyncStateSet, changes nothing."""
    new_leader_waits: bool = True
    """A new Controllers' leader waits for every lease a former one may have granted."""
    answers_are_committed: bool = True
    """What the Controllers answer, a majority of them has."""
    lease_needs_a_majority: bool = True
    """A Controllers' leader that was deposed grants no lease."""
    clocks_never_step: bool = True
    """Leases are counted by a clock that nobody sets."""
    unclean_needs_lease: bool = True
    """Where outsiders may be elected, a master's members' word is not enough: it needs a lease."""
    news_tell_of_outsiders: bool = True
    """A master hears with the news of its election that it needs a lease."""
    forgotten_is_waited_for: bool = True
    """The Controllers wait for the lease of a master that an operator removed."""
    laggards_hold_leavers: bool = True
    """Where a master waits for some of its members, one leaves the set only when those that stay have all
    that was answered."""
    target_has_all: bool = True
    """A master hands over when its successor has all of its log and tables."""
    lease_is_given_up: bool = True
    """A master that has handed over acknowledges nothing more by the lease it had."""
    handover_stops_leases: bool = True
    """The Controllers grant no lease while a handover is under way."""
    changes_need_a_majority: bool = True
    """In majority mode a change of the tables is answered only while the set is a majority."""

    tables_are_taken: bool = True
    """A master elected from outside of the SyncStateSet takes the tables of that before it serves."""


AS_KEELMQ: Final = Rules()
