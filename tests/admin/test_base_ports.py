"""The promise of ports that are looked for: two clusters that are made in the same moment share none."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from admin.local import layout
from admin.local.layout import CLAIM_S, PORTS_EACH, free_base_port
from model.errors import ConfigError

SPAN = 3 * PORTS_EACH


@pytest.fixture
def few_ports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Room for three clusters at most, all of whose ports are free."""
    monkeypatch.setattr(layout, "BASE_PORT_MAX", layout.BASE_PORT_MIN + 4 * SPAN)
    monkeypatch.setattr(layout, "_is_free", lambda port: True)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"keelmq-ports-{os.getuid()}"


@pytest.mark.usefixtures("few_ports")
def test_no_port_is_given_twice() -> None:
    def drawn(_: int) -> int | None:
        try:
            return free_base_port(SPAN)
        except ConfigError:
            return None

    with ThreadPoolExecutor(4) as threads:
        bases = sorted(base for base in threads.map(drawn, range(8)) if base is not None)
    assert bases
    assert all(later - former >= SPAN for former, later in pairwise(bases))


def test_a_claim_that_is_old_holds_nobody_up(few_ports: Path) -> None:
    def all_there_are() -> None:
        for _ in range(5):
            free_base_port(SPAN)

    with pytest.raises(ConfigError, match="--base-port"):
        all_there_are()
    for claim in few_ports.iterdir():
        os.utime(claim, (0, claim.stat().st_mtime - CLAIM_S - 1))
    assert free_base_port(SPAN) >= layout.BASE_PORT_MIN
