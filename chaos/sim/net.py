"""How do bytes travel between simulated nodes, and what can go wrong on the way?

``Fabric`` is the cable, the switches and every node's kernel; ``SimNetwork`` is what one life (one process
run) sees of it: the ``Network`` of ``runtime.env``. Within one connection bytes stay in order; between
connections anything may overtake. What is modelled, and how the two ends notice:

* latency of each packet, drawn around a base of its directed link
* a cut link (both ways or one): packets wait in front of the cut, and go on some time after it heals, as
  TCP's retransmission would; the connection survives
* a killed process: its kernel sends FIN (RST when unread bytes were left) behind what was already sent;
  a connect to its port is refused
* a paused process: its kernel goes on accepting connections and bytes until the receive window is full
* a power failure: nothing is sent, the peer's end stays half-open until the machine is up again and answers
  with RST, or for ever when the peer never writes
* segments cut anywhere; a full send window, with asyncio's write-buffer watermarks
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from chaos.sim.loop import Life, SimLoop
from chaos.sim.transport import SimTransport
from runtime.env import Listener, P

EPHEMERAL_PORT: Final = 40000
AGAIN_S: Final = (0.2, 0.4, 0.8, 1.6, 3.2)
"""A kernel sends again what was lost after so long, and so on; here the last one always arrives."""
LOCAL_HOSTS: Final = frozenset({"127.0.0.1", "localhost", "0.0.0.0", "::", "::1", ""})


@dataclass(slots=True)
class NetProfile:
    """How the network of one run behaves when nothing is broken. Times in seconds."""

    latency_min_s: float = 0.0001
    latency_max_s: float = 0.002
    """Each directed link draws its base latency between these two."""
    jitter_s: float = 0.0003
    """Mean of what each packet adds to the base."""
    spike_share: float = 0.002
    spike_s: float = 0.03
    slice_share: float = 0.05
    """Share of deliveries that are cut at a random byte."""


@dataclass(slots=True)
class BadLink:
    """A link as TCP shows it: what is lost comes when it is sent again, what was overtaken waits, what is
    doubled is seen by nobody. ``free_at_s``: when what was sent before is through."""

    lost_share: float = 0.0
    late_s: float = 0.0
    bytes_per_s: float = 0.0
    free_at_s: float = 0.0

    def extra_s(self, rng: random.Random, now_s: float, size: int) -> float:
        extra_s = rng.random() * self.late_s
        for again_s in AGAIN_S:
            if rng.random() >= self.lost_share:
                break
            extra_s += again_s
        if self.bytes_per_s:
            self.free_at_s = max(now_s, self.free_at_s) + size / self.bytes_per_s
            extra_s += self.free_at_s - now_s
        return extra_s


class Fabric:
    """All links and all kernels of one simulated network."""

    def __init__(self, loop: SimLoop, seed: int | str, profile: NetProfile | None = None) -> None:
        self.loop = loop
        self.profile = profile or NetProfile()
        self._rng = random.Random(f"net:{seed}")
        self._base_s: dict[tuple[str, str], tuple[float, float]] = {}  # of each link, and its jitter
        self._cut: set[tuple[str, str]] = set()
        self._slow_s: dict[tuple[str, str], float] = {}
        self._bad: dict[tuple[str, str], BadLink] = {}
        self._powered_off: set[str] = set()
        self._listeners: dict[tuple[str, int], SimListener] = {}
        self._ends: dict[int, SimTransport] = {}
        self._number = 0
        self._ports: dict[str, int] = {}
        self.delivered = 0
        """Packets handed to a receiving kernel."""
        self.context = contextvars.Context()

    # Faults

    def cut(self, source: str, target: str) -> None:
        """From now on nothing passes from ``source`` to ``target`` (hosts); the other way is another cut."""
        self._cut.add((source, target))

    def heal(self, source: str, target: str, *, late_s: float = 0.0) -> None:
        """What waited in front of the cut goes on ``late_s`` later or a little more; other connections, and
        new ones, at once."""
        if (source, target) in self._cut:
            self._cut.discard((source, target))
            if late_s > 0:
                self.after(late_s, self._resume, source, target)
            else:
                self._resume(source, target)

    def heal_all(self) -> None:
        for source, target in sorted(self._cut):
            self.heal(source, target)
        self._slow_s.clear()
        self._bad.clear()

    def slow(self, source: str, target: str, extra_s: float) -> None:
        """Add ``extra_s`` to every packet from ``source`` to ``target``; 0 ends it."""
        if extra_s > 0:
            self._slow_s[source, target] = extra_s
        else:
            self._slow_s.pop((source, target), None)

    def spoil(self, source: str, target: str, **values: float) -> None:
        """From now on a link is a BadLink, until all are healed: with these values, and those it had of
        others."""
        bad = self._bad.setdefault((source, target), BadLink())
        for name, value in values.items():
            setattr(bad, name, value)

    @property
    def broken(self) -> bool:
        """Whether a link is cut or worse than it was made."""
        return bool(self._cut or self._slow_s or self._bad)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def reset(self, source: str, target: str) -> int:
        """Reset every connection between two hosts; returns how many."""
        ends = [
            end for end in self._sorted_ends() if end.host == source and end.peer_host == target and end.alive
        ]
        for end in ends:
            peer = end.peer
            end.receive_reset()
            if peer is not None:
                peer.receive_reset()
        return len(ends)

    def process_died(self, life: Life) -> None:
        """The kernel of a killed process closes its sockets."""
        for key in [key for key, listener in self._listeners.items() if listener.life is life]:
            del self._listeners[key]
        for end in self._sorted_ends():
            if end.life is life:
                end.process_died()

    def power_off(self, host: str) -> None:
        """The machine is gone without a word: no FIN, no RST, no answer."""
        self._powered_off.add(host)
        for key in [key for key in self._listeners if key[0] == host]:
            del self._listeners[key]
        for end in self._sorted_ends():
            if end.host == host:
                end.power_lost()

    def power_on(self, host: str) -> None:
        """The machine is up, with a kernel that knows none of the old connections: it resets those whose
        peers still have bytes to send."""
        self._powered_off.discard(host)
        for end in self._sorted_ends():
            peer = end.peer
            if end.host == host and not end.alive and peer is not None and peer.alive and peer.out.unacked:
                self.answer_with_reset(end, peer, self._rng.uniform(0.05, 0.5))

    # What transports use

    def answer_with_reset(self, end: SimTransport, peer: SimTransport, delay_s: float) -> None:
        """The kernel at ``end`` knows no such connection. Behind a cut neither the peer's bytes nor this
        answer get through: the peer's kernel tries again."""

        def reset() -> None:
            if self.is_cut(end.host, peer.host) or self.is_cut(peer.host, end.host):
                self.after(_Connect.RETRY_S, reset)
            elif not self.is_off(end.host):
                peer.receive_reset()

        self.after(delay_s, reset)

    def is_off(self, host: str) -> bool:
        return host in self._powered_off

    def latency_s(self, source: str, target: str, size: int = 0) -> float:
        """Latency of the next packet from ``source`` to ``target``, of so many bytes."""
        rng, profile = self._rng, self.profile
        link = (source, target)
        known = self._base_s.get(link)
        if known is None:
            low, high = profile.latency_min_s, profile.latency_max_s
            here = source == target
            known = (0.00002, 0.00001) if here else (rng.uniform(low, high), profile.jitter_s)
            self._base_s[link] = known
        base, jitter = known
        delay = base + rng.random() * 2 * jitter
        if profile.spike_share and rng.random() < profile.spike_share:
            delay += rng.random() * profile.spike_s
        if self._slow_s:
            delay += self._slow_s.get(link, 0.0)
        if self._bad and (bad := self._bad.get(link)) is not None:
            delay += bad.extra_s(rng, self.loop.now_s, size)
        return delay

    def after(self, delay_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Run ``call`` as part of the network, whoever's code is running now."""
        self.loop.call_later(delay_s, call, *arguments, context=self.context)

    def slice_bytes(self, size: int) -> int:
        """How many of ``size`` received bytes the process gets at once."""
        if size > 1 and self._rng.random() < self.profile.slice_share:
            return self._rng.randrange(1, size)
        return size

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def next_port(self, host: str) -> int:
        port = self._ports.get(host, EPHEMERAL_PORT)
        self._ports[host] = port + 1
        return port

    def add_end(self, end: SimTransport) -> None:
        self._ends[end.number] = end

    def drop_end(self, end: SimTransport) -> None:
        self._ends.pop(end.number, None)

    def bind(self, listener: SimListener) -> None:
        key = (listener.host, listener.port)
        if key in self._listeners:
            raise OSError(errno.EADDRINUSE, f"address {listener.host}:{listener.port} is in use")
        self._listeners[key] = listener

    def unbind(self, listener: SimListener) -> None:
        if self._listeners.get((listener.host, listener.port)) is listener:
            del self._listeners[listener.host, listener.port]

    def is_bound(self, host: str, port: int) -> bool:
        return (host, port) in self._listeners

    def listener_at(self, host: str, port: int) -> SimListener | None:
        return self._listeners.get((host, port))

    def _resume(self, source: str, target: str) -> None:
        for end in self._sorted_ends():
            if end.host == source and end.peer_host == target and end.out.held:
                end.out.held = False
                # A kernel tries again at growing intervals: the first packet after the heal comes late.
                self.after(self._rng.uniform(0.0, 0.3), end.arrive)

    def _sorted_ends(self) -> list[SimTransport]:
        return [self._ends[number] for number in sorted(self._ends)]


class SimListener:
    """A listening socket of one life."""

    def __init__(
        self, fabric: Fabric, life: Life, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        self._fabric = fabric
        self.life = life
        self.host = host
        self.port = port
        self.factory = factory

    def close(self) -> None:
        self._fabric.unbind(self)


class SimNetwork:
    """The network as one life on one host sees it; ``Network`` of ``runtime.env``."""

    def __init__(self, fabric: Fabric, life: Life, host: str) -> None:
        self._fabric = fabric
        self._life = life
        self._host = host

    async def listen(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, shared: bool = False
    ) -> Listener:
        # Every process has a host of its own here, so nobody is there to share with.
        fabric = self._fabric
        if port == 0:
            port = fabric.next_port(self._host)
            while fabric.is_bound(self._host, port):
                port = fabric.next_port(self._host)
        if host not in LOCAL_HOSTS and host != self._host:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is not an address of {self._host}")
        listener = SimListener(fabric, self._life, self._host, port, factory)
        fabric.bind(listener)
        return listener

    async def connect(
        self, factory: Callable[[], P], host: str, port: int, *, timeout_s: float = 3.0
    ) -> tuple[asyncio.Transport, P]:
        fabric = self._fabric
        target = self._host if host in LOCAL_HOSTS else host
        answer: asyncio.Future[SimTransport] = fabric.loop.create_future()
        attempt = _Connect(fabric, self._life, self._host, target, port, answer)
        fabric.after(fabric.latency_s(self._host, target), attempt.syn)
        try:
            async with asyncio.timeout(timeout_s):
                transport = await answer
        except TimeoutError:
            text = f"connect to {host}:{port} took longer than {timeout_s} s"
            raise TimeoutError(errno.ETIMEDOUT, text) from None
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().abort()
            raise
        finally:
            attempt.given_up = True
        protocol = factory()
        transport.attach(protocol)
        return cast(asyncio.Transport, transport), protocol


class _Connect:
    """The handshake of one connection attempt."""

    RETRY_S: Final = 0.25

    def __init__(
        self,
        fabric: Fabric,
        life: Life,
        host: str,
        target: str,
        port: int,
        answer: asyncio.Future[SimTransport],
    ) -> None:
        self._fabric, self._life, self._host = fabric, life, host
        self._target, self._port, self._answer = target, port, answer
        self.given_up = False

    def syn(self) -> None:
        """A SYN arrives, unless the way is cut or nobody is there: then the kernel tries again."""
        fabric = self._fabric
        if self.given_up or not self._life.alive:
            return
        if fabric.is_cut(self._host, self._target) or fabric.is_off(self._target):
            fabric.after(self.RETRY_S, self.syn)
            return
        if fabric.listener_at(self._target, self._port) is None:
            fabric.after(fabric.latency_s(self._target, self._host), self._refuse)
        else:
            fabric.after(fabric.latency_s(self._target, self._host), self._established)

    def _refuse(self) -> None:
        if self.given_up or self._answer.done():
            return
        if self._fabric.is_cut(self._target, self._host):
            self._fabric.after(self.RETRY_S, self.syn)
            return
        refused = ConnectionRefusedError(
            errno.ECONNREFUSED, f"{self._target}:{self._port} refused the connection"
        )
        self._answer.set_exception(refused)

    def _established(self) -> None:
        """The SYN+ACK arrives: the client's end is open; the server's process hears of it a moment later."""
        fabric = self._fabric
        if self.given_up or self._answer.done() or not self._life.alive:
            return
        listener = fabric.listener_at(self._target, self._port)
        if fabric.is_cut(self._target, self._host) or listener is None:
            fabric.after(self.RETRY_S, self.syn)
            return
        local = (self._host, fabric.next_port(self._host))
        remote = (self._target, self._port)
        client = SimTransport(fabric, self._life, local, remote)
        server = SimTransport(fabric, listener.life, remote, local)
        client.peer, server.peer = server, client
        server.accept_by(listener)
        self._answer.set_result(client)
