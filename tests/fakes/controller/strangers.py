"""One member's transport, and somebody who speaks to it by hand."""

import asyncio
import hmac
import os
import struct
from collections.abc import Awaitable, Callable

from controller.links.roster import Roster
from controller.links.tls import TlsFiles
from controller.links.transport import Callbacks, Limits, Security, Transport
from model.errors import PeerError
from runtime.os_env import OsEnv
from tests.ports import free_ports

SECRET = b"0123456789abcdef"

LIMITS = Limits(handshake_s=0.5, ping_s=0.1, silence_s=0.6, retry_s=0.05, secrets_s=0.05)


class End:
    """One member's transport and what it heard."""

    def __init__(
        self,
        node: str,
        addresses: dict[str, str],
        secret: bytes | None,
        tls: TlsFiles | None = None,
        seed: int = 1,
    ) -> None:
        self.secrets = () if secret is None else (secret,)
        self.heard: list[tuple[str, bytes]] = []
        self.ups: list[str] = []
        self.downs: list[str] = []
        self.transport = Transport(
            OsEnv(seed=seed),
            Roster(node, addresses),
            Callbacks(self.on_message, self.ups.append, self.downs.append),
            security=Security(self.in_force, tls),
            limits=LIMITS,
        )

    def in_force(self) -> tuple[bytes, ...]:
        return self.secrets

    def on_message(self, peer: str, body: bytes) -> None:
        if body == b"broken":
            raise PeerError("broken")
        self.heard.append((peer, body))


def members(count: int = 2) -> dict[str, str]:
    return {f"n{i}": f"127.0.0.1:{port}" for i, port in enumerate(free_ports(count))}


def port_of(end: End) -> int:
    return int(end.transport.addresses[end.transport.node_id].rpartition(":")[2])


class Stranger:
    """A connection to a member's Raft port that may speak the handshake by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, end: End) -> "Stranger":
        return cls(*await asyncio.open_connection("127.0.0.1", port_of(end)))

    async def ended(self) -> bool:
        """Whether the member hangs up."""
        try:
            async with asyncio.timeout(5):
                while await self.reader.read(4096):
                    pass
        except ConnectionError:
            pass
        self.writer.close()
        return True

    async def shake(self, end: End, secret: bytes) -> tuple[bytes, bytes]:
        """The whole handshake as n0, the dialer, with n1: (key to send with, key to receive with). All of
        them as one process."""
        hello = b"KMQRAFT1" + bytes(16) + os.urandom(16) + text("n0") + text("n1")
        self.writer.write(hello)
        challenge = await self.reader.readexactly(64)
        said = end.transport.identity.keys.context + hello + challenge[:32]

        def proof(role: bytes) -> bytes:
            return hmac.digest(secret, role + b"\0" + said, "sha256")

        self.writer.write(proof(b"dialer"))
        return proof(b"session dialer"), proof(b"session acceptor")


def frame(key: bytes, number: int, body: bytes) -> bytes:
    mac = hmac.digest(key, struct.pack(">Q", number) + body, "sha256")
    return struct.pack(">I", len(body) + 32) + body + mac


def text(value: str) -> bytes:
    return bytes((len(value),)) + value.encode()


def pair(
    main: Callable[[End, End], Awaitable[None]],
    secrets: tuple[bytes | None, bytes | None] = (SECRET, SECRET),
    *,
    files: tuple[TlsFiles | None, TlsFiles | None] = (None, None),
    extra: dict[str, str] | None = None,
) -> None:
    """``main`` with n0, which dials, and n1; ``extra``: members that only n1 knows."""

    async def run() -> None:
        addresses = members()
        one = End("n0", addresses, secrets[0], files[0])
        two = End("n1", {**addresses, **(extra or {})}, secrets[1], files[1])
        try:
            await two.transport.start()
            await one.transport.start()
            await main(one, two)
        finally:
            await one.transport.stop()
            await two.transport.stop()

    asyncio.run(run())


def alone(main: Callable[[End], Awaitable[None]], files: TlsFiles | None = None) -> None:
    """``main`` with n1 alone: n0, which would dial it, is played by hand."""

    async def run() -> None:
        end = End("n1", members(), SECRET, files)
        try:
            await end.transport.start()
            await main(end)
        finally:
            await end.transport.stop()

    asyncio.run(run())
