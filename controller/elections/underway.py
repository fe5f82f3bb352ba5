"""How far is one election that is under way, and what does a leader keep beside its elections?

(``election.py`` sees to the elections of all groups, ``elect.py`` says who wins one.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from controller.elections.asking import Inquiry
from controller.elections.outages import Outages
from controller.elections.preview import OWN, ElectionRequest
from controller.elections.signals import Action, OfGroup, Propose, Reply, Report, Requested, StopAsking
from controller.groups.group import Group
from model.errors import Unknown
from runtime.backoff import Backoff

if TYPE_CHECKING:
    import random

NEVER: Final = float("inf")
BACK_OFF_MIN_MS: Final = 100  # before a group is looked at again in which nobody could be elected
BACK_OFF_MAX_MS: Final = 2000
GROUPS_AT_ONCE: Final = 50
"""So many groups are looked at in one step: of thousands each may need an election."""


class Phase(StrEnum):
    STEPPING_DOWN = "stepping down"  # the master was asked to hand over
    ASKING = "asking"
    AWAITING_RETURN = (
        "awaiting return"  # of the master, or of a member that must answer; then all are asked again
    )
    AWAITING_LEASE_END = "awaiting lease end"  # the former master's lease matters; then they are asked again
    PROPOSING = "proposing"
    RETRYING = "retrying"  # the proposal failed; then all of it once more


@dataclass(slots=True)
class Election:
    """One that is under way. ``ticket`` None: this Controller's own. ``asked_ms``: when the candidates were
    asked for the last time; ``since_ms``: for the first time, by requests before this one, too. ``heard``:
    answered, whatever it was. ``full``: said that they take no messages. ``changed_meanwhile``: something
    happened meanwhile that may let another be elected."""

    request: ElectionRequest = OWN
    ticket: int | None = None
    phase: Phase = Phase.ASKING
    inquiry: Inquiry | None = None
    due_ms: float = NEVER
    asked_ms: float = 0.0
    since_ms: float = 0.0
    back_until_ms: float = 0.0
    answered: frozenset[int] | None = None
    heard: frozenset[int] = frozenset()
    full: frozenset[int] = frozenset()
    attempt: int = 0
    handed_over: bool = False
    all_of_them: bool = False
    changed_meanwhile: bool = False

    @property
    def compares(self) -> bool:
        """An operator names the transfer target, and no master said that it has everything."""
        return self.request.designate and not self.handed_over

    def check(self, name: str) -> None:
        """Raise if this election of the group ``name`` can neither go on nor end."""
        asking, phase = self.inquiry is not None, self.phase
        assert asking == (phase is Phase.ASKING), f"{name}: candidates are asked in no other phase"
        waits = phase not in (Phase.STEPPING_DOWN, Phase.PROPOSING)
        assert waits == (self.due_ms < NEVER), f"{name}: {phase}, and nothing makes it go on"
        requested = self.ticket is not None
        assert requested or phase is not Phase.STEPPING_DOWN, f"{name}: only a request drains a master"


@dataclass(slots=True)
class Mandate:
    """Whether this Controller leads, and whether its table holds all that was committed before
    (``caught_up``). ``number`` counts the questions; only the answer to the newest one says so."""

    is_raft_leader: bool = False
    term: int = 0
    led_term: int = 0
    number: int = 0
    caught_up: bool = False
    settle_ms: float = NEVER  # when to ask again

    @property
    def decides(self) -> bool:
        return self.is_raft_leader and self.caught_up

    def check(self) -> None:
        """After every step, also in production."""
        assert self.is_raft_leader or not self.caught_up, "a Controller that does not lead decides nothing"


class Backoffs:
    """Groups in which nobody could be elected, or whose election failed by a mistake of ours, and in which
    nothing happened since: they are looked at again after a while that grows."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._until: dict[str, tuple[Backoff, float]] = {}

    def add(self, name: str, now_ms: float) -> float:
        """Once more; until when (ms)."""
        backoff, _ = self._until.get(name) or (Backoff(self._chance, BACK_OFF_MIN_MS, BACK_OFF_MAX_MS), 0.0)
        until_ms = now_ms + backoff.next_s() * 1000
        self._until[name] = backoff, until_ms
        return until_ms

    def until_ms(self, name: str) -> float:
        """0 = it need not wait."""
        return self._until[name][1] if name in self._until else 0.0

    def forget(self, name: str) -> None:
        self._until.pop(name, None)

    def clear(self) -> None:
        self._until.clear()

    def check(self, now_ms: float) -> None:
        """Raise if a group waits for longer than it may."""
        for name, (_, until_ms) in self._until.items():
            assert until_ms <= now_ms + BACK_OFF_MAX_MS, f"{name} backs off for longer than it may"


@dataclass(slots=True)
class Reported:
    """What this leader said already: group -> (master, epoch)."""

    lost: dict[str, tuple[int, int]] = field(default_factory=dict)
    announced: dict[str, tuple[int, int]] = field(default_factory=dict)
    announcements: int = 0  # since the last tick

    outages: Outages = field(default_factory=Outages)

    def on_lost(self, name: str, master: tuple[int, int], now_ms: float) -> bool:
        """Whether that is new: an outage begins then."""
        if self.lost.get(name) == master:
            return False
        self.lost[name] = master
        self.outages.on_lost(name, now_ms)
        return True

    def check(self, groups: Mapping[str, Group]) -> None:
        for name, (master, epoch) in self.announced.items():
            group = groups.get(name)
            if group is not None and group.master is not None and group.epoch == epoch:
                assert group.master == master, f"{name}: brokers were told of another master of epoch {epoch}"


@dataclass(slots=True)
class Scan:
    """A look at every group, a few a step. ``left``: those to come, the next one last. ``look_ms``: when all
    are looked at again."""

    left: list[str] = field(default_factory=list)
    look_ms: float = 0.0

    def begin(self, names: Iterable[str]) -> None:
        self.left = sorted(names, reverse=True)

    def next_groups(self) -> list[str]:
        """Those to look at in this step."""
        found = self.left[: -GROUPS_AT_ONCE - 1 : -1]
        del self.left[-GROUPS_AT_ONCE:]
        return found

    def bounded(self, names: list[str]) -> list[str]:
        """Those of ``names`` to look at now; the others are the next."""
        self.left += reversed(names[GROUPS_AT_ONCE:])
        return names[:GROUPS_AT_ONCE]

    def check(self, latest_ms: float) -> None:
        assert self.look_ms <= latest_ms, "there is no time to look at every group again"


def failed(
    name: str, mistake: Exception, done: list[Action], tickets: set[int | None], event: OfGroup | None
) -> list[Action]:
    """What is left of ``done`` when a step of this group failed by a mistake of ours: nothing is proposed,
    and whoever asked for its election, by these tickets or this event, is answered."""
    if isinstance(event, Requested):
        tickets = {*tickets, event.ticket}
    left = [action for action in done if not isinstance(action, Propose)]
    answered = {action.ticket for action in left if isinstance(action, Reply)}
    open_ = sorted(ticket for ticket in tickets if ticket is not None and ticket not in answered)
    text = f"{name}: its election begins anew: {type(mistake).__name__}: {mistake}"
    return [
        *left,
        *(Reply(ticket, Unknown("the election failed")) for ticket in open_),
        StopAsking(name),
        Report(text, "error", mistake=mistake),
    ]
