"""Which role may a broker have next, and what does it do about a view of the Controllers?

Pure: facts go in, an action comes out. ``broker/role/manager`` carries it out and says what became of it.
``TRANSITIONS`` is the whole life of a role; the drawing in docs/role.md is made of it (``mermaid``).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from broker.membership.view import View
from broker.role.beginning import Beginning
from broker.state.role_state import Role, RoleHolder, RoleState
from model.errors import BrokenInvariantError
from model.ids import NO_EPOCH, BrokerId, Epoch


class State(enum.StrEnum):
    UNREGISTERED = "unregistered"  # no Controller knows this broker yet
    REGISTERED = "registered"  # the Controllers know it; it has no role yet
    FOLLOWING = "following"  # slave
    LEADING = "leading"  # master; it takes writes while its lease holds, or all members answer
    HANDING_OVER = "handing over"  # master that takes no writes: its transfer target is about to be elected
    DEPOSED = "deposed"  # neither, until the Controllers name a master
    BROKEN = "broken"  # its disk or replication failed, or this program made a mistake: neither, for good
    STOPPED = "stopped"


class Event(enum.StrEnum):
    REGISTERED = "registered"
    LEAD = "leads"
    FOLLOW = "follows"
    FENCE = "fenced"
    HAND_OVER = "asked to hand over"
    RESUME = "nobody took over"
    BREAK = "failed for good"
    STOP = "stop"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.UNREGISTERED, Event.REGISTERED): State.REGISTERED,
    # Without Controllers the configuration gives the role.
    (State.UNREGISTERED, Event.LEAD): State.LEADING,
    (State.UNREGISTERED, Event.FOLLOW): State.FOLLOWING,
    (State.REGISTERED, Event.REGISTERED): State.REGISTERED,
    (State.REGISTERED, Event.LEAD): State.LEADING,
    (State.REGISTERED, Event.FOLLOW): State.FOLLOWING,
    (State.FOLLOWING, Event.REGISTERED): State.FOLLOWING,
    (State.FOLLOWING, Event.FOLLOW): State.FOLLOWING,
    (State.FOLLOWING, Event.LEAD): State.LEADING,
    # Its id is another process's by now.
    (State.FOLLOWING, Event.FENCE): State.DEPOSED,
    (State.LEADING, Event.REGISTERED): State.LEADING,
    (State.LEADING, Event.LEAD): State.LEADING,
    (State.LEADING, Event.FOLLOW): State.FOLLOWING,
    (State.LEADING, Event.FENCE): State.DEPOSED,
    (State.LEADING, Event.HAND_OVER): State.HANDING_OVER,
    (State.HANDING_OVER, Event.REGISTERED): State.HANDING_OVER,
    (State.HANDING_OVER, Event.HAND_OVER): State.HANDING_OVER,
    (State.HANDING_OVER, Event.RESUME): State.LEADING,
    (State.HANDING_OVER, Event.LEAD): State.LEADING,
    (State.HANDING_OVER, Event.FOLLOW): State.FOLLOWING,
    (State.HANDING_OVER, Event.FENCE): State.DEPOSED,
    (State.DEPOSED, Event.REGISTERED): State.DEPOSED,
    (State.DEPOSED, Event.LEAD): State.LEADING,
    (State.DEPOSED, Event.FOLLOW): State.FOLLOWING,
    **{(state, Event.BREAK): State.BROKEN for state in State if state is not State.STOPPED},
    **{(state, Event.STOP): State.STOPPED for state in State},
}

MASTER: Final = frozenset({State.LEADING, State.HANDING_OVER})
FINAL: Final = frozenset({State.BROKEN, State.STOPPED})


class IllegalEventError(Exception):
    """An event came in a state that cannot have it: a mistake of ours, and the broker fences itself."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"a broker that is {state} cannot have the event: {event}")
        self.state = state
        self.event = event


@dataclass(frozen=True, slots=True)
class Facts:
    """What the machine does not know by itself when a view comes."""

    broker_id: BrokerId
    last_epoch: Epoch  # the last one in the own log
    suspect: bool = False  # the log's end may be missing
    must_copy: str | None = None  # what was lost here; a master has to have it first
    leases_supported: bool = False  # the Controllers are keelmq's: their views are current
    group_address: str | None = None
    stopping: bool = False  # it takes up no role any more


@dataclass(frozen=True, slots=True)
class Stay:
    """The view is old, says what is so already, or comes when this broker stops."""


@dataclass(frozen=True, slots=True)
class CannotBecome:
    """This broker cannot become what the view says."""

    reason: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Still master of the epoch: take its SyncStateSet. ``asked_ms`` None: the view may be an old one."""

    asked_ms: float | None


@dataclass(frozen=True, slots=True)
class AskAnew:
    """Elected by Controllers that do not know what this log may lack: ask for a new epoch or another
    master."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Become master. ``announce``: the NameServers hear of it before anything that takes time."""

    announce: bool


@dataclass(frozen=True, slots=True)
class Follow:
    ha_address: str | None  # None: not known yet
    rocketmq_peer: bool


@dataclass(frozen=True, slots=True)
class Fence:
    """Stop being master: what this broker confirms from here on could be lost."""

    reason: str


Action = Stay | CannotBecome | Adopt | AskAnew | Lead | Follow | Fence


class RoleMachine:
    """In: the ``on_`` methods and ``decide``. Out: ``state``, and the action that is due.

    ``holder`` has the broker's one ``RoleState``. The host sets it in the middle of a change: first of all
    when a broker ceases to be master, last when it becomes one. ``on_change`` begins a change; ``on_lead``,
    ``on_follow`` or ``on_fence`` ends it. A change that failed in between is made again.

    Holds: the epoch never goes back; a broker that failed for good never has a role again; writes are taken
    in LEADING only; outside of a change the ``RoleState`` shows the state.
    """

    def __init__(self, holder: RoleHolder, help_if_lost: str = "") -> None:
        self.state = State.UNREGISTERED
        self.ha_address: str | None = None  # HA address the master's log is copied from
        self._holder = holder
        self._before: RoleState | None = None  # during a change: what was shown before
        self._announced = False
        self.beginning = Beginning()
        self.cannot_begin = False  # it asked for that, and was not answered yet
        self.losses = 0
        """How often what the Controllers know of this log was put aside, or was about to be."""
        self._examined = False  # the Controllers know what this log holds, or it was copied since
        self._known_at: Epoch | None = None  # the group's epoch when the Controllers heard of this start
        self._help_if_lost = help_if_lost
        self._ha_hints: dict[str, str] = {}  # master's address -> HA address, as a NameServer tells
        self._set_known = (0, 0, 0.0)  # epoch, newest set epoch of it, known since (ms)

    @property
    def role(self) -> Role:
        if self.state in MASTER:
            return "master"
        return "slave" if self.state is State.FOLLOWING else "fenced"

    @property
    def current(self) -> RoleState:
        return self._holder.state

    @property
    def epoch(self) -> Epoch:
        return self.current.epoch

    @property
    def announced(self) -> bool:
        """The NameServers name this broker as master although it does not serve yet."""
        return self._announced

    @property
    def is_master(self) -> bool:
        return self.state in MASTER

    @property
    def over(self) -> bool:
        """No role can come any more."""
        return self.state in FINAL

    # What happened

    def on(self, event: Event) -> None:
        """Raises IllegalEventError, and nothing changed."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise IllegalEventError(self.state, event)
        self.state = after
        if not self.is_master:
            self._announced = False
        if self.state is not State.FOLLOWING:
            self.ha_address = None
        self.check_invariants()

    def on_change(self) -> None:
        """The host begins to change the role."""
        if self._before is None:
            self._before = self.current

    def on_announced(self, announced: bool) -> None:
        """The NameServers are told now that this broker is master; or that came to nothing, or is over."""
        self._announced = announced

    def on_known(self, epoch: Epoch) -> None:
        """The Controllers heard of this start, in that epoch of the group. The first time counts."""
        if self._known_at is None:
            self._known_at = epoch

    def on_examined(self, losses: int) -> None:
        """The Controllers were asked with what this log held after so many ``losses``."""
        self._examined, self.cannot_begin = losses == self.losses, False

    def on_lost(self) -> None:
        """What the Controllers know of this log is about to be put aside."""
        self._examined = False
        self.losses += 1

    def on_cannot_begin(self) -> None:
        """This broker fails to lead, and that lasts: it asks for another election. Until that is answered it
        leads no epoch: the request may be on its way, and another broker be elected by it."""
        self._examined, self.cannot_begin = False, True

    def on_lead(self, broker_id: BrokerId, epoch: Epoch, address: str) -> bool:
        """This broker serves as master of ``epoch``; whether role, epoch or master are new."""
        self.beginning.on_lead()
        return self._became(Event.LEAD, RoleState("master", broker_id, epoch, address))

    def on_follow(
        self, broker_id: BrokerId, epoch: Epoch, master: str | None, ha_address: str | None
    ) -> bool:
        """This broker is slave of ``master``; whether role, epoch or master are new."""
        new = self._became(Event.FOLLOW, RoleState("slave", broker_id, epoch, master))
        self.ha_address = ha_address
        self._examined, self.cannot_begin = True, False  # the log agrees with a master's, or will
        return new

    def on_fence(self) -> None:
        """This broker serves nobody: it failed for good, or it is master no more and nobody else is."""
        event = Event.BREAK if self.state is State.BROKEN else Event.FENCE
        self._became(event, replace(self.current, role="fenced", master_address=None))

    def on_ha_hint(self, master_address: str, ha_address: str) -> bool:
        """A NameServer told where a master's slaves replicate from; whether that is news."""
        if self._ha_hints.get(master_address) == ha_address:
            return False
        self._ha_hints = {master_address: ha_address}
        return True

    def on_set(self, epoch: Epoch, set_epoch: int, now_ms: float) -> None:
        """The Controllers hold the SyncStateSet ``set_epoch`` of ``epoch``, as is known since ``now_ms``."""
        if (epoch, set_epoch) > self._set_known[:2]:
            self._set_known = (epoch, set_epoch, now_ms)

    def _became(self, event: Event, state: RoleState) -> bool:
        if state.epoch < self.epoch:
            raise BrokenInvariantError(f"the epoch goes back from {self.epoch} to {state.epoch}")
        # From here to ``set`` the role that is shown lags behind the state: a change is under way.
        before, self._before = self._before or self.current, self.current
        self.on(event)
        self._holder.set(state)
        self._before = None
        self.check_invariants()
        return before != state

    # What to do

    def decide(self, view: View, facts: Facts) -> Action:
        """What a view of the Controllers asks for."""
        action = self._decide(view, facts)
        return Stay() if facts.stopping and not isinstance(action, Adopt | Fence) else action

    def on_not_elected(self, view: View, why: str) -> Fence | Stay:
        """The Controllers' view names no master, and they refused to elect one."""
        if not self.is_master or view.epoch <= self.epoch:
            return Stay()
        # Deposed, and nobody took over: what this broker confirms from here on could be lost.
        return Fence(f"no master since epoch {view.epoch}: {why}")

    def _decide(self, view: View, facts: Facts) -> Action:
        if self.over or view.epoch < self.epoch:
            return Stay()
        gone_back = self._gone_back(view, facts)
        if gone_back is not None:
            return Fence(gone_back) if self.is_master else CannotBecome(gone_back)
        if view.master_id != facts.broker_id:
            return self._follow(view, facts)
        if self.is_master and view.epoch == self.epoch and self._before is None:
            # A RocketMQ Controller answers from what it has applied itself, though another may lead by now:
            # its view says nothing of a proposal without an answer. Ours answer when a majority has confirmed
            # that they lead.
            return Adopt(view.asked_ms if facts.leases_supported else None)
        return self._lead(view, facts)

    def _gone_back(self, view: View, facts: Facts) -> str | None:
        """Why the Controllers seem to have lost a decision of this epoch, or None."""
        epoch, set_epoch, since_ms = self._set_known
        older = view.epoch == epoch and view.set_epoch < set_epoch
        if not (facts.leases_supported and older and view.asked_ms > since_ms):
            return None
        return (
            f"the Controllers went back: epoch {epoch} has SyncStateSet {view.set_epoch}, it had {set_epoch}."
            " They could elect a broker that lacks confirmed messages: restore them, then restart this one"
        )

    def _lead(self, view: View, facts: Facts) -> Action:
        if facts.must_copy is not None:
            # No heartbeats are sent meanwhile: the Controllers elect another one, if there is one.
            return CannotBecome(f"cannot lead before it is copied from a master: {facts.must_copy}")
        if self.is_master and self.cannot_begin:
            return Fence(f"it is to lead epoch {view.epoch}, and cannot begin it")
        if not self.is_master:
            if view.epoch < facts.last_epoch:
                return CannotBecome(
                    f"the Controller wants us to lead epoch {view.epoch}, but our log has epoch"
                    f" {facts.last_epoch}; {self._help_if_lost}"
                )
            # We led this epoch before a restart, or were elected before it, for what the log had then. If the
            # machine lost the end of the log, another replica may hold other bytes there, acknowledged and
            # under the same epoch: a Controller that understands gives a new epoch, or another master.
            before = view.epoch == facts.last_epoch or view.epoch <= (self._known_at or NO_EPOCH)
            if not self._examined and (before or facts.suspect or self.cannot_begin):
                return AskAnew()
        # A RocketMQ Controller does not say where slaves replicate from, only NameServers do; and a RocketMQ
        # slave stays with the first master they name. So they hear of us before anything that takes time.
        # Writes are refused until ``lead``. With keelmq's Controllers clients would only come too early.
        return Lead(announce=view.master_ha_address is None and not self.is_master)

    def _follow(self, view: View, facts: Facts) -> Action:
        address, ha_address = view.master_address, view.master_ha_address
        if ha_address is None and address is not None:
            # Under a group address a NameServer does not say which broker its hint is about. A late hint
            # leads to a broker that refuses this slave, and the next registration brings another hint.
            ha_address = self._ha_hints.get(address) or self._ha_hints.get(facts.group_address or "")
        following = self.state is State.FOLLOWING
        if ha_address is None and following and address == self.current.master_address:
            ha_address = self.ha_address
        same = (view.epoch, address) == (self.epoch, self.current.master_address)
        if following and same and ha_address == self.ha_address and self._before is None:
            return Stay()
        # Only keelmq brokers tell the Controllers where slaves replicate from.
        return Follow(ha_address, rocketmq_peer=view.master_ha_address is None)

    def check_invariants(self) -> None:
        """Raise if a promise of the machine is broken."""
        if self._before is None and not self.over and self.current.role != self.role:
            raise BrokenInvariantError(f"outside of a change {self.state} is shown as {self.current.role}")
        if self.ha_address is not None and self.state is not State.FOLLOWING:
            raise BrokenInvariantError(f"a broker that is {self.state} has a master to copy from")
        if self._announced and self.over:
            raise BrokenInvariantError("a broker whose roles are over is announced as master")


def mermaid() -> str:
    """The life of a role as docs/role.md draws it."""
    lines = ["stateDiagram-v2", "    [*] --> UNREGISTERED"]
    for (before, event), after in TRANSITIONS.items():
        if before is not after and event not in (Event.BREAK, Event.STOP):
            lines.append(f"    {before.name} --> {after.name}: {event}")
    lines += [f"    ANY --> BROKEN: {Event.BREAK}", "    ANY --> STOPPED: stop", "    STOPPED --> [*]"]
    return "\n".join(lines)
