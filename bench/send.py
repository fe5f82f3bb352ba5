"""What a send costs the broker: CPU per message and messages per second, keelmq beside the real RocketMQ.

    python bench/send.py [--peer rocketmq|none] [--seconds 6] [--json OUT]

One load program (``bench/load.py``) drives both brokers in turn, row by row, on this machine: single broker,
ASYNC_FLUSH, 1 GiB segments, one connection. CPU is what the operating system accounts to the broker process
(user + system). The JVM gets a warm-up of ``--warm-up`` seconds before anything is counted, keelmq a tenth.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.provenance import machine  # noqa: E402
from chaos.worlds import rocketmq  # noqa: E402

TOPIC = "Bench"
QUEUES = 4
ROWS = [(body, window) for body in (1024, 128) for window in (1, 16, 64)]


class Side:
    """One running broker and how to measure it."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        self.name = name
        self.address = address
        self.process = psutil.Process(pid)

    def cpu_s(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def load(self, body: int, window: int, seconds: float) -> dict[str, Any]:
        before = self.cpu_s()
        command = [
            sys.executable,
            "-m",
            "bench.load",
            self.address,
            TOPIC,
            f"--queues={QUEUES}",
            f"--body-bytes={body}",
            f"--in-flight={window}",
            f"--seconds={seconds}",
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds + 60)
        if done.returncode != 0:
            raise RuntimeError(f"load against {self.name} failed:\n{done.stdout}{done.stderr}")
        outcome = json.loads(done.stdout)
        cpu = self.cpu_s() - before
        return {
            "messages": outcome["ok"],
            "messages_per_s": round(outcome["ok"] / outcome["seconds"], 1),
            "broker_cpu_us_per_message": round(cpu * 1e6 / outcome["ok"], 2),
            "p50_us": round(outcome["p50_us"], 1),
            "p99_us": round(outcome["p99_us"], 1),
        }


def create_topic(address: str) -> None:
    ext = {
        "topic": TOPIC,
        "defaultTopic": "TBW102",
        "readQueueNums": QUEUES,
        "writeQueueNums": QUEUES,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
    }
    header, _ = rocketmq.call(address, 17, ext)
    if header["code"] != 0:
        raise RuntimeError(f"{address} did not create the topic: {header}")


@contextmanager
def keelmq_broker(directory: Path, port: int) -> Iterator[Side]:
    settings = {
        "listenPort": port,
        "brokerId": 0,
        "brokerRole": "ASYNC_MASTER",
        "storePathRootDir": directory / "store",
        "flushDiskType": "ASYNC_FLUSH",
    }
    command = [sys.executable, "-m", "cli.main", "broker"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    directory.mkdir(parents=True)
    with (directory / "err").open("w") as errors:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"keelmq broker did not start: {(directory / 'err').read_text()[-2000:]}")
        yield Side("keelmq", f"127.0.0.1:{port}", process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@contextmanager
def rocketmq_broker(directory: Path, port: int) -> Iterator[Side]:
    namesrv = rocketmq.namesrv_node(directory / "ns", port - 50)
    broker = rocketmq.broker_node(directory / "b", port, f"127.0.0.1:{port - 50}")
    address = f"127.0.0.1:{port - 50}"
    namesrv.start()
    try:
        rocketmq.wait_until("the real NameServer", lambda: rocketmq.call(address, 106)[0]["code"] == 0, 60)
        broker.start()
        rocketmq.wait_until("the real broker", lambda: "0" in rocketmq.routed_brokers(address), 90)
        assert broker.process is not None
        yield Side("rocketmq", f"127.0.0.1:{port}", broker.process.pid)
    finally:
        broker.stop()
        namesrv.stop()


def measure(sides: list[Side], seconds: float, warm_up_s: float) -> list[dict[str, Any]]:
    for side in sides:
        create_topic(side.address)
        # The JIT needs load to compile what it will measure; Python has nothing to warm but its caches.
        side.load(1024, 64, warm_up_s if side.name == "rocketmq" else max(1.0, warm_up_s / 10))
    rows = []
    for body, window in ROWS:
        row: dict[str, Any] = {"work": f"{body} B, {window} in flight"}
        for side in sides:
            row[side.name] = side.load(body, window, seconds)
        if "rocketmq" in row:
            ours, theirs = row["keelmq"], row["rocketmq"]
            row["ratio"] = round(ours["broker_cpu_us_per_message"] / theirs["broker_cpu_us_per_message"], 3)
        rows.append(row)
        print(_line(row), flush=True)
    return rows


def _line(row: dict[str, Any]) -> str:
    text = f"{row['work']:>22}"
    for name in ("keelmq", "rocketmq"):
        if name in row:
            side = row[name]
            text += (
                f" | {name}: {side['broker_cpu_us_per_message']:7.2f} us CPU/message,"
                f" {side['messages_per_s']:9.0f}/s, p50 {side['p50_us']:7.0f} us"
            )
    return text + (f" | CPU ratio {row['ratio']:.2f}" if "ratio" in row else "")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", choices=["rocketmq", "none"], default="rocketmq")
    parser.add_argument("--seconds", type=float, default=6.0, help="per row and broker")
    parser.add_argument(
        "--warm-up", type=float, default=20.0, help="seconds of load before the JVM is measured"
    )
    parser.add_argument("--base-port", type=int, default=27400)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    missing = rocketmq.unavailable() if arguments.peer == "rocketmq" else None
    if missing:
        print(f"without the real RocketMQ: {missing}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as scratch:
        base = Path(scratch)
        with keelmq_broker(base / "keelmq", arguments.base_port) as ours:
            if arguments.peer == "rocketmq" and not missing:
                with rocketmq_broker(base / "rocketmq", arguments.base_port + 200) as theirs:
                    rows = measure([ours, theirs], arguments.seconds, arguments.warm_up)
            else:
                rows = measure([ours], arguments.seconds, arguments.warm_up)
    report = {"name": "send", "rows": rows, "machine": machine()}
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
