"""The promise of the alert rules: they fire at a failure and end when it is mended (played by promtool)."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests import ROOT

PROMETHEUS = ROOT / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool") or shutil.which(str(ROOT / ".tools" / "promtool"))


@pytest.mark.more
@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: make promtool builds one")
@pytest.mark.parametrize(
    "command", [("check", "rules", "keelmq.rules.yml"), ("test", "rules", "keelmq.rules.test.yml")]
)
def test_rules_are_what_prometheus_takes_and_fire_and_end(command: tuple[str, ...]) -> None:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *command], cwd=PROMETHEUS, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
