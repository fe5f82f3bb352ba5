"""What does a scenario decide before a run begins?"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from chaos.faults import Step
from chaos.workload import Load


@dataclass(slots=True)
class Plan:
    """One run: its cluster, its load, its faults. Times in ms; ``load_ms`` starts when the cluster is ready.

    ``power_failures``: bytes not synced may be lost, so the checks do not count them. ``quiet_ms``: how long
    the healed cluster may take to converge.
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
    power_failures: bool = False
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
        values = dict(data)
        try:
            low, high = values.pop("offload_ms", (0.1, 2.0))
            load = dict(values.pop("load", {}))
            if "body_bytes" in load:
                load["body_bytes"] = tuple(load["body_bytes"])
            steps = [Step.from_json(step) for step in values.pop("steps")]
            for spec in fields(cls):
                value = values.get(spec.name)
                if str(spec.type).startswith(("int", "bool")) and not isinstance(value, int | None):
                    raise TypeError(f"{spec.name} is {value!r}")
            return cls(steps, Load(**load), offload_ms=(low, high), **values)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a plan: {error}") from None


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
