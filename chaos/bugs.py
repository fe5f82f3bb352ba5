"""Would the checks notice? Bugs to plant into the real code for one run, each to be found within some seeds.

A bug replaces one method or property of a class while a run lasts. They are the mistakes an implementation of
this kind makes: answering before replication, skipping a truncation, giving an offset twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from broker.parking import Parking
from store.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class Bug:
    """``owner.name`` becomes ``replacement`` (made from the original) while the bug is planted."""

    text: str
    owner: type
    name: str
    replacement: Callable[[Any], Any]


def _answers_at_once(original: Callable[..., None]) -> Callable[..., None]:
    def park(self: Parking, connection: Any, answers: bytes, end: int) -> None:
        connection.write(answers)

    return park


def _never_truncates(original: Callable[..., Any]) -> Callable[..., Any]:
    def truncate(self: MessageStore, offset: int) -> Any:
        return None

    return truncate


def _forgets_the_tail(original: Callable[..., None]) -> Callable[..., None]:
    def rebuild(self: MessageStore) -> None:
        """Only what is dispatched counts: records behind it have offsets, too."""

    return rebuild


BUGS: Final[dict[str, Bug]] = {
    "ack_before_replication": Bug(
        "a send is answered when the master alone has it", Parking, "park", _answers_at_once
    ),
    "skip_truncation": Bug(
        "a deposed master keeps the end of its log that its successor lacks",
        MessageStore,
        "truncate",
        _never_truncates,
    ),
    "reuse_offset": Bug(
        "a new master counts queue offsets from what is dispatched, not from the end of its log",
        MessageStore,
        "rebuild_queue_offsets",
        _forgets_the_tail,
    ),
}


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have the bug while the block runs. None plants nothing. Raises KeyError for a name there is not."""
    if name is None:
        yield
        return
    if name not in BUGS:
        raise KeyError(f"no bug {name}; there are {', '.join(BUGS)}")
    bug = BUGS[name]
    original = bug.owner.__dict__[bug.name]
    setattr(bug.owner, bug.name, bug.replacement(original))
    try:
        yield
    finally:
        setattr(bug.owner, bug.name, original)
