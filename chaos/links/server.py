"""Where do the proxies run? In Toxiproxy where its binary is found, else in the relay; either is our child.

``make toxiproxy`` builds the binary with Go into ``.tools/``. One control client a process: toxiproxy-python
keeps the server's address in a class.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from chaos.live.noted import Process
from model.errors import MqError
from model.installed import IMPORTED_FROM, module_name

TOOLS: Final = Path(".tools")
BINARY: Final = "toxiproxy-server"
START_S: Final = 10.0
T = TypeVar("T")


class NoLinks(MqError):
    """The proxies cannot be had; the text says why and what to do."""


def find_toxiproxy() -> Path | None:
    """The real server: ``KEELMQ_TOXIPROXY`` (``relay``: none), ``.tools/toxiproxy-server``, or the PATH."""
    named = os.environ.get("KEELMQ_TOXIPROXY")
    if named:
        return None if named == "relay" else Path(named)
    here = TOOLS / BINARY
    if here.exists():
        return here.resolve()
    found = shutil.which(BINARY)
    return Path(found) if found else None


class LinkServer:
    """A running Toxiproxy or relay, and its control. ``kind``: ``toxiproxy`` or ``relay``."""

    def __init__(self, process: subprocess.Popen[bytes], host: str, port: int, kind: str) -> None:
        from toxiproxy import Toxiproxy

        self.kind = kind
        self.address = f"{host}:{port}"
        self._process = process
        self._noted = Process.of(process.pid)
        self._control = Toxiproxy()
        self._control.update_api_consumer(host, port)

    @classmethod
    def start(
        cls,
        log: Path,
        binary: Path | None,
        host: str = "127.0.0.1",
        port: int = 0,
        enter: Sequence[str] = (),
    ) -> Self:
        """Start ``binary``, or the relay without one; its output goes to ``log``. ``port``: of its control,
        0 = a free one; ``enter``: a command that runs what is put behind it. Raises NoLinks."""
        try:
            import toxiproxy  # noqa: F401
        except ModuleNotFoundError:
            raise NoLinks("faults on links need toxiproxy-python: pip install 'keelmq[proxy]'") from None
        if binary is not None and not os.access(binary, os.X_OK):
            raise NoLinks(f"{binary} cannot be run: build it with 'make toxiproxy'")
        port = port or _free_port(host)
        where = ["-host", host, "-port", str(port)] if binary else ["--host", host, "--port", str(port)]
        command = [str(binary)] if binary else [sys.executable, "-P", "-m", module_name("chaos.links.relay")]
        path = os.pathsep.join(filter(None, [str(IMPORTED_FROM), os.environ.get("PYTHONPATH", "")]))
        with log.open("ab") as out:
            try:
                process = subprocess.Popen(
                    [*_with_us(), *enter, *command, *where],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
            except OSError as error:
                raise NoLinks(f"{binary}: {error.strerror}: build it with 'make toxiproxy'") from None
        server = cls(process, host, port, "toxiproxy" if binary else "relay")
        deadline = time.monotonic() + START_S
        while not server._control.running():
            if process.poll() is not None or time.monotonic() > deadline:
                server.stop()
                raise NoLinks(f"{command[0]} does not serve on {host}:{port}: see {log}")
            time.sleep(0.02)
        return server

    @property
    def process(self) -> Process:
        """As a ledger notes it."""
        return self._noted

    def stop(self) -> None:
        """End the process; with it every connection through it."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    async def create(self, name: str, listen: str, upstream: str) -> None:
        """A proxy from ``listen`` to ``upstream``. Raises NoLinks when the address is taken."""
        await self._ask(lambda: self._control.create(upstream=upstream, name=name, listen=listen))

    async def enable(self, name: str, on: bool) -> None:
        """Off: nobody listens there, and connections have ended."""
        await self._ask(lambda: self._proxy(name).enable() if on else self._proxy(name).disable())

    async def add(self, name: str, kind: str, stream: str, attributes: Mapping[str, int]) -> None:
        """Put a toxic on the proxy, on every connection through it."""
        await self._ask(
            lambda: self._proxy(name).add_toxic(type=kind, stream=stream, attributes=dict(attributes))
        )

    async def add_to_all(
        self, links: Iterable[tuple[str, str]], kind: str, attributes: Mapping[str, int] | None = None
    ) -> None:
        """One toxic on each of these, a proxy's name and a stream: without a look at each before, as all
        are to be hit in the same moment. One that is there already stays."""
        from toxiproxy.exceptions import ProxyExists
        from toxiproxy.proxy import Proxy

        def add() -> None:
            for name, stream in links:
                proxy = Proxy(name=name, upstream="", enabled=True, listen="")
                with suppress(ProxyExists):  # of an earlier fault on the same link
                    proxy.add_toxic(type=kind, stream=stream, attributes=dict(attributes or {}))

        await self._ask(add)

    async def reset(self) -> None:
        """Every proxy on, no toxic left."""
        await self._ask(self._control.reset)

    def _proxy(self, name: str) -> Any:
        found = self._control.get_proxy(name)
        if found is None:
            raise NoLinks(f"there is no proxy {name}")
        return found

    async def _ask(self, call: Callable[[], T]) -> T:
        """One call of the control client, which blocks. Raises NoLinks."""
        from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

        try:
            return await asyncio.to_thread(call)
        except (InvalidToxic, NotFound, ProxyExists, KeyError, OSError) as error:
            # What requests raises below the client is an OSError, too.
            raise NoLinks(f"{self.kind} at {self.address}: {error!r}") from None


def _with_us() -> list[str]:
    """The command that ends what is put behind it when this process ends, killed or not. Where there is
    none, a drill that was killed leaves its proxies."""
    if shutil.which("setpriv") is None:
        return []
    told = subprocess.run(["setpriv", "--help"], capture_output=True, text=True)
    # That of BusyBox has no such option, and would start nothing.
    return ["setpriv", "--pdeathsig", "KILL"] if "--pdeathsig" in told.stdout + told.stderr else []


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
