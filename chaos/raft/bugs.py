"""Would the fuzzer notice? Bugs to plant into the real Raft, each to be found within some seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from controller.links.roster import Roster
from controller.raft.calls import Done
from controller.raft.disk.journal import Journal
from controller.raft.node import Node
from controller.raft.reads import Reads
from controller.raft.voting import Voting


def _votes_for_any_log(_original: Any) -> Any:
    return lambda self, last_term, last_index: True


def _never_syncs(original: Any) -> Any:
    def sync(self: Journal) -> None:
        file = self._file
        self._file = _Unsynced(file)
        try:
            original(self)
        finally:
            self._file = file

    return sync


class _Unsynced:
    def __init__(self, file: Any) -> None:
        self._file = file

    def sync(self) -> None:
        """It says that it did."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _forgets_its_vote(original: Any) -> Any:
    def open_(self: Journal) -> bool:
        found = bool(original(self))
        self._vote = None
        return found

    return open_


def _keeps_its_admission(original: Any) -> Any:
    def open_(self: Journal) -> bool:
        found = bool(original(self))
        self._admitted = True if found else self._admitted
        return found

    return open_


def _counts_every_vote(_original: Any) -> Any:
    return lambda self, votes: self._majority(len(votes) + 1)


def _asks_nobody(_original: Any) -> Any:
    return lambda self: self.round


def _reads_from_where_it_was(_original: Any) -> Any:
    def read(self: Node, done: Done) -> None:
        self._reads.ask(self.term, self.commit_index, done)

    return read


def _any_incarnation(_original: Any) -> Any:
    return lambda self, label, address: label.partition("\n")[0]


BUGS: Final[dict[str, tuple[Any, str, Callable[[Any], Any]]]] = {
    "no_prefix_check": (Voting, "_reaches_as_far", _votes_for_any_log),
    "no_sync": (Journal, "sync", _never_syncs),
    "vote_forgotten": (Journal, "_open", _forgets_its_vote),
    "admission_kept": (Journal, "_open", _keeps_its_admission),
    "every_vote_counts": (Voting, "_elects", _counts_every_vote),
    "read_not_confirmed": (Reads, "_confirmed", _asks_nobody),
    "read_without_own_term": (Node, "read", _reads_from_where_it_was),
    "old_journal_accepted": (Roster, "check_claim", _any_incarnation),
}
"""Name -> (class, its method, the method instead, made from the original)."""


@contextmanager
def planted(bug: str | None) -> Iterator[None]:
    if bug is None:
        yield
        return
    owner, name, replacement = BUGS[bug]
    original = getattr(owner, name)
    setattr(owner, name, replacement(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
