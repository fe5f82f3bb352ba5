"""The promise of keelmq drill list: whatever can be asked, broken and checked is in it."""

from __future__ import annotations

from chaos.checks import CHECKERS
from chaos.drills.live.listing import LIVE_ONLY
from chaos.drills.live.verdicts import BESIDE
from chaos.faults import FAULTS
from chaos.scenarios.matrix import KINDS
from tests.live.commands import Shell


def test_drills_on_a_staging_cluster_and_kinds_of_the_matrix_are_listed() -> None:
    rows = {row["name"]: row for row in Shell().json("drill", "list")}
    assert {f"matrix/{name}" for name in KINDS} | {"staging/kill", "staging/pause"} <= set(rows)
    assert rows["staging/stop"]["how"] == "keelmq drill staging HOSTS.toml --kind stop"
    assert rows["matrix/flapping"]["faults"] == ["partition"]


def test_every_fault_is_listed_with_what_it_takes() -> None:
    rows = {row["name"]: row for row in Shell().json("drill", "list", "--faults")}
    assert set(FAULTS) | set(LIVE_ONLY) <= set(rows)
    assert rows["slow_network"]["arguments"] == {"extra_ms": 50.0}
    assert rows["isolate"]["arguments"] == {"direction": "both"}
    assert rows["isolate"]["needs"] == ["namespaces"]
    assert rows["memory_limit"]["text"].endswith("Not simulated.")
    assert all(row["text"].strip() for row in rows.values())
    said = Shell()("drill", "list", "--faults")
    assert "slow_disk extra_ms=100.0" in said


def test_every_check_is_listed_with_what_it_promises() -> None:
    rows = {row["name"]: row["text"] for row in Shell().json("drill", "list", "--checks")}
    assert set(rows) >= {*CHECKERS, *BESIDE}
    assert rows["lost"].startswith("Every acknowledged message is in every full reading")
    assert all(rows.values())
