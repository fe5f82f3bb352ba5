"""A switch in user space: every machine of a drill is a network namespace, and each packet passes here.

    python -m chaos.live.switch      (needs root; the commands come on stdin, one JSON object a line)

``{"join": {"device", "namespace" or "", "addresses", "prefix"}}`` makes a TUN device, with its packets here
and its other end in the namespace. ``{"rules": [[from, to, {"cut", "delay_ms", ...}], ...]}`` replaces all
rules, ``{"detours": [[from, to, port, proxy, its port], ...]}`` all detours: connections from one machine to
that port of another arrive at a proxy, and neither of the two can tell. Each command is answered by one line:
the packets ``passed`` and ``dropped``, or ``{"error": text}``.
At the end of stdin the switch ends, and with it the devices: a drill that dies leaves no wire behind.

A packet that is cut is dropped without a word, as by a broken cable: connections live on and resume.
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import random
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

TUN: Final = "/dev/net/tun"
TUNSETIFF: Final = 0x400454CA
IFF_TUN: Final = 0x0001
IFF_NO_PI: Final = 0x1000
MTU_BYTES: Final = 16_000
PACKETS_AT_ONCE: Final = 64
"""Read from one machine before the next has its turn."""
QUEUE_S: Final = 0.5
QUEUE_MAX: Final = 20_000
"""Packets on their way; more are lost, as in any switch."""
TCP: Final = 6
SOURCE_AT: Final = 12
TARGET_AT: Final = 16


@dataclass(frozen=True, slots=True)
class Rule:
    """What befalls packets from one address to another. ``loss``, ``duplicate``: shares of them;
    ``jitter_ms`` is drawn for each packet, so that it also reorders them. ``bytes_per_s``: what the link
    carries, 0 for any; what would wait longer than QUEUE_S is lost."""

    cut: bool = False
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0
    duplicate: float = 0.0
    bytes_per_s: float = 0.0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rule:
        """Raises ValueError for a member that no rule has."""
        known = {entry.name for entry in fields(cls)}
        if unknown := data.keys() - known:
            raise ValueError(f"a rule has no {', '.join(sorted(unknown))}")
        return cls(**data)

    def delays_s(self, chance: random.Random) -> Sequence[float]:
        """When each copy of a packet arrives; empty: it never does."""
        if self.cut or (self.loss and chance.random() < self.loss):
            return ()
        copies = 2 if self.duplicate and chance.random() < self.duplicate else 1
        return [(self.delay_ms + chance.uniform(0, self.jitter_ms)) / 1000 for _ in range(copies)]


class Switch:
    """Wires by address, rules by pair of addresses, and the packets that are delayed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._wires: dict[bytes, int] = {}
        self._rules: dict[tuple[bytes, bytes], Rule] = {}
        self._there: dict[tuple[bytes, bytes, bytes], tuple[bytes, bytes]] = {}
        """From, to and port of a detour; the proxy and its port."""
        self._back: dict[tuple[bytes, bytes, bytes], tuple[bytes, bytes]] = {}
        self._free_at_s: dict[tuple[bytes, bytes], float] = {}
        """Of narrow links: when what was sent before is through."""
        self._late: list[tuple[float, int, int, bytes]] = []
        self._number = 0
        self.passed = 0
        self.dropped = 0

    def plug(self, wire: int, addresses: Sequence[str]) -> None:
        for address in addresses:
            self._wires[socket.inet_aton(address)] = wire

    def rule(self, rules: Sequence[tuple[str, str, Mapping[str, Any]]]) -> None:
        """Replace all. Raises ValueError."""
        try:
            self._rules = {
                (socket.inet_aton(source), socket.inet_aton(target)): Rule.from_json(data)
                for source, target, data in rules
            }
        except OSError as error:
            raise ValueError(str(error)) from None
        self._free_at_s = {pair: at for pair, at in self._free_at_s.items() if pair in self._rules}

    def detour(self, ways: Sequence[tuple[str, str, int, str, int]]) -> None:
        """Replace all. A proxy's port belongs to one of them. Raises ValueError."""
        there, back = {}, {}
        for source, target, port, proxy, its_port in ways:
            try:
                one, other, at = (socket.inet_aton(address) for address in (source, target, proxy))
                ports = struct.pack(">H", port), struct.pack(">H", its_port)
            except (OSError, struct.error) as error:
                raise ValueError(str(error)) from None
            there[one, other, ports[0]] = (at, ports[1])
            back[at, one, ports[1]] = (other, ports[0])
        self._there, self._back = there, back

    def take(self, wire: int, packet: bytes, now_s: float) -> None:
        """One IPv4 packet from a machine: to its addressee, now, later or never."""
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return
        link = (packet[12:16], packet[16:20])
        rule = self._rules.get(link)
        if self._there:
            packet = self._detoured(packet)
        target = self._wires.get(packet[16:20])
        if target is None or target == wire:
            return
        if rule is None:
            self._put(target, packet)
            return
        delays_s = rule.delays_s(self._chance)
        if rule.bytes_per_s:
            delays_s = self._narrow(link, rule.bytes_per_s, len(packet), delays_s, now_s)
        self.dropped += not delays_s
        for delay_s in delays_s:
            if delay_s <= 0:
                self._put(target, packet)
            elif len(self._late) < QUEUE_MAX:
                self._number += 1
                heapq.heappush(self._late, (now_s + delay_s, self._number, target, packet))

    def _narrow(
        self,
        link: tuple[bytes, bytes],
        bytes_per_s: float,
        size: int,
        delays_s: Sequence[float],
        now_s: float,
    ) -> Sequence[float]:
        """When each copy is through a link that carries so much, one behind the other."""
        found = []
        for delay_s in delays_s:
            begun_s = max(now_s, self._free_at_s.get(link, 0.0))
            if begun_s - now_s <= QUEUE_S:
                self._free_at_s[link] = begun_s + size / bytes_per_s
                found.append(delay_s + self._free_at_s[link] - now_s)
        return found

    def _detoured(self, packet: bytes) -> bytes:
        """On its way to a proxy, or back from there as if from the machine that was meant."""
        ports_at = (packet[0] & 15) * 4
        if packet[9] != TCP or len(packet) < ports_at + 20:
            return packet
        pair = packet[12:16], packet[16:20]
        if (way := self._there.get((*pair, packet[ports_at + 2 : ports_at + 4]))) is not None:
            return readdressed(packet, TARGET_AT, ports_at + 2, *way)
        if (way := self._back.get((*pair, packet[ports_at : ports_at + 2]))) is not None:
            return readdressed(packet, SOURCE_AT, ports_at, *way)
        return packet

    def deliver(self, now_s: float) -> float | None:
        """Send what is due; seconds until the next is, None: nothing waits."""
        while self._late and self._late[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._late)
            self._put(target, packet)
        return self._late[0][0] - now_s if self._late else None

    def _put(self, wire: int, packet: bytes) -> None:
        self.passed += 1
        try:
            os.write(wire, packet)
        except OSError:
            pass  # its queue is full, or the machine is gone: the packet is lost, as on any wire


def readdressed(packet: bytes, address_at: int, port_at: int, address: bytes, port: bytes) -> bytes:
    """A TCP packet with another address and port, and the checksums that follow from them."""
    changed, tcp_at = bytearray(packet), (packet[0] & 15) * 4 + 16
    old = packet[address_at : address_at + 4], packet[port_at : port_at + 2]
    changed[address_at : address_at + 4], changed[port_at : port_at + 2] = address, port
    changed[10:12] = _checksum(packet[10:12], old[0], address)
    changed[tcp_at : tcp_at + 2] = _checksum(packet[tcp_at : tcp_at + 2], b"".join(old), address + port)
    return bytes(changed)


def _checksum(before: bytes, old: bytes, new: bytes) -> bytes:
    """What a checksum is when ``new`` stands in the place of ``old`` (RFC 1624)."""
    total = 0xFFFF - int.from_bytes(before)
    for at in range(0, len(old), 2):
        total += 0xFFFF - int.from_bytes(old[at : at + 2]) + int.from_bytes(new[at : at + 2])
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (0xFFFF - total).to_bytes(2)


def _join(switch: Switch, device: str, namespace: str, addresses: Sequence[str], prefix: int) -> int:
    """A TUN device, ours at this end. Raises OSError."""
    wire = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI)
    try:
        fcntl.ioctl(wire, TUNSETIFF, request)
        inside = ["-n", namespace] if namespace else []
        if namespace:
            _ip("link", "set", device, "netns", namespace)
            _ip(*inside, "link", "set", "lo", "up")
        for address in addresses:
            _ip(*inside, "addr", "add", f"{address}/{prefix}", "dev", device)
        _ip(*inside, "link", "set", device, "up", "mtu", str(MTU_BYTES))
    except OSError:
        os.close(wire)
        raise
    switch.plug(wire, addresses)
    return wire


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _obey(switch: Switch, selector: selectors.BaseSelector, line: bytes) -> dict[str, Any]:
    """Carry out one command; what to answer."""
    try:
        asked = json.loads(line)
        if "join" in asked:
            wire = _join(switch, **asked["join"])
            selector.register(wire, selectors.EVENT_READ)
        if "rules" in asked:
            switch.rule(asked["rules"])
        if "detours" in asked:
            switch.detour(asked["detours"])
    except (OSError, ValueError, TypeError) as error:
        return {"error": str(error)}
    return {"passed": switch.passed, "dropped": switch.dropped}


def _drain(switch: Switch, selector: selectors.BaseSelector, wire: int, now_s: float) -> None:
    for _ in range(PACKETS_AT_ONCE):
        try:
            packet = os.read(wire, 65_535)
        except BlockingIOError:
            return
        except OSError:
            selector.unregister(wire)  # its namespace is gone
            return
        switch.take(wire, packet, now_s)


def main() -> None:
    """Switch packets until stdin ends."""
    switch, selector = Switch(random.Random()), selectors.DefaultSelector()
    commands = sys.stdin.fileno()
    os.set_blocking(commands, False)
    selector.register(commands, selectors.EVENT_READ)
    heard = b""
    while True:
        wait_s = switch.deliver(time.monotonic())
        for key, _ in selector.select(wait_s):
            if key.fd != commands:
                _drain(switch, selector, key.fd, time.monotonic())
                continue
            more = os.read(commands, 65_536)
            if not more:
                return
            *lines, heard = (heard + more).split(b"\n")
            for line in lines:
                answer = json.dumps(_obey(switch, selector, line)) + "\n"
                os.write(sys.stdout.fileno(), answer.encode())


if __name__ == "__main__":
    main()
