"""How is a JSON object of megabytes read without holding the event loop?

The parser reads a body in one go, 150 ms of 16 MiB. Here an object's members are cut into runs by a regular
expression, which looks at a window of the body and goes over no byte twice; each run is parsed as an object
of its own, handed on and forgotten. What is parsed is what ``bodies.loads`` gives: either dialect, integer
keys as text. An entry that does not fit into the largest window is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from model.errors import PeerError
from remoting.bodies import Bound, loads
from runtime.turns import Slice

WINDOW_BYTES: Final = 64 << 10
ENTRY_BYTES_MAX: Final = 256 << 10
LEVELS_MAX: Final = 8
"""Of one entry: the deepest that brokers send has four."""
RUN: Final = Bound(None, tokens=None, odd=ENTRY_BYTES_MAX + 2, slow=0)

_TEXT: Final = rb'"(?>(?:[^"\\]++|\\.)*)"'  # no ``(...)*+``: CPython mismatched that until 3.11.5 (gh-106052)
_BLANK: Final = rb"[ \t\r\n]*+"


def _nested(levels: int) -> bytes:
    inner = rb"|" + _nested(levels - 1) if levels else b""
    return rb'[\[{](?>(?:[^{}\[\]"]++|' + _TEXT + inner + rb")*)[\]}]"


_ONE: Final = rb"(?:" + _TEXT + rb"|" + _nested(LEVELS_MAX - 1) + rb'|[^{}\[\],:" \t\r\n]++)'
_VALUE: Final = re.compile(_ONE, re.DOTALL)
_KEY: Final = re.compile(_BLANK + rb"(" + _TEXT + rb")" + _BLANK + rb":" + _BLANK, re.DOTALL)
_MEMBERS: Final = re.compile(
    rb"(?>(?:" + _BLANK + _TEXT + _BLANK + rb":" + _BLANK + _ONE + _BLANK + rb"(?:,|(?=\})))*)", re.DOTALL
)
_ITEMS: Final = re.compile(rb"(?>(?:" + _BLANK + _ONE + _BLANK + rb"(?:,|(?=\])))*)", re.DOTALL)
_NEXT: Final = re.compile(_BLANK + rb"([,}])")
_EMPTY: Final = re.compile(_BLANK + rb"([}\]])")
_SPACE: Final = re.compile(_BLANK)

Path = tuple[str, ...]
Take = Callable[[Any], None]
"""Hears a run: an object of some of the members, or a list of some of the items."""


async def read(
    data: bytes, slice_: Slice, inside: Collection[Path], tables: Mapping[Path, Take]
) -> dict[Path, Any]:
    """Read the object ``data`` in slices: objects and lists at the paths of ``tables`` run by run; of the
    objects ``inside`` member by member. Returns every other value by its path. Raises PeerError, and as
    ``slice_``."""
    reader = _Reader(data, slice_, inside, tables)
    reader.skip()
    if data[reader.at : reader.at + 1] != b"{":
        raise PeerError("body is not a JSON object")
    await reader.members(())
    reader.skip()
    if reader.at != len(data):
        raise reader.error("something follows the value")
    return reader.found


class _Reader:
    def __init__(
        self, data: bytes, slice_: Slice, inside: Collection[Path], tables: Mapping[Path, Take]
    ) -> None:
        self._data = data
        self._slice = slice_
        self._inside = inside
        self._tables = tables
        self.at = 0
        self.found: dict[Path, Any] = {}

    def skip(self) -> None:
        blank = _SPACE.match(self._data, self.at)
        assert blank is not None, "nothing is blank enough"
        self.at = blank.end()

    def error(self, what: str) -> PeerError:
        return PeerError(f"body is not JSON: {what} at byte {self.at}")

    async def members(self, path: Path) -> None:
        """Of the object that begins here, one by one."""
        self.at += 1
        if self._ends():
            return
        while True:
            key = _KEY.match(self._data, self.at, self.at + WINDOW_BYTES)
            if key is None:
                raise self.error("expected a key")
            self.at = key.end()
            await self._value((*path, str(loads(key.group(1), RUN))))
            await self._slice.breathe()
            following = _NEXT.match(self._data, self.at)
            if following is None:
                raise self.error("expected ',' or '}'")
            self.at = following.end()
            if following.group(1) == b"}":
                return

    async def _value(self, path: Path) -> None:
        first = self._data[self.at : self.at + 1]
        take = self._tables.get(path)
        if take is not None and first in (b"{", b"["):
            await self._runs(take, _MEMBERS if first == b"{" else _ITEMS, first)
        elif path in self._inside and first == b"{":
            await self.members(path)
        else:
            found = _VALUE.match(self._data, self.at, self.at + ENTRY_BYTES_MAX)
            if found is None:
                raise self.error(f"expected a value of at most {ENTRY_BYTES_MAX} bytes")
            self.found[path] = loads(found.group(), RUN)
            self.at = found.end()

    async def _runs(self, take: Take, pattern: re.Pattern[bytes], first: bytes) -> None:
        last = b"}" if first == b"{" else b"]"
        self.at += 1
        if self._ends():
            return
        while True:
            run = await self._run(pattern)
            self.at += len(run)
            ended = not run.endswith(b",")
            take(loads(first + (run if ended else run[:-1]) + last, RUN))
            await self._slice.breathe()
            if ended:
                self.at += 1
                return

    async def _run(self, pattern: re.Pattern[bytes]) -> bytes:
        window = WINDOW_BYTES
        while True:
            found = pattern.match(self._data, self.at, self.at + window)
            await self._slice.breathe()
            if found is not None and found.end() > self.at:
                return found.group()
            if window >= min(ENTRY_BYTES_MAX, len(self._data)):
                raise self.error(f"expected an entry of at most {ENTRY_BYTES_MAX} bytes")
            window *= 4

    def _ends(self) -> bool:
        """Whether what begins here is empty; then it is behind."""
        found = _EMPTY.match(self._data, self.at)
        if found is not None:
            self.at = found.end()
        return found is not None
