"""Stores on other hosts, read over ssh: the host needs a shell and GNU's ``stat``, ``ls`` and ``dd``.

Where a task runs on that host itself, and neither a port nor a user is given, it reads the disk. Keys, ports
and jumps are ssh's matter (``~/.ssh/config``, an agent); it is never asked for a password.
"""

from __future__ import annotations

import atexit
import os
import re
import secrets
import select
import shlex
import socket
import subprocess
import tempfile
import threading
from contextlib import suppress
from functools import lru_cache
from typing import Final
from urllib.parse import unquote, urlsplit

from audit.sources.location import shown
from audit.sources.storage import NOT_REGULAR, LocalStorage, Storage, UnfitFileError
from model.errors import ConfigError

TIMEOUT_S: Final = 60.0
_IDLE_MAX: Final = 2
_PIPE_BYTES: Final = 1024 * 1024
_ENDED: Final = re.compile(rb"(\d{1,3})\n")
_ABSENT: Final = ("No such file or directory", "Too many levels of symbolic links")


def ssh_storage(url: str) -> Storage:
    """``ssh://[USER@]HOST[:PORT]/PATH``. Raises ConfigError on another form."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"store {shown(url)}: {error}") from None
    if not parts.hostname or not parts.path.strip("/") or parts.password or parts.query:
        raise ConfigError(f"store {shown(url)}: ssh://[USER@]HOST[:PORT]/PATH is expected")
    path = unquote(parts.path)
    # Behind a port of this machine there may be another one, and another user may read otherwise.
    if port is None and not parts.username and is_here(parts.hostname) and os.path.isdir(path):
        return LocalStorage(path)
    user = f"{unquote(parts.username)}@" if parts.username else ""
    return SshStorage((f"{user}{parts.hostname}", port), path)


@lru_cache(maxsize=256)
def is_here(host: str) -> bool:
    """Is that this machine, by a name or address of its own?"""
    if host in (socket.gethostname(), "localhost"):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as tried:
                tried.bind(address)  # only an address of one's own can be bound
        except OSError:
            continue
        return True
    return False


class _Session:
    """A shell on the host that answers one question after the other."""

    def __init__(self, host: str, port: int | None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the session
        options = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15"]
        self._process = subprocess.Popen(
            ["ssh", *options, *(["-p", str(port)] if port else []), "--", host, "LC_ALL=C exec sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            start_new_session=True,  # an interrupt of the audit is not ssh's
        )

    def ask(self, command: str, most: int) -> tuple[int, bytes]:
        """Its status and what it wrote, at most so many bytes. Raises OSError when the link breaks."""
        mark = secrets.token_hex(16).encode()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; what it said is read below
            self._process.stdin.write(b"%s </dev/null\nprintf '%s%%d\\n' $?\n" % (command.encode(), mark))
        found = bytearray()
        room = most + len(mark) + 4
        while True:
            found += self._more()
            # The mark is this question's own: it stands at the end of the answer and nowhere else.
            at = found.find(mark, max(0, len(found) - len(mark) - 4))
            if at >= 0 and (ended := _ENDED.fullmatch(found, at + len(mark))):
                return int(ended[1]), bytes(found[:at])
            if len(found) > room:
                raise OSError(5, "the host sent more than asked for")

    def _more(self) -> bytes:
        assert self._process.stdout is not None
        reads = self._process.stdout.fileno()
        if not select.select([reads], [], [], TIMEOUT_S)[0]:
            raise OSError(110, f"the host said nothing for {TIMEOUT_S:.0f} s")
        data = os.read(reads, _PIPE_BYTES)
        if not data:
            self._process.wait(TIMEOUT_S)
            self._said.seek(0)
            lines = self._said.read(8192).decode("utf-8", "replace").strip().splitlines()
            raise OSError(5, lines[-1] if lines else f"ssh ended with status {self._process.returncode}")
        return data

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._said.close()


class _Sessions:
    """Those of this process that wait for the next question, by host."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[tuple[int, str, int | None], list[_Session]] = {}

    def take(self, host: str, port: int | None) -> _Session:
        with self._lock:
            if idle := self._idle.get((os.getpid(), host, port)):
                return idle.pop()
        return _Session(host, port)

    def give(self, host: str, port: int | None, session: _Session) -> None:
        with self._lock:
            idle = self._idle.setdefault((os.getpid(), host, port), [])
            if len(idle) < _IDLE_MAX:
                idle.append(session)
                return
        session.close()

    def close(self) -> None:
        with self._lock:
            for (pid, _, _), idle in self._idle.items():
                if pid == os.getpid():
                    for session in idle:
                        session.close()
            self._idle.clear()


SESSIONS: Final = _Sessions()
atexit.register(SESSIONS.close)


class SshStorage:
    """A directory of a host, through shells there that this process keeps."""

    def __init__(self, host: tuple[str, int | None], root: str) -> None:
        self._host, self._root = host, root.rstrip("/")

    def listdir(self, path: str) -> list[str]:
        quoted = self._quoted(path)
        try:
            found = self._ask(path, f"stat -L -c %F -- {quoted} 2>&1 && ls -1A -- {quoted} 2>&1", 1 << 28)
        except FileNotFoundError:
            return []
        kind, *names = found.decode("utf-8", "surrogateescape").splitlines()
        if kind != "directory":
            raise NotADirectoryError(20, "not a directory", self._named(path))
        return sorted(names)

    def size(self, path: str) -> int:
        told = self._ask(path, f"stat -L -c '%s %F' -- {self._quoted(path)} 2>&1", 4096)
        size, _, kind = told.decode().strip().partition(" ")
        if not kind.startswith("regular"):  # also "regular empty file"
            raise UnfitFileError(22, NOT_REGULAR, self._named(path))
        return int(size)

    def mtime_ns(self, path: str) -> int:
        told = self._ask(path, f"stat -L -c %.9Y -- {self._quoted(path)} 2>&1", 4096).decode()
        seconds, _, rest = told.strip().partition(".")
        return int(seconds) * 1_000_000_000 + int(rest or 0)

    def exists(self, path: str) -> bool:
        try:
            self.size(path)
        except UnfitFileError:
            return True
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, path: str, offset: int, size: int) -> bytes:
        if size <= 0:
            return b""
        flags = "skip_bytes,count_bytes,fullblock,nonblock"  # nobody waits for who writes into a pipe
        how = f"iflag={flags} skip={offset} count={size} bs=1M status=none"
        quoted = self._quoted(path)
        try:
            return self._ask(path, f"dd if={quoted} {how} 2>/dev/null", size)
        except OSError:
            self._ask(path, f"dd if={quoted} {how} 2>&1 >/dev/null", 1 << 16)  # it says why
            raise

    def data_from(self, path: str, offset: int) -> int | None:
        return offset

    def close(self) -> None:
        """The shells are the process's."""

    def _quoted(self, path: str) -> str:
        return shlex.quote(f"{self._root}/{path}" if path else self._root)

    def _named(self, path: str) -> str:
        host, port = self._host
        return f"ssh://{host.rpartition('@')[2]}{f':{port}' if port else ''}{self._root}: {path}"

    def _ask(self, path: str, command: str, most: int) -> bytes:
        try:
            session = SESSIONS.take(*self._host)
        except OSError as error:  # no ssh here
            raise OSError(error.errno, f"ssh: {error.strerror}", self._named(path)) from None
        try:
            status, found = session.ask(command, most)
        except OSError as error:
            session.close()
            raise OSError(error.errno or 5, error.strerror or str(error), self._named(path)) from None
        except BaseException:  # half an answer is on its way
            session.close()
            raise
        SESSIONS.give(*self._host, session)
        if status == 0:
            return found
        why = found[-400:].decode("utf-8", "replace").strip()
        if any(text in why for text in _ABSENT):
            raise FileNotFoundError(2, "no such file", self._named(path))
        number = 20 if "Not a directory" in why else 13 if "Permission denied" in why else 5
        raise OSError(number, why or f"status {status}", self._named(path))
