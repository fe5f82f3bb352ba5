"""How long is a broker away after SIGKILL on a long log? keelmq and the real RocketMQ in turn.

    python bench/restart.py [--gib 6] [--repeat 5] [--peer rocketmq|none] [--json OUT]

A keelmq broker takes messages until the log has so many GiB and is ended with SIGKILL. Each start then gets
that directory as the kill left it: full segments as hard links, which neither broker writes to, all else as
a copy. The time runs from the start of the process until it answers for the topic's newest offset. keelmq
runs from compiled modules, as an installed package does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench import load  # noqa: E402
from bench.provenance import machine  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402

TOPIC: Final = "Bench"
QUEUES: Final = 4
POLL_S: Final = 0.01
START_MAX_S: Final = 300.0


def max_offset(address: str) -> int:
    """Messages the broker shows in the topic; 0 while it knows none. Raises OSError."""
    total = 0
    for queue_id in range(QUEUES):
        header, _ = rocketmq.call(address, 30, {"topic": TOPIC, "queueId": queue_id}, timeout_s=1.0)
        total += int(header["extFields"]["offset"]) if header["code"] == 0 else 0
    return total


def until_serving(
    start: Callable[[], subprocess.Popen[Any]], address: str, messages: int
) -> tuple[float, float]:
    """Start a broker, wait until it shows ``messages``, kill it: (wall seconds, CPU seconds)."""
    begin = time.perf_counter()
    process = start()
    try:
        while True:
            try:
                if max_offset(address) >= messages:
                    break
            except (OSError, KeyError, ValueError):
                pass  # not listening yet: that is what is being waited for
            if time.perf_counter() - begin > START_MAX_S or process.poll() is not None:
                raise RuntimeError(f"the broker at {address} does not serve {messages} messages")
            time.sleep(POLL_S)
        took = time.perf_counter() - begin
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    return took, cpu


def keelmq_process(store: Path, port: int, scratch: Path) -> subprocess.Popen[Any]:
    settings = {"listenPort": port, "brokerId": 0, "brokerRole": "ASYNC_MASTER", "storePathRootDir": store}
    command = [sys.executable, "-m", "cli.main", "broker"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(scratch / "compiled")
    with (scratch / "err").open("a") as out:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=out)


def fill(store: Path, gib: float, port: int, scratch: Path) -> int:
    """Write ``gib`` GiB through a broker and end it with SIGKILL; returns how many messages it showed."""
    address = f"127.0.0.1:{port}"
    process = keelmq_process(store, port, scratch)
    try:
        rocketmq.wait_until("the keelmq broker", lambda: rocketmq.call(address, 28)[0]["code"] == 0, 60)
        topic = {
            "topic": TOPIC,
            "defaultTopic": "TBW102",
            "readQueueNums": QUEUES,
            "writeQueueNums": QUEUES,
            "perm": 6,
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": 0,
            "order": "false",
        }
        rocketmq.call(address, 17, topic)
        written = 0.0
        while written < gib * (1 << 30):
            written += load.run(address, TOPIC, QUEUES, load.Work(8192), 2.0).ok * 8500
        return max_offset(address)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)


def as_the_kill_left_it(store: Path, to: Path) -> Path:
    """``store`` again: links to the segments nobody writes to any more, copies of the rest."""
    shutil.rmtree(to, ignore_errors=True)
    (to / "commitlog").mkdir(parents=True)
    segments = sorted((store / "commitlog").iterdir())
    for segment in segments[:-2]:
        os.link(segment, to / "commitlog" / segment.name)
    copy = ["cp", "-a", "--sparse=always"]
    subprocess.run([*copy, *segments[-2:], to / "commitlog"], check=True)
    rest = [path for path in store.iterdir() if path.name not in ("commitlog", "lock")]
    subprocess.run([*copy, *rest, to], check=True)
    os.sync()
    return to


def row(scratch: Path, gib: float, peer: bool, port: int, repeat: int) -> dict[str, Any]:
    """The row of the report: medians of ``repeat`` starts each, and their ratio."""
    store = scratch / "big"
    messages = fill(store, gib, port, scratch)
    namesrv = rocketmq.namesrv_node(scratch / "ns", port + 40)
    ours: list[tuple[float, float]] = []
    theirs: list[tuple[float, float]] = []
    try:
        if peer:
            namesrv.start()
            rocketmq.wait_until(
                "the NameServer", lambda: rocketmq.call(f"127.0.0.1:{port + 40}", 106)[0]["code"] == 0, 60
            )
        for _ in range(repeat):
            mine = as_the_kill_left_it(store, scratch / "ours")
            start = partial(keelmq_process, mine, port, scratch)
            ours.append(until_serving(start, f"127.0.0.1:{port}", messages))
            shutil.rmtree(mine)
            if peer:
                other = as_the_kill_left_it(store, scratch / "theirs")
                theirs.append(_real(scratch, other, port, messages))
                shutil.rmtree(other)
    finally:
        namesrv.stop()
    found: dict[str, Any] = {
        "work": f"start to serving after SIGKILL, {gib:g} GiB log",
        "messages": messages,
        "keelmq": _median(ours),
    }
    if theirs:
        found["rocketmq"] = _median(theirs)
        found["ratio"] = round(found["keelmq"]["seconds"] / found["rocketmq"]["seconds"], 3)
    return found


def _real(scratch: Path, store: Path, port: int, messages: int) -> tuple[float, float]:
    broker = rocketmq.broker_node(scratch / "rb", port + 100, f"127.0.0.1:{port + 40}", store)

    def start() -> subprocess.Popen[Any]:
        broker.start()
        assert broker.process is not None
        return broker.process

    return until_serving(start, f"127.0.0.1:{port + 100}", messages)


def _median(times: list[tuple[float, float]]) -> dict[str, Any]:
    middle = len(times) // 2
    return {
        "seconds": round(sorted(t for t, _ in times)[middle], 2),
        "cpu_s": round(sorted(c for _, c in times)[middle], 2),
        "all_seconds": [round(t, 2) for t, _ in times],
    }


def arguments_of(description: str | None, repeat: int) -> argparse.Namespace:
    """The command line of this script and of ``bench/store.py``, which measures a restart too."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--gib", type=float, default=6.0, help="size of the log of the restart row; 0 = leave out (store.py)"
    )
    parser.add_argument("--repeat", type=int, default=repeat)
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="rocketmq")
    parser.add_argument("--base-port", type=int, default=27800)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    arguments = arguments_of(__doc__, repeat=5)
    missing = rocketmq.unavailable() if arguments.peer == "rocketmq" else "not asked for"
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch:
        found = row(Path(scratch), arguments.gib, missing is None, arguments.base_port, arguments.repeat)
    print(json.dumps(found), flush=True)
    if arguments.json:
        report = {"name": "restart", "rows": [found], "machine": machine()}
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
