"""The promise of a cluster: submitted to a master with two workers, an audit says what it says alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.audit.plants import PLANTS, make, run_local

pytest.importorskip("pyspark")

pytestmark = [
    pytest.mark.spark,
    # Spark's own use of deprecated parts of its dependencies is not ours to mend.
    pytest.mark.filterwarnings("ignore"),
]

SAY_SETTINGS = """
import json
from audit.engines.on_spark.session import submitted_settings
print(json.dumps(submitted_settings(None, {"spark.sql.shuffle.partitions": "2"})))
print(json.dumps(submitted_settings("local[3]", {})))
"""
NIGHTLY = ("--conf", "spark.app.name=nightly audit", "--conf", "spark.sql.shuffle.partitions=7")

OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from audit.engines.commitlog import register, ship
from audit.engines.spark import SparkEngine
from audit.tables import EngineError

builder = SparkSession.builder.master(sys.argv[1])
for setting in sys.argv[3:]:
    builder = builder.config(*setting.split("=", 1))
session = builder.getOrCreate()
engine = SparkEngine()
try:
    engine.warm_up()
except EngineError as error:
    print(error)
ship(session)
register(session)
engine.warm_up()
print(session.read.format("commitlog").load(sys.argv[2]).count())
session.stop()
"""


def test_what_spark_submit_was_given_stands_unless_an_option_says_otherwise(tmp_path: Path) -> None:
    """Its JVM is asked; no session is started."""
    from audit.engines.on_spark.java import find_java
    from tests.audit.cluster import SPARK

    program = tmp_path / "program.py"
    program.write_text(SAY_SETTINGS)
    java = find_java()
    try:
        done = subprocess.run(
            [
                *(str(SPARK / "bin" / "spark-submit"), "--master", "spark://nowhere:1", *NIGHTLY),
                *("--driver-java-options", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1", str(program)),
            ],
            env={**os.environ, "JAVA_HOME": java.home, "PYTHONPATH": str(ROOT)}
            | {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": str(SPARK)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    finally:
        java.close()
    assert done.returncode == 0, done.stderr
    stands, chosen = map(json.loads, done.stdout.splitlines())
    assert stands["spark.sql.shuffle.partitions"] == "2"
    assert not {"spark.app.name", "spark.master", "spark.driver.host"} & stands.keys()
    assert chosen["spark.master"] == "local[3]"
    assert not {"spark.app.name", "spark.sql.shuffle.partitions"} & chosen.keys()


def test_a_worker_needs_no_more_of_ours_than_travels_with_the_job(tmp_path: Path) -> None:
    """What Spark unpickles there is of these modules."""
    from audit.engines.on_spark.session import packages

    told = subprocess.run(
        [
            sys.executable,
            "-P",
            "-c",
            "import audit.engines.spark, audit.engines.commitlog as c; print(c.__file__)",
        ],
        env={**os.environ, "PYTHONPATH": str(packages(tmp_path))},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(str(tmp_path))


@pytest.mark.more  # a minute of CPU: six JVMs
@pytest.mark.timeout(1500)
def test_an_audit_is_submitted_to_workers_of_which_one_has_no_fast_hashes(tmp_path: Path) -> None:
    """Their digests are of two kinds, so all are made again of the kind that both know. The packages travel
    with the job: no worker finds them otherwise. ``--conf`` of spark-submit and of the audit both count."""
    from tests.audit.cluster import SPARK, started

    stores, writer, ledger = make(tmp_path)
    next(p for p in PLANTS if p.name == "flipped bit").do(stores, writer)
    expected = run_local(stores, ledger)
    assert expected.findings
    settings = {
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "600s",
        "spark.app.name": "nightly audit",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.network.timeout": "600s",
        "spark.sql.codegen.wholeStage": "false",
        "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    (tmp_path / "cluster").mkdir()
    out = tmp_path / "out"
    with started(tmp_path / "cluster") as cluster:
        done = subprocess.run(
            [
                *(str(SPARK / "bin" / "spark-submit"), "--master", cluster.master, *given),
                *(str(ROOT / "docs" / "examples" / "audit_job.py"), "audit", *map(str, stores)),
                *("--ledger", str(ledger), "--engine", "spark", "--out", str(out)),
                *("--conf", "spark.sql.shuffle.partitions=2"),
            ],
            env=cluster.environ | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=1000,
            check=False,
        )
        assert done.returncode == 2, done.stdout + done.stderr
        program = tmp_path / "own_session.py"
        program.write_text(OWN_SESSION)
        own = subprocess.run(
            [sys.executable, str(program), cluster.master, str(stores[0])]
            + [f"{name}={value}" for name, value in settings.items()],
            env=cluster.environ | {"PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert own.returncode == 0, own.stdout + own.stderr
        said, count = own.stdout.splitlines()
        assert "No module named 'audit'" in said
        assert "audit.engines.commitlog.ship(session) sends it there" in said
        assert int(count) == len(writer.rows)
        ran = [list(place.glob("app-*/*/stderr")) for place in cluster.work]
        assert all(ran), "each worker had an executor"
        master = (tmp_path / "cluster" / "master.log").read_text()
    assert "nightly audit" in master, "what was given to spark-submit stands"
    rows = [json.loads(line) for line in (out / "findings.jsonl").read_text().splitlines()]
    assert rows == [f.to_json() for f in expected.findings]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["records"] == expected.records
    assert summary["digestBytes"] == 2 * expected.digest_bytes, "once by each kind"
