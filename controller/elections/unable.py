"""Who was elected and could not begin, and which epochs were nobody's?

One that cannot begin its epoch asks for another master (decision 14). If only the one that asks came last,
two of them would hand the group to each other for ever, and a third that is well would never lead. So all of
them come last, until somebody has served. And an epoch that nobody began has no bytes: one whose disk noted
it has no longer log for that.

Pure: times are monotonic milliseconds, given by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from controller.groups.elect import End
from controller.groups.group import Group

KEPT_MS: Final = 180_000.0
"""Longer than a broker pauses between two requests of this kind (``broker/role/beginning``)."""


@dataclass(slots=True)
class _Row:
    """Of one group, since somebody served there."""

    last_ms: float
    brokers: set[int] = field(default_factory=set)
    epochs: set[int] = field(default_factory=set)


_NONE: Final = _Row(0.0)


class Unable:
    """As far as this leader of the Controllers heard; nothing of it is in Raft."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}

    def note(self, name: str, group: Group, log_epoch: int, now_ms: float) -> None:
        """The master of ``group`` could not begin its epoch; ``log_epoch``: the last that its log has bytes
        of."""
        self._forget_old(name, group, now_ms)
        if log_epoch < group.epoch and group.master is not None:
            row = self._rows.setdefault(name, _Row(now_ms))
            row.last_ms = now_ms
            row.brokers.add(group.master)
            row.epochs.add(group.epoch)

    def brokers(self, name: str, group: Group | None, now_ms: float) -> frozenset[int]:
        self._forget_old(name, group, now_ms)
        return frozenset(self._rows.get(name, _NONE).brokers)

    def true_ends(self, name: str, ends: Mapping[int, End]) -> dict[int, End]:
        """How far the logs reach, by epochs that somebody began."""
        epochs = self._rows.get(name, _NONE).epochs
        return {i: self._true(end, epochs) for i, end in ends.items()}

    @staticmethod
    def _true(end: End, epochs: set[int]) -> End:
        epoch = end.epoch
        while epoch in epochs:
            epoch -= 1
        return end if epoch == end.epoch else msgspec.structs.replace(end, epoch=epoch)

    def _forget_old(self, name: str, group: Group | None, now_ms: float) -> None:
        row = self._rows.get(name)
        if row is None:
            return
        # Only a master that serves takes others into its set.
        served = group is None or len(group.members) > 1
        if served or now_ms - row.last_ms > KEPT_MS:
            del self._rows[name]
