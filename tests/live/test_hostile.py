"""A hostile client of a live group beside a calm one; the long run is ``python -m tests.fuzz.hostile``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.hostile.run import Options, run

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]


async def test_a_hostile_client_moves_no_master_breaks_no_server_and_loses_no_message(tmp_path: Path) -> None:
    result = await run(tmp_path / "cluster", Options(seconds=6, alone_s=2, seed=13))
    # How fast the calm client was is told by the long run: here other tests run beside it.
    broken = [c for c in result["checks"] if not c["ok"] and not c["check"].startswith("p99")]
    assert broken == []
    assert sum(result["attack"]["requests"].values()) > 200
