"""A web application on one bound socket, with a bound on its connections (admin.host.visitors)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from admin.host.visitors import Visitors
from model.settings import is_loopback

SHUTDOWN_S: Final = 1.0


def is_of_loopback(host: str) -> bool:
    """Whether the Host of a request is loopback's: a name that somebody else's DNS points there is none."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:  # half an IPv6 address
        return False
    return name == "localhost" or is_loopback(name)


class Door:
    """``link``: the socket, which it closes; ``https``: with TLS."""

    def __init__(self, link: socket.socket, https: ssl.SSLContext | None = None) -> None:
        self._link = link
        self._https = https
        self._runner: web.AppRunner | None = None
        self._listener: asyncio.Server | None = None
        self.visitors: Visitors | None = None

    async def open(self, app: web.Application) -> None:
        """Answer what came on the socket, and what comes. Raises OSError."""
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        self._runner = runner
        assert runner.server is not None, "it is set up"
        self.visitors = Visitors(runner.server)
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(self.visitors.welcome, sock=self._link, ssl=self._https)

    async def close(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        self._link.close()
