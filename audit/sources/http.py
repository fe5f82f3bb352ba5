"""Stores on a web server: lists of files from its index pages, bytes by ranges.

nginx (``autoindex on``), Apache (``Options Indexes``) and Caddy (``file_server browse``) do both.
"""

from __future__ import annotations

import atexit
import base64
import http.client
import os
import ssl
import threading
from email.utils import parsedate_to_datetime
from html.parser import HTMLParser
from typing import Final
from urllib.parse import quote, unquote, urljoin, urlsplit

from audit.sources.location import shown

TIMEOUT_S: Final = 60.0
NO_RANGES: Final = "the server sends whole files only, no ranges: nginx, Apache and Caddy send them"
_PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
_IDLE_MAX: Final = 4
_BROKEN: Final = (ConnectionError, http.client.BadStatusLine, http.client.CannotSendRequest)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


class _Connections:
    """Those of this process that wait for the next request, by server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[int, str, str], list[http.client.HTTPConnection]] = {}

    def take(self, scheme: str, host: str) -> tuple[http.client.HTTPConnection, bool]:
        """One, and whether it was used before: then its server may have closed it."""
        with self._lock:
            idle = self._idle.get((os.getpid(), scheme, host))
            if idle:
                return idle.pop(), True
        if scheme == "https":
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, timeout=TIMEOUT_S, context=context), False
        return http.client.HTTPConnection(host, timeout=TIMEOUT_S), False

    def give(self, scheme: str, host: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            idle = self._idle.setdefault((os.getpid(), scheme, host), [])
            if len(idle) < _IDLE_MAX:
                idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        with self._lock:
            for (pid, _, _), idle in self._idle.items():
                if pid == os.getpid():
                    for connection in idle:
                        connection.close()
            self._idle.clear()


CONNECTIONS: Final = _Connections()
atexit.register(CONNECTIONS.close)


class HttpStorage:
    """``http://`` or ``https://[USER:PASSWORD@]HOST/PATH[?OPTIONS]``; the options go with every request."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._shown, self._scheme = shown(url), parts.scheme
        self._host = parts.netloc.rpartition("@")[2]
        self._path, self._query = parts.path.rstrip("/"), f"?{parts.query}" if parts.query else ""
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "keelmq-audit"}
        if parts.username:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"

    def listdir(self, path: str) -> list[str]:
        folder = f"{self._path}/{quote(path)}/" if path else f"{self._path}/"
        status, _, body = self._ask("GET", folder, path, most=_PAGE_BYTES_MAX)
        if status == 404:
            return []
        if status != 200:
            raise self._error(path, status)
        page = _Links()
        page.feed(body.decode("utf-8", "replace"))
        base = f"{self._scheme}://{self._host}{folder}"
        names = set()
        for link in page.found:
            target = urljoin(base, link.partition("?")[0].partition("#")[0])
            below = unquote(target.removeprefix(base).rstrip("/")) if target.startswith(base) else ""
            if below and "/" not in below and below not in (".", ".."):
                names.add(below)
        return sorted(names)

    def size(self, path: str) -> int:
        length = self._head(path).get("content-length", "")
        if not length.isdigit():
            raise OSError(5, "the server does not tell how long the file is", f"{self._shown}: {path}")
        return int(length)

    def mtime_ns(self, path: str) -> int:
        told = self._head(path).get("last-modified", "")
        try:
            return int(parsedate_to_datetime(told).timestamp()) * 1_000_000_000
        except ValueError:
            return 0

    def exists(self, path: str) -> bool:
        status, headers, _ = self._ask("HEAD", self._at(path), path)
        if status in (301, 302, 307, 308):  # of a folder, to its name with a slash
            return urlsplit(headers.get("location", "")).path == f"{self._at(path)}/"
        if status not in (200, 404, 410):
            raise self._error(path, status)
        return status == 200

    def read(self, path: str, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        wanted = {"Range": f"bytes={offset}-{offset + size - 1}"}
        status, headers, body = self._ask("GET", self._at(path), path, most=size, more=wanted)
        if status == 416:  # behind the end
            return b""
        if status == 200:
            if headers.get("content-length") == "0":
                return b""
            raise OSError(5, NO_RANGES, f"{self._shown}: {path}")
        if status != 206:
            raise self._error(path, status)
        if not headers.get("content-range", "").startswith(f"bytes {offset}-"):
            raise OSError(5, "the server sent another range than asked for", f"{self._shown}: {path}")
        return body

    def data_from(self, path: str, offset: int) -> int | None:
        return offset

    def close(self) -> None:
        """The connections are the process's."""

    def _at(self, path: str) -> str:
        return f"{self._path}/{quote(path)}"

    def _head(self, path: str) -> dict[str, str]:
        status, headers, _ = self._ask("HEAD", self._at(path), path)
        if status != 200:
            raise self._error(path, status)
        return headers

    def _error(self, path: str, status: int) -> OSError:
        number = {404: 2, 410: 2, 401: 13, 403: 13}.get(status, 5)
        return OSError(number, f"HTTP status {status}", f"{self._shown}: {path}")

    def _ask(
        self, method: str, at: str, path: str, *, most: int = 0, more: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers by their small names, and a body of up to ``most`` bytes."""
        while True:
            connection, used = CONNECTIONS.take(self._scheme, self._host)
            try:
                connection.request(method, at + self._query, headers={**self._headers, **(more or {})})
                answer = connection.getresponse()
                headers = {name.lower(): value for name, value in answer.getheaders()}
                body = self._body(answer, most, path) if method != "HEAD" else answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if used and isinstance(error, _BROKEN):
                    continue  # it was closed while it waited
                if isinstance(error, OSError) and error.filename:
                    raise
                why = str(error) or type(error).__name__
                raise OSError(5, f"no answer: {why}", f"{self._shown}: {path}") from None
            if answer.isclosed() and not answer.will_close:
                CONNECTIONS.give(self._scheme, self._host, connection)
            else:
                connection.close()
            return answer.status, headers, body

    def _body(self, answer: http.client.HTTPResponse, most: int, path: str) -> bytes:
        if answer.status not in (200, 206) or (answer.status == 200 and answer.length == 0):
            answer.read(65536)
            return b""
        if answer.length is not None and answer.length > most:
            return b""  # a whole file in place of a range: not read, and the connection is of no use
        body = answer.read(most)
        if answer.length:
            raise OSError(5, "the answer ends early", f"{self._shown}: {path}")
        if not answer.isclosed() and answer.read(1):
            raise OSError(5, "the answer is longer than asked for", f"{self._shown}: {path}")
        return body
