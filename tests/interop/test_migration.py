"""The promise of docs/migration.md: a group of RocketMQ becomes one of keelmq and loses nothing."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from bench.stock_producer import Send
from tests.interop.load import unserved
from tests.interop.migration import Step, change_controllers, join, leave, ledger_line, markdown
from tests.interop.mixed import MixedCluster, running
from tests.interop.story import put_load

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


@pytest.mark.covers(
    "A group with its Controllers and NameServers becomes one of keelmq",
    client="broker, Controller 5.5.0",
    sides="together",
)
def test_a_real_group_becomes_one_of_keelmq_with_its_controllers(real_rocketmq: Path, tmp_path: Path) -> None:
    cluster = MixedCluster(tmp_path)
    cluster.add_real_controllers(1)
    real = cluster.add_broker("real")
    with running(cluster):
        real.start()
        cluster.wait("the real broker to lead", partial(cluster.is_full, 1))
        put_load(cluster, 20)
        ours = cluster.add_broker("keelmq")
        join(cluster, [ours], 1)
        leave(cluster, [real], 1)
        assert cluster.master() is ours
        put_load(cluster, 20)
        change_controllers(cluster, "keelmq", [ours])
        put_load(cluster, 20)
        cluster.wait("all that was acknowledged to be served", lambda: not unserved(cluster), 30)


def test_a_ledger_has_what_the_producer_was_told() -> None:
    line = ledger_line(Send.parse("ok 10 12 k0 3 7 7F00"))
    assert '"uniq_key": "7F00"' in line
    assert '"queue_id": 3, "queue_offset": 7' in line
    found = {"keelmq": {"acknowledged": 7, "lost": 0, "verdict": "clean", "findings": {}}}
    assert "| all keelmq | 7 | 0 | clean | none |" in markdown([Step("x", 1.0, 7, 0, 20)], found)
