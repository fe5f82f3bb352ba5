"""The promise of controller.links.tls: who shows no certificate of the CA for its member is not heard."""

import asyncio
import shutil
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from controller.links.tls import TlsFiles, TlsNetwork, member_names
from model.config import ControllerConfig
from model.errors import ConfigError
from runtime.tls.state import wall_ms
from tests.controller.certificates import Authority
from tests.fakes.controller.raft_sim import wait_for
from tests.fakes.controller.strangers import SECRET, End, Stranger, alone, frame, members, pair, port_of

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="certificates are made with openssl")


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.mark.parametrize("secret", [SECRET, None])
def test_members_of_one_ca_hear_each_other(ours: Authority, secret: bytes | None) -> None:
    async def main(one: End, two: End) -> None:
        await wait_for(lambda: one.ups and two.ups)
        for number in range(100):
            assert one.transport.send("n1", b"%d" % number * (number + 1))
        assert two.transport.send("n0", b"back")
        await wait_for(lambda: len(two.heard) == 100 and one.heard)

    pair(main, (secret, secret), files=(ours.issue("n0"), ours.issue("n1")))


@pytest.mark.parametrize(
    "who", ["a foreign ca", "trusts a foreign ca", "no tls", "another member", "acceptor is another"]
)
def test_whoever_lacks_the_right_certificate_is_never_heard(
    ours: Authority, theirs: Authority, who: str
) -> None:
    dialer: TlsFiles | None = ours.issue("n0")
    acceptor: TlsFiles | None = ours.issue("n1")
    if who == "a foreign ca":
        dialer = theirs.issue("n0", trusts=ours)
    elif who == "trusts a foreign ca":
        dialer = ours.issue("n0", trusts=theirs)
    elif who == "no tls":
        dialer = None
    elif who == "another member":
        dialer = ours.issue("n2")
    else:
        acceptor = ours.issue("n2")

    async def main(one: End, two: End) -> None:
        await asyncio.sleep(0.6)
        assert (one.ups, two.ups, two.heard) == ([], [], [])
        assert not one.transport.send("n1", b"x")

    pair(main, files=(dialer, acceptor))


def test_the_secret_alone_is_not_enough_and_older_tls_is_refused(ours: Authority) -> None:
    async def knock(end: End, context: ssl.SSLContext) -> bool:
        """Whether a peer with the right secret is heard."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(end), ssl=context)
        try:
            stranger = Stranger(reader, writer)
            key, _ = await stranger.shake(end, SECRET)
            writer.write(frame(key, 1, b"x"))
            await wait_for(lambda: end.heard, 2)
        finally:
            writer.close()
        return True

    def client(files: TlsFiles | None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if files is not None:
            context.load_cert_chain(files.cert, files.key)
        return context

    async def main(end: End) -> None:
        old = client(ours.issue("n0"))
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        for context in (client(None), old):
            with pytest.raises((OSError, EOFError)):
                await knock(end, context)
        assert (end.ups, end.heard) == ([], [])
        assert await knock(end, client(ours.issue("n0")))

    alone(main, ours.issue("n1"))


def test_files_that_cannot_be_used_are_named(ours: Authority, tmp_path: Path) -> None:
    good = ours.issue("n0")
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nothing")
    for files, match in (
        (replace(good, cert="/nowhere.pem"), "raftTlsCert=/nowhere"),
        (replace(good, key=ours.issue("n1").key), "raftTlsKey="),
        (replace(good, ca=str(nonsense)), "raftTlsCaFile=.*nonsense"),
    ):
        with pytest.raises(ConfigError, match=match):
            End("n0", members(), SECRET, files)


def test_with_tls_members_need_no_secret_beyond_loopback(ours: Authority) -> None:
    assert not End("n0", {"n0": "10.0.0.1:9", "n1": "10.0.0.2:9"}, None, ours.issue("n0")).ups


def test_the_three_keys_go_together() -> None:
    values = {
        "controllerDLegerPeers": "n0-127.0.0.1:9878",
        "controllerDLegerSelfId": "n0",
        "raftTlsCert": "/c.pem",
    }
    with pytest.raises(ConfigError, match="go together"):
        ControllerConfig.from_mapping(values).check()


def test_a_certificate_names_members_by_common_name_and_dns_names() -> None:
    found = {
        "subject": ((("organizationName", "o"),), (("commonName", "n0"),)),
        "subjectAltName": (("DNS", "n0.example"), ("IP Address", "10.0.0.1")),
    }
    assert member_names(found) == {"n0", "n0.example"}
    assert member_names(None) == frozenset()


def test_renewed_certificates_are_used_for_new_links_and_wrong_ones_are_not(
    ours: Authority, theirs: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file changes; its name stays."""
    used = replace(ours.issue("n1"), cert=str(tmp_path / "n1.pem"), key=str(tmp_path / "n1.key"))

    def put(files: TlsFiles) -> None:
        shutil.copy(files.cert, used.cert)
        shutil.copy(files.key, used.key)

    put(ours.issue("n2"))  # another member's

    async def main(one: End, two: End) -> None:
        network = two.transport._network
        assert isinstance(network, TlsNetwork)
        await asyncio.sleep(0.4)
        assert one.ups == []
        shutil.copy(theirs.issue("n1").key, used.key)
        network.look()
        network.look()
        assert "the new files are not used" in caplog.text
        put(ours.issue("n1"))
        network.look()
        network.look()
        await wait_for(lambda: one.ups and two.ups)

    pair(main, files=(ours.issue("n0"), used))


def test_an_expired_certificate_is_refused_and_one_that_ends_soon_is_complained_about(
    ours: Authority, theirs: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    issued = ours.issue("n1")
    used = replace(issued, cert=str(tmp_path / "n1.pem"), key=str(tmp_path / "n1.key"))

    def put(files: TlsFiles) -> None:
        shutil.copy(files.cert, used.cert)
        shutil.copy(files.key, used.key)

    put(issued)
    at = [wall_ms()]
    network = TlsNetwork(used, lambda: at[0])
    end_ms = network.own.not_after_ms
    assert (network.status()["notAfterMs"], network.error, network.trouble()) == (end_ms, None, [])
    network.look()
    assert "the certificate of this Controller expires at" in caplog.text, "it has three days"
    at[0] = end_ms + 3_600_000  # the next one is issued a moment later
    assert network.trouble() == [f"its raftTlsCert expired at {network.own.not_after}"]
    with pytest.raises(ConfigError, match=r"raftTlsCert=.*it expired at .*renew it"):
        TlsNetwork(used, lambda: at[0])
    put(ours.issue("n2"))
    for _ in range(2):
        network.look()
    assert "it expired at" in str(network.status()["error"])
    at[0] = wall_ms()
    put(theirs.issue("n1"))
    for _ in range(2):
        network.look()
    assert "a member with the same files could not link to this one" in str(network.error)
    put(issued)
    for _ in range(2):
        network.look()
    assert (network.error, network.reloads) == (None, 1)


def test_why_tls_with_a_member_failed_is_said_by_the_end_that_hears_it(
    ours: Authority, theirs: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """The dialer is the one who is not believed, and the one who does not believe."""

    async def main(one: End, two: End) -> None:
        await wait_for(lambda: "TLS with n1: " in one.transport.unlinked())
        assert one.ups == []
        status = one.transport.tls_status()
        assert status is not None
        failed.update(status["failed"])

    for files, why in (
        ((theirs.issue("n0", trusts=ours), ours.issue("n1")), "it does not know the authority of our"),
        ((ours.issue("n0", trusts=theirs), ours.issue("n1")), "its certificate is not believed"),
    ):
        failed = dict[str, str]()
        pair(main, files=files)
        assert why in failed["n1"]
        assert f"TLS: {failed['n1']}" in caplog.text
