"""How long a group is without a master: drills on keelmq and on the real RocketMQ, default and tuned.

    python bench/failover.py [--repeat 10] [--scenario kill-master ...] [--peer rocketmq|none] [--json OUT]

Each row is one scenario of ``keelmq drill``, run ``--repeat`` times against each side with the same load, the
same client and the same checks. ``tuned`` sets the real servers' own keys to what their users set for a fast
failover, with allAckInSyncStateSet as keelmq has it by default.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from chaos.worlds import rocketmq  # noqa: E402

SCENARIOS = ("kill-master", "freeze-master", "stop-master", "handover", "kill-controller-leader")
PEER_SCENARIOS = ("kill-master", "freeze-master", "kill-controller-leader")
TUNED = (
    "broker.inSyncReplicas=2",
    "broker.allAckInSyncStateSet=true",
    "broker.brokerHeartbeatInterval=500",
    "broker.controllerHeartBeatTimeoutMills=2000",
    "broker.syncBrokerMetadataPeriod=1000",
    "broker.checkSyncStateSetPeriod=1000",
    "broker.registerNameServerPeriod=10000",
    "broker.haSendHeartbeatInterval=1000",
    "broker.haHousekeepingInterval=5000",
    "namesrv.scanNotActiveBrokerInterval=500",
)


def drills(scenario: str, target: str, repeat: int, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run the drills of one side; its RTO and what was lost. A side that could not finish says so."""
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch:
        out = Path(scratch) / "drill.json"
        command = [sys.executable, "-m", "cli.main", "drill", scenario, "--repeat", str(repeat)]
        command += ["--target", target, "--json", str(out)]
        for setting in settings:
            command += ["--set", setting]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120 + 120 * repeat)
        if not out.exists():
            return {"error": (done.stderr or done.stdout)[-500:]}
        result = json.loads(out.read_text())
    return {
        "drills": len(result["drills"]),
        "rto_p50_ms": result["rto_p50_ms"],
        "rto_p99_ms": result["rto_p99_ms"],
        "acked": sum(drill["acked"] for drill in result["drills"]),
        "failed": sum(drill["failed"] for drill in result["drills"]),
        "lost": result["lost_total"],
        "order_violations": result["order_violations_total"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--scenario", action="append", choices=SCENARIOS)
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="rocketmq")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    missing = rocketmq.unavailable() if arguments.peer == "rocketmq" else "not asked for"
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
    rows = []
    for scenario in arguments.scenario or SCENARIOS:
        row: dict[str, Any] = {"work": scenario, "keelmq": drills(scenario, "keelmq", arguments.repeat)}
        if missing is None and scenario in PEER_SCENARIOS:
            row["rocketmq"] = drills(scenario, "rocketmq", arguments.repeat)
            row["rocketmq_tuned"] = drills(scenario, "rocketmq", arguments.repeat, TUNED)
            if row["keelmq"].get("rto_p50_ms") and row["rocketmq"].get("rto_p50_ms"):
                row["ratio"] = round(row["keelmq"]["rto_p50_ms"] / row["rocketmq"]["rto_p50_ms"], 3)
        rows.append(row)
        print(json.dumps(row), flush=True)
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_1min": round(os.getloadavg()[0], 1),
    }
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"name": "failover", "rows": rows, "machine": machine}, indent=2) + "\n"
        )
    return (
        0
        if all("error" not in side for row in rows for side in row.values() if isinstance(side, dict))
        else 3
    )


if __name__ == "__main__":
    sys.exit(main())
