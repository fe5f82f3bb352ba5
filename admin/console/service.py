"""The console as a server: on one port, with a bound on connections, until it is stopped."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Final

from aiohttp import web

from admin.console.access import Entry
from admin.console.asking import Cluster
from admin.console.drills import Drills
from admin.console.guard import Guard, Handler, harden
from admin.console.pages import Pages
from admin.console.poll import Poll
from admin.host.door import Door

FORM_BYTES_MAX: Final = 16 * 1024


class Console:
    """Serves ``cluster`` on ``link``, a bound socket (admin.host.serve.bind)."""

    def __init__(
        self,
        cluster: Cluster,
        link: socket.socket,
        *,
        entry: Entry | None = None,
        every_s: float = 2.0,
        reports: Path | None = None,
        read_only: bool = False,
        https: ssl.SSLContext | None = None,
        drills: Drills | None = None,
    ) -> None:
        self._link = link
        self._scheme = "http" if https is None else "https"
        self._door = Door(link, https)
        port = link.getsockname()[1]
        self._guard = Guard(cluster.env, entry or Entry(), port=port, secure=https is not None)
        poll = Poll(cluster.look, every_s * 1000)
        self._pages = Pages(cluster, self._guard, poll, reports, read_only, drills)
        self._drills = drills

    @property
    def url(self) -> str:
        host, port = self._link.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        return f"{self._scheme}://{name}:{port}/"

    async def start(self) -> None:
        """Raises OSError."""

        @web.middleware
        async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._guard(request, handler)

        app = web.Application(middlewares=[guarded], client_max_size=FORM_BYTES_MAX)
        app.on_response_prepare.append(harden)
        self._pages.add_to(app)
        await self._door.open(app)

    async def stop(self) -> None:
        await self._door.close()
        if self._drills is not None:
            await self._drills.stop()
