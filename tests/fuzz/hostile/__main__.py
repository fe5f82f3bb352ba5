"""python -m tests.fuzz.hostile: the hostile client's long run (see ``run``)."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

from tests.fuzz.hostile.run import Options, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=12.0, help="moves a second")
    parser.add_argument("--alone", type=float, default=30.0, help="seconds the calm client is measured alone")
    parser.add_argument("--dir", type=Path, help="keeps logs and stores there; else a directory that goes")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    options = Options(seconds=given.seconds, seed=given.seed, pace=given.pace, alone_s=given.alone)
    with tempfile.TemporaryDirectory() as temporary:
        result = asyncio.run(run(given.dir or Path(temporary), options))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    for check in result["checks"]:
        print("ok  " if check["ok"] else "FAIL", check["check"], "" if check["ok"] else check["seen"])
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
