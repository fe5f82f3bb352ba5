"""The promise of links: the relay does to connections what Toxiproxy does, and says the same of them.

Each test runs against both. The real server is built with Go once a machine (``make toxiproxy``).
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from chaos.links import server as servers
from chaos.links.detours import Detours
from chaos.links.server import LinkServer, NoLinks
from chaos.links.toxics import BadToxic, Toxic
from chaos.live import noted
from tests import ROOT
from tests.toxiproxy import real_toxiproxy


def test_a_setpriv_that_cannot_end_what_it_starts_is_not_put_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "setpriv"
    other.write_text("#!/bin/sh\necho 'Usage: setpriv [OPTIONS] PROG ARGS' >&2; exit 1\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert servers._with_us() == []


class Echo:
    """Says back what it hears; ``chunks``: what came in one read."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.chunks: list[bytes] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                while data := peer.recv(1 << 16):
                    self.chunks.append(data)
                    peer.sendall(data)
            except OSError:
                return


class Links:
    """A server of links, an echo behind one proxy, and plain HTTP to the API."""

    def __init__(self, server: LinkServer, echo: Echo) -> None:
        self.server, self.echo = server, echo
        self.url = f"http://{server.address}"

    def api(self, method: str, path: str, body: Any = None, **more: Any) -> requests.Response:
        return requests.request(method, self.url + path, json=body, timeout=10, **more)

    def dial(self) -> socket.socket:
        host, _, port = self.api("GET", "/proxies/echo").json()["listen"].rpartition(":")
        return socket.create_connection((host, int(port)), timeout=10)

    def toxic(self, kind: str, stream: str = "downstream", toxicity: float = 1, **attributes: int) -> None:
        body = {"type": kind, "stream": stream, "toxicity": toxicity, "attributes": attributes}
        assert self.api("POST", "/proxies/echo/toxics", body).status_code == 200


@pytest.fixture(scope="module", params=["toxiproxy", "relay"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkServer]:
    binary = real_toxiproxy() if request.param == "toxiproxy" else None
    server = LinkServer.start(tmp_path_factory.mktemp("links") / "log", binary)
    assert server.kind == request.param
    yield server
    server.stop()


@pytest.fixture
def links(server: LinkServer) -> Iterator[Links]:
    echo = Echo()
    links = Links(server, echo)
    asyncio.run(server.create("echo", "127.0.0.1:0", echo.address))
    yield links
    for name in links.api("GET", "/proxies").json():
        links.api("DELETE", f"/proxies/{name}")
    echo.listener.close()


def ask(peer: socket.socket, data: bytes = b"hello") -> bytes:
    peer.sendall(data)
    got = b""
    while len(got) < len(data):
        more = peer.recv(1 << 16)
        if not more:
            break
        got += more
    return got


def ask_until_it_ends(peer: socket.socket) -> None:
    for _ in range(200):
        ask(peer)
        time.sleep(0.02)


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


def test_bytes_pass_both_ways_and_an_end_of_one_side_reaches_the_other(links: Links) -> None:
    with links.dial() as peer:
        assert ask(peer, bytes(range(256)) * 4000) == bytes(range(256)) * 4000
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b""


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "error"),
    [
        ("POST", "/proxies", {"name": "echo", "upstream": "127.0.0.1:9"}, 409, "proxy already exists"),
        ("POST", "/proxies", {"name": "b"}, 400, "missing required field: upstream"),
        ("POST", "/proxies", {"upstream": "127.0.0.1:9"}, 400, "missing required field: name"),
        ("GET", "/proxies/zz", None, 404, "proxy not found"),
        ("DELETE", "/proxies/zz", None, 404, "proxy not found"),
        ("GET", "/proxies/zz/toxics", None, 404, "proxy not found"),
        ("GET", "/proxies/echo/toxics/zz", None, 404, "toxic not found"),
        ("DELETE", "/proxies/echo/toxics/zz", None, 404, "toxic not found"),
        ("POST", "/proxies/echo/toxics", {"type": "nope"}, 400, "invalid toxic type"),
        (
            "POST",
            "/proxies/echo/toxics",
            {"type": "timeout", "stream": "sideways"},
            400,
            "stream was invalid, can be either upstream or downstream",
        ),
        (
            "POST",
            "/proxies/echo/toxics",
            {"type": "slicer", "attributes": {"delay": "x"}},
            400,
            "bad request body",
        ),
        ("POST", "/populate", [{"name": ""}], 400, "missing required field: name at proxy 1"),
        ("PUT", "/proxies", None, 405, ""),
    ],
)
def test_wrong_requests_get_the_same_answer(
    links: Links, method: str, path: str, body: Any, status: int, error: str
) -> None:
    answer = links.api(method, path, body)
    assert answer.status_code == status
    if error:
        assert answer.json()["error"].startswith(error)
        assert answer.json()["status"] == status


def test_a_browsers_page_is_refused(links: Links) -> None:
    assert links.api("GET", "/proxies", headers={"User-Agent": "Mozilla/5.0"}).status_code == 403


def test_proxies_and_toxics_are_shown_as_they_are(links: Links) -> None:
    made = links.api("POST", "/proxies", {"name": "b", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"})
    assert made.status_code == 201
    shown = made.json()
    shown.pop("Logger", None)
    port = int(shown["listen"].rpartition(":")[2])
    assert port > 0
    assert shown == {
        "name": "b",
        "listen": f"127.0.0.1:{port}",
        "upstream": "127.0.0.1:9",
        "enabled": True,
        "toxics": [],
    }
    toxic = {"type": "latency", "attributes": {"latency": 100, "unknown": 7}}
    assert links.api("POST", "/proxies/b/toxics", toxic).json() == {
        "attributes": {"latency": 100, "jitter": 0},
        "name": "latency_downstream",
        "type": "latency",
        "stream": "downstream",
        "toxicity": 1,
    }
    assert links.api("POST", "/proxies/b/toxics", toxic).status_code == 409
    changed = links.api(
        "PATCH", "/proxies/b/toxics/latency_downstream", {"attributes": {"jitter": 5}, "toxicity": 0.5}
    )
    assert (changed.json()["attributes"], changed.json()["toxicity"]) == ({"latency": 100, "jitter": 5}, 0.5)
    assert [t["name"] for t in links.api("GET", "/proxies/b/toxics").json()] == ["latency_downstream"]
    assert links.api("PATCH", "/proxies/b", {"enabled": False}).json()["enabled"] is False
    assert links.api("POST", "/reset").status_code == 204
    after = links.api("GET", "/proxies").json()["b"]
    assert (after["enabled"], after["toxics"]) == (True, [])
    assert links.api("DELETE", "/proxies/b").status_code == 204
    assert set(links.api("GET", "/proxies").json()) == {"echo"}


def test_populate_keeps_what_is_equal_and_replaces_what_is_not(links: Links) -> None:
    one = links.api(
        "POST", "/proxies", {"name": "one", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:9"}
    ).json()
    body = [
        {"name": "one", "listen": one["listen"], "upstream": "127.0.0.1:10"},
        {"name": "two", "listen": "127.0.0.1:0", "upstream": links.echo.address},
    ]
    made = links.api("POST", "/populate", body)
    assert made.status_code == 201
    assert [(p["name"], p["upstream"]) for p in made.json()["proxies"]] == [
        ("one", "127.0.0.1:10"),
        ("two", links.echo.address),
    ]


def test_a_taken_address_is_an_error_and_changes_nothing(links: Links) -> None:
    taken = links.api("GET", "/proxies/echo").json()["listen"]
    answer = links.api("POST", "/proxies", {"name": "b", "listen": taken, "upstream": "127.0.0.1:9"})
    assert answer.status_code == 500
    assert "in use" in answer.json()["error"]
    assert set(links.api("GET", "/proxies").json()) == {"echo"}


def test_latency_delays_each_byte_and_not_the_throughput(links: Links) -> None:
    with links.dial() as peer:
        ask(peer)
        links.toxic("latency", latency=200)
        assert timed(lambda: ask(peer)) > 0.19
        # 40 chunks one after the other would take 8 s.
        assert timed(lambda: ask(peer, bytes(40 * 32 * 1024))) < 4
        links.api("DELETE", "/proxies/echo/toxics/latency_downstream")
        assert ask(peer) == b"hello"


def test_bandwidth_is_a_rate(links: Links) -> None:
    links.toxic("bandwidth", rate=100)
    with links.dial() as peer:
        assert 0.5 < timed(lambda: ask(peer, bytes(100 * 1024))) < 5


def test_a_slicer_changes_no_byte(links: Links) -> None:
    links.toxic("slicer", "upstream", average_size=64, size_variation=32, delay=100)
    data = bytes(range(256)) * 16
    with links.dial() as peer:
        assert ask(peer, data) == data
    assert b"".join(links.echo.chunks) == data
    assert len(links.echo.chunks) > 8


def test_timeout_swallows_and_ends_after_its_time(links: Links) -> None:
    with links.dial() as peer:
        ask(peer)
        links.toxic("timeout", timeout=300)
        begun = time.monotonic()
        assert ask(peer) == b""
        assert time.monotonic() - begun > 0.2


def test_timeout_without_a_time_holds_until_it_is_removed_and_then_ends(links: Links) -> None:
    with links.dial() as peer:
        ask(peer)
        links.toxic("timeout", "upstream", timeout=0)
        peer.sendall(b"lost")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)
        links.api("DELETE", "/proxies/echo/toxics/timeout_upstream")
        peer.settimeout(10)
        assert peer.recv(1) == b""
    assert b"lost" not in links.echo.chunks


def test_reset_peer_sends_a_reset(links: Links) -> None:
    with links.dial() as peer:
        ask(peer)
        links.toxic("reset_peer", timeout=0)
        with pytest.raises(ConnectionError):
            ask_until_it_ends(peer)


def test_a_toxic_that_is_put_again_begins_anew(links: Links) -> None:
    with links.dial() as peer:
        ask(peer)
        links.toxic("reset_peer", timeout=700)
        time.sleep(0.4)
        links.api("DELETE", "/proxies/echo/toxics/reset_peer_downstream")
        links.toxic("reset_peer", timeout=700)
        begun = time.monotonic()
        with pytest.raises(ConnectionError):
            ask_until_it_ends(peer)
        assert time.monotonic() - begun > 0.6


def test_limit_data_ends_after_its_bytes(links: Links) -> None:
    links.toxic("limit_data", bytes=1000)
    with links.dial() as peer:
        assert len(ask(peer, bytes(5000))) == 1000
        assert peer.recv(1) == b""


def test_slow_close_delays_the_end(links: Links) -> None:
    links.toxic("slow_close", delay=400)
    with links.dial() as peer:
        ask(peer)
        peer.shutdown(socket.SHUT_WR)
        assert timed(lambda: peer.recv(1)) > 0.35


def test_a_toxicity_of_nothing_hits_nobody(links: Links) -> None:
    links.toxic("timeout", toxicity=0, timeout=1)
    with links.dial() as peer:
        assert ask(peer) == b"hello"


def test_disabled_nobody_listens_and_connections_end_until_it_is_enabled(links: Links) -> None:
    with links.dial() as peer:
        ask(peer)
        asyncio.run(links.server.enable("echo", False))
        assert peer.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        links.dial()
    asyncio.run(links.server.enable("echo", True))
    with links.dial() as peer:
        assert ask(peer) == b"hello"


def test_the_control_client_adds_and_resets(links: Links) -> None:
    asyncio.run(links.server.add("echo", "latency", "upstream", {"latency": 150}))
    with links.dial() as peer:
        assert timed(lambda: ask(peer)) > 0.14
        asyncio.run(links.server.reset())
        assert ask(peer) == b"hello"
    assert links.api("GET", "/proxies/echo").json()["toxics"] == []


def test_a_proxy_that_is_not_there_is_named(links: Links) -> None:
    with pytest.raises(NoLinks, match="no proxy nobody"):
        asyncio.run(links.server.enable("nobody", False))


def test_a_binary_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NoLinks, match="make toxiproxy"):
        LinkServer.start(tmp_path / "log", tmp_path / "missing")


@pytest.mark.parametrize("toxicity", ["1", True, None])
def test_a_toxicity_that_is_no_number_is_refused_and_changes_nothing(toxicity: object) -> None:
    toxic = Toxic.from_json({"type": "latency", "attributes": {"latency": 5}})
    with pytest.raises(BadToxic, match="toxicity"):
        toxic.change({"attributes": {"latency": 9}, "toxicity": toxicity})
    assert toxic.attributes["latency"] == 5


async def test_a_second_cut_of_the_same_link_hits_the_others_too(links: Links, server: LinkServer) -> None:
    await server.create("other", "127.0.0.1:0", links.echo.address)
    await server.add_to_all([("echo", "upstream")], "timeout")
    await server.add_to_all([("echo", "upstream"), ("other", "upstream")], "timeout")
    for name in ("echo", "other"):
        assert [one["type"] for one in links.api("GET", f"/proxies/{name}/toxics").json()] == ["timeout"]


async def test_a_toxic_of_a_plan_is_on_each_connection_of_a_machine(links: Links, server: LinkServer) -> None:
    await server.create("other", "127.0.0.1:0", links.echo.address)
    detours = Detours(server)
    detours._links = {("b0", "b1"): ["echo"], ("b2", "n0"): ["other"]}

    def toxics(name: str) -> list[Any]:
        found = links.api("GET", f"/proxies/{name}/toxics").json()
        return sorted((one["type"], one["stream"], one["attributes"]["rate"]) for one in found)

    await detours.spoil("b1", "bandwidth", {"rate": 5})
    assert toxics("echo") == [("bandwidth", way, 5) for way in ("downstream", "upstream")]
    assert (toxics("other"), detours.cutting) == ([], True)
    await detours.heal()
    assert (toxics("echo"), detours.cutting) == ([], False)


KILLED = """
import sys
from pathlib import Path
from chaos.links.server import LinkServer
print(LinkServer.start(Path(sys.argv[1]), None).process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_the_proxies_of_a_drill_that_is_killed_end_with_it(tmp_path: Path) -> None:
    command, pipe = [sys.executable, "-c", KILLED, str(tmp_path / "log")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT) as drill:
        assert drill.stdout is not None
        relay = int(drill.stdout.readline())
        assert noted.began(relay) is not None
        drill.kill()
    deadline = time.monotonic() + 10
    while noted.began(relay) is not None:
        assert time.monotonic() < deadline, "the relay goes on"
        time.sleep(0.01)
