"""What of PySyncObj is used, and how is it kept from touching anything else?

The library reads its clock, its random source and its helpers from the names of its module. ``library`` is a
second copy of that module with such names replaced, so nothing changes for others who import pysyncobj, and
any number of nodes live in one process, also under a loop with virtual time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import zlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

from pysyncobj.node import Node as _LibraryPeer
from pysyncobj.transport import Transport as _LibraryTransport

from controller.raft.codec import SNAPSHOT_CHUNK_BYTES, Message, encode_message
from controller.raft.journal import Journal


class SnapshotSender:
    """Stands where the library keeps its files: gives each lagging follower the snapshot in pieces."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self._at: dict[Any, int] = {}

    def store(self, data: bytes) -> None:
        self.data = data
        self._at.clear()

    def getTransmissionData(self, peer: Any) -> tuple[bytes, bool, bool] | None:
        if self.data is None:
            return None
        at = self._at.pop(peer, 0)
        piece = self.data[at : at + SNAPSHOT_CHUNK_BYTES]
        end = at + len(piece)
        last = end >= len(self.data)
        if not last:
            self._at[peer] = end
        return piece, at == 0, last

    def cancelTransmisstion(self, peer: Any) -> None:
        self._at.pop(peer, None)


def _private_library() -> ModuleType:
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    assert spec is not None, "pysyncobj is a dependency"
    assert spec.loader is not None, "pysyncobj is plain Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names: dict[str, Any] = {
        "monotonicTime": lambda: asyncio.get_running_loop().time(),
        "createJournal": lambda journal: journal,
        "createPoller": lambda _kind: SimpleNamespace(poll=lambda _timeout: None),
        "Serializer": lambda *_: SnapshotSender(),
        "PIPE_NOTIFIER_ENABLED": False,
        "globalDnsResolver": lambda: SimpleNamespace(
            setTimeouts=lambda *_: None, setPreferredAddrFamily=lambda _: None
        ),
        # None of these may be reached; without them an oversight is an error, not an unsafe act.
        "pickle": None,
        "random": SimpleNamespace(random=lambda: 0.0),
        "time": None,
        "os": None,
    }
    for name, value in names.items():
        assert hasattr(module, name), f"this pysyncobj has no {name}"
        setattr(module, name, value)
    return module


library: Any = _private_library()


class Peer(_LibraryPeer):  # type: ignore[misc]
    """A member by its id. The hash is the same in every process, hence so is the order of sets of peers."""

    def __hash__(self) -> int:
        return zlib.crc32(self.id.encode())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self.id == other.id


class Outbox(_LibraryTransport):  # type: ignore[misc]
    """The library's way out: what is said is first on the disk."""

    def __init__(
        self, journal: Journal, send: Callable[[str, bytes], bool], clock_ms: Callable[[], float]
    ) -> None:
        super().__init__(None, None, [])
        self._journal = journal
        self._clock_ms = clock_ms
        self._send = send
        self.transfer = False
        self.round = 0

    def send(self, peer: Peer, message: Message | dict[str, Any]) -> bool:
        if isinstance(message, dict) and message["type"] == "append_entries":
            # Before the sync, which may take long: too early is the safe side.
            message["sent_us"] = int(self._clock_ms() * 1000)
            message["round"] = self.round
        self._journal.sync()
        if self.transfer and isinstance(message, dict) and message["type"] == "request_vote":
            message["transfer"] = True
        return self._send(peer.id, encode_message(message))
