"""Bytes that lie somewhere, read by who reads into its own memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from ha.wire.codec import Transfer

Frame = TypeVar("Frame")
Came = TypeVar("Came", covariant=True)


class Reader(Protocol[Came]):
    @property
    def room(self) -> Callable[[], memoryview]: ...
    def came(self, size: int) -> Sequence[Came]: ...


class Fed(Generic[Frame]):
    """A reader of what a master sends. Bodies are copied: they outlive the next read."""

    def __init__(self, reader: Reader[Frame]) -> None:
        self._reader = reader

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes. Raises PeerError."""
        found: list[Frame] = []
        while data:
            room = self._reader.room()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            found += [_kept(frame) for frame in self._reader.came(size)]
        return found


def _kept(frame: Frame) -> Frame:
    if isinstance(frame, Transfer):
        return frame._replace(body=bytes(frame.body))
    return frame
