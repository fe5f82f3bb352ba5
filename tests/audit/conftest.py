"""One Spark for all tests that need it: its start takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def engine() -> Iterator[object]:
    """Spark on two cores of this machine."""
    pytest.importorskip("pyspark")
    from audit.engines.spark import SparkEngine

    made = SparkEngine("local[2]")
    yield made
    made.close()
