"""The promise of TLS to the Go client, which shows no certificate: it sends and reads where none is asked
for, goes on when a master dies, and is refused where one is asked for; by keelmq as by the real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from admin.local.cluster import LocalCluster
from tests.interop import shared_classes
from tests.interop.conftest import facts
from tests.interop.real_tls import real_servers
from tests.live.commands import keelmq
from tests.tls.secured import Secured, secured_cluster, wait

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

NOBODY = "- -"
ASKED = "tls.server.need.client.auth"
FLOW_MS = 45_000
"""The client looks for a new master every 30 s."""


def begin(driver: Path, namesrv: str, *commands: str, tls: bool = True) -> subprocess.Popen[str]:
    words = " -- ".join(commands).split()
    environment = {**os.environ, "TLS": "yes" if tls else "no"}
    return subprocess.Popen(
        [str(driver), namesrv, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def done(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=120)
    return said


def sent(said: str) -> int:
    return int(facts(said, "send")[0]["done"])


def addresses(cluster: Secured) -> str:
    return ";".join(node.address for node in LocalCluster.open(cluster.directory / "c").layout.namesrvs)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_cluster(tmp_path_factory.mktemp("ours")) as cluster:
        assert cluster.run("topic", "create", "Allowed", "--queues", "4").returncode == 0
        yield cluster


@pytest.fixture(scope="module")
def real(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A NameServer and a broker that ask for no certificate; topics are made by the first send."""
    directory = tmp_path_factory.mktemp("real")
    for made in (("ca",), ("server", "node", "--host", "127.0.0.1")):
        assert keelmq("certs", *made, "--dir", directory).returncode == 0
    file = directory / "tls.properties"
    file.write_text(
        "tls.test.mode.enable=false\n"
        f"{ASKED}=none\n"
        f"tls.server.keyPath={directory}/node.key\n"
        f"tls.server.certPath={directory}/node.pem\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={directory}/ca.pem\n"
    )
    options = f"-Dtls.server.mode=enforcing -Dtls.enable=true -Dtls.config.file={file}"
    with real_servers(directory, shared_classes.quick(options)) as namesrv:
        yield namesrv


@pytest.mark.more
@pytest.mark.covers("TLS: refused where a certificate is asked for", client="Go v2", sides="keelmq")
def test_it_is_refused_where_a_certificate_is_asked_for(ours: Secured, go_driver: Path) -> None:
    one, other = (
        begin(go_driver, addresses(ours), f"send {NOBODY} Allowed 1", tls=tls) for tls in (True, False)
    )
    for said in (done(one), done(other)):
        assert sent(said) == 0, said
        assert facts(said, "send")[0]["code"] == "-1", said


@pytest.mark.covers("TLS: send and read, also over a failover", client="Go v2", sides="keelmq")
def test_it_sends_and_reads_where_none_is_asked_for_and_goes_on_when_the_master_dies(
    ours: Secured, go_driver: Path
) -> None:
    ours.write("enforcing", **{ASKED: "none"})  # taken over without a stop
    namesrv = addresses(ours)
    wait("it is let in", lambda: sent(done(begin(go_driver, namesrv, f"send {NOBODY} Allowed 3"))) == 3)
    plain = begin(go_driver, namesrv, f"send {NOBODY} Allowed 1", tls=False)
    flow = begin(go_driver, namesrv, f"flow {NOBODY} Allowed {FLOW_MS}")
    assert sent(done(plain)) == 0
    time.sleep(4)
    former = ours.master()
    local = LocalCluster.open(ours.directory / "c")
    node = next(node for node in local.layout.broker_nodes if node.address == former)
    assert node.pid is not None
    os.kill(node.pid, signal.SIGKILL)
    said = done(flow)
    [flowed] = facts(said, "flowed")
    count = 3 + int(facts(said, "flow")[0]["done"])
    assert int(flowed["silent"]) < 5_000, f"it sends to the new master: {said[-2000:]}"
    assert ours.master() != former
    reader = begin(go_driver, namesrv, f"consume {NOBODY} Allowed go_reads {count} 20000")
    assert int(facts(done(reader), "consume")[0]["done"]) >= count


@pytest.mark.covers("TLS: send and read", client="Go v2", sides="real")
@pytest.mark.oracle
def test_the_real_broker_takes_it_with_tls_and_not_without(real: str, go_driver: Path) -> None:
    wait("it is let in", lambda: sent(done(begin(go_driver, real, f"send {NOBODY} GoTls 3"))) == 3, 60)
    reader = begin(go_driver, real, f"consume {NOBODY} GoTls go_reads 3 20000")
    assert int(facts(done(reader), "consume")[0]["done"]) >= 3
    assert sent(done(begin(go_driver, real, f"send {NOBODY} GoTls 1", tls=False))) == 0
