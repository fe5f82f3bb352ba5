"""Which faults does the campaign strike, how often, in which mode and by what means?

A goal is what is asked for in all ("200 kills"); its rows share it out over modes and means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from chaos.drills.live.names import OURS, SWITCH, THEIRS, TOXIPROXY
from chaos.drills.live.results import name_of
from chaos.scenarios.matrix import MODES, THEIR_MODES


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """So many strikes of one kind in one mode, in runs of at most ``per_run`` each. ``links``: what cuts
    links; ``seed``: of the first run."""

    goal: str
    kind: str
    mode: str
    strikes: int
    per_run: int
    target: str = OURS
    links: str = SWITCH
    seed: int = 1

    @property
    def name(self) -> str:
        """Of its runs' files, without the seed."""
        return name_of(self.kind, self.mode, self.target, self.links)

    @property
    def runs_max(self) -> int:
        """More are not begun, whatever is missing: strikes miss, and runs do not finish, only so often."""
        return 2 * -(-self.strikes // self.per_run) + 2


TOXIPROXY_SEED: Final = 101
"""Other partitions than those behind the switch."""
OUR_GOALS: Final = (
    # goal, strikes in all, kinds with the modes they have, strikes to a run
    ("kills", 200, (("kill", tuple(MODES)),), 17),
    ("freezes", 100, (("pause", tuple(MODES)),), 17),
    ("clock faults", 40, (("clock_jump", tuple(MODES)), ("clock_drift", tuple(MODES))), 7),
    (
        "disk errors",
        40,
        (("sync_error", tuple(MODES)), ("write_error", tuple(MODES)), ("read_error", tuple(MODES))),
        5,
    ),
    ("full disks", 20, (("disk_full", tuple(MODES)),), 7),
    ("power losses", 100, (("power_fail", tuple(MODES)),), 17),
    # In mode majority the id of who was wiped is counted on: an operator has it forgotten (``replace``).
    ("wipes", 40, (("wipe", ("default", "counted")), ("replace", ("majority",))), 7),
    ("rolling restarts", 20, (("rolling_change", tuple(MODES)),), 4),
    ("upgrades", 10, (("upgrade", tuple(MODES)),), 1),
)
PARTITIONS: Final = 100
PARTITIONS_PER_RUN: Final = 9
THEIR_GOALS: Final = (("kills", "kill", 40), ("freezes", "pause", 20), ("wipes", "wipe", 16))
THEIR_PARTITIONS: Final = 20
THEIR_PER_RUN: Final = 6


def ours() -> list[Row]:
    rows = []
    for goal, strikes, kinds, per_run in OUR_GOALS:
        pairs = [(kind, mode) for kind, modes in kinds for mode in modes]
        for (kind, mode), part in zip(pairs, shares(strikes, len(pairs)), strict=True):
            rows.append(Row(goal=goal, kind=kind, mode=mode, strikes=part, per_run=per_run))
    half = PARTITIONS // 2
    return rows + _partitions(MODES, half, PARTITIONS_PER_RUN, OURS)


def theirs() -> list[Row]:
    """The same drills against the real RocketMQ: each needs minutes there, so there are fewer."""
    rows = []
    for goal, kind, strikes in THEIR_GOALS:
        for mode, part in zip(THEIR_MODES, shares(strikes, len(THEIR_MODES)), strict=True):
            rows.append(
                Row(goal=goal, kind=kind, mode=mode, strikes=part, per_run=THEIR_PER_RUN, target=THEIRS)
            )
    return rows + _partitions(THEIR_MODES, THEIR_PARTITIONS // 2, THEIR_PER_RUN, THEIRS)


def _partitions(modes: Iterable[str], each: int, per_run: int, target: str) -> list[Row]:
    """``each`` by the switch between the namespaces, and as many by Toxiproxy."""
    names = list(modes)
    return [
        Row(
            goal="partitions",
            kind="partition",
            mode=mode,
            strikes=part,
            per_run=per_run,
            target=target,
            links=links,
            seed=seed,
        )
        for links, seed in ((SWITCH, 1), (TOXIPROXY, TOXIPROXY_SEED))
        for mode, part in zip(names, shares(each, len(names)), strict=True)
    ]


def shares(total: int, count: int) -> Iterator[int]:
    """``total`` in ``count`` parts that differ by one at most; the larger ones first."""
    return (total // count + (at < total % count) for at in range(count))


def at_most(rows: Sequence[Row], strikes: int) -> list[Row]:
    """A rehearsal: no row has more."""
    return [replace(row, strikes=min(row.strikes, strikes)) for row in rows]
