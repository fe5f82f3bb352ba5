"""What the audit costs: memory by the size of log and ledger, and rates beside plain readers of its files.

    python bench/audit.py [--gib 1,4,16] [--lines 1000000,10000000] [--spark 1,4] [--cold 2] [--json OUT]
    python bench/audit.py --plot OUT.svg bench/results/audit.json

Stores are three replicas whose files are links to one, so that disk and page cache hold them once; those read
cold are copies. Peak memory is the largest VmHWM of the audit's processes, CPU seconds are those of all; an
audit of a few megabytes, nearly all of it start, is measured too, and so is a Spark session without one.
Rates are per CPU second, of readers in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
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

from audit.engines.local import LocalEngine  # noqa: E402
from audit.engines.spill import SpillTask, spill_scan  # noqa: E402
from audit.reading.records.record import MAGIC_BLANK, MAGIC_V1  # noqa: E402
from audit.tables import Task, run_digests, run_scan  # noqa: E402
from bench.plot import lines_svg  # noqa: E402
from bench.provenance import machine  # noqa: E402

GIB: Final = 1 << 30
SMALL_BYTES: Final = 8 << 20
PEAK_MAX_MIB: Final = 286
"""300 MB."""
COLD_ROUNDS: Final = 2
TICKS: Final = os.sysconf("SC_CLK_TCK")
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


def make(root: Path, gib: int, *, segment_bytes: int = GIB, copies: bool = False) -> list[Path]:
    """Replicas of ``gib`` segments each, links to one or ``copies``."""
    origin = root / "origin"
    (origin / "commitlog").mkdir(parents=True)
    entries: list[list[Any]] = [[] for _ in range(QUEUES)]
    in_segment = (segment_bytes - 8) // len(RECORD)
    for segment in range(gib):
        base = segment * segment_bytes
        with (origin / "commitlog" / f"{base:020d}").open("wb") as file:
            for at in range(0, in_segment, 65536):
                count = min(65536, in_segment - at)
                rows = rows_of(segment * in_segment + at, count, base + at * len(RECORD))
                file.write(rows.tobytes())
            file.write(struct.pack(">iI", segment_bytes - in_segment * len(RECORD), MAGIC_BLANK))
            file.truncate(segment_bytes)
        number = np.arange(segment * in_segment, (segment + 1) * in_segment, dtype=np.int64)
        offset = base + np.arange(in_segment, dtype=np.int64) * len(RECORD)
        for queue in range(QUEUES):
            entries[queue].append(offset[number % QUEUES == queue])
    write_queues(origin, entries)
    end = gib * segment_bytes
    (origin / "checkpoint").write_bytes(struct.pack(">5q", 1, 1, 1, 0, end) + bytes(4096 - 40))
    each = shutil.copy if copies else os.link
    return [shutil.copytree(origin, root / f"r{n}", copy_function=each) for n in range(REPLICAS)]


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


def write_ledger(path: Path, lines: int) -> None:
    """Of the first messages of the largest store; the rest, if it is shorter, is lost."""
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
    children: list[int] = []
    with contextlib.suppress(OSError):  # it has ended
        for task in os.listdir(f"/proc/{root}/task"):
            children += map(int, Path(f"/proc/{root}/task/{task}/children").read_text().split())
    for child in children:
        yield from processes(child)


def cpu_s_of(pid: int) -> float:
    """CPU seconds of one process so far; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def is_java(pid: int) -> bool:
    """By what it runs, not by its name: a child that Java starts has a thread's name and, until it runs its
    own program, all of Java's memory."""
    try:
        return Path(os.readlink(f"/proc/{pid}/exe")).name in ("java", "jspawnhelper")
    except OSError:
        return False


def peak_mib(pid: int) -> float:
    """VmHWM of one process: the most it ever held, file pages and all; 0 when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return int(found[0]) / 1024 if found else 0.0


def followed(command: list[str]) -> tuple[dict[str, int], float]:
    """Run it to its end: the peak memory of its own process, of others and of Java's, and the CPU seconds of
    all."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    peaks: dict[tuple[int, bool], float] = {}
    cpu: dict[int, float] = {}
    with subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as child:
        while child.poll() is None:
            for pid in processes(child.pid):
                before, peak = is_java(pid), peak_mib(pid)
                if is_java(pid) == before:  # else it began another program meanwhile
                    peaks[pid, before] = max(peaks.get((pid, before), 0.0), peak)
                cpu[pid] = max(cpu.get(pid, 0.0), cpu_s_of(pid))
            time.sleep(0.02)
    own = peaks.pop((child.pid, False))
    of_java = [peak for (_, java), peak in peaks.items() if java]
    of_others = [peak for (_, java), peak in peaks.items() if not java]
    found = {
        "peak_mib": round(own),
        "peak_of_others_mib": round(max(of_others, default=0)),
        "peak_of_java_mib": round(max(of_java, default=0)),
    }
    return found, round(sum(cpu.values()), 1)


def audited(stores: list[Path], out: Path, *options: str) -> dict[str, Any]:
    """One audit in a process of its own: seconds, CPU seconds, peak memory, what it found."""
    command = [sys.executable, "-m", "cli.main", "audit", *map(str, stores), "--out", str(out), *options]
    shutil.rmtree(out, ignore_errors=True)
    begin = time.perf_counter()
    peaks, cpu_s = followed(command)
    seconds = time.perf_counter() - begin
    summary = json.loads((out / "summary.json").read_text())
    return {
        "verdict": summary["verdict"],
        "records": summary["records"],
        "read_gib": round(summary["bytes"] / GIB, 2),
        "seconds": round(seconds, 1),
        "cpu_s": cpu_s,
        **peaks,
        "load_1min": round(os.getloadavg()[0], 1),
    }


def java_floor() -> dict[str, int]:
    """Peak memory, in MiB, of the JVM of an audit's context that is asked nothing, or next to nothing."""
    session = "from audit.engines.spark import SparkEngine\nengine = SparkEngine()\n"
    asked = {
        "empty_context": "",
        "one_job": "engine.warm_up()\n",
        "one_question_in_sql": "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.getOrCreate().range(1000).groupBy('id').count().collect()\n",
    }
    return {
        name: followed([sys.executable, "-c", f"{session}{code}engine.close()"])[0]["peak_of_java_mib"]
        for name, code in asked.items()
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
    ratios = {
        f"digests_to_{name}": round(found["digests"] / found[name], 2)
        for name in ("xxh3", "xxhsum")
        if name in found
    }
    return {"mb_per_cpu_s": found, **ratios}


def forget(paths: list[Path]) -> None:
    """Have the page cache drop these files."""
    os.sync()
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def cold(root: Path, gib: int) -> dict[str, Any]:
    """Seconds to read the files of three replicas from the disk: plain readers, digests, an audit."""
    stores = make(root, gib, copies=True)
    names = [f"commitlog/{n * GIB:020d}" for n in range(gib)]
    paths = [store / name for store in stores for name in names]
    tasks = [
        Task(at, str(store), name, n * GIB, (n + 1) * GIB, gib * GIB, n * GIB, (n + 1) * GIB, (), True)
        for n, name in enumerate(names)
        for at, store in enumerate(stores)
    ]

    def each(*command: str) -> None:
        for path in paths:
            subprocess.run([part.format(path) for part in command], check=True, capture_output=True)

    def compared() -> None:
        engine = LocalEngine()
        engine.digests(tasks)
        engine.close()

    works: dict[str, Callable[[], object]] = {
        "dd": lambda: each("dd", "if={}", "of=/dev/null", "bs=1M"),
        "digests": compared,
        "audit": lambda: audited(stores, root / "out"),
    }
    if shutil.which("xxhsum"):
        works["xxhsum"] = lambda: each("xxhsum", "-H2", "{}")
    seconds: dict[str, float] = {}
    for _ in range(COLD_ROUNDS):
        for name, work in works.items():
            forget(paths)
            begin = time.perf_counter()
            work()
            seconds[name] = round(min(seconds.get(name, 1e9), time.perf_counter() - begin), 2)
    return {
        "gib": gib * REPLICAS,
        "seconds": seconds,
        "digests_to_dd": round(seconds["digests"] / seconds["dd"], 2),
        "audit_to_dd": round(seconds["audit"] / seconds["dd"], 2),
        "load_1min": round(os.getloadavg()[0], 1),
    }


def without_start(audits: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """CPU of both engines by size, without what the small store took."""
    cpu = {(row["engine"], row["gib"]): row["cpu_s"] for row in audits if not row["lines"]}
    found = []
    for engine, gib in sorted(cpu):
        if engine == "spark" and gib and ("local", gib) in cpu:
            local = cpu["local", gib] - cpu["local", 0]
            spark = cpu["spark", gib] - cpu["spark", 0]
            found.append({"gib": gib, "local_cpu_s": round(local, 1), "spark_cpu_s": round(spark, 1)})
            found[-1]["spark_to_local"] = round(spark / local, 2)
    return found


def plotted(result: dict[str, Any]) -> str:
    rows = [
        {
            **row,
            "series": f"{row['engine']}, a ledger" if row["lines"] else row["engine"],
            "ratio": peak / PEAK_MAX_MIB,
        }
        for row in result["audits"]
        if (peak := max(row["peak_mib"], row["peak_of_others_mib"], row["peak_of_java_mib"])) and row["gib"]
    ]
    rows.sort(key=lambda row: (row["series"], row["gib"], row["lines"]))

    def label(row: dict[str, Any]) -> str:
        return f"{row['lines'] // 1_000_000} M lines" if row["lines"] else f"{row['gib']} GiB"

    def mib(ratio: float) -> str:
        return f"{ratio * PEAK_MAX_MIB:.0f} MiB"

    title = "The largest peak of an audit's processes, the JVM too, by the size of a log"
    return lines_svg(title, rows, label, 1.0, mib)


def measured(options: argparse.Namespace, folder: Path, result: dict[str, Any]) -> None:
    """Fill ``result``, printing each row."""

    def run(stores: list[Path], engine: str, gib: int, lines: int, *more: str) -> None:
        row = {"gib": gib, "engine": engine, "lines": lines, **audited(stores, folder / "out", *more)}
        result["audits"].append(row)
        print(json.dumps(row), flush=True)

    sparks = numbers(options.spark)
    if options.cold:
        result["cold"] = cold(folder / "cold", options.cold)
        print(json.dumps(result["cold"]), flush=True)
        shutil.rmtree(folder / "cold")
    if sparks:
        result["java_floor_mib"] = java_floor()
        print(json.dumps({"java_floor_mib": result["java_floor_mib"]}), flush=True)
        small = make(folder / "small", 1, segment_bytes=SMALL_BYTES)
        run(small, "local", 0, 0)
        run(small, "spark", 0, 0, "--engine", "spark")
    for gib in numbers(options.gib):
        stores = make(folder / f"s{gib}", gib)
        if "rates" not in result and not options.memory_only:
            result["rates"] = rates(stores[0])
            print(json.dumps(result["rates"]), flush=True)
        run(stores, "local", gib, 0)
        if gib in sparks:
            run(stores, "spark", gib, 0, "--engine", "spark")
        for lines in numbers(options.lines) if gib == numbers(options.gib)[-1] else ():
            ledger = folder / "acked.jsonl"
            write_ledger(ledger, lines)
            run(stores, "local", gib, lines, "--ledger", str(ledger))
            if gib in sparks:
                run(stores, "spark", gib, lines, "--engine", "spark", "--ledger", str(ledger))
            ledger.unlink()
        shutil.rmtree(folder / f"s{gib}")
    result["without_start"] = without_start(result["audits"])


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", default="1,4,16")
    parser.add_argument("--lines", default="1000000,10000000")
    parser.add_argument("--spark", default="", metavar="GIB", help="sizes at which Spark runs as well")
    parser.add_argument("--cold", type=int, default=0, metavar="GIB", help="a replica's, read from the disk")
    parser.add_argument("--memory-only", action="store_true", help="no rates")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, nargs=2, metavar=("SVG", "JSON"), help="of a result")
    options = parser.parse_args()
    if options.plot:
        options.plot[0].write_text(plotted(json.loads(options.plot[1].read_text())))
        return
    result: dict[str, Any] = {"machine": machine(), "record_bytes": len(RECORD), "audits": []}
    with tempfile.TemporaryDirectory(prefix="keelmq-bench-") as folder:
        measured(options, Path(folder), result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
