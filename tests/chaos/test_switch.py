"""The promise of the switch: a packet arrives, late, twice or never, as the rule of its addresses says."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from chaos.live.network import CLIENTS, Network, unavailable
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


def test_what_is_no_packet_and_who_is_nobody_is_dropped(machines: Machines) -> None:
    machines.send(A, "198.18.1.9")
    machines.send(A, A)
    machines.switch.take(machines.theirs[A].fileno(), b"\x60 six", 0.0)
    assert machines.switch.passed == 0


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
