"""python -m tests.audit.mutations: change a stopped group's files, one at a time (see the package).

Exit code 1: something was missed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.audit.mutations.campaign import Campaign
from tests.audit.mutations.page import by_hand, page


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.audit.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--cpu-seconds", type=float, default=float("inf"), help="begin nothing more after so many"
    )
    parser.add_argument("--json", type=Path, help="what a stopped campaign goes on from")
    parser.add_argument("--page", type=Path, help="write the results as a page")
    parser.add_argument(
        "--again",
        nargs="+",
        metavar="WORD",
        help="instead, judge changes of --json again: of a kind, of a kind of files, or below a path",
    )
    given = parser.parse_args()
    campaign = Campaign(given.seed, given.json)
    if given.again:
        result = campaign.again(given.again, tell=lambda text: print(text, flush=True))
    else:
        result = campaign.run(given.count, cpu_s=given.cpu_seconds, tell=lambda text: print(text, flush=True))
    if given.page:
        before = given.page.read_text() if given.page.exists() else ""
        given.page.write_text(page(result, by_hand(before)))
    print(f"{result['done']} changes, {len(result['misses'])} missed, {result['cpuSeconds']} CPU s")
    return 1 if result["misses"] else 0


if __name__ == "__main__":
    sys.exit(main())
