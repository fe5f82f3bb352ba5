"""What does a scenario decide before a run begins?"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

from chaos.faults import PLAN_MS_MAX, Reconfigure, RollingChange, Step
from chaos.values import made, within
from chaos.workload import Load

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
CHANGES: Final = (Reconfigure, RollingChange)
"""Faults with ``values`` for a broker's keys."""
RENAMED: Final = {"power_failures": "unsynced_excused"}
"""Members of schedules that were written before."""


@dataclass(slots=True)
class Plan:
    """One run: its cluster, its load, its faults. Times in ms; ``load_ms`` starts when the cluster is ready.

    ``unsynced_excused``: bytes not synced may be lost, so the checks do not count them; a swarm finds it
    out by what happened. ``quiet_ms``: how long the healed cluster may take to converge.
    """

    steps: Sequence[Step]
    load: Load = field(default_factory=Load)
    load_ms: int = 6000
    quiet_ms: int = 20_000
    network: Mapping[str, float] = field(default_factory=dict)
    """Fields of ``chaos.sim.net.NetProfile``."""
    offload_ms: tuple[float, float] = (0.1, 2.0)
    shuffle_tasks: bool = False
    broker: Mapping[str, str] = field(default_factory=dict)
    controller: Mapping[str, str] = field(default_factory=dict)
    unsynced_excused: bool = False
    stall_max_ms: int | None = None
    """Longest time during the load without an acknowledged send, where the story allows a promise."""
    serves_ms: int | None = None
    """Longest time without an acknowledged send while there is a master, and nothing is broken but that other
    brokers were killed."""
    set_kept: bool = False
    """Until a fault other than standing still no master has a reason to drop a member of its SyncStateSet."""
    errors_expected: bool = False
    """Nodes will log errors: that is what a broken disk is for."""
    brokers: int = 3
    learners: int = 0
    tolerates: int | None = None
    """So many brokers hit by faults may cost acknowledged messages, by the mode: None for none."""
    extras: bool = False
    """Delayed messages, transactions, messages given back, offsets, topics and groups are asked for, too."""
    pops: Sequence[str] = ()
    """A group pops; what else is done with it: "reset", "delete", "pull", "hide". "pop": nothing."""
    waits: bool = False
    """Timers, recalls, topics that go while messages wait for them, and halves that are asked about."""
    neighbour: bool = False
    """A second group of two brokers, ``c1`` and ``c2``, lives with the same NameServers and Controllers."""
    neighbour_broker: Mapping[str, str] = field(default_factory=dict)
    """Its brokers' configuration, beside what all of them have."""
    controllers_first: bool = False
    """The brokers are started once a Controller leads; else all at once."""
    calm_ms: int | None = None
    """Nothing is broken and all are members again for so long: the next step comes at once. None: each step
    comes at its time."""
    one_client: bool = False
    """The producers share one client, its routes and its connections."""
    swarm: bool = False
    """Losses that the mode promises away are accounted for, message by message."""

    def always(self, key: str, value: str, *, default: str) -> bool:
        """Whether a key of the brokers has this value from the begin on, and no step changes it."""
        told = [step.fault.values.get(key, value) for step in self.steps if isinstance(step.fault, CHANGES)]
        return {self.broker.get(key, default), *told} == {value}

    def to_json(self) -> dict[str, Any]:
        """All of it: ``from_json`` makes the same plan."""
        return {
            **{entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)},
            "steps": [step.to_json() for step in self.steps],
            "load": {key: _plain(value) for key, value in asdict(self.load).items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Plan:
        """Raises ValueError that says what is wrong."""
        try:
            values = {RENAMED.get(name, name): value for name, value in data.items()}
            steps = [Step.from_json(step) for step in values.pop("steps")]
            load = made(Load, values.pop("load", {}))
            plan = replace(made(cls, {**values, "steps": []}), steps=steps, load=load)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a plan: {error}") from None
        plan.check()
        return plan

    def check(self) -> None:
        """Raises ValueError for what no run could be of."""
        low, high = self.load.body_bytes
        for name, value, least, most in (
            ("load_ms", self.load_ms, 0, PLAN_MS_MAX),
            ("quiet_ms", self.quiet_ms, 0, PLAN_MS_MAX),
            ("brokers", self.brokers, 1, 9),
            ("producers", self.load.producers, 0, 1000),
            ("queues", self.load.queues, 1, 1000),
            ("per_second", self.load.per_second, 0.001, 1e6),
            ("in_flight_max", self.load.in_flight_max, 1, 1000),
            ("make_up_s", self.load.make_up_s, 0, 3600),
            ("body_bytes", low, 0, high),
            ("body_bytes", high, low, BODY_BYTES_MAX),
        ):
            within(name, value, least, most)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class Scenario:
    """``name`` is a sentence; ``plan`` draws one run from a random source."""

    name: str
    text: str
    plan: Callable[[random.Random], Plan]

    def drawn(self, seed: int) -> Plan:
        """The plan of a seed, in either world."""
        return self.plan(random.Random(f"{self.name}:{seed}"))
