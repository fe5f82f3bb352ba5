"""Whose session it is, what it is set to, and what audits leave in it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

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
    from audit.engines.on_spark.session import set_elsewhere, settings

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

    assert variables(master, "/java", said).get("SPARK_LOCAL_IP") == told
