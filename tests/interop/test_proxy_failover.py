"""The promise behind the proxy when a master dies: nothing that gRPC clients were told of is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.interop import grpc_sides
from tests.interop.conftest import facts
from tests.interop.mixed import MixedCluster, running

pytestmark = [pytest.mark.interop, pytest.mark.more, pytest.mark.timeout(600)]

FLOW_S = 60
"""The proxy asks for a route again after 20 s."""
BEFORE_S = 10


@pytest.mark.covers(
    "Through the proxy: a killed master; nothing acknowledged is lost, and sends go on",
    client="gRPC Python 5.1.2",
    sides="both",
)
@pytest.mark.parametrize("kind", ["keelmq", "real"])
def test_nothing_acknowledged_is_lost_behind_the_proxy_when_the_master_dies(
    real_rocketmq: Path, tmp_path: Path, kind: str
) -> None:
    cluster = MixedCluster(tmp_path / "group")
    if kind == "real":
        cluster.add_real_controllers(1)
    else:
        cluster.add_keelmq_controllers(1)
    # A real broker without the timers' wheel refuses pops.
    settings = {"timerWheelEnable": "true"} if kind == "real" else {}
    for _ in range(3):
        cluster.add_broker(kind, **settings)
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        namesrv = ";".join(cluster.namesrvs)
        grpc_sides.prepare(namesrv, tmp_path, "flow")
        with grpc_sides.proxy_before(namesrv, tmp_path / "proxy") as endpoint:
            found = _flow_and_kill(cluster, endpoint, tmp_path)
    print(f"{kind}: {found}")
    assert found["lost"] == "0", found
    assert int(found["acked"]) > 0, found
    assert int(found["silent"]) < (FLOW_S - BEFORE_S) * 1000, f"it sends to the new master: {found}"


def _flow_and_kill(cluster: MixedCluster, endpoint: str, scratch: Path) -> dict[str, str]:
    python = grpc_sides.python_driver()[0]
    with subprocess.Popen(
        [python, str(grpc_sides.DRIVERS / "flow.py"), endpoint, "flow", str(FLOW_S)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "HOME": str(scratch)},
    ) as flow:
        try:
            assert flow.stdout is not None
            said: list[str] = []
            for line in flow.stdout:
                said.append(line)
                if "DRIVER flows" in line:
                    break
            else:
                pytest.fail(f"nothing was acknowledged: {''.join(said)[-3000:]}")
            time.sleep(BEFORE_S)
            master = cluster.master()
            assert master is not None
            master.stop(signal.SIGKILL)
            output, _ = flow.communicate(timeout=200)
        finally:
            flow.kill()
    new = cluster.master()
    assert new not in (None, master)
    found = facts(output, "flowed")
    assert found, output[-3000:]
    return found[0]
