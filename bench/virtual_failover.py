"""How long does a failover take when only stated delays and our own waits take time?

    python bench/virtual_failover.py [--seeds 20] [--jobs 2] [--kinds kill-master,...] [--json OUT]

Each drill runs the real servers and clients under virtual time (chaos/drills/simulated/virtual.py): network
0.1 to 2 ms a packet, 100 sends/s; the machine is quiet, or stands still as a whole for up to 0.9 s now and
then, or its syncs take 50 to 400 ms more. The same seeds give the same figures on every machine. Prints
Markdown. Exit code 2: a drill ended without a new master, a send of an orderly stop failed, or a promise was
broken.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.provenance import machine  # noqa: E402
from chaos.drills.measure import ORDERLY, percentile  # noqa: E402
from chaos.drills.simulated.virtual import KINDS, NOISES, Outcome, run  # noqa: E402

FAILED: Final = 2


def one(job: tuple[str, str, int]) -> Outcome:
    logging.disable(logging.CRITICAL)
    return run(*job)


def row(kind: str, noise: str, outcomes: list[Outcome]) -> dict[str, Any]:
    times = sorted(outcome.rto_ms for outcome in outcomes if outcome.rto_ms is not None)
    return {
        "kind": kind,
        "noise": noise,
        "drills": len(outcomes),
        "rto_p50_ms": percentile(times, 50),
        "rto_p99_ms": percentile(times, 99),
        "rto_max_ms": times[-1] if times else None,
        "without_new_master": len(outcomes) - len(times),
        "acked": sum(outcome.acked for outcome in outcomes),
        "failed": sum(outcome.failed for outcome in outcomes),
        "unknown": sum(outcome.unknown for outcome in outcomes),
        "violations": [text for outcome in outcomes for text in outcome.violations],
    }


def broken(found: dict[str, Any]) -> bool:
    missed = found["kind"] in ORDERLY and found["failed"] + found["unknown"] > 0
    return bool(found["without_new_master"] or found["violations"] or missed)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown or options.seeds < 1 or options.jobs < 1:
        parser.error(f"--kinds are of {', '.join(KINDS)}; --seeds and --jobs at least 1")
    rows = []
    print("| drill | machine | p50 ms | p99 ms | worst ms | failed | unknown | promises broken |")
    print("|---|---|---|---|---|---|---|---|")
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for kind in kinds:
            for noise in NOISES:
                jobs = [(kind, noise, seed) for seed in range(options.seeds)]
                found = row(kind, noise, list(pool.map(one, jobs, chunksize=2)))
                rows.append(found)
                shown = [
                    found[name] for name in ("rto_p50_ms", "rto_p99_ms", "rto_max_ms", "failed", "unknown")
                ]
                cells = [kind, noise, *shown, len(found["violations"])]
                print(f"| {' | '.join(str(cell) for cell in cells)} |", flush=True)
    if options.json:
        whole = {"name": "virtual_failover", "rows": rows, "machine": machine()}
        options.json.write_text(json.dumps(whole, indent=2) + "\n")
    return FAILED if any(broken(found) for found in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
