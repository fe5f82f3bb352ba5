"""Ports of a drill's cluster, which nobody else is given as long as it is there, whichever server is down.

As ``admin.local.layout`` has it, who holds the last port of each server's range has the others: no server
listens at it. There a claim lasts until servers listen; a drill kills them, and needs their ports again.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from admin.local.layout import BASE_PORT_MAX, BASE_PORT_MIN, HOST, PORTS_EACH, is_free
from model.errors import ConfigError

TRIES: Final = 200


@contextmanager
def held(servers: int) -> Iterator[int]:
    """The first port of as many ranges, held until this block, or its process, ends. Raises ConfigError."""
    chance, span = random.Random(), servers * PORTS_EACH
    for _ in range(TRIES):
        base = chance.randrange(BASE_PORT_MIN, BASE_PORT_MAX - span, PORTS_EACH)
        with ExitStack() as claims:
            if all(map(is_free, range(base, base + span))) and _claimed(base, span, claims):
                yield base
                return
    raise ConfigError(f"found no {span} free ports in a row")


def _claimed(base: int, span: int, claims: ExitStack) -> bool:
    try:
        for first in range(base, base + span, PORTS_EACH):
            claim = claims.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            claim.bind((HOST, first + PORTS_EACH - 1))
    except OSError:
        return False
    return True
