"""What always holds of one Raft member, whatever it hears?

Pure: ``Invariants`` is given one ``Position`` after another, and remembers the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Position(NamedTuple):
    """Where a member stands. ``match``, ``next``: of the others, on a leader. ``stored_term``,
    ``stored_vote``: what the journal would find again."""

    node_id: str
    term: int
    vote: str | None
    stored_term: int
    stored_vote: str | None
    leads: bool
    leader: str | None
    first_index: int
    last_index: int
    last_term: int
    commit: int
    applied: int
    began_at: int  # entry this leader began with
    match: Mapping[str, int]
    next: Mapping[str, int]


@dataclass(slots=True)
class Invariants:
    """A broken one is an AssertionError with the rule as text: a mistake of the program, or of what is below
    it. The member must not go on."""

    _last: Position | None = None

    def check(self, now: Position) -> None:
        _check_log(now)
        _check_term(now)
        if now.leads:
            _check_leader(now)
        before, self._last = self._last, now
        if before is not None:
            _check_step(before, now)


def _check_log(now: Position) -> None:
    assert now.applied <= now.commit, f"applied {now.applied} is beyond commit {now.commit}"
    assert now.commit <= now.last_index, f"commit {now.commit} is beyond the log's end {now.last_index}"
    assert now.first_index <= now.applied, f"entries {now.applied} to {now.first_index} are lost"
    assert now.last_term <= now.term, f"the log ends in term {now.last_term}, beyond {now.term}"


def _check_term(now: Position) -> None:
    assert now.stored_term <= now.term, f"term {now.stored_term} is stored, beyond {now.term}"
    if now.stored_term == now.term:
        assert now.stored_vote == now.vote, f"vote {now.vote} is not stored ({now.stored_vote} is)"
    else:
        # A journal of old whose term was that of its last entry.
        assert now.vote is None or now.vote == now.stored_vote, f"vote {now.vote} is not stored"


def _check_leader(now: Position) -> None:
    assert now.leader == now.node_id, f"it leads, and takes {now.leader} for the leader"
    assert now.vote == now.node_id, f"it leads term {now.term}, and voted for {now.vote}"
    assert now.last_term == now.term, f"it leads term {now.term}, and its log ends in {now.last_term}"
    assert now.began_at <= now.last_index, f"the entry {now.began_at} it began with is lost"
    for peer, match in now.match.items():
        assert match <= now.last_index, f"{peer} matches up to {match}, the log ends at {now.last_index}"
        assert match < now.next[peer], f"{peer} matches up to {match}, and gets {now.next[peer]} next"


def _check_step(before: Position, now: Position) -> None:
    assert now.term >= before.term, f"the term went back from {before.term} to {now.term}"
    assert now.commit >= before.commit, f"commit went back from {before.commit} to {now.commit}"
    assert now.applied >= before.applied, f"applied went back from {before.applied} to {now.applied}"
    assert now.first_index >= before.first_index, f"the log began at {before.first_index}"
    if now.term == before.term:
        assert before.vote in (None, now.vote), f"two votes in term {now.term}: {before.vote}, {now.vote}"
        assert now.leads or not before.leads or now.leader is None, f"{now.leader} leads term {now.term}, too"
        if before.leads and now.leads:
            assert now.last_index >= before.last_index, "a leader's log was cut"
