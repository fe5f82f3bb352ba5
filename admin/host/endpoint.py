"""Is a server well, what does it do, how much? Answered over HTTP at adminAddress.

/healthz   200 ``ok``, or 503 and the reason
/readyz    200 ``ready``, or 503 and why the next server is not to be stopped yet
/status    the server's status as JSON, with its ``serverRole`` and ``pid``
/metrics   the same figures in Prometheus' text format (admin.host.metrics)
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Awaitable, Callable

from aiohttp import web

from admin.host.door import Door, is_of_loopback
from admin.host.metrics import Metrics, Observable
from admin.host.visitors import SERVER, Visitor, Visitors
from model.settings import is_loopback
from runtime.report.histogram import Histogram
from runtime.report.lasting import Dead

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _hide(_: web.Request, response: web.StreamResponse) -> None:
    """For ``on_response_prepare``: which library answers is nobody's business."""
    response.headers["Server"] = SERVER


class Endpoint:
    """Serves one server's figures on ``link``, a bound socket (admin.host.serve.bind). ``dead``: the tasks of
    this process that died."""

    def __init__(
        self,
        role: str,
        server: Observable,
        link: socket.socket,
        delays: Histogram | None = None,
        dead: Dead | None = None,
    ) -> None:
        self._on_loopback = is_loopback(str(link.getsockname()[0]))
        self._role = role
        self._server = server
        self._dead = dead or Dead()
        self._metrics = Metrics(role, server, delays, self._dead)
        self._door = Door(link)

    @property
    def visitors(self) -> Visitors | None:
        """The connections, once it is started."""
        return self._door.visitors

    async def start(self) -> None:
        """Answer what came on the socket, and what comes. Raises OSError."""

        @web.middleware
        async def asked(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._asked(request, handler)

        app = web.Application(middlewares=[asked])
        app.on_response_prepare.append(_hide)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        app.router.add_get("/status", self._status)
        app.router.add_get("/metrics", self._show_metrics)
        await self._door.open(app)

    async def stop(self) -> None:
        await self._door.close()

    async def _asked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.protocol, Visitor):
            request.protocol.on_asked()
        # A page in a browser of this machine must not read it under a name of its own (DNS rebinding).
        if self._on_loopback and "Host" in request.headers and not is_of_loopback(request.host):
            raise web.HTTPForbidden(text=f"this server is not known as {request.host[:100]!r}\n")
        return await handler(request)

    async def _healthz(self, request: web.Request) -> web.Response:
        reason = self._server.health() or self._dead.reason()
        if reason is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=reason + "\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        # A broker alone can be well and not ready.
        why_not = getattr(self._server, "ready", self._server.health)
        reason = why_not() or self._dead.reason()
        if reason is None:
            return web.Response(text="ready\n")
        return web.Response(status=503, text=reason + "\n")

    async def _status(self, request: web.Request) -> web.Response:
        found = {"serverRole": self._role, "pid": os.getpid(), **self._server.status()}
        text = json.dumps(found, separators=(",", ":")) + "\n"
        return web.Response(text=text, content_type="application/json")

    async def _show_metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": Metrics.CONTENT_TYPE})
