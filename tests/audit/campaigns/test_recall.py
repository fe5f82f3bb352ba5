"""The promise of the audit over all kinds of damage: each is named where it is, and nothing else is.

``python -m tests.audit.recall`` has more seeds, five replicas and both engines: docs/results/audit-recall.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.audit.plants import run_local
from tests.audit.recall.__main__ import main
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.group import Group
from tests.audit.recall.judge import alarms, do, misses
from tests.audit.recall.spent import cpu_s
from tests.audit.recall.together import BUNDLES, LAWFUL, planted


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    group = Group(tmp_path, 3, seed=1000)
    done = do(group, name, DAMAGES[name])
    report = run_local(group.stores, group.ledger)
    assert misses(report, [done]) == [], report.findings


@pytest.mark.parametrize("name", BENIGN)
def test_what_differs_lawfully_is_no_finding(name: str, tmp_path: Path) -> None:
    group = Group(tmp_path, 3, seed=1000)
    BENIGN[name](group)
    report = run_local(group.stores, group.ledger)
    assert alarms(report) == []
    assert report.verdict == "clean"


@pytest.mark.parametrize(
    ("name", "seed"), [*((name, 1000) for name in BUNDLES), ("places, and a segment cut", 1)]
)
def test_no_damage_hides_another(name: str, seed: int, tmp_path: Path) -> None:
    """Of seed 1: a queue offset altered to 2^28 in front of a place that is skipped everywhere."""
    group, done = planted(tmp_path, BUNDLES[name], 3, seed)
    report = run_local(group.stores, group.ledger)
    assert misses(report, done) == [], report.findings


def test_each_damage_and_lawful_difference_is_in_one_bundle() -> None:
    assert sorted(name for bundle in BUNDLES.values() for name, _ in bundle.ones) == sorted(DAMAGES)
    assert sorted(name for bundle in LAWFUL.values() for name, _ in bundle.ones) == sorted(BENIGN)


def test_a_campaign_goes_on_in_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part does what those before it left, and says what it cost."""
    told = tmp_path / "done.jsonl"
    part = ["--json", str(told), "--replicas", "3", "--seeds", "2", "--only", "magic", "nothing"]
    for groups, lines in ((1, 1), (2, 3), (9, 4), (9, 4)):
        assert main([*part, "--groups", str(groups)]) == 0
        assert len(told.read_text().splitlines()) == lines
    rows = [json.loads(line) for line in told.read_text().splitlines()]
    assert [(row["name"], row["seed"]) for row in rows] == [
        (name, seed) for seed in (0, 1) for name in ("magic", "nothing")
    ]
    assert "0 groups now" in capsys.readouterr().out
    other = tmp_path / "other.jsonl"
    assert main(["--json", str(other), "--replicas", "3", "--first", "7", "--seeds", "1", *part[-3:]]) == 0
    assert [json.loads(line)["seed"] for line in other.read_text().splitlines()] == [7, 7]


def test_what_a_process_below_took_is_counted() -> None:
    before = cpu_s()
    program = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as below:
        assert below.stdout is not None
        assert below.stdout.readline()
        during = cpu_s() - before
        below.communicate(b"\n")
    assert 0.4 < during < 5
    assert cpu_s() - before >= during
