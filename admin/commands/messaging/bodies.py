"""What does ``keelmq send`` send? Looked at before the first message leaves, as far as it can be known."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

LINE_BYTES_MAX: Final = 4 * 1024 * 1024
STDIN: Final = "stdin"


class Unfit(ValueError):
    """No message can be made of it; the text says of what, and why."""


@dataclass(frozen=True, slots=True)
class Bodies:
    """``texts``: as they were typed; ``files``: a body each; ``line_files``: a body for each line; ``lines``:
    also for each of stdin."""

    texts: Sequence[str]
    files: Sequence[Path]
    line_files: Sequence[Path]
    lines: bool

    def check(self, most: int) -> None:
        """Raises Unfit, OSError. What can be read once alone (stdin, a pipe) is looked at as it is sent."""
        for number, text in enumerate(self.texts, 1):
            _need_size(f"body {number}", len(text.encode()), most)
        for path in self.files:
            if path.is_file():
                _need_size(str(path), path.stat().st_size, most)
        for path in self.line_files:
            if path.is_file():
                for source, body in _lines_of(path):
                    _need_size(source, len(body), most)

    def each(self, without_lines: list[str]) -> Iterator[tuple[str, bytes]]:
        """Each body with where it comes from, read as it is sent: a pipe may have no end. What should have
        lines and has none is added to ``without_lines``. Raises Unfit, OSError."""
        for number, text in enumerate(self.texts, 1):
            yield f"body {number}", text.encode()
        for path in self.files:
            yield str(path), path.read_bytes()
        for name, found in self._lined():
            count = 0
            for count, one in enumerate(found, 1):  # noqa: B007 - asked for below
                yield one
            if not count:
                without_lines.append(name)

    def _lined(self) -> Iterator[tuple[str, Iterator[tuple[str, bytes]]]]:
        for path in self.line_files:
            yield str(path), _lines_of(path)
        if self.lines:
            yield STDIN, _lines(STDIN, sys.stdin.buffer)


def _need_size(source: str, size: int, most: int) -> None:
    if not size:
        raise Unfit(f"{source}: a message needs a body of at least one byte")
    if size > most:
        raise Unfit(f"{source}: the body is {size} bytes, at most {most} are allowed")


def _lines_of(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as file:
        yield from _lines(str(path), file)


def _lines(name: str, file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise Unfit(f"{name}, line {number}: longer than {LINE_BYTES_MAX:,} bytes")
        yield f"{name}, line {number}", line.rstrip(b"\r\n")
