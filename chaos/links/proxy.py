"""One address of the relay: how do bytes get from a client to the upstream, and what happens on the way?

Each direction of a connection reads chunks ahead, passes each through the toxics in force at that moment, and
writes it. A toxic applies to a connection or not: chance decides once, by its toxicity.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from chaos.links.toxics import DOWNSTREAM, UPSTREAM, Toxic
from runtime.tasks import Tasks

CHUNK_BYTES: Final = 32 * 1024
AHEAD_CHUNKS: Final = 64
"""Read while earlier ones are held, so that latency does not bound throughput."""
CONNECT_S: Final = 5.0
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: a close sends RST."""


@dataclass(eq=False)
class Connection:
    """One client's connection and ours to the upstream; ``hit``: the toxics that chance gave to it."""

    client: asyncio.StreamWriter
    upstream: asyncio.StreamWriter
    hit: dict[str, bool] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    """Bytes each limit_data toxic let through."""

    def hits(self, toxic: Toxic, chance: random.Random) -> bool:
        """Whether the toxic applies here: drawn once for a connection."""
        if toxic.name not in self.hit:
            self.hit[toxic.name] = chance.random() < toxic.toxicity
        return self.hit[toxic.name]

    def close(self, *, reset: bool = False) -> None:
        for writer in (self.client, self.upstream):
            if reset and (sock := writer.get_extra_info("socket")) is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort() if reset else writer.close()


class Proxy:
    """One listening address whose connections go to ``upstream``."""

    def __init__(self, name: str, listen: str, upstream: str, chance: random.Random) -> None:
        self.name, self.listen, self.upstream = name, listen, upstream
        self.enabled = False
        self.toxics: dict[str, Toxic] = {}
        self._chance = chance
        self._server: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._changed = asyncio.Event()
        self._tasks = Tasks(f"relay.{name}")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "listen": self.listen,
            "upstream": self.upstream,
            "enabled": self.enabled,
            "toxics": [toxic.to_json() for toxic in self.toxics.values()],
        }

    async def start(self) -> None:
        """Listen. Raises OSError."""
        if self.enabled:
            return
        host, _, port = self.listen.rpartition(":")
        self._server = await asyncio.start_server(self._serve, host or None, int(port), reuse_address=True)
        self.listen = f"{host or '127.0.0.1'}:{self._server.sockets[0].getsockname()[1]}"
        self.enabled = True

    async def stop(self) -> None:
        """Listen no more, and end every connection."""
        self.enabled = False
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._connections):
            connection.close()
        await self._tasks.cancel()

    def put(self, toxic: Toxic) -> None:
        self.toxics[toxic.name] = toxic
        self._wake()

    def changed(self) -> None:
        """A toxic has other attributes."""
        self._wake()

    def drop(self, name: str) -> None:
        """Remove a toxic; connections whose data a timeout toxic swallowed end."""
        toxic = self.toxics.pop(name)
        for connection in list(self._connections):
            if connection.hit.pop(name, False) and toxic.kind == "timeout":
                connection.close()
            connection.passed.pop(name, None)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.upstream.rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_S):
                up_reader, up_writer = await asyncio.open_connection(host, int(port))
        except (OSError, TimeoutError):
            writer.close()
            return
        connection = Connection(writer, up_writer)
        if not self.enabled:
            connection.close()
            return
        self._connections.add(connection)
        both = (
            self._tasks.spawn(self._carry(connection, reader, up_writer, UPSTREAM), name=UPSTREAM),
            self._tasks.spawn(self._carry(connection, up_reader, writer, DOWNSTREAM), name=DOWNSTREAM),
        )
        try:
            await asyncio.wait(both)
        finally:
            self._connections.discard(connection)
            connection.close()

    def _in_force(self, connection: Connection, stream: str) -> list[Toxic]:
        return [t for t in self.toxics.values() if t.stream == stream and connection.hits(t, self._chance)]

    async def _carry(
        self, connection: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream: str
    ) -> None:
        """Everything one side says, to the other, until it ends."""
        ahead: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(AHEAD_CHUNKS)
        beside = (
            self._tasks.spawn(_read_ahead(reader, ahead), name=f"{stream}.read"),
            self._tasks.spawn(self._end_by_toxic(connection, stream), name=f"{stream}.end"),
        )
        try:
            while (chunk := await ahead.get())[1]:
                if not await self._through(connection, writer, chunk, stream):
                    connection.close()
                    return
            for toxic in self._in_force(connection, stream):
                if toxic.kind == "slow_close":
                    await asyncio.sleep(toxic.attributes["delay"] / 1000)
            if writer.can_write_eof():
                writer.write_eof()
        except OSError:
            connection.close()
        finally:
            for task in beside:
                task.cancel()

    async def _through(
        self, connection: Connection, writer: asyncio.StreamWriter, chunk: tuple[float, bytes], stream: str
    ) -> bool:
        """Pass one chunk and its moment through the toxics; False when one of them ends the connection."""
        read_s, data = chunk
        pieces, pause_s, go_on = [data], 0.0, True
        for toxic in self._in_force(connection, stream):
            if toxic.kind in ("timeout", "reset_peer"):
                return True  # swallowed
            if toxic.kind == "latency":
                held_s = asyncio.get_running_loop().time() - read_s
                await asyncio.sleep(toxic.delay_s(self._chance) - held_s)
            elif toxic.kind == "bandwidth":
                rate = toxic.attributes["rate"]
                await (asyncio.sleep(len(data) / 1024 / rate) if rate > 0 else self._until_changed())
            elif toxic.kind == "slicer":
                pieces = [part for piece in pieces for part in toxic.pieces(piece, self._chance)]
                pause_s = toxic.attributes["delay"] / 1_000_000
            elif toxic.kind == "limit_data":
                pieces, go_on = _limited(connection, toxic, pieces)
        for at, piece in enumerate(pieces):
            if at:
                await asyncio.sleep(pause_s)
            writer.write(piece)
            await writer.drain()
        return go_on

    async def _until_changed(self) -> None:
        """A bandwidth of nothing: held until a toxic changes."""
        await self._changed.wait()

    async def _end_by_toxic(self, connection: Connection, stream: str) -> None:
        """End the connection when the time of a timeout or reset_peer toxic is over."""
        loop = asyncio.get_running_loop()
        since: dict[int, tuple[Toxic, float]] = {}  # by identity: one that is put again begins anew
        while True:
            changed = self._changed
            in_force, now_s = self._in_force(connection, stream), loop.time()
            since = {id(toxic): since.get(id(toxic), (toxic, now_s)) for toxic in in_force}
            due = []
            for toxic in in_force:
                wait_ms = toxic.attributes.get("timeout")
                if wait_ms is None or (toxic.kind == "timeout" and wait_ms == 0):
                    continue
                due.append((since[id(toxic)][1] + wait_ms / 1000, toxic.kind))
            if due:
                at, kind = min(due)
                if loop.time() >= at:
                    connection.close(reset=kind == "reset_peer")
                    return
            try:
                async with asyncio.timeout(min(due)[0] - loop.time() if due else None):
                    await changed.wait()
            except TimeoutError:
                continue


def _limited(connection: Connection, toxic: Toxic, pieces: Iterable[bytes]) -> tuple[list[bytes], bool]:
    """What is left of the chunk below the limit; and whether the connection goes on."""
    data = b"".join(pieces)
    left = toxic.attributes["bytes"] - connection.passed.get(toxic.name, 0)
    passed = data[: max(0, left)]
    connection.passed[toxic.name] = connection.passed.get(toxic.name, 0) + len(passed)
    return [passed], left > len(data)


async def _read_ahead(reader: asyncio.StreamReader, ahead: asyncio.Queue[tuple[float, bytes]]) -> None:
    """Each chunk with the moment it was read; an empty one at the end, or where the connection broke."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(CHUNK_BYTES):
            await ahead.put((loop.time(), data))
    except OSError:
        pass  # a reset ends a connection as well as an end of file does
    await ahead.put((loop.time(), b""))
