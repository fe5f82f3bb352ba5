"""Results of campaigns, as tests need them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from chaos.drills.live.campaign.goals import Row
from chaos.drills.live.campaign.state import Campaign
from chaos.drills.live.names import THEIRS
from chaos.drills.measure import Drill
from chaos.live.releases import Code

KILLS = Row(goal="kills", kind="kill", mode="default", strikes=5, per_run=2)
THEIR_KILLS = Row(goal="kills", kind="kill", mode="all-ack", strikes=2, per_run=2, target=THEIRS)


def result(row: Row, seed: int, strikes: int, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "scenario": f"matrix/{row.kind}/{row.mode}",
        "seed": seed,
        "target": row.target,
        "links": row.links,
        "drills": [asdict(Drill(stall_ms=80.0, judged=True))],
        "faults": {"done": {row.kind: strikes}, "missed": {}, "refused": [], "shapes": {}},
        "acked_total": 1500,
        "availability": 0.9,
        "rto_strikes_ms": [10.0, 20.0, 300.0],
        "release": "v1",
        "at": "2026-11-30T08:00:00+00:00",
        "machine": {"cpus": 2, "load_1_min": 2.5},
        "spent_s": {"starting the cluster": 4.0, "load runs, faults strike": 6.0},
    }
    return found | more


def same() -> Code:
    return Code("v1", "since then untouched")


def begun(directory: Path, *rows: Row) -> Campaign:
    found = Campaign.open(directory, rows)
    found.begin("v1")
    return found


def put(directory: Path, name: str, told: object) -> None:
    (directory / "runs" / f"{name}.json").write_text(json.dumps(told))
