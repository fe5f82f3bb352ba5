"""What the store costs: dispatch, starts with many queues or segments, recovery, the real broker beside it.

    python bench/store.py [--gib 6] [--peer rocketmq|none] [--json OUT]

The last row is that of bench/restart.py.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import restart  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402
from model.config import StoreConfig  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402
from store.files.record import NewMessage  # noqa: E402
from store.message_store import MessageStore  # noqa: E402

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
TOPIC = "Bench"
MIB = 1 << 20


def message(queue_id: int, body: bytes, number: int) -> NewMessage:
    properties = f"UNIQ_KEY\x017F0000010001{number:020d}\x02"
    return NewMessage(TOPIC, queue_id, 0, 0, 1, HOST, HOST, 0, 0, body, properties)


def config(directory: Path, **settings: object) -> StoreConfig:
    return StoreConfig.from_mapping(
        {"storePathRootDir": str(directory), **{name: str(value) for name, value in settings.items()}}
    )


async def fill(directory: Path, records: int, body_bytes: int, queues: int, **settings: object) -> float:
    """Append and dispatch ``records``; returns CPU microseconds a record."""
    store = MessageStore(OsEnv(), config(directory, **settings))
    await store.open()
    body = b"x" * body_bytes
    before = time.process_time()
    for first in range(0, records, 64):
        count = min(64, records - first)
        store.put([message((first + n) % queues, body, first + n) for n in range(count)])
        store.confirm(store.log.end)
        if first % 4096 == 0:
            await store.caught_up()
    await store.caught_up()
    cpu_s = time.process_time() - before
    await store.close()
    return cpu_s * 1e6 / records


def dispatch_many(directory: Path, queues: int, **settings: object) -> dict[str, float]:
    """Twice through all queues: CPU microseconds a record, wall seconds of the stop."""

    async def work() -> dict[str, float]:
        store = MessageStore(OsEnv(), config(directory, **settings))
        await store.open()
        before = time.process_time()
        for first in range(0, 2 * queues, 64):
            store.put([message((first + n) % queues, b"x" * 100, first + n) for n in range(64)])
            store.confirm(store.log.end)
            if first % 4096 == 0:
                await store.caught_up()
        await store.caught_up()
        cpu_s = time.process_time() - before
        begin = time.perf_counter()
        await store.close()
        return {
            "cpu_us_per_record": round(cpu_s * 1e6 / (2 * queues), 2),
            "stop_seconds": round(time.perf_counter() - begin, 2),
        }

    return asyncio.run(work())


def start_in_child(directory: Path, **settings: object) -> dict[str, float]:
    """Open the store in a fresh process: seconds and resident memory."""
    texts = {name: str(value) for name, value in settings.items()}
    code = (
        "import asyncio, json, resource, sys, time\n"
        "from pathlib import Path\n"
        "from bench.store import MessageStore, OsEnv, config\n"
        "async def main():\n"
        "    settings = json.loads(sys.argv[2])\n"
        "    store = MessageStore(OsEnv(), config(Path(sys.argv[1]), **settings))\n"
        "    begin, cpu = time.perf_counter(), time.process_time()\n"
        "    await store.open()\n"
        "    took = time.perf_counter() - begin\n"
        "    used = time.process_time() - cpu\n"
        "    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "    end = store.log.end\n"
        "    await store.close()\n"
        "    print(json.dumps({'seconds': round(took, 3), 'cpu_s': round(used, 3),\n"
        "                      'peak_rss_mib': round(rss, 1), 'log_bytes': end}))\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory), json.dumps(texts)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-2000:])
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def small_rows(scratch: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(work: str, figures: dict[str, Any]) -> None:
        rows.append({"work": work, "keelmq": figures})
        print(f"{work:>44} | {figures}", flush=True)

    cost = asyncio.run(fill(scratch / "a", 200_000, 1024, 8))
    add("append + dispatch of a 1 KiB record, batches of 64", {"cpu_us_per_record": round(cost, 2)})

    small = {"mappedFileSizeConsumeQueue": 2000}
    add("dispatch into 10,000 queues", dispatch_many(scratch / "q", 10_000, **small))
    add("start with 10,000 queues", start_in_child(scratch / "q", **small))

    for segments in (2, 200):
        directory = scratch / f"s{segments}"
        asyncio.run(fill(directory, segments * 950, 1000, 8, mappedFileSizeCommitLog=MIB))
        add(f"start with {segments} segments", start_in_child(directory, mappedFileSizeCommitLog=MIB))

    directory = scratch / "u"
    asyncio.run(fill(directory, 950_000, 1024, 8))
    # What SIGKILL leaves, at its worst: the abort file, and a checkpoint that covers nothing.
    (directory / "abort").write_text("1")
    (directory / "checkpoint").unlink()
    add("recovery of an unclean log of 1 GiB, no checkpoint", start_in_child(directory))
    return rows


def main() -> int:
    arguments = restart.arguments_of(__doc__, repeat=3)
    missing = rocketmq.unavailable() if arguments.peer == "rocketmq" else "not asked for"
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch:
        rows = small_rows(Path(scratch))
        if arguments.gib:
            found = restart.row(
                Path(scratch), arguments.gib, missing is None, arguments.base_port, arguments.repeat
            )
            rows.append(found)
            print(json.dumps(found), flush=True)
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    report = {"name": "store", "rows": rows, "machine": {**machine(), "peak_rss_mib": peak}}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
