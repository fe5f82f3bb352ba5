"""The promise of every mqadmin command: after the same work it prints the same for RocketMQ and for keelmq,
field by field, but for what ``answers/mqadmin.py`` lists with its reason."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from tests.interop.answers.mqadmin import CASES, Case
from tests.interop.answers.shown import difference, fields
from tests.interop.answers.workload import work_and_ask
from tests.interop.conftest import beside
from tests.interop.mixed import MixedCluster, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900), pytest.mark.more]

Side = tuple[dict[str, str], dict[str, str]]
"""What each case printed, and what its names stand for."""


def _side(kind: str, base: Path) -> Side:
    cluster = MixedCluster(base / "c")
    if kind == "real":
        cluster.add_real_controllers(1)
        cluster.add_broker(kind, timerWheelEnable="true")  # without, it cannot delete a topic
    else:
        cluster.add_keelmq_controllers(1)
        cluster.add_broker(kind)
    scratch = base / "java"
    scratch.mkdir(parents=True)
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a master", lambda: cluster.is_full(1))
        said, names = asyncio.run(work_and_ask(cluster.namesrvs[0], cluster.controllers[0], CASES, scratch))
    return dict(zip((case.name for case in CASES), said, strict=True)), names


@pytest.fixture(scope="module")
def sides(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, Side]:
    """(keelmq, RocketMQ)."""
    ours, theirs = beside(
        *(partial(_side, kind, tmp_path_factory.mktemp(kind)) for kind in ("keelmq", "real"))
    )
    return ours, theirs


@pytest.mark.covers("mqadmin", client="mqadmin 5.5.0", sides="both", cases="mqadmin")
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_command_prints_the_same(sides: tuple[Side, Side], case: Case) -> None:
    ours, theirs = (fields(said[case.name], names, case.differs) for said, names in sides)
    assert difference(ours, theirs, shared=case.shared) == []
