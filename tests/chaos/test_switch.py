"""The promise of the switch: a packet arrives, late, twice or never, as the rule of its addresses says."""

from __future__ import annotations

import os
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.live import network
from chaos.live.network import CLIENTS, PROBE, Network, unavailable
from chaos.live.switch import Switch

A, B = "198.18.1.1", "198.18.1.2"


class Machines:
    """Two wires: the switch holds one end of each, the test the other."""

    def __init__(self, stack: ExitStack) -> None:
        self.switch = Switch(random.Random(1))
        self.ours: dict[str, socket.socket] = {}
        self.theirs: dict[str, socket.socket] = {}
        for address in (A, B):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            stack.enter_context(ours)
            stack.enter_context(theirs)
            ours.setblocking(False)
            self.ours[address], self.theirs[address] = ours, theirs
            self.switch.plug(theirs.fileno(), [address])

    def send(self, source: str, target: str, text: bytes = b"", now_s: float = 0.0) -> None:
        packet = b"\x45" + bytes(11) + socket.inet_aton(source) + socket.inet_aton(target) + text
        self.switch.take(self.theirs[source].fileno(), packet, now_s)

    def heard(self, address: str) -> list[bytes]:
        found = []
        while True:
            try:
                found.append(self.ours[address].recv(1000)[20:])
            except BlockingIOError:
                return found


@pytest.fixture
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(stack)


def test_a_cut_is_one_way_and_ends(machines: Machines) -> None:
    machines.switch.rule([(A, B, {"cut": True})])
    machines.send(A, B, b"lost")
    machines.send(B, A, b"heard")
    assert (machines.heard(A), machines.heard(B)) == ([b"heard"], [])
    assert machines.switch.dropped == 1
    machines.switch.rule([])
    machines.send(A, B, b"again")
    assert machines.heard(B) == [b"again"]


def test_a_delayed_packet_comes_at_its_time(machines: Machines) -> None:
    machines.switch.rule([(A, B, {"delay_ms": 50})])
    machines.send(A, B, b"late", now_s=10.0)
    machines.send(B, A, b"at once", now_s=10.0)
    assert machines.heard(A) == [b"at once"]
    assert machines.switch.deliver(10.0) == pytest.approx(0.05)
    assert machines.heard(B) == []
    assert machines.switch.deliver(10.051) is None
    assert machines.heard(B) == [b"late"]


def test_packets_are_lost_doubled_and_reordered_as_often_as_the_rule_says(machines: Machines) -> None:
    machines.switch.rule([(A, B, {"loss": 0.5})])
    for _ in range(200):
        machines.send(A, B)
        machines.heard(B)
    assert 60 < machines.switch.dropped < 140
    machines.switch.rule([(A, B, {"duplicate": 1.0})])
    machines.send(A, B, b"twice")
    assert machines.heard(B) == [b"twice", b"twice"]
    machines.switch.rule([(A, B, {"jitter_ms": 100})])
    for number in range(20):
        machines.send(A, B, bytes([number]), now_s=1.0)
        machines.heard(B)
    machines.switch.deliver(2.0)
    order = [text[0] for text in machines.heard(B)]
    assert sorted(order) == list(range(20)) != order


def test_a_narrow_link_lets_one_behind_the_other_through_and_loses_what_waits_too_long(
    machines: Machines,
) -> None:
    machines.switch.rule([(A, B, {"bytes_per_s": 1000.0})])
    for number in range(10):  # of 120 bytes each, 0.12 s
        machines.send(A, B, bytes([number]) * 100, now_s=1.0)
    assert machines.switch.dropped == 5, "what would begin more than half a second later"
    machines.switch.deliver(1.121)
    assert [text[0] for text in machines.heard(B)] == [0]
    machines.switch.deliver(2.0)
    assert [text[0] for text in machines.heard(B)] == [1, 2, 3, 4]
    machines.send(A, B, b"later", now_s=3.0)
    assert machines.switch.deliver(3.0) == pytest.approx(0.025), "nothing is before it any more"
    machines.switch.rule([])
    machines.send(A, B, b"free", now_s=3.0)
    assert machines.heard(B) == [b"free"]


def test_what_is_no_packet_and_who_is_nobody_is_dropped(machines: Machines) -> None:
    machines.send(A, "198.18.1.9")
    machines.send(A, A)
    machines.switch.take(machines.theirs[A].fileno(), b"\x60 six", 0.0)
    assert machines.switch.passed == 0


def tcp(source: str, target: str, ports: tuple[int, int], text: bytes) -> bytes:
    """A whole packet with right checksums."""
    head = struct.pack(">HHIIBBHHH", *ports, 1, 2, 5 << 4, 0x10, 1000, 0, 0) + text
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    whole = bytearray(head)
    whole[16:18] = checksum(ends + struct.pack(">HH", 6, len(head)) + head)
    ip = bytearray(struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(head), 7, 0, 64, 6, 0) + ends)
    ip[10:12] = checksum(bytes(ip))
    return bytes(ip + whole)


def checksum(data: bytes) -> bytes:
    total = sum(struct.unpack(f">{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack(">H", 0xFFFF - total)


@pytest.mark.parametrize("seed", range(5))
def test_a_detour_brings_a_connection_to_its_proxy_and_nobody_can_tell(machines: Machines, seed: int) -> None:
    chance, proxy = random.Random(seed), "198.18.1.9"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        machines.switch.plug(theirs.fileno(), [proxy])
        own, port, at = (chance.randrange(1024, 65536) for _ in range(3))
        machines.switch.detour([(A, B, port, proxy, at)])
        text = chance.randbytes(chance.randrange(50))
        machines.switch.take(machines.theirs[A].fileno(), tcp(A, B, (own, port), text), 0.0)
        assert ours.recv(1000) == tcp(A, proxy, (own, at), text)
        machines.switch.take(theirs.fileno(), tcp(proxy, A, (at, own), text), 0.0)
        assert machines.ours[A].recv(1000) == tcp(B, A, (port, own), text)
        machines.switch.take(machines.theirs[A].fileno(), tcp(A, B, (own, port ^ 1), text), 0.0)
        assert machines.ours[B].recv(1000) == tcp(A, B, (own, port ^ 1), text), "another port of it"
        machines.switch.rule([(A, B, {"cut": True})])
        machines.switch.take(machines.theirs[A].fileno(), tcp(A, B, (own, port), text), 0.0)
        assert machines.switch.dropped == 1, "a machine without power reaches no proxy"


@pytest.mark.parametrize("way", [(A, "nowhere", 1, B, 2), (A, B, 70_000, A, 2)])
def test_a_wrong_detour_changes_nothing(machines: Machines, way: tuple[str, str, int, str, int]) -> None:
    with pytest.raises(ValueError):
        machines.switch.detour([way])
    machines.send(A, B, b"direct")
    assert machines.heard(B) == [b"direct"]


@pytest.mark.parametrize("rule", [(A, B, {"speed": 1}), ("nowhere", B, {})])
def test_a_wrong_rule_changes_nothing(machines: Machines, rule: tuple[str, str, dict[str, int]]) -> None:
    machines.switch.rule([(A, B, {"cut": True})])
    with pytest.raises(ValueError):
        machines.switch.rule([rule])
    machines.send(A, B)
    assert machines.heard(B) == []


async def test_no_network_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from chaos.live import network

    monkeypatch.setattr(network, "unavailable", lambda: "needs root, for network namespaces")
    with pytest.raises(network.NoNetwork, match="needs root"):
        await Network.lay(["a"], random.Random())


def test_the_machine_of_the_clients_has_a_name_of_its_own() -> None:
    assert CLIENTS not in ("namesrv-0", "broker-a-0")
    assert unavailable() is None or unavailable()


def test_what_a_killed_process_tried_the_machine_with_is_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = 2**22 + 1  # no process has that number
    stays = f"{PROBE}{gone + 1}"
    for name in (f"{PROBE}{gone}", stays, f"{PROBE}{os.getpid()}", "keelmq-7-broker-a-0"):
        (tmp_path / name).touch()
    asked: list[list[str]] = []

    def run(command: list[str], **more: object) -> SimpleNamespace:
        asked.append(command)
        return SimpleNamespace(returncode=int(command[-1] == stays))

    monkeypatch.setattr(network, "subprocess", SimpleNamespace(run=run))
    assert network.sweep(tmp_path) == [f"{PROBE}{gone}"], "and not what could not be removed"
    assert asked == [["ip", "netns", "del", f"{PROBE}{gone}"], ["ip", "netns", "del", stays]]
