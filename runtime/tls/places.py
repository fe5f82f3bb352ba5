"""How many connections that have not begun does a port hold?"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Places:
    """In all, and of one address: a server's maxConnections and maxConnectionsPerAddress."""

    total: int = 20_000
    per_address: int = 10_000
