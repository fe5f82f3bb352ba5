"""The promise of ports that are looked for: two clusters that are made in the same moment share none."""

from __future__ import annotations

import socket
import subprocess
import sys
from itertools import pairwise

import pytest

from admin.local import layout
from admin.local.layout import PORTS_EACH, free_base_port
from model.errors import ConfigError

SPAN = 3 * PORTS_EACH
ROOM = f"""
import sys
from admin.local import layout
from model.errors import ConfigError
layout.BASE_PORT_MAX = layout.BASE_PORT_MIN + {4 * SPAN}
layout.is_free = lambda port: True
try:
    print(layout.free_base_port({SPAN}), flush=True)
except ConfigError:
    print(0, flush=True)
sys.stdin.read()
"""


def test_no_port_is_given_to_two_processes() -> None:
    """There is room for three or four; the ports of all that drew are still free when the next one draws."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", ROOM], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(6)
    ]
    bases = []
    for process in running:
        assert process.stdout is not None
        bases.append(int(process.stdout.readline()))
    for process in running:
        process.communicate(timeout=30)
    given = sorted(base for base in bases if base)
    assert 1 <= len(given) < len(running)
    assert all(later - former >= SPAN for former, later in pairwise(given))


def test_claims_that_are_old_hold_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BASE_PORT_MIN", 19_000)
    monkeypatch.setattr(layout, "BASE_PORT_MAX", 19_000 + 4 * SPAN)
    monkeypatch.setattr(layout, "is_free", lambda port: True)
    claims: list[tuple[float, socket.socket]] = []
    monkeypatch.setattr(layout, "_claims", claims)

    def all_there_are() -> None:
        for _ in range(5):
            free_base_port(SPAN)

    with pytest.raises(ConfigError, match="--base-port"):
        all_there_are()
    claims[:] = [(0.0, claim) for _, claim in claims]
    assert free_base_port(SPAN) >= layout.BASE_PORT_MIN
    assert len(claims) == SPAN // PORTS_EACH
    for _, claim in claims:
        claim.close()
