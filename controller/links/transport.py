"""Which links does a Controller have, and which end makes them?

One TCP connection for each pair of members; the one with the smaller id dials. On it: a handshake
(``controller.links.handshake``), then proven frames (``controller.links.frames``). Nothing is decoded before
its MAC was checked. The secret gives authenticity, not secrecy. Without a secret the proofs prove nothing,
so then only loopback peers are accepted. It may change meanwhile: links that were proven by a former one are
made anew, one after the other. With TLS (``controller.links.tls``) all this happens inside a
connection whose ends have shown their certificates.

A member keeps its link as long as it is connected: another process with its id, secret and directory (a copy
of its disk) does not replace it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from controller.links.handshake import PROCESS_BYTES, Identity, Opened, dials
from controller.links.link import Link
from controller.links.roster import Roster
from controller.links.tls import TlsFiles, TlsNetwork, fault
from model.errors import ConfigError
from model.settings import is_loopback, split_address
from runtime.backoff import Backoff
from runtime.env import Env, Listener
from runtime.loops import level_triggered
from runtime.report.complaints import Complaints
from runtime.secret import NONCE_BYTES
from runtime.tasks import Tasks, every
from runtime.tls.watch import LOOK_S

log = logging.getLogger(__name__)

STRANGERS_MAX: Final = 16  # accepted connections that have not proven their id


UNLINKED_S: Final = 5.0
"""A member that is linked to no other for this long says so."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Times in seconds."""

    handshake_s: float = 2.0
    ping_s: float = 0.5
    silence_s: float = 2.0
    retry_s: float = 0.2
    secrets_s: float = 1.0
    """Between two looks at the secrets; within each one link is made anew that has a former one."""


@dataclass(frozen=True, slots=True)
class Security:
    """How members prove their ids. With neither only loopback may connect. ``secrets``: those in force, asked
    for again and again; the first is the one to prove oneself with."""

    secrets: Callable[[], tuple[bytes, ...]] = tuple
    tls: TlsFiles | None = None

    def check(self, addresses: Mapping[str, str]) -> None:
        """Raises ConfigError when anyone could speak for a member."""
        if self.secrets() or self.tls is not None:
            return
        far = [f"{n} at {a}" for n, a in sorted(addresses.items()) if not is_loopback(split_address(a)[0])]
        if far:
            raise ConfigError(
                f"raftSecretFile is needed: Controller {far[0]} is not on loopback, and without a secret "
                "or TLS anyone who reaches the port could vote"
            )


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the owner of a transport is told, in the loop, one after the other. ``on_message(peer, body)`` may
    raise PeerError: the link ends. ``on_up`` and ``on_down`` come in turn for each peer."""

    on_message: Callable[[str, bytes], None]
    on_up: Callable[[str], None]
    on_down: Callable[[str], None]


class Transport:
    """The links of one member."""

    def __init__(
        self,
        env: Env,
        roster: Roster,
        owner: Callbacks,
        *,
        security: Security,
        limits: Limits | None = None,
    ) -> None:
        """Raises ConfigError: members beyond loopback without secret or TLS, files that cannot be used."""
        security.check(roster.addresses)
        tls = security.tls
        self.env = env
        self.complaints = Complaints(log, lambda: env.monotonic_ms() / 1000)  # what strangers cause
        self._secrets = security.secrets
        secrets = self._secrets()
        self.loopback_only = not secrets and tls is None
        self.identity = Identity.of(roster, secrets, tls=tls is not None)
        self.limits = limits or Limits()
        self._network = env.network if tls is None else TlsNetwork(tls)
        self._owner = owner
        self._links: dict[str, Link] = {}
        self._strangers: dict[Link, None] = {}  # in order of their coming
        self._process = b""
        self._doubled: dict[str, float] = {}  # id -> since when a second one is refused; inf = it was told
        self._tasks = Tasks(f"raft.{roster.node_id}")
        self._listener: Listener | None = None
        self._closed = False

    async def start(self) -> None:
        """Listen and dial. Raises OSError when the port is taken."""
        if len(self.addresses) == 1:
            return
        own = self.identity.node_id
        host, port = split_address(self.addresses[own])
        self._listener = await self._network.listen(lambda: Link(self, None), host, port)
        for peer in sorted(self.addresses):
            if dials(own, peer):
                self._tasks.spawn(self._dial(peer), name=f"dial.{peer}")
        self._tasks.spawn(self._watch(), name="watch")
        if isinstance(network := self._network, TlsNetwork):
            look = partial(self.env.offload, network.look)
            self._tasks.spawn(every(LOOK_S, look, what="TLS of Raft: files"), name="tls")
        if not self.loopback_only:
            look_s = self.limits.secrets_s
            self._tasks.spawn(every(look_s, self._follow_secrets, what="secrets of Raft"), name="secrets")

    async def stop(self) -> None:
        self.abort()
        await self._tasks.cancel()

    def abort(self) -> None:
        """End every link at once."""
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for link in [*self._links.values(), *self._strangers]:
            link.abort()

    @property
    def addresses(self) -> dict[str, str]:
        """id -> Raft address of each member, as far as this one knows."""
        return self.identity.roster.addresses

    @property
    def node_id(self) -> str:
        return self.identity.node_id

    @property
    def peers(self) -> list[str]:
        """Ids of the members there is a link to."""
        return sorted(self._links)

    def unlinked(self) -> str:
        """Why a member that has no link to any other cannot know a leader."""
        own = self.identity.node_id
        trouble = self._network.trouble() if isinstance(self._network, TlsNetwork) else []
        text = (
            f"no leader among the Controllers: no other one is linked to {own}, whose Raft address here is "
            f"{self.addresses[own]} (a seat that was replaced has the address given to 'controller replace')"
        )
        return "; ".join([text, *trouble])

    def tls_status(self) -> dict[str, Any] | None:
        """JSON-ready; None without TLS."""
        return self._network.status() if isinstance(self._network, TlsNetwork) else None

    def send(self, peer: str, body: bytes) -> bool:
        """Whether ``body`` was handed to a link; that says nothing about its arrival."""
        link = self._links.get(peer)
        return link is not None and link.send(body)

    def drop(self, peer: str) -> None:
        """End the link to ``peer``; it is made anew."""
        link = self._links.get(peer)
        if link is not None:
            link.abort()

    # called by links

    def nonce(self) -> bytes:
        """A new one of this process."""
        nonce = self.env.random.randbytes(NONCE_BYTES)
        self._process = self._process or nonce[:PROCESS_BYTES]
        return self._process + nonce[PROCESS_BYTES:]

    def on_connection(self, link: Link) -> float | None:
        """How long it may take to prove its id, in seconds; None after the end.

        When too many have not proven their id, the oldest goes: a member needs one round trip only.
        """
        if self._closed:
            return None
        if len(self._strangers) >= STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            self.complaints.warn("too many Raft connections without a proof: %s ended", oldest.remote)
            oldest.abort()
        self._strangers[link] = None
        return self.limits.handshake_s

    def on_opened(self, link: Link, opened: Opened) -> None:
        """``link`` leads to ``opened.peer``. A former link of the same process is a leftover."""
        peer = opened.peer
        self._strangers.pop(link, None)
        former = self._links.get(peer)
        if former is not None:
            if former.process != opened.process and not former.closing:
                self._refuse_double(link, former, peer)
                return
            del self._links[peer]
            former.abort()
            self._owner.on_down(peer)
        self._links[peer] = link
        if isinstance(self._network, TlsNetwork):
            self._network.failed.pop(peer, None)
        self._owner.on_up(peer)

    def _refuse_double(self, link: Link, former: Link, peer: str) -> None:
        """Two processes claim to be ``peer``. After a loss of power the new one is such a second one, until
        the old link has been silent for long enough; a refusal that lasts longer is reported."""
        now = asyncio.get_running_loop().time()
        since = self._doubled.setdefault(peer, now)
        if now - since > 2 * self.limits.silence_s:
            self._doubled[peer] = float("inf")
            self.env.events.add("member_doubled", member=peer, at=former.remote, refused=link.remote)
            log.error(
                "Controller %s: %s is connected from %s; a second %s at %s is refused."
                " Is its directory a copy? End one of them for good",
                self.node_id,
                peer,
                former.remote,
                peer,
                link.remote,
            )
        link.abort()

    def on_body(self, link: Link, body: bytes) -> None:
        assert link.peer is not None, "frames come after the handshake"
        self._owner.on_message(link.peer, body)

    def on_ended(self, link: Link, error: Exception | None) -> None:
        self._strangers.pop(link, None)
        why = fault(error)
        if link.peer is None and link.dialed is not None and why is not None:
            self._on_tls_failed(link.dialed, why)
        if link.peer is not None and self._links.get(link.peer) is link:
            del self._links[link.peer]
            self._doubled.pop(link.peer, None)
            self._owner.on_down(link.peer)

    def _on_tls_failed(self, peer: str, why: str) -> None:
        """TLS with ``peer``, which this one dials, failed at one of the ends: both of them say so."""
        assert isinstance(self._network, TlsNetwork), "who else speaks TLS?"
        before = self._network.failed.get(peer)
        self._network.failed[peer] = why
        if why != before:
            log.warning(
                "Controller %s cannot reach %s at %s: TLS: %s",
                self.node_id,
                peer,
                self.addresses[peer],
                why,
            )

    # tasks

    async def _dial(self, peer: str) -> None:
        retry_ms = int(self.limits.retry_s * 1000)
        backoff = Backoff(self.env.random, retry_ms, 2 * retry_ms)
        before = ""

        async def connect() -> float:
            nonlocal before
            host, port = split_address(self.addresses[peer])
            _, link = await self._network.connect(
                lambda: Link(self, peer), host, port, timeout_s=self.limits.handshake_s
            )
            await link.ended.wait()
            before = ""
            backoff.reset()
            return backoff.next_s()

        def on_error(error: Exception) -> None:
            nonlocal before
            if (why := fault(error)) is not None:
                self._on_tls_failed(peer, why)
            elif str(error) != before:
                log.info(
                    "Controller %s cannot reach %s at %s: %s",
                    self.node_id,
                    peer,
                    self.addresses[peer],
                    error,
                )
            before = str(error)

        await level_triggered(
            connect,
            asyncio.Event(),
            self.limits.retry_s,
            backoff,
            f"Controller {self.node_id}: link to {peer}",
            on_error=on_error,
            ended=lambda: self._closed,
        )

    async def _follow_secrets(self) -> None:
        self.identity = self.identity.proving_by(await self.env.offload(self._secrets))
        former = [link for _, link in sorted(self._links.items()) if not self.identity.takes(link.secret)]
        if former:
            # One at a time: a leader goes on with the others while it comes back.
            log.info("Controller %s: link to %s ends with its secret", self.node_id, former[0].peer)
            former[0].abort()

    async def _watch(self) -> None:
        """Signs of life on quiet links; an end to links that give none."""
        looked = linked = asyncio.get_running_loop().time()
        said = False

        async def look() -> None:
            nonlocal looked, linked, said
            before, looked = looked, asyncio.get_running_loop().time()
            # A process that stood still cannot say whether others were silent.
            stood_still = looked - before > self.limits.silence_s / 2
            if self._links:
                linked, said = looked, False
            elif not said and looked - linked > UNLINKED_S:
                said = True
                log.warning("Controller %s: %s", self.node_id, self.unlinked())
            for link in list(self._links.values()):
                if stood_still:
                    link.heard = looked
                if looked - link.heard > self.limits.silence_s:
                    log.warning("Controller %s: no sign of life from %s", self.node_id, link.peer)
                    link.abort()
                elif looked - link.spoke >= self.limits.ping_s:
                    link.send(b"")

        period_s = self.limits.ping_s / 2
        await level_triggered(
            look,
            asyncio.Event(),
            period_s,
            Backoff(self.env.random, int(period_s * 1000), int(period_s * 1000)),
            f"Controller {self.node_id}: watch of links",
            ended=lambda: self._closed,
        )
