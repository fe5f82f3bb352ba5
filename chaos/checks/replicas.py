"""Do all replicas hold the same bytes as far as they were confirmed?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from chaos.checks.violation import Violation

_CHUNK_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """One broker's CommitLog: ``data`` begins at ``min_offset``; ``confirmed`` is its own confirmOffset."""

    name: str
    min_offset: int
    data: bytes
    confirmed: int
    epochs: tuple[tuple[int, int], ...] = ()
    """(epoch, start offset) of its epoch file."""

    @property
    def end(self) -> int:
        return self.min_offset + len(self.data)


def replicas_identical(logs: Sequence[ReplicaLog]) -> Iterator[Violation]:
    """Between the largest first and the smallest confirmed offset of two replicas every byte is equal."""
    for number, one in enumerate(logs):
        if one.confirmed > one.end:
            yield Violation(
                "replicas_identical", f"{one.name} confirmed {one.confirmed} but holds only {one.end} bytes"
            )
        for other in logs[number + 1 :]:
            begin = max(one.min_offset, other.min_offset)
            end = min(one.confirmed, other.confirmed, one.end, other.end)
            at = first_difference(one, other, begin, end)
            if at is not None:
                yield Violation(
                    "replicas_identical",
                    f"{one.name} and {other.name} differ at {at}; both confirmed {end}",
                )


def first_difference(one: ReplicaLog, other: ReplicaLog, begin: int, end: int) -> int | None:
    """The first physical offset in [begin, end) where two logs differ, or None."""
    for at in range(begin, end, _CHUNK_BYTES):
        until = min(at + _CHUNK_BYTES, end)
        left = one.data[at - one.min_offset : until - one.min_offset]
        right = other.data[at - other.min_offset : until - other.min_offset]
        if left != right:
            return at + next(i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b)
    return None


def replicas_converged(logs: Sequence[ReplicaLog], members: Sequence[str]) -> Iterator[Violation]:
    """After the heal and a quiet period every replica is a member again, ends where the others end, and has
    confirmed all it holds."""
    for log in logs:
        if log.name not in members:
            yield Violation("replicas_converged", f"{log.name} is not in the SyncStateSet {list(members)}")
        if log.confirmed != log.end:
            yield Violation(
                "replicas_converged", f"{log.name} holds {log.end} bytes and confirmed {log.confirmed}"
            )
    ends = {log.name: log.end for log in logs}
    if len(set(ends.values())) > 1:
        yield Violation("replicas_converged", f"logs end at {ends}")
    starts = {log.name: log.epochs for log in logs}
    newest = max(starts.values(), key=lambda epochs: epochs[-1:], default=())
    for name, epochs in starts.items():
        # A replica that joined late may lack the oldest epochs; those it has must be the others'.
        if epochs and epochs != newest[len(newest) - len(epochs) :]:
            yield Violation("replicas_converged", f"epochs of {name} are {epochs}, others have {newest}")
