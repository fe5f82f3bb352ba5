"""How many connections has adminPort, and for how long? Whoever reaches it needs no key, so both are bounded.

A connection has ``QUIET_S`` for each request: until it is whole, answered and read. Of more than
``VISITORS_MAX`` the one that asked nothing for the longest time gives way: who asks at once is answered.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

QUIET_S: Final = 15.0
VISITORS_MAX: Final = 64
SERVER: Final = "keelmq"
"""What an answer says of the server: not its library, and no version."""

log = logging.getLogger(__name__)


class Visitors:
    """The connections of one port."""

    def __init__(self, server: web.Server, quiet_s: float = QUIET_S, most: int = VISITORS_MAX) -> None:
        self._server = server
        self._quiet_s = quiet_s
        self._most = most
        self._asked_s: dict[Visitor, float] = {}  # when each asked last, or came; in that order

    def __len__(self) -> int:
        return len(self._asked_s)

    def welcome(self) -> Visitor:
        """The protocol of a new connection."""
        return Visitor(self, self._server)

    def on_came(self, visitor: Visitor) -> None:
        loop = asyncio.get_running_loop()
        self._asked_s[visitor] = loop.time()
        loop.call_later(self._quiet_s, self._look, visitor)
        if len(self._asked_s) > self._most:
            self._end(next(iter(self._asked_s)))
        self.check_invariants()

    def on_asked(self, visitor: Visitor) -> None:
        """It asked for something; one that had to give way meanwhile asks in vain."""
        if self._asked_s.pop(visitor, None) is not None:
            self._asked_s[visitor] = asyncio.get_running_loop().time()

    def on_left(self, visitor: Visitor) -> None:
        self._asked_s.pop(visitor, None)

    def check_invariants(self) -> None:
        assert len(self._asked_s) <= self._most, "no more than have a place"

    def _look(self, visitor: Visitor) -> None:
        asked_s = self._asked_s.get(visitor)
        if asked_s is None:
            return
        left_s = asked_s + self._quiet_s - asyncio.get_running_loop().time()
        if left_s > 0:
            asyncio.get_running_loop().call_later(left_s, self._look, visitor)
        else:
            self._end(visitor)

    def _end(self, visitor: Visitor) -> None:
        self._asked_s.pop(visitor, None)
        if visitor.transport is not None:
            visitor.transport.abort()


class Visitor(RequestHandler):
    """One connection."""

    def __init__(self, visitors: Visitors, server: web.Server) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type]
        self._visitors = visitors

    def on_asked(self) -> None:
        """A request of it is whole."""
        self._visitors.on_asked(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._visitors.on_came(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._visitors.on_left(self)
        super().connection_lost(exc)

    def handle_error(self, *args: Any, **kw: Any) -> web.StreamResponse:
        answer = super().handle_error(*args, **kw)
        answer.headers["Server"] = SERVER
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """A request that is none is its sender's mistake: no traceback of ours."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError):
            log.debug("adminPort: %s", error)
        else:
            super().log_exception(*args, **kw)
