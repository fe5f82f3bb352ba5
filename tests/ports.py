"""Free ports of this machine, for servers that must know each other's beforehand.

They lie below what the kernel gives to clients, so nobody's connection takes one between now and the start,
and each worker of a test run has a range of its own.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from typing import Final

FIRST: Final = 11_000
EACH: Final = 1_000
WORKERS: Final = 9


def _candidates() -> Iterator[int]:
    """Every port of this worker's range, again and again."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    place = int(worker[2:]) % WORKERS if worker else random.randrange(WORKERS)
    at = random.randrange(EACH)
    while True:
        yield FIRST + place * EACH + at
        at = (at + 1) % EACH


_following: Final = _candidates()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_ports(count: int) -> list[int]:
    """So many ports, none of which was given lately."""
    found: list[int] = []
    for _ in range(EACH):
        port = next(_following)
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports among {EACH}")


def free_port() -> int:
    return free_ports(1)[0]


def free_port_of_broker() -> int:
    """A port P with P - 2 and P + 1 free as well: a broker takes all three."""
    while True:
        ports = free_ports(4)
        if ports[3] - ports[0] == 3:
            return ports[2]
