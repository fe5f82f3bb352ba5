"""Where stores lie elsewhere, on this machine: a web server with ranges, and an ssh that goes nowhere."""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa

USER = base64.b64encode(b"reader:s3cr3t").decode()
ABSENT_HOST = "192.0.2.7"
"""Of a network for documentation: no machine has it."""
_SSH = """#!/bin/sh
echo "$@" >> {log}
while [ "$1" != -- ]; do shift; done
shift 2
{before}
exec sh -c "$*"
"""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # an answer is one packet: else the other side's acknowledgement is waited for

    def __init__(self, root: Path, ranges: bool, *arguments: object) -> None:
        self._root, self._ranges = root, ranges
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self._root / unquote(urlsplit(self.path).path).lstrip("/")
        if self.headers.get("Authorization", f"Basic {USER}") != f"Basic {USER}":
            self._answer(403, b"")
        elif not path.exists():
            self._answer(404, b"none")
        elif path.is_dir() and not urlsplit(self.path).path.endswith("/"):
            self._answer(301, b"", Location=f"{urlsplit(self.path).path}/")
        elif path.is_dir():
            links = (f"{quote(one.name)}{'/' if one.is_dir() else ''}" for one in path.iterdir())
            page = "".join(f'<a href="{link}">{link[:4]}..</a>\n' for link in ("../", "?C=N", *links))
            self._answer(200, page.encode())
        else:
            self._file(path.read_bytes())

    def _file(self, data: bytes) -> None:
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None or not self._ranges:
            self._answer(200, data)
        elif int(found[1]) >= len(data):
            self._answer(416, b"")
        else:
            part = data[int(found[1]) : int(found[2]) + 1]
            where = f"bytes {found[1]}-{int(found[1]) + len(part) - 1}/{len(data)}"
            self._answer(206, part, **{"Content-Range": where})

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Tue, 03 Nov 2026 10:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the tests' output is theirs."""


@contextmanager
def served(root: Path, *, ranges: bool = True) -> Iterator[str]:
    """The files below ``root`` on loopback; yields ``HOST:PORT``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, root, ranges))
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ssh_in(folder: Path, before: str = "") -> Path:
    """An ``ssh`` that runs here what it is to run there; returns the file of its arguments."""
    folder.mkdir()
    log = folder / "asked"
    (folder / "ssh").write_text(_SSH.format(log=log, before=before))
    os.chmod(folder / "ssh", 0o755)
    return log


def compress_files(store: Path, suffix: str) -> None:
    """Each file of a store alone, as ``gzip -r`` does."""
    for path in [path for path in store.rglob("*") if path.is_file()]:
        path.with_name(f"{path.name}.{suffix}").write_bytes(compressed(path.read_bytes(), suffix))
        path.unlink()


def compressed(data: bytes, suffix: str) -> bytes:
    if suffix == "zst":
        return bytes(pa.compress(data, "zstd", asbytes=True))
    return gzip.compress(data, 1) if suffix == "gz" else bz2.compress(data)


def tarred(store: Path, target: Path) -> Path:
    """A tar file of the store's folder, compressed as the suffix says."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.add(store, store.name)
    suffix = target.suffix.lstrip(".")
    target.write_bytes(raw.getvalue() if suffix == "tar" else compressed(raw.getvalue(), suffix))
    return target
