"""What goes into ``controller.elections.election`` and what comes out: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.elections.liveness import Broker
from controller.elections.preview import ElectionRequest
from controller.groups.commands import (
    Answer,
    ElectMaster,
)
from model.errors import MqError

Fields = Mapping[str, str | int]

# Events


@dataclass(frozen=True, slots=True)
class Tick:
    """The time of the last ``WakeAt`` has come, or something happened."""


@dataclass(frozen=True, slots=True)
class LeadershipChanged:
    """Whether this Controller leads the Raft group, and the term."""

    leads: bool
    term: int


@dataclass(frozen=True, slots=True)
class Settled:
    """The table holds all that was committed when ``Settle`` with this number was asked for."""

    number: int


@dataclass(frozen=True, slots=True)
class NotSettled:
    number: int
    error: MqError


@dataclass(frozen=True, slots=True)
class StoodStill:
    """This process did not run for this long, perhaps the brokers on this machine neither."""

    for_ms: float


@dataclass(frozen=True, slots=True)
class BrokerBack:
    """A broker that was not alive sent a heartbeat: perhaps the one a group without master waits for."""

    group: str


@dataclass(frozen=True, slots=True)
class SessionsEnded:
    brokers: tuple[Broker, ...]


@dataclass(frozen=True, slots=True)
class Answered:
    """A candidate answered ``Ask``, or did not (``end`` None): epoch and offset where its log ends, and
    whether it still hears its master. ``full``: as master it could take no messages. ``reached``: it
    answered, whatever it was."""

    group: str
    inquiry: int
    broker_id: int
    end: tuple[int, int] | None = None
    following: bool = False
    full: bool = False
    reached: bool = False


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """The master that was asked to hand over did, or did not answer. ``error``: it says that it cannot."""

    group: str
    master: int
    handed_over: bool
    error: MqError | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """The table's answer to ``Propose``."""

    group: str
    answer: Answer


@dataclass(frozen=True, slots=True)
class NotCommitted:
    """``Propose`` failed. ``deposed``: this Controller leads no more."""

    group: str
    error: MqError
    deposed: bool = False


@dataclass(frozen=True, slots=True)
class Requested:
    """A broker or an operator asks for an election; ``Reply`` answers this ticket."""

    ticket: int
    group: str
    request: ElectionRequest


OfGroup = BrokerBack | Answered | SteppedDown | Committed | NotCommitted | Requested
Event = Tick | LeadershipChanged | Settled | NotSettled | StoodStill | SessionsEnded | OfGroup

# Actions


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until the table holds all that was committed; then ``Settled``."""

    number: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask these brokers how far their logs are and whether they hear the master; ``Answered`` for each."""

    group: str
    inquiry: int
    broker_ids: tuple[int, ...]
    longest_s: float


@dataclass(frozen=True, slots=True)
class StopAsking:
    """The answers that are missing do not matter any more."""

    group: str


@dataclass(frozen=True, slots=True)
class AskStepDown:
    """Ask the master to stop taking writes until ``target`` has all of its log; ``SteppedDown``."""

    group: str
    master: int
    epoch: int
    target: int
    term: int


@dataclass(frozen=True, slots=True)
class Propose:
    """Commit the election; ``Committed`` or ``NotCommitted``."""

    command: ElectMaster


@dataclass(frozen=True, slots=True)
class Announce:
    """Tell the brokers of the group which one is their master."""

    group: str


@dataclass(frozen=True, slots=True)
class Reply:
    ticket: int
    result: Answer | MqError


@dataclass(frozen=True, slots=True)
class Report:
    """A log line; with a name also an event that operators see. ``mistake``: ours, whose trace is logged."""

    text: str
    level: str = "warning"
    event: str = ""
    fields: Fields = field(default_factory=dict)
    mistake: Exception | None = None


@dataclass(frozen=True, slots=True)
class WakeAt:
    """``Tick`` then (monotonic, ms), if not before. The last action of every step."""

    at_ms: float


Action = Settle | Ask | StopAsking | AskStepDown | Propose | Announce | Reply | Report | WakeAt
