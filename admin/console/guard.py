"""Which requests does the console take? Those of people who may, made on its own pages, a few at a time.

A page elsewhere cannot make a browser ask in its user's name: cookies are SameSite=Lax and no GET changes
anything, each form carries a token, and its Origin is looked at. On loopback, without a log-in, the Host has
to be loopback's, too: a name that somebody else's DNS points there is none (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from admin.console.access import SESSION_MS, Entry, Sessions, Waits, proves
from admin.host.door import is_of_loopback
from admin.host.visitors import Visitor
from runtime.env import Env

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Pages that ask the cluster at the same time; so many more wait, the others are told to come again."""
WAITING_MAX: Final = 32
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
OPEN: Final = ("/login", "/static/")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Visit:
    """Of one request: its browser's cookie, and who is logged in, if anybody is."""

    token: str
    user: str


_visit: ContextVar[Visit] = ContextVar("visit")


class Guard:
    """``secure``: over HTTPS."""

    def __init__(self, env: Env, entry: Entry, *, port: int, secure: bool) -> None:
        self._env = env
        self._entry = entry
        self._secure = secure
        self._sessions = Sessions()
        self._waits = Waits()
        self._secret = secrets.token_bytes(32)
        self._room = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        # A browser sends a host's cookies to each of its ports.
        self._cookie = f"keelmq_console_{port}"
        self._warned = False

    @property
    def asks(self) -> bool:
        """Whether one has to log in."""
        return self._entry.pairs is not None

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if isinstance(request.protocol, Visitor):
            request.protocol.on_asked()
        if not self.asks and not is_of_loopback(request.host):
            raise web.HTTPForbidden(text=f"the console is not known as {request.host[:100]!r}\n")
        held = request.cookies.get(self._cookie, "")
        token = held if 16 <= len(held) <= 64 else secrets.token_urlsafe(32)
        name = self._name(token)
        _visit.set(Visit(token, name or ""))
        if request.method == "POST":
            await self._need_own_page(request, token)
        if name is None and not request.path.startswith(OPEN):
            if request.path == "/live" or request.method == "POST":
                raise web.HTTPUnauthorized(text="log in first\n")
            raise web.HTTPSeeOther("/login")
        response = await handler(request)
        if token != held and self._cookie not in response.cookies:
            self._give(request, response, token)
        return response

    def _name(self, token: str) -> str | None:
        """Whose session it is; None: nobody's who may."""
        pairs = self._entry.pairs
        return "" if pairs is None else self._sessions.name(token, pairs, self._env.monotonic_ms())

    @property
    def user(self) -> str:
        """Who made this request; empty: nobody is logged in."""
        return _visit.get().user

    @property
    def csrf(self) -> str:
        """What each form of this request's browser has to carry."""
        return self._proof(_visit.get().token)

    def log_in(self, request: web.Request, name: str, password: str, then: web.StreamResponse) -> str:
        """Begin a session, whose cookie goes with ``then``; returns why not, or nothing."""
        address, now_ms = self.address(request), self._env.monotonic_ms()
        if self._waits.must(address, now_ms):
            return "Too early after a wrong password: wait a second."
        if self._entry.pairs is None or not proves(self._entry.pairs, name, password):
            self._waits.wrong(address, now_ms)
            return "This name and password do not go together."
        self._sessions.end(_visit.get().token)
        self._give(request, then, self._sessions.begin(name, password, now_ms))
        return ""

    def address(self, request: web.Request) -> str:
        """From where it comes: what came through a proxy from where that one says."""
        said = ",".join(request.headers.getall("X-Forwarded-For", []))
        if said and self._by_proxy(request):
            try:
                return self._entry.proxies.client(said)
            except ValueError:
                if not self._warned:
                    log.warning("proxy %s: no address in X-Forwarded-For %r", request.remote, said[:100])
                self._warned = True
        return request.remote or ""

    def log_out(self, then: web.StreamResponse) -> None:
        self._sessions.end(_visit.get().token)
        then.del_cookie(self._cookie, path="/")

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place among the pages that ask the cluster. Raises HTTPServiceUnavailable when too many wait."""
        if self._waiting >= WAITING_MAX:
            raise web.HTTPServiceUnavailable(
                text="too many pages are asked for: try again\n", headers={"Retry-After": "2"}
            )
        self._waiting += 1
        try:
            await self._room.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._room.release()

    async def _need_own_page(self, request: web.Request, token: str) -> None:
        try:
            origin = urlsplit(request.headers.get("Origin", ""))
        except ValueError:
            raise web.HTTPForbidden(text="the form is of a page that cannot be\n") from None
        if origin.netloc.lower() != request.host.lower():
            raise web.HTTPForbidden(text="the form is of another page than the console's\n")
        if origin.scheme not in self._schemes(request):
            raise web.HTTPForbidden(
                text="the form came over HTTP: ask by https://, through the proxy if any\n"
            )
        try:
            form = await request.post()
        except (ValueError, LookupError, RuntimeError):  # of aiohttp: no boundary, encoding or character set
            raise web.HTTPBadRequest(text="this is no form of the console's\n") from None
        given = str(form.get("csrf", ""))
        if not hmac.compare_digest(given.encode(errors="replace"), self._proof(token).encode()):
            raise web.HTTPForbidden(text="the form is too old: load its page again\n")

    def _schemes(self, request: web.Request) -> tuple[str, ...]:
        """Of the console's own pages. Over HTTPS, its own or that of a proxy which says so, a page of the
        same name over HTTP is another one: whoever is on the line can have written it."""
        return ("https",) if self._is_secure(request) else ("http", "https")  # a proxy need not say so

    def _is_secure(self, request: web.Request) -> bool:
        """Whether the browser asks over HTTPS, as far as that is known."""
        said = request.headers.get("X-Forwarded-Proto", "").strip().lower()
        return self._secure or said == "https" or (not said and self._by_proxy(request))

    def _by_proxy(self, request: web.Request) -> bool:
        return bool(self._entry.proxies) and self._entry.proxies.has(request.remote or "::")

    def _proof(self, token: str) -> str:
        return hmac.new(self._secret, token.encode(), hashlib.sha256).hexdigest()

    def _give(self, request: web.Request, response: web.StreamResponse, token: str) -> None:
        response.set_cookie(
            self._cookie,
            token,
            max_age=SESSION_MS // 1000,
            httponly=True,
            samesite="Lax",
            secure=self._is_secure(request),
            path="/",
        )


async def harden(_: web.Request, response: web.StreamResponse) -> None:
    """For ``on_response_prepare``: each answer has the headers, errors too."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.pop("Server", None)
