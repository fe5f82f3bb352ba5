"""What can be broken, as values: a scenario lists them, each world carries them out (``chaos/sim/faults``
under virtual time, ``chaos/live/executor`` on real processes).

A target is a node's name, or a role that is looked up at the moment of the fault: ``master``, ``slave`` (one
of them), ``leader`` (the Controllers'), ``broker`` (any), ``namesrv`` (any). A role nobody holds then makes
the fault a no-op. A step may ``bind`` what it hit to a name; ``=name`` is that node in later steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Literal

from chaos.values import made, within

Direction = Literal["both", "in", "out"]
MORE_WAYS: Final[Sequence[Direction]] = ("both", "both", "both", "out", "in")
WAYS: Final[Sequence[Direction]] = ("both", "both", "out", "in")
"""Directions to choose from, more often both."""
PLAN_MS_MAX: Final = 86_400_000
"""No plan lasts longer than a day."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing done to one node, or to the links between nodes."""

    name: ClassVar[str] = "fault"
    target: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"fault": self.name, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Look(Fault):
    """Nothing: a step that only binds a role's holder to a name."""

    name: ClassVar[str] = "look"


@dataclass(frozen=True, slots=True)
class Kill(Fault):
    """SIGKILL: the process is gone, the page cache and the kernel's sockets are not."""

    name: ClassVar[str] = "kill"


@dataclass(frozen=True, slots=True)
class Restart(Fault):
    """Start a node that was killed, stopped or lost its power; a running one is left alone."""

    name: ClassVar[str] = "restart"


@dataclass(frozen=True, slots=True)
class Stop(Fault):
    """SIGTERM: an orderly stop."""

    name: ClassVar[str] = "stop"


@dataclass(frozen=True, slots=True)
class Pause(Fault):
    """SIGSTOP."""

    name: ClassVar[str] = "pause"


@dataclass(frozen=True, slots=True)
class Resume(Fault):
    """SIGCONT."""

    name: ClassVar[str] = "resume"


@dataclass(frozen=True, slots=True)
class PowerFail(Fault):
    """The machine loses power: what was not synced may be lost, peers are not told."""

    name: ClassVar[str] = "power_fail"


@dataclass(frozen=True, slots=True)
class Isolate(Fault):
    """Drop every packet between the target and all others, or one direction of them (``out``, ``in``)."""

    name: ClassVar[str] = "isolate"
    direction: Direction = "both"


@dataclass(frozen=True, slots=True)
class Cut(Fault):
    """Drop packets between the target and another node, both ways or one. ``other``: a name, a role, or
    ``brokers`` or ``namesrvs``: every other one of these."""

    name: ClassVar[str] = "cut"
    other: str = "namesrv"
    direction: Direction = "both"


@dataclass(frozen=True, slots=True)
class Heal(Fault):
    """End every cut, and all that befalls packets; connections that lived through it go on."""

    name: ClassVar[str] = "heal"


@dataclass(frozen=True, slots=True)
class SlowNetwork(Fault):
    """Add ``extra_ms`` to each packet from and to the target."""

    name: ClassVar[str] = "slow_network"
    extra_ms: float = 50.0


@dataclass(frozen=True, slots=True)
class LosePackets(Fault):
    """Lose a ``share`` of the packets from and to the target, until links are healed."""

    name: ClassVar[str] = "lose_packets"
    share: float = 0.05


@dataclass(frozen=True, slots=True)
class DoublePackets(Fault):
    """Deliver a ``share`` of the packets from and to the target twice, until links are healed."""

    name: ClassVar[str] = "double_packets"
    share: float = 0.2


@dataclass(frozen=True, slots=True)
class ReorderPackets(Fault):
    """Each packet from and to the target takes up to ``by_ms`` longer, each its own time, so later ones
    overtake it, until links are healed."""

    name: ClassVar[str] = "reorder_packets"
    by_ms: float = 20.0


@dataclass(frozen=True, slots=True)
class NarrowLinks(Fault):
    """Let no more than ``kib_per_s`` through each link from and to the target, until links are healed."""

    name: ClassVar[str] = "narrow_links"
    kib_per_s: float = 64.0


@dataclass(frozen=True, slots=True)
class ResetLinks(Fault):
    """Reset every connection of the target."""

    name: ClassVar[str] = "reset_links"


@dataclass(frozen=True, slots=True)
class SlowDisk(Fault):
    """Add ``extra_ms`` to every sync and other blocking disk call; 0 ends it."""

    name: ClassVar[str] = "slow_disk"
    extra_ms: float = 100.0


@dataclass(frozen=True, slots=True)
class DiskFull(Fault):
    """No new block can be had; ``full=False`` ends it."""

    name: ClassVar[str] = "disk_full"
    full: bool = True


@dataclass(frozen=True, slots=True)
class NoDescriptors(Fault):
    """The process has no file descriptor left, until ``lacking=False`` or its end."""

    name: ClassVar[str] = "no_descriptors"
    lacking: bool = True


@dataclass(frozen=True, slots=True)
class SyncError(Fault):
    """The next ``count`` syncs fail with EIO, and their dirty pages are lost."""

    name: ClassVar[str] = "sync_error"
    count: int = 1


@dataclass(frozen=True, slots=True)
class WriteError(Fault):
    """The next ``count`` writes to files fail with EIO, and write nothing."""

    name: ClassVar[str] = "write_error"
    count: int = 1


@dataclass(frozen=True, slots=True)
class ReadError(Fault):
    """The next ``count`` reads of files fail with EIO."""

    name: ClassVar[str] = "read_error"
    count: int = 1


@dataclass(frozen=True, slots=True)
class FlipBit(Fault):
    """One bit of what lies under ``prefix`` on the target's disk changes."""

    name: ClassVar[str] = "flip_bit"
    prefix: str = "/store/commitlog/"


@dataclass(frozen=True, slots=True)
class ClockJump(Fault):
    """Move the target's wall clock by ``by_ms``; monotonic clocks go on undisturbed."""

    name: ClassVar[str] = "clock_jump"
    by_ms: int = 3_600_000


@dataclass(frozen=True, slots=True)
class Partition(Fault):
    """Cut the network in a shape. ``clients``, ``controllers``, ``slaves``, ``servers`` (all but clients),
    ``peers`` (servers of its kind): the target from these, in a direction. ``halves``: two rooms.
    ``minority``: two rooms, the target's with few Controllers. ``bridge``: two rooms and the target, which
    hears both. ``ring``: each server hears two others."""

    name: ClassVar[str] = "partition"
    shape: str = "halves"
    direction: Direction = "both"


@dataclass(frozen=True, slots=True)
class LyingSync(Fault):
    """Syncs return as if done and write nothing, until ``lying=False``."""

    name: ClassVar[str] = "lying_sync"
    lying: bool = True


@dataclass(frozen=True, slots=True)
class Wipe(Fault):
    """An empty disk takes the place of a dead node's; nothing happens to one that runs."""

    name: ClassVar[str] = "wipe"


@dataclass(frozen=True, slots=True)
class Snapshot(Fault):
    """Keep a copy of what is on the target's disk now, for a later ``PutBack``; the node goes on."""

    name: ClassVar[str] = "snapshot"


@dataclass(frozen=True, slots=True)
class PutBack(Fault):
    """A dead node's disk is as it was at its last ``Snapshot``; one that runs, or has none, is left alone."""

    name: ClassVar[str] = "put_back"


@dataclass(frozen=True, slots=True)
class Reconfigure(Fault):
    """Change keys of a broker's configuration; they count from its next start on."""

    name: ClassVar[str] = "reconfigure"
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RollingChange(Fault):
    """Restart the brokers with other ``values``, slaves first, each when all are members again; an operator
    who waits in vain stops there."""

    name: ClassVar[str] = "rolling_change"
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Upgrade(Fault):
    """Replace every server by one of another release, one after the other, in the order of
    docs/operations.md. A cluster whose plan has this begins with the previous release; ``back`` returns to
    it. The simulated world has one release: there the brokers are restarted."""

    name: ClassVar[str] = "upgrade"
    back: bool = False


@dataclass(frozen=True, slots=True)
class HandOver(Fault):
    """An operator asks for another master; a refusal is no fault of the cluster."""

    name: ClassVar[str] = "hand_over"


@dataclass(frozen=True, slots=True)
class OwnFault(Fault):
    """A fault of another package (docs/chaos.md): a frozen dataclass with a ``name`` that says how it is
    carried out. A world whose method it lacks refuses it. A node that it struck is not counted as well
    again before the group is full."""

    needs: ClassVar[Sequence[str]] = ()
    """Of the machine, on real processes: names of ``LACKS`` in ``chaos.live.means``, as ``namespaces``."""

    def simulated(self, cluster: Any, node: str) -> bool:
        """On a ``chaos.sim.cluster.SimCluster``; whether it struck anything."""
        raise NotImplementedError(f"{self.name} has no means in the simulated world")

    async def live(self, cluster: Any, node: Any) -> bool:
        """On an ``admin.local.cluster.LocalCluster`` and one ``Node`` of it; whether it struck anything.
        Raises MqError or OSError with the reason why it cannot."""
        raise NotImplementedError(f"{self.name} has no means on real processes")

    async def mend(self, cluster: Any, node: Any) -> None:
        """Undo on real processes what ``live`` did and no later step undid; every server is started after."""


def kind_of(name: str) -> type[Fault] | None:
    """The fault of that name: of the suite, or of another package that was imported."""
    # A dataclass with slots is made twice: the last one is the class that its module knows.
    own = {kind.name: kind for kind in _under(OwnFault)}
    return FAULTS.get(name) or own.get(name)


def _under(kind: type[OwnFault]) -> Iterator[type[OwnFault]]:
    for own in kind.__subclasses__():
        yield own
        yield from _under(own)


@dataclass(frozen=True, slots=True)
class Step:
    """A fault at a time, ms since the load began. ``bind`` names the node it hits for later steps."""

    at_ms: int
    fault: Fault
    bind: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"at_ms": self.at_ms, **self.fault.to_json(), **({"bind": self.bind} if self.bind else {})}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Step:
        """Raises ValueError that says what is wrong."""
        try:
            fields = dict(data)
            at_ms, bind = fields.pop("at_ms"), fields.pop("bind", "")
            at_ms = int(at_ms) if isinstance(at_ms, float) and at_ms.is_integer() else at_ms
            kind = kind_of(str(fields.pop("fault")))
            if kind is None:
                raise ValueError("there is no such fault")
            if isinstance(at_ms, bool) or not isinstance(at_ms, int) or not isinstance(bind, str):
                raise ValueError(f"its time is {at_ms!r}, its bind {bind!r}")
            within("at_ms", at_ms, 0, PLAN_MS_MAX)
            return cls(at_ms, made(kind, fields), bind)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{data!r} is no step of a schedule: {error}") from None


FAULTS: Final[dict[str, type[Fault]]] = {
    kind.name: kind for kind in Fault.__subclasses__() if kind.name != Fault.name
}


def ordered(*parts: Sequence[Step]) -> list[Step]:
    """All steps by time; of two at one time the one named first comes first."""
    return sorted((step for part in parts for step in part), key=lambda step: step.at_ms)


def then(at_ms: int, fault: Fault, after_ms: int, repair: type[Fault], bind: str) -> list[Step]:
    """A fault at ``at_ms`` and, ``after_ms`` later, the repair of whatever it hit."""
    return [Step(at_ms, fault, bind), Step(at_ms + after_ms, repair(f"={bind}"))]
