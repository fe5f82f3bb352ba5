"""What a demo that ended well has left in its folder."""

from __future__ import annotations

import json
from pathlib import Path


def need_a_good_demo(out: Path) -> None:
    """Nothing was lost, a slave took over, the audit looked at all of it, and the cluster is gone."""
    told = json.loads((out / "demo.json").read_text())
    assert told["rpo"] == told["order_violations"] == told["duplicates"] == 0
    assert len(set(told["ends"].values())) == 1
    assert told["audit"]["verdict"] == "clean"
    assert told["audit"]["ledger"]["lines"] == told["acked"] > 200
    assert told["rto_ms"] > 0
    assert told["victim"] != told["successor"]
    assert (out / "audit" / "index.html").exists()
    assert not (out / "cluster").exists()
