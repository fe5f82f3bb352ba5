"""Which checks are there, and what does each of them look at?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from chaos import extensions
from chaos.checks import liveness, masters, messages, order, replicas
from chaos.checks.violation import Violation
from chaos.faults import FAULTS
from chaos.history import Finished, History, HistoryEvent, Ok, Read, Unknown

_STANDING_STILL: Final = frozenset(("pause", "resume", "look", "heal", "restart"))
"""What gives no master a reason to drop a member."""


@dataclass(frozen=True, slots=True)
class Promised:
    """Losses no promise covers. ``gone``: messages that no disk kept. ``left``: acknowledged ones
    that an election was free to leave behind, as nobody could read them yet. ``lied``: a disk lost what it
    had promised, so nothing is promised of any message."""

    gone: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    lied: bool = False


@dataclass(slots=True)
class Evidence:
    """All that one run left: its history and, where the world can read them, the replicas' logs.

    ``sources``: what was read back in the end; one that gave nothing has lost all. ``begins``: where their
    queues begin, when that is not 0.
    ``complete``: the cluster was healed and given time, so all must be there and converged. ``members``:
    names of the replicas in the SyncStateSet then. ``power_failures``: bytes not synced may have been lost.
    """

    history: History
    logs: Sequence[replicas.ReplicaLog] = ()
    members: Sequence[str] = ()
    complete: bool = True
    power_failures: bool = False
    sources: Sequence[str] = ()
    begins: messages.Begins = field(default_factory=dict)
    set_kept: bool = False
    """Until the first node died no master had a reason to drop a member of its SyncStateSet."""
    errors: Sequence[str] = field(default_factory=list)
    """What no one caught while the nodes ran."""
    group: liveness.Group | None = None
    """Whose writes are to be answered while a majority is well; None: that is not asked."""
    forgiven: Promised = Promised()
    """What the replication mode and the faults of this run promise away."""


Checker = Callable[[Evidence], Iterable[Violation]]


def _lost(evidence: Evidence) -> Iterable[Violation]:
    final = evidence.history.reads(final=True)
    return messages.lost(evidence.history.sends(), final, evidence.sources)


def _phantom(evidence: Evidence) -> Iterable[Violation]:
    return messages.phantom(evidence.history.sends(), evidence.history.reads())


def _duplicates(evidence: Evidence) -> Iterable[Violation]:
    return messages.duplicates(evidence.history.sends(), evidence.history.reads(final=True))


def _read_then_gone(evidence: Evidence) -> Iterable[Violation]:
    history = evidence.history
    early, final = history.reads(final=False), history.reads(final=True)
    return messages.read_then_gone(early, final, evidence.sources, evidence.begins)


def _producer_order(evidence: Evidence) -> Iterable[Violation]:
    return order.producer_order(evidence.history.sends())


def _real_time_order(evidence: Evidence) -> Iterable[Violation]:
    return order.real_time_order(evidence.history.sends())


def _offset_reuse(evidence: Evidence) -> Iterable[Violation]:
    return order.offset_reuse(evidence.history.sends(), evidence.history.reads())


def _acknowledged_twice(evidence: Evidence) -> Iterable[Violation]:
    return order.acknowledged_twice(evidence.history.sends())


def _dense_offsets(evidence: Evidence) -> Iterable[Violation]:
    return order.dense_offsets(evidence.history.reads(final=True), evidence.begins)


def _one_master_per_epoch(evidence: Evidence) -> Iterable[Violation]:
    return masters.one_master_per_epoch(evidence.history.happened(), evidence.history.observed())


def _confirmed_never_back(evidence: Evidence) -> Iterable[Violation]:
    observed = evidence.history.observed()
    return masters.confirmed_never_back(observed, power_failures=evidence.power_failures)


def _controllers_agree(evidence: Evidence) -> Iterable[Violation]:
    return masters.controllers_agree(evidence.history.controller_answers())


def _set_kept(evidence: Evidence) -> Iterable[Violation]:
    if not evidence.set_kept:
        return ()
    causes = FAULTS.keys() - _STANDING_STILL
    struck = [e.at_ms for e in evidence.history.happened() if e.name in causes]
    return masters.set_kept(evidence.history.controller_answers(), until_ms=min(struck, default=float("inf")))


def _serves_with_a_majority(evidence: Evidence) -> Iterable[Violation]:
    if evidence.group is None:
        return ()
    history = evidence.history
    sends, happened, observed = history.sends(), history.happened(), history.observed()
    return liveness.serves_with_a_majority(sends, happened, observed, evidence.group)


def _replicas_identical(evidence: Evidence) -> Iterable[Violation]:
    return replicas.replicas_identical(evidence.logs)


def _replicas_converged(evidence: Evidence) -> Iterable[Violation]:
    return replicas.replicas_converged(evidence.logs, evidence.members) if evidence.logs else ()


def _no_errors(evidence: Evidence) -> Iterable[Violation]:
    return (Violation("no_errors", error) for error in evidence.errors)


CHECKERS: Final[dict[str, Checker]] = {
    "lost": _lost,
    "phantom": _phantom,
    "duplicates": _duplicates,
    "read_then_gone": _read_then_gone,
    "producer_order": _producer_order,
    "real_time_order": _real_time_order,
    "offset_reuse": _offset_reuse,
    "acknowledged_twice": _acknowledged_twice,
    "dense_offsets": _dense_offsets,
    "one_master_per_epoch": _one_master_per_epoch,
    "confirmed_never_back": _confirmed_never_back,
    "controllers_agree": _controllers_agree,
    "set_kept": _set_kept,
    "serves_with_a_majority": _serves_with_a_majority,
    "replicas_identical": _replicas_identical,
    "replicas_converged": _replicas_converged,
    "no_errors": _no_errors,
}
_AFTER_THE_QUIET: Final = frozenset({"lost", "read_then_gone", "replicas_converged"})
AT_ANY_TIME: Final = (
    "phantom",
    "producer_order",
    "real_time_order",
    "offset_reuse",
    "acknowledged_twice",
    "one_master_per_epoch",
    "confirmed_never_back",
    "serves_with_a_majority",
)
"""What these find in the begin of a history, no later event makes good."""
_WHATEVER_DISKS_DO: Final = frozenset({"phantom", "one_master_per_epoch", "controllers_agree", "no_errors"})


def check_all(evidence: Evidence) -> list[Violation]:
    """Every violation of every check that applies to ``evidence``: of the suite, and of other packages.
    Raises ConfigError when one of those cannot be loaded."""
    forgiven = evidence.forgiven
    evidence = replace(evidence, history=Finished(_promised(evidence.history.events, forgiven)))
    found: list[Violation] = []
    for name, checker in CHECKERS.items():
        if _applies(name, evidence):
            found += checker(evidence)
    if not forgiven.lied:
        for name, checker in extensions.checks().items():
            try:
                found += _of_a_stranger(name, checker(evidence))
            except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises
                found.append(Violation(name, f"the check raised {error!r}"))
    return found


def _of_a_stranger(name: str, returned: object) -> list[Violation]:
    """What a check of another package returned. Raises TypeError for what are no violations."""
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise TypeError(f"it returned {returned!r}, not violations")
    found = list(returned)
    for one in found:
        if not isinstance(one, Violation):
            raise TypeError(f"it returned {one!r} among the violations")
    return found


def _applies(name: str, evidence: Evidence) -> bool:
    if evidence.forgiven.lied and name not in _WHATEVER_DISKS_DO:
        return False
    return evidence.complete or name not in _AFTER_THE_QUIET


def judged(evidence: Evidence) -> list[str]:
    """The checks that apply to ``evidence`` and had what they look at: that another one found nothing says
    nothing."""
    own = () if evidence.forgiven.lied else extensions.checks()
    history = Finished(_promised(evidence.history.events, evidence.forgiven))
    acked, reads = any(send.outcome == "ok" for send in history.sends()), history.reads()
    lacks = {
        **dict.fromkeys(("lost", "producer_order", "real_time_order", "acknowledged_twice"), not acked),
        "phantom": not reads,
        "read_then_gone": not history.reads(final=False),
        "offset_reuse": not acked and not reads,
        "no_errors": not history.events and not evidence.errors,
        **dict.fromkeys(("duplicates", "dense_offsets"), not history.reads(final=True)),
        **dict.fromkeys(("one_master_per_epoch", "confirmed_never_back"), not history.observed()),
        "controllers_agree": not history.controller_answers(),
        "set_kept": not evidence.set_kept or not history.controller_answers(),
        "serves_with_a_majority": evidence.group is None,
        **dict.fromkeys(("replicas_identical", "replicas_converged"), not evidence.logs),
    }
    return [name for name in CHECKERS if _applies(name, evidence) and not lacks.get(name)] + list(own)


def check_so_far(evidence: Evidence) -> list[Violation]:
    """Every violation in a history that still grows, by the checks that need no end."""
    evidence = replace(evidence, history=Finished(evidence.history.events))
    names = [name for name in AT_ANY_TIME if name in _WHATEVER_DISKS_DO or not evidence.forgiven.lied]
    return [violation for name in names for violation in CHECKERS[name](evidence)]


def _promised(events: Sequence[HistoryEvent], forgiven: Promised) -> Sequence[HistoryEvent]:
    """The history of which all that is left is promised: an acknowledgement of what may be gone says no more
    than none, and what was read of it and is gone was never there."""
    if not forgiven.gone and not forgiven.left:
        return events
    kept: list[HistoryEvent] = []
    for event in events:
        if isinstance(event, Ok) and (event.key in forgiven.gone or event.key in forgiven.left):
            attempts = event.unknown_attempts + 1
            kept.append(Unknown(event.at_ms, event.process, event.key, "promised away", attempts))
        elif not (isinstance(event, Read) and event.key in forgiven.gone and not event.final):
            kept.append(event)
    return kept
