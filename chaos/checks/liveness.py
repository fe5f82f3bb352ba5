"""Are writes answered while a healthy majority exists that clients reach?

Read from the faults of a history, and on the safe side: a server that any fault hit, and two that any cut
parted, are well again only when all replicas were members of the SyncStateSet again (``group_full``). So no
claim rests on how long a server takes to come back. A wiped broker never is where a majority of all replicas
has to hold a write: its former identity stays one that nobody has, until an operator has it forgotten.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import Final

from chaos.checks.violation import Violation
from chaos.faults import kind_of
from chaos.history import ENDED_FAULT, Happened, Observed, Send

SERVES_MS: Final = 5000.0
"""A majority that is well for so long answers a write."""
HEARD_MS: Final = 1500.0
"""Whoever said nothing for so long while most others were silent, too, is not known to be well: the machine,
or who listens, may stand still."""
FULL: Final = "group_full"
CLIENTS: Final = "clients"
STUBBORN: Final = "stubborn"
"""Senders whose name begins so ignore routes: that one of them is answered says nothing of clients."""
CUTS: Final = frozenset({"isolate", "cut", "partition"})
HARMLESS: Final = frozenset(
    {"look", "snapshot", "restart", "resume", "heal", "hand_over", "rolling_change", "upgrade"}
)


@dataclass(frozen=True, slots=True)
class Group:
    """Who makes up a group. ``enough``: brokers that a write needs, a majority at least. ``until_ms``: the
    load's end. ``counts_all``: a majority of all that ever were replicas has to hold a write."""

    brokers: Sequence[str]
    controllers: Sequence[str]
    enough: int
    until_ms: float
    counts_all: bool = True


@dataclass(slots=True)
class _Harm:
    """Whom faults hit since the group was full. It only grows, so a majority that is well at last was so all
    the time."""

    nodes: set[str] = field(default_factory=set)
    parted: set[frozenset[str]] = field(default_factory=set)

    def add(self, fault: Happened) -> None:
        if fault.name in CUTS:
            self.parted |= {frozenset(pair) for pair in fault.fields.get("pairs", ())}
        elif fault.name not in HARMLESS:
            self.nodes.add(fault.node)

    def hear_each_other(self, nodes: Collection[str]) -> bool:
        return all(frozenset(pair) not in self.parted for pair in combinations(nodes, 2))

    def majorities(self, group: Group) -> list[tuple[str, ...]]:
        """The brokers of each majority that is well: they, most of the Controllers and clients hear each
        other. None while a broker that Controllers hear is hidden from clients: it may go on as master."""
        if any(self._hidden(broker, group) for broker in group.brokers):
            return []
        well = [broker for broker in group.brokers if broker not in self.nodes]
        voters = [one for one in group.controllers if one not in self.nodes]
        most = len(group.controllers) // 2 + 1
        return [
            few
            for few in combinations(well, group.enough)
            if any(self.hear_each_other((*few, *some, CLIENTS)) for some in combinations(voters, most))
        ]

    def _hidden(self, broker: str, group: Group) -> bool:
        if broker in self.nodes or frozenset((broker, CLIENTS)) not in self.parted:
            return False
        heard = [one for one in group.controllers if frozenset((broker, one)) not in self.parted]
        return len(heard) > len(group.controllers) // 2


def serves_with_a_majority(
    sends: Sequence[Send], happened: Sequence[Happened], observed: Sequence[Observed], group: Group
) -> Iterator[Violation]:
    """No time of SERVES_MS without an answered write in which a majority was well and heard."""
    served = (send for send in sends if send.outcome == "ok" and not send.process.startswith(STUBBORN))
    answered = sorted(send.ended_ms for send in served if send.ended_ms is not None)
    if not answered:
        return  # it never served: a run that did not begin says nothing
    heard = _heard(observed, group)
    for begun_ms, ended_ms, majorities in _spans(happened, group, answered[0]):
        members = {name: heard[name] for few in majorities for name in few}
        for one, other in _stalls(answered, begun_ms, ended_ms):
            well = [few for few in majorities if not any(_excused(members, name, one, other) for name in few)]
            if well:
                text = f"no write was answered from {one:.0f} to {other:.0f} ms, while {', '.join(well[0])}"
                yield Violation("serves_with_a_majority", f"{text}, most Controllers and clients were well")


def _stalls(answered: Sequence[float], begun_ms: float, ended_ms: float) -> Iterator[tuple[float, float]]:
    """Times of SERVES_MS and more without an answer."""
    marks = [begun_ms, *(at for at in answered if begun_ms < at < ended_ms), ended_ms]
    return ((one, other) for one, other in pairwise(marks) if other - one >= SERVES_MS)


def _spans(
    happened: Sequence[Happened], group: Group, begun_ms: float
) -> Iterator[tuple[float, float, list[tuple[str, ...]]]]:
    """From one full group until no majority is well, or the next full group: from, to, and the majorities
    that are well to the end."""
    harm, wiped = _Harm(), set[str]()
    last = harm.majorities(group)
    until_ms: float | None = None
    for event in sorted(happened, key=lambda one: one.at_ms):
        if event.name == FULL:
            yield begun_ms, event.at_ms if until_ms is None else until_ms, last
            harm, begun_ms, until_ms = _Harm(set(wiped)), event.at_ms, None
            last = harm.majorities(group)
        elif kind_of(event.name) is not None or _leaves_a_ghost(event):
            harm.add(event)
            if group.counts_all and (event.name == "wipe" or _leaves_a_ghost(event)):
                wiped.add(event.node)
            now = harm.majorities(group)
            if now:
                last = now
            elif until_ms is None:
                until_ms = event.at_ms
    yield begun_ms, group.until_ms if until_ms is None else until_ms, last


def _leaves_a_ghost(event: Happened) -> bool:
    """A broker that was to be replaced lost its disk, and nobody forgot whom it was before. One whose disk
    was not touched is who it was."""
    fields = event.fields
    ended = event.name == ENDED_FAULT and fields.get("fault") == "replace"
    return ended and bool(fields.get("refused")) and bool(fields.get("emptied"))


def _heard(observed: Sequence[Observed], group: Group) -> Mapping[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in group.brokers}
    for seen in observed:
        if seen.node in found:
            found[seen.node].append(seen.at_ms)
    return {name: sorted(times) for name, times in found.items()}


def _excused(heard: Mapping[str, Sequence[float]], name: str, begun_ms: float, ended_ms: float) -> bool:
    """Whether a broker said nothing for long while most others, of those that no fault hit and that spoke
    before, did not either."""
    marks = [begun_ms, *(at for at in heard[name] if begun_ms < at < ended_ms), ended_ms]
    return any(
        other - one >= HEARD_MS and not _others_speak(heard, name, one, other)
        for one, other in pairwise(marks)
    )


def _others_speak(heard: Mapping[str, Sequence[float]], name: str, begun_ms: float, ended_ms: float) -> bool:
    """Whether most others went on: a silence of half as long is one already. One that said nothing shortly
    before does not count."""
    lively = speaking = 0
    for times_ms in (times for other, times in heard.items() if other != name):
        if any(begun_ms - HEARD_MS < at <= begun_ms for at in times_ms):
            marks = [begun_ms, *(at for at in times_ms if begun_ms < at < ended_ms), ended_ms]
            lively += 1
            speaking += all(other - one < HEARD_MS / 2 for one, other in pairwise(marks))
    return speaking > lively / 2
