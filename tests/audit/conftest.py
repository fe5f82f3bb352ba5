"""One Spark for all tests that need it: its start takes longer than most of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def engine() -> Iterator[object]:
    """Spark on two cores of this machine."""
    pytest.importorskip("pyspark")
    from audit.engines.spark import SparkEngine

    names = ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_DIRS")
    before = [os.environ.get(name) for name in names]
    made = SparkEngine("local[2]")
    after = [os.environ.get(name) for name in names]
    assert after == before, "what this process starts later would run with what was Spark's alone"
    yield made
    made.close()


@pytest.fixture(scope="session")
def session(engine: object) -> object:
    """A session over the engine's context, for what is asked in SQL."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
