"""Whose session it is, what it is set to, and what audits leave in it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from audit.tables import EngineError, Task
from tests import ROOT
from tests.audit.engines.killed import end
from tests.audit.plants import make, run_spark
from tests.audit.stores import patch

pytest.importorskip("pyspark")

from audit.engines.on_spark.session import LEAST, PARTITIONS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(300),
    # Spark's own use of deprecated parts of its dependencies is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]


def test_a_context_that_is_there_is_used_and_left_running(engine: object) -> None:
    from audit.engines.spark import SparkEngine

    assert isinstance(engine, SparkEngine)
    context = engine._cluster.context
    other = SparkEngine("spark://nowhere:1", {"spark.executor.memory": "1t"})
    assert other._cluster.context is context
    other.close()
    assert context.parallelize(range(3)).count() == 3


def test_a_session_that_is_there_says_how_to_shuffle(session: Any) -> None:
    from audit.engines.spark import SparkEngine

    before = session.conf.get(PARTITIONS)
    other = SparkEngine("spark://nowhere:1")
    least = session.conf.get(LEAST)
    try:
        session.conf.unset(LEAST)
        session.conf.set(PARTITIONS, "7")
        assert (other._cluster.partitions(1000), other._cluster.partitions(3)) == (7, 3)
        session.conf.set(PARTITIONS, "200")  # as Spark does where nobody says anything
        other._cluster.spread(41_000)
        assert (other._cluster.partitions(1000), other._cluster.partitions(2)) == (3, 2)
    finally:
        session.conf.set(PARTITIONS, before)
        session.conf.set(LEAST, least)
        other.close()
    assert session.range(3).count() == 3


def test_audits_leave_nothing_in_the_programs_session(engine: object, tmp_path: Path) -> None:
    """Else a notebook that audits again and again runs out of the JVM's memory."""
    from pyspark import RDD

    from audit.engines.spark import SparkEngine

    assert isinstance(engine, SparkEngine)
    context = engine._cluster.context
    stores, _, ledger = make(tmp_path)
    patch(stores[1], 40, b"\xff")  # what is wrong is streamed to the driver
    for _ in range(2):
        assert run_spark(engine, stores, ledger).findings
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, RDD)]
        assert not kept, f"{len(kept)} datasets of the audit are left"
    assert context._jsc.getPersistentRDDs().isEmpty()
    assert context._jsc.sc().dagScheduler().activeQueryToJobs().isEmpty(), "jobs that no query ends"


@pytest.mark.parametrize(
    ("rows", "wanted"),
    [
        (0, 1),
        (6071, 1),
        (20_001, 2),
        (64 * 20_000, 64),
        (32_000_000, 64),
        (32_000_001, 65),
        (100_000_000, 200),
        (10_000_000_000, 20_000),
    ],
)
def test_a_shuffle_of_few_rows_has_few_tasks(rows: int, wanted: int) -> None:
    """On a cluster a small group's audit spent most of its time in starting 64 of them a shuffle."""
    from audit.engines.on_spark.session import partitions, settings

    assert partitions(int(settings("spark://one:7077", "log", {}, set())[LEAST]), rows) == wanted


def test_what_the_user_sets_wins(tmp_path: Path) -> None:
    from audit.engines.on_spark.session import DRIVER_MEMORY, JAVA_OPTIONS, set_elsewhere, settings

    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.no.setting 1\nspark.ui.enabled   true\nspark.sql.session.timeZone=CET\n\nother 1\n"
    )
    environ = {
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": "--conf spark.sql.shuffle.partitions=7 pyspark-shell",
    }
    elsewhere = set_elsewhere(environ)
    assert elsewhere == {"spark.ui.enabled", "spark.sql.session.timeZone", "spark.sql.shuffle.partitions"}
    found = settings("local[2]", "log", {"spark.driver.host": "10.0.0.1"}, elsewhere)
    assert found["spark.driver.host"] == "10.0.0.1"
    assert not (elsewhere | {LEAST}) & found.keys(), "the audit chooses no partitions of its own, either"
    assert "spark.driver.extraJavaOptions" in found
    assert set_elsewhere({}) == set()
    given = "--driver-memory 4g --driver-java-options=-Xss2m pyspark-shell"
    assert set_elsewhere({"PYSPARK_SUBMIT_ARGS": given}) == {DRIVER_MEMORY, JAVA_OPTIONS}


@pytest.mark.parametrize(
    ("master", "conf", "elsewhere", "lean"),
    [
        ("local[2]", {}, set(), True),
        ("spark://one:7077", {}, set(), False),
        ("local[2]", {"spark.driver.memory": "4g"}, set(), False),
        ("local[2]", {}, {"spark.driver.memory"}, False),
        ("local[2]", {"spark.driver.extraJavaOptions": "-Xss2m"}, set(), False),
    ],
)
def test_a_local_jvm_begins_small_unless_the_user_gives_it_memory(
    master: str, conf: dict[str, str], elsewhere: set[str], lean: bool
) -> None:
    from audit.engines.on_spark.session import JAVA_OPTIONS, LEAN, settings

    found = settings(master, "log", conf, elsewhere)
    assert (LEAN in found[JAVA_OPTIONS]) == lean
    assert conf.items() <= found.items()


@pytest.mark.parametrize(
    ("master", "said", "told"),
    [
        ("local[*]", {}, "127.0.0.1"),
        ("local[*]", {"SPARK_LOCAL_IP": "10.0.0.1"}, "10.0.0.1"),
        ("spark://one:7077", {}, None),
    ],
)
def test_a_local_session_needs_no_address_for_the_machines_name(
    master: str, said: dict[str, str], told: str | None
) -> None:
    from audit.engines.on_spark.session import variables

    assert variables(master, "/java", said, set()).get("SPARK_LOCAL_IP") == told


def test_where_the_user_has_rows_wait_they_do() -> None:
    from audit.engines.on_spark.session import LOCAL_DIR, variables

    assert "SPARK_LOCAL_DIRS" in variables("local[2]", "/java", {}, set())
    assert "SPARK_LOCAL_DIRS" not in variables("local[2]", "/java", {}, {LOCAL_DIR})
    named = {"SPARK_LOCAL_DIRS": "/d"}
    assert variables("local[2]", "/java", named, set())["SPARK_LOCAL_DIRS"] == "/d"


CALLED = "An error occurred while calling o1.collect.\n: "


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ""),
        ("no such setting", "no such setting"),
        (f"{CALLED}NullPointerException: null\n\tat org.a", "NullPointerException: null"),
        (f"{CALLED}Job aborted, most recent failure: Lost task 0\n\tat org.a\nCaused by: b\n", "Lost task 0"),
        *(
            (
                f"{begin}: Traceback (most recent call last):\n  File x\n    ^^^\nOSError: [Errno 5] '/a'\n"
                " SQLSTATE: 1\n\n\tat org.a\nCaused by: b\n",
                "OSError: [Errno 5] '/a'",
            )
            for begin in (f"{CALLED}PythonException", "An exception was thrown from the Python worker")
        ),
    ],
)
def test_an_error_of_spark_is_said_without_its_stack(text: str, said: str) -> None:
    from audit.engines.spark import reason

    assert reason(text) == said


def test_what_ended_a_task_is_said(engine: Any) -> None:
    from audit.engines.spark import spark_errors

    gone = Task(0, "/nowhere", "commitlog/0", 0, 9, 9, 0, 9)
    with pytest.raises(EngineError, match=r"^Spark failed: FileNotFoundError: .*/nowhere/commitlog/0'$"):
        engine.compared([gone])
    with pytest.raises(EngineError, match="Python worker exited unexpectedly"), spark_errors():
        engine._cluster.each([0], 0).map(end).collect()
    engine.warm_up()


def test_what_a_killed_worker_left_goes_with_its_jvm(tmp_path: Path) -> None:
    """Spark kills the workers of a job that failed; each had files."""
    program = """
from audit.engines.spark import SparkEngine
from tests.audit.engines.killed import leave
engine = SparkEngine("local[1]")
try:
    engine._cluster.each([0], 0).map(leave).collect()
except Exception:
    print("ended")
engine.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "LEFT": str(tmp_path / "left")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout == "ended\n", done.stderr
    left = Path((tmp_path / "left").read_text())
    assert tmp_path in left.parents
    assert not left.exists()


def test_a_program_finds_its_session_as_it_was(engine: Any) -> None:
    from audit.engines.spark import DESCRIPTION, SparkEngine

    context = engine._cluster.context
    before = context.getLocalProperty(DESCRIPTION)
    context.setJobDescription("nightly")
    try:
        other = SparkEngine()
        other.warm_up()
        other._cluster.describe("digests")
        other.close()
        assert context.getLocalProperty(DESCRIPTION) == "nightly"
    finally:
        context.setLocalProperty(DESCRIPTION, before)


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_a_jvm_that_ends_under_an_audit_ends_it_with_a_word(ended: str, tmp_path: Path) -> None:
    """In a program of its own: there is one context in a process."""
    stores, _, _ = make(tmp_path)
    jvm = "engine._cluster.context._gateway.proc"
    stop = "engine._cluster.context.stop()" if ended == "stopped" else f"{jvm}.kill(); {jvm}.wait()"
    program = f"""
from audit.engines.spark import SparkEngine
from audit.tables import EngineError, Task
engine = SparkEngine("local[1]")
log = engine.scan([Task(0, {str(stores[0])!r}, "commitlog/" + "0" * 20, 0, 4096, 4096, 0, 4096, (), True)])
{stop}
try:
    engine.compared([])
except EngineError as error:
    print(error)
log.close()
engine.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    said = {"stopped": "its context was stopped", "killed": "its JVM has ended"}[ended]
    assert said in done.stdout
