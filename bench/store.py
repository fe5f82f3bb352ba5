"""What the store costs: dispatch, starts with many queues or segments, recovery, the real broker beside it.

    python bench/store.py [--gib 6] [--peer rocketmq|none] [--json OUT]

The last row fills one directory through a keelmq broker, ends it with SIGKILL and times how long a broker
needs from its start until it answers for the topic; keelmq and the real broker in turn on the same directory,
each found unclean.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import load  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402
from model.config import StoreConfig  # noqa: E402
from runtime.os_env import OsEnv  # noqa: E402
from store.message_store import MessageStore  # noqa: E402
from store.record import NewMessage  # noqa: E402

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

    asyncio.run(fill(scratch / "q", 20_000, 100, 10_000, mappedFileSizeConsumeQueue=2000))
    add("start with 10,000 queues", start_in_child(scratch / "q", mappedFileSizeConsumeQueue=2000))

    for segments in (2, 200):
        directory = scratch / f"s{segments}"
        asyncio.run(fill(directory, segments * 950, 1000, 8, mappedFileSizeCommitLog=MIB))
        add(f"start with {segments} segments", start_in_child(directory, mappedFileSizeCommitLog=MIB))

    directory = scratch / "u"
    asyncio.run(fill(directory, 950_000, 1024, 8))
    # What SIGKILL leaves, at its worst: the abort file, and a checkpoint that vouches for nothing.
    (directory / "abort").write_text("1")
    (directory / "checkpoint").unlink()
    add("recovery of an unclean log of 1 GiB, no checkpoint", start_in_child(directory))
    return rows


def answers(address: str) -> bool:
    header, _ = rocketmq.call(address, 30, {"topic": TOPIC, "queueId": 0}, timeout_s=1.0)
    return bool(header["code"] == 0 and int(header["extFields"]["offset"]) > 0)


def until_serving(start: Callable[[], subprocess.Popen[Any]], address: str) -> tuple[float, float]:
    """Start a broker and wait until it knows the topic's messages: (wall seconds, CPU seconds)."""
    begin = time.perf_counter()
    process = start()
    try:
        rocketmq.wait_until(f"the broker at {address}", lambda: answers(address), 300)
        took = time.perf_counter() - begin
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    return took, cpu


def keelmq_process(store: Path, port: int, errors: Path) -> subprocess.Popen[Any]:
    settings = {
        "listenPort": port,
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "storePathRootDir": store,
    }
    command = [sys.executable, "-m", "cli.main", "broker"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    with errors.open("a") as out:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=out)


def restart_row(scratch: Path, gib: float, peer: bool, port: int, repeat: int) -> dict[str, Any]:
    store = scratch / "big"
    address = f"127.0.0.1:{port}"
    process = keelmq_process(store, port, scratch / "err")
    try:

        def listens() -> bool:
            return bool(rocketmq.call(address, 28)[0]["code"] == 0)

        rocketmq.wait_until("the keelmq broker", listens, 60)
        rocketmq.call(
            address,
            17,
            {
                "topic": TOPIC,
                "defaultTopic": "TBW102",
                "readQueueNums": 4,
                "writeQueueNums": 4,
                "perm": 6,
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": 0,
                "order": "false",
            },
        )
        written = 0.0
        while written < gib * (1 << 30):
            written += load.run(address, TOPIC, 4, 8192, 64, 2.0).ok * 8500
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    namesrv = rocketmq.namesrv_node(scratch / "ns", port + 40)
    broker = rocketmq.broker_node(scratch / "rb", port + 100, f"127.0.0.1:{port + 40}", store)

    def real() -> subprocess.Popen[Any]:
        broker.start()
        assert broker.process is not None
        return broker.process

    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    try:
        if peer:
            namesrv.start()
            rocketmq.wait_until(
                "the NameServer", lambda: rocketmq.call(f"127.0.0.1:{port + 40}", 106)[0]["code"] == 0, 60
            )
        for _ in range(repeat):
            ours.append(until_serving(lambda: keelmq_process(store, port, scratch / "err"), address))
            if peer:
                theirs.append(until_serving(real, f"127.0.0.1:{port + 100}"))
    finally:
        namesrv.stop()
    row: dict[str, Any] = {
        "work": f"start to serving after SIGKILL, {gib:g} GiB log",
        "keelmq": _median(ours),
    }
    if theirs:
        row["rocketmq"] = _median(theirs)
        row["ratio"] = round(row["keelmq"]["seconds"] / row["rocketmq"]["seconds"], 3)
    print(f"{row['work']:>44} | " + str({k: v for k, v in row.items() if k != "work"}), flush=True)
    return row


def _median(times: list[tuple[float, float]]) -> dict[str, float]:
    middle = len(times) // 2
    return {
        "seconds": round(sorted(t for t, _ in times)[middle], 2),
        "cpu_s": round(sorted(c for _, c in times)[middle], 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib", type=float, default=6.0, help="size of the log of the restart row; 0 = leave out"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="rocketmq")
    parser.add_argument("--base-port", type=int, default=27800)
    parser.add_argument("--only-restart", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    missing = rocketmq.unavailable() if arguments.peer == "rocketmq" else "not asked for"
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch:
        rows = [] if arguments.only_restart else small_rows(Path(scratch))
        if arguments.gib:
            rows.append(
                restart_row(
                    Path(scratch), arguments.gib, missing is None, arguments.base_port, arguments.repeat
                )
            )
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "load_1min": round(os.getloadavg()[0], 1),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    report = {"name": "store", "rows": rows, "machine": machine}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
