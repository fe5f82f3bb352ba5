"""What the audit costs: memory by the size of log and ledger, and rates beside plain readers of its files.

    python bench/audit.py [--gib 1,2,4] [--lines 1000000,10000000] [--spark] [--json OUT]

Stores are three replicas whose files are links to one, so that disk and page cache hold them once. Peak
memory is the largest VmHWM of the audit's processes. Rates are per CPU second, of readers in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from audit.engines.spill import SpillTask, spill_scan  # noqa: E402
from audit.reading.record import MAGIC_BLANK, MAGIC_V1  # noqa: E402
from audit.tables import Task, run_digests, run_scan  # noqa: E402
from bench.provenance import machine  # noqa: E402

GIB: Final = 1 << 30
QUEUES: Final = 16
BODY: Final = b"x" * 1024
TOPIC: Final = b"orders"
KEY: Final = "7F00000100010000%016X"
REPLICAS: Final = 3


def template() -> bytes:
    """A record at offset 0; the numbers of ``rows_of`` are written over it."""
    key = (KEY % 0).encode()
    properties = b"UNIQ_KEY\x01" + key + b"\x02TAGS\x01a\x02"
    crc = zlib.crc32(BODY) & 0x7FFFFFFF
    host = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    tail = struct.pack(">IIiiqqi", MAGIC_V1, crc, 0, 0, 0, 0, 0)
    tail += struct.pack(">q", 1_700_000_000_000) + host + struct.pack(">q", 1_700_000_000_000) + host
    tail += struct.pack(">iqi", 0, 0, len(BODY)) + BODY
    tail += struct.pack(">B", len(TOPIC)) + TOPIC + struct.pack(">H", len(properties)) + properties
    return struct.pack(">i", len(tail) + 4) + tail


RECORD: Final = template()
KEY_AT: Final = RECORD.index(b"UNIQ_KEY\x01") + len(b"UNIQ_KEY\x01") + 16
_HEX: Final = np.frombuffer(b"0123456789ABCDEF", np.uint8)


def rows_of(first: int, count: int, base: int) -> Any:
    """Bytes of ``count`` records from number ``first`` on, whose first stands at ``base``."""
    rows = np.tile(np.frombuffer(RECORD, np.uint8), (count, 1))
    number = np.arange(first, first + count, dtype=np.int64)

    def put(at: int, values: Any, kind: str) -> None:
        raw = values.astype(kind)
        rows[:, at : at + raw.itemsize] = raw.view(np.uint8).reshape(count, raw.itemsize)

    put(12, number % QUEUES, ">i4")
    put(20, number // QUEUES, ">i8")
    put(28, base + np.arange(count, dtype=np.int64) * len(RECORD), ">i8")
    for digit in range(16):
        rows[:, KEY_AT + digit] = _HEX[(number >> (60 - 4 * digit)) & 15]
    return rows


def make(root: Path, gib: int) -> list[Path]:
    """Replicas of ``gib`` GiB each."""
    origin = root / "origin"
    (origin / "commitlog").mkdir(parents=True)
    entries: list[list[Any]] = [[] for _ in range(QUEUES)]
    in_segment = (GIB - 8) // len(RECORD)
    for segment in range(gib):
        base = segment * GIB
        with (origin / "commitlog" / f"{base:020d}").open("wb") as file:
            for at in range(0, in_segment, 65536):
                count = min(65536, in_segment - at)
                rows = rows_of(segment * in_segment + at, count, base + at * len(RECORD))
                file.write(rows.tobytes())
            file.write(struct.pack(">iI", GIB - in_segment * len(RECORD), MAGIC_BLANK))
            file.truncate(GIB)
        number = np.arange(segment * in_segment, (segment + 1) * in_segment, dtype=np.int64)
        offset = base + np.arange(in_segment, dtype=np.int64) * len(RECORD)
        for queue in range(QUEUES):
            entries[queue].append(offset[number % QUEUES == queue])
    write_queues(origin, entries)
    end = gib * GIB
    (origin / "checkpoint").write_bytes(struct.pack(">5q", 1, 1, 1, 0, end) + bytes(4096 - 40))
    return [linked(origin, root / f"r{n}") for n in range(REPLICAS)]


def write_queues(origin: Path, entries: list[list[Any]]) -> None:
    per_file = 300_000
    for queue, parts in enumerate(entries):
        offsets = np.concatenate(parts)
        folder = origin / "consumequeue" / TOPIC.decode() / str(queue)
        folder.mkdir(parents=True)
        for at in range(0, len(offsets), per_file):
            file = np.zeros(per_file, np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")]))
            own = offsets[at : at + per_file]
            file["offset"][: len(own)], file["size"][: len(own)] = own, len(RECORD)
            file["tags"][: len(own)] = ord("a")
            (folder / f"{at * 20:020d}").write_bytes(file.tobytes())


def linked(origin: Path, target: Path) -> Path:
    shutil.copytree(origin, target, copy_function=os.link)
    return target


def write_ledger(path: Path, lines: int) -> None:
    """Of the first messages of a store; the rest, if it is shorter, was acknowledged and is lost."""
    crc = zlib.crc32(BODY)
    with path.open("w") as file:
        for first in range(0, lines, 10_000):
            file.write(
                "".join(
                    f'{{"uniq_key":"{KEY % n}","topic":"{TOPIC.decode()}","queue_id":{n % QUEUES},'
                    f'"queue_offset":{n // QUEUES},"body_crc":{crc}}}\n'
                    for n in range(first, min(lines, first + 10_000))
                )
            )


def processes(root: int) -> Iterator[int]:
    """The process and its descendants."""
    yield root
    for task in Path(f"/proc/{root}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            yield from processes(child)


def peak_mib(pid: int) -> float:
    """VmHWM of one process: the most it ever held, file pages and all; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else 0.0


def audited(stores: list[Path], out: Path, *options: str) -> dict[str, Any]:
    """One audit in a process of its own: seconds, CPU seconds, peak memory, what it found."""
    command = [sys.executable, "-m", "cli.main", "audit", *map(str, stores), "--out", str(out), *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, begin = os.times(), time.perf_counter()
    peaks: dict[int, float] = {}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            for pid in processes(child.pid):
                peaks[pid] = max(peaks.get(pid, 0.0), peak_mib(pid))
            time.sleep(0.05)
    after = os.times()
    summary = json.loads((out / "summary.json").read_text())
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return {
        "verdict": summary["verdict"],
        "records": summary["records"],
        "read_gib": round(summary["bytes"] / GIB, 2),
        "seconds": round(time.perf_counter() - begin, 1),
        "cpu_s": round(cpu_s, 1),
        "peak_mib": round(peaks.pop(child.pid)),
        "peak_of_others_mib": round(max(peaks.values(), default=0)),
    }


def cpu_of(work: Callable[[], object]) -> float:
    """CPU seconds of this process and of the children it waited for; the least of three runs."""
    found = []
    for _ in range(3):
        before = os.times()
        work()
        after = os.times()
        found.append(sum(after[:4]) - sum(before[:4]))
    return min(found)


def rates(store: Path) -> dict[str, Any]:
    """MB per CPU second on one warm segment: plain readers, digests, scans."""
    file = "commitlog/" + "0" * 20
    task = Task(0, str(store), file, 0, GIB, GIB, 0, GIB, (), True)
    path = store / file

    def hashed() -> None:
        import xxhash

        hasher = xxhash.xxh3_128()
        with path.open("rb") as source:
            while data := source.read(1 << 20):
                hasher.update(data)

    def spilled() -> None:
        with tempfile.TemporaryDirectory() as folder:
            spill_scan(SpillTask(task, f"{folder}/records"))

    def read() -> None:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=1M"], check=True, capture_output=True)

    works: dict[str, Callable[[], object]] = {
        "dd": read,
        "xxh3": hashed,
        "digests": lambda: run_digests(task),
        "scan": lambda: sum(len(batch) for batch in run_scan(task)),
        "scan_to_file": spilled,
    }
    if shutil.which("xxhsum"):
        works["xxhsum"] = lambda: subprocess.run(["xxhsum", "-H2", path], check=True, capture_output=True)
    found = {name: round(GIB / 1e6 / cpu_of(work)) for name, work in works.items()}
    return {"mb_per_cpu_s": found, "digests_to_xxh3": round(found["digests"] / found["xxh3"], 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", default="1,2,4")
    parser.add_argument("--lines", default="1000000,10000000")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--memory-only", action="store_true", help="no rates")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, Any] = {"machine": machine(), "record_bytes": len(RECORD), "audits": []}
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as folder:
        for gib in [int(text) for text in options.gib.split(",") if text]:
            stores = make(Path(folder, f"s{gib}"), gib)
            if "rates" not in result and not options.memory_only:
                result["rates"] = rates(stores[0])
                print(json.dumps(result["rates"]), flush=True)
            runs: list[tuple[str, list[str]]] = [("local", [])]
            if options.spark:
                runs.append(("spark", ["--engine", "spark"]))
            for name, more in runs:
                row = {"gib": gib, "engine": name, "lines": 0, **audited(stores, Path(folder, "out"), *more)}
                result["audits"].append(row)
                print(json.dumps(row), flush=True)
            if gib == 1:
                for lines in [int(text) for text in options.lines.split(",") if text]:
                    ledger = Path(folder, "acked.jsonl")
                    write_ledger(ledger, lines)
                    told = audited(stores, Path(folder, "out"), "--ledger", str(ledger))
                    row = {"gib": gib, "engine": "local", "lines": lines, **told}
                    result["audits"].append(row)
                    print(json.dumps(row), flush=True)
                    ledger.unlink()
            shutil.rmtree(Path(folder, f"s{gib}"))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
