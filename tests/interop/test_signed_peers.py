"""The promise of peerCredentialsFile to the real RocketMQ: its brokers and its mqadmin take part unchanged
when they have the key, and mqadmin without it changes nothing."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from chaos.worlds import rocketmq
from client.admin import AdminClient
from model.codes import Request
from model.errors import MqError
from remoting.bodies import loads
from tests import GOLDEN
from tests.interop.conftest import mqadmin_all
from tests.interop.mixed import GROUP, KeelmqNode, MixedCluster, Server, running
from tests.interop.story import put_load

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

KEY = {"accessKey": "peers", "secretKey": "a secret of many bytes"}
USERS = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
VECTORS = GOLDEN / "acl" / "signed.jsonl"


@pytest.fixture(scope="module")
def signed(real_rocketmq: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """A real broker and one of ours, under a keelmq NameServer with Controller; all have the key."""
    cluster = MixedCluster(tmp_path_factory.mktemp("signed"))
    key = cluster.directory / "peers.json"
    key.write_text(json.dumps(KEY))
    cluster.add_keelmq_controllers(1)
    for server in cluster.servers:
        assert isinstance(server, KeelmqNode)
        server.config["peerCredentialsFile"] = key
    cluster.add_broker(
        "real",
        innerClientAuthenticationCredentials=json.dumps(KEY),
        # It keeps the key among its users, and does not start without a place for these.
        authenticationMetadataProvider=USERS,
    )
    cluster.add_broker("keelmq", peerCredentialsFile=key)
    tools = cluster.directory / "with-key" / "conf" / "tools.yml"
    tools.parent.mkdir(parents=True)
    tools.write_text(f"accessKey: {KEY['accessKey']}\nsecretKey: {KEY['secretKey']}\n")
    (cluster.directory / "without-key").mkdir()
    with running(cluster):
        cluster.start_brokers()
        cluster.wait("a full SyncStateSet", cluster.is_full)
        yield cluster


def commands(cluster: MixedCluster, topic: str) -> list[str]:
    """Make the other broker master, make a topic, and set a key of the Controller."""
    transfer_target = next(b for b in cluster.brokers if b is not cluster.master())
    at = f"-a {cluster.controllers[0]}"
    return [
        f"electMaster {at} -bn {GROUP} -c DefaultCluster -b {cluster.id_of(transfer_target)}",
        f"updateTopic -b {cluster.address(cluster.brokers[1])} -t {topic}",
        f"updateControllerConfig {at} -k electMasterMaxRetryCount -v 7",
        f"updateNamesrvConfig -n {cluster.namesrvs[0]} -k orderMessageEnable -v true",
    ]


def mqadmin(cluster: MixedCluster, home: str, *commands: str) -> list[str]:
    """What each printed. A read goes first: a JVM is slow at its first request, and mqadmin waits for 3 s."""
    first = f"getControllerMetaData -a {cluster.controllers[0]}"
    return mqadmin_all(";".join(cluster.namesrvs), cluster.directory / home, first, *commands)[1:]


def leads(cluster: MixedCluster, broker: Server) -> bool:
    return cluster.master() is broker


def settings(cluster: MixedCluster) -> tuple[bool, bool]:
    _, controller = rocketmq.call(cluster.controllers[0], Request.GET_CONTROLLER_CONFIG)
    _, namesrv = rocketmq.call(cluster.namesrvs[0], Request.GET_NAMESRV_CONFIG)
    return b"electMasterMaxRetryCount=7" in controller, b"orderMessageEnable=true" in namesrv


def topics(cluster: MixedCluster) -> set[str]:
    _, body = rocketmq.call(cluster.address(cluster.brokers[1]), Request.GET_ALL_TOPIC_CONFIG)
    return set(loads(body)["topicConfigTable"])


@pytest.mark.covers(
    "Signed peers: without the key nothing is changed", client="mqadmin 5.5.0", sides="keelmq"
)
def test_mqadmin_without_the_key_changes_nothing_and_is_told_what_to_do(signed: MixedCluster) -> None:
    master = signed.master()
    for said in mqadmin(signed, "without-key", *commands(signed, "Strange")):
        assert "must be signed here" in said, said[-1500:]
        assert "conf/tools.yml" in said, said[-1500:]
    assert signed.master() is master
    assert "Strange" not in topics(signed)
    assert settings(signed) == (False, False)


@pytest.mark.covers("Signed peers: a stranger is no operator", client="keelmq", sides="together")
def test_a_stranger_is_no_broker(signed: MixedCluster) -> None:
    """Nor is our own command without the key an operator."""

    async def elect(admin: AdminClient) -> str:
        try:
            await admin.elect(signed.controllers, "DefaultCluster", GROUP, 2)
        except MqError as refused:
            return str(refused)
        return "elected"

    assert "must be signed" in str(signed.asked(elect))


@pytest.mark.covers(
    "Signed peers: with the key all take part", client="broker 5.5.0, mqadmin 5.5.0", sides="together"
)
def test_with_the_key_real_brokers_and_mqadmin_take_part_as_ever(signed: MixedCluster) -> None:
    put_load(signed, 50)
    ours = signed.brokers[1]
    for _ in range(2):
        transfer_target = next(b for b in signed.brokers if b is not signed.master())
        elect, *changes = commands(signed, "Ours")
        said = mqadmin(signed, "with-key", elect)
        signed.wait(f"{transfer_target.name} to lead", partial(leads, signed, transfer_target))
        signed.wait("a full SyncStateSet", signed.is_full)
        if transfer_target is ours:  # a slave would take the table of its master instead
            said += mqadmin(signed, "with-key", *changes)
            assert "Ours" in topics(signed), said
            assert settings(signed) == (True, True), said
        assert not any("must be signed" in one for one in said), said
        put_load(signed, 50)
    assert settings(signed) == (True, True)


@pytest.mark.covers("Signed peers: the signature itself", client="Java 5.5.0", sides="both")
def test_the_vectors_are_what_the_real_class_signs(real_rocketmq: Path, tmp_path: Path) -> None:
    source = Path(__file__).parent / "java" / "SignedFrames.java"
    classes = rocketmq.compile_java(source)
    command = rocketmq.java("SignedFrames", classes=classes, user_home=tmp_path, heap_mb=128)
    assert shutil.which(command[0])
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    made = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("FRAME ")]
    kept = [json.loads(line) for line in VECTORS.read_text().splitlines()]
    assert [line["name"] for line in made] == [line["name"] for line in kept], done.stderr[-2000:]
    for new, old in zip(made, kept, strict=True):
        if old["name"] != "elect_master":  # it holds the time
            assert new == old
