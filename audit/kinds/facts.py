"""What every kind of finding is decided from: the replicas, and where they are known to agree."""

from __future__ import annotations

from typing import Any

from audit.compare import Ranges
from audit.findings import Finding
from audit.reading.layout import Replica


class Facts:
    """The replicas and what is known about where they agree."""

    def __init__(self, replicas: list[Replica], reference: int, ranges: Ranges) -> None:
        self.replicas = replicas
        self.reference = reference
        self.ranges = ranges

    def at(self, kind: str, severity: str, replica: int, begin: int, end: int, **columns: Any) -> Finding:
        r = self.replicas[replica]
        return Finding(
            kind,
            severity,
            r.name,
            r.segment_name(begin),
            r.epoch_at(begin),
            begin,
            end,
            **columns,
        )

    def holders(self, begin: int, end: int) -> list[int]:
        return [at for at, r in enumerate(self.replicas) if not r.empty and r.covers(begin, end)]

    def equal_to_reference(self, replica: int, begin: int, end: int) -> bool:
        return replica == self.reference or any(
            a <= begin and end <= b for a, b in self.ranges.equal.get(replica, [])
        )
