"""python -m tests.fuzz: fuzz the decoders (see ``runner``). Exit code 1: something raised what it may not."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.runner import GUIDED_SHARE, Plan, Run
from tests.fuzz.targets.registry import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", default="all", help="names with commas between, or all")
    parser.add_argument("--executions", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--dir", type=Path, default=Path(".fuzz"), help="what a stopped run goes on from")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--guided", type=float, default=GUIDED_SHARE, help="the part that atheris does, 0 to 1"
    )
    parser.add_argument("--seconds", type=float, help="begin nothing more after so long")
    parser.add_argument("--guided-seconds", type=float, help="atheris begins with no target after so long")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    names = tuple(TARGETS) if given.target == "all" else tuple(given.target.split(","))
    unknown = set(names) - set(TARGETS)
    if unknown:
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    plan = Plan(
        executions=given.executions,
        targets=names,
        directory=given.dir,
        seed=given.seed,
        guided_share=given.guided,
        deadline_s=given.seconds,
        guided_s=given.guided_seconds,
    )
    result = Run(plan, lambda line: print(line, flush=True)).go()
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{result['executions']:,} executions, {len(result['crashes'])} kinds of crash")
    return 1 if result["crashes"] else 0


if __name__ == "__main__":
    sys.exit(main())
