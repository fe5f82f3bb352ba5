"""What does a toxic do to the bytes of one connection in one direction?

Kinds, attributes, defaults and errors are Toxiproxy's (v2.12): ``tests/chaos/test_links.py`` asks both.
Times are milliseconds, except a slicer's ``delay``, which is microseconds; a bandwidth's ``rate`` is KB/s.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from model.errors import MqError

UPSTREAM: Final = "upstream"
DOWNSTREAM: Final = "downstream"
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "bandwidth": ("rate",),
    "latency": ("latency", "jitter"),
    "limit_data": ("bytes",),
    "reset_peer": ("timeout",),
    "slicer": ("average_size", "size_variation", "delay"),
    "slow_close": ("delay",),
    "timeout": ("timeout",),
}
"""Attributes of each kind; all are integers, 0 unless given."""


class BadToxic(MqError):
    """A toxic as no Toxiproxy would take it; the text says why."""


@dataclass(slots=True)
class Toxic:
    """One toxic of a proxy. ``upstream`` is what clients send; ``toxicity`` is the share of connections."""

    name: str
    kind: str
    stream: str = DOWNSTREAM
    toxicity: float = 1.0
    attributes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Toxic:
        """Raises BadToxic."""
        kind, stream = data.get("type", ""), data.get("stream", "") or DOWNSTREAM
        if stream not in (UPSTREAM, DOWNSTREAM):
            raise BadToxic("stream was invalid, can be either upstream or downstream")
        if not isinstance(kind, str) or kind not in KINDS:
            raise BadToxic("invalid toxic type")
        toxic = cls(
            str(data.get("name") or f"{kind}_{stream}"), kind, stream, 1.0, dict.fromkeys(KINDS[kind], 0)
        )
        toxic.change(data)
        return toxic

    def change(self, data: Mapping[str, Any]) -> None:
        """Take other attributes or another toxicity. Raises BadToxic; nothing is changed then."""
        given = data.get("attributes") or {}
        if not isinstance(given, Mapping):
            raise BadToxic("bad request body: attributes is not an object")
        changed = dict(self.attributes)
        for name in self.attributes.keys() & given.keys():
            value = given[name]
            if isinstance(value, bool) or not isinstance(value, int):
                raise BadToxic(
                    f"bad request body: attribute {name} of {self.kind} is not an integer: {value!r}"
                )
            changed[name] = value
        toxicity = data.get("toxicity", self.toxicity)
        if isinstance(toxicity, bool) or not isinstance(toxicity, int | float):
            raise BadToxic(f"bad request body: toxicity is not a number: {toxicity!r}")
        self.attributes, self.toxicity = changed, float(toxicity)

    def to_json(self) -> dict[str, Any]:
        """As Toxiproxy shows it."""
        toxicity = int(self.toxicity) if self.toxicity == int(self.toxicity) else self.toxicity
        return {
            "attributes": self.attributes,
            "name": self.name,
            "type": self.kind,
            "stream": self.stream,
            "toxicity": toxicity,
        }

    def delay_s(self, chance: random.Random) -> float:
        """How long a chunk is held: of a latency toxic."""
        jitter = self.attributes["jitter"]
        spread = chance.randint(-jitter, jitter) if jitter > 0 else 0
        return max(0, self.attributes["latency"] + spread) / 1000

    def pieces(self, data: bytes, chance: random.Random) -> Iterator[bytes]:
        """The chunk in pieces of ``average_size`` ± ``size_variation``: of a slicer."""
        average, variation = self.attributes["average_size"], self.attributes["size_variation"]
        at = 0
        while at < len(data):
            spread = chance.randint(-variation, variation) if variation > 0 else 0
            size = max(1, average + spread) if average > 0 else len(data)
            yield data[at : at + size]
            at += size
