"""How does the fast path use the compiled code (``runtime/native``)?

That splits a read, encodes its plain sends and answers them; here is what touches the broker: appends, rolls,
a disk that refuses. What it leaves takes the ordinary way, as what the Python fast path leaves does.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from broker.requests.batch import READ_MESSAGES_MAX
from broker.requests.send_format import PLAIN_SYS_FLAGS, BinaryAnswer, JsonAnswer
from model.config import BrokerConfig
from model.errors import DiskError
from model.message import PROPERTIES_BYTES_MAX
from remoting import codec
from remoting.headers import SEND_V1_NAMES
from remoting.service import Connection
from store.files.record import BLANK_BYTES, Dispatch
from store.flow.writing import Writer
from store.message_store import MessageStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from runtime.native._native import Sends

_ROLL: Final = 1
_BROKEN: Final = 2


class Path(Protocol):
    """What is needed of the fast path."""

    config: BrokerConfig
    store: MessageStore
    writer: Writer
    host: bytes
    extra: bytes
    json: JsonAnswer
    binary: BinaryAnswer

    @property
    def append(self) -> Callable[[Connection, Sequence[Any], int, Sequence[Dispatch], bytes], None]:
        """Store what was taken of a connection; its answers leave when it is safe. Raises DiskError."""

    def split(
        self, buffer: bytes | bytearray, at: int, end: int, frames: list[bytes]
    ) -> tuple[int, list[bytes]]:
        """Every whole frame is slow."""


class CompiledSends:
    """The compiled half of one broker's fast path. ``queues_of`` a topic sends to may be fast, else None."""

    def __init__(self, module: ModuleType, path: Path, queues_of: Callable[[str], int | None]) -> None:
        def route(topic: str) -> tuple[str, int] | None:
            queues = queues_of(topic)
            return None if queues is None else (topic, queues)

        self._path = path
        self._core: Sends = module.Sends(
            Dispatch,
            route,
            path.writer.next_offset,
            path.host,
            path.extra,
            [name.encode() for name in SEND_V1_NAMES.values()],
            path.json.parts,
            path.binary.parts,
            PLAIN_SYS_FLAGS,
            PROPERTIES_BYTES_MAX,
            codec.HEADER_BYTES_MAX,
        )

    def forget_routes(self) -> None:
        self._core.forget_routes()

    def process(
        self, connection: Connection, buffer: bytes | bytearray, start: int, end: int, born: bytes
    ) -> tuple[int, list[bytes]]:
        """See FastPath.process. Holds: nothing is pending between two calls."""
        path, core = self._path, self._core
        config, log = path.config, path.store.log
        maxima = (
            config.message_bytes_max,
            min(config.batch_messages_max, READ_MESSAGES_MAX),
            config.frame_bytes_max,
        )
        now_ms = path.writer.stamp_ms()
        left: list[bytes] = []
        at = appended_at = start
        appended_left = 0
        ordered = leave = False
        try:
            while True:
                log_end = log.end
                at, state, ordered, total = core.process(
                    buffer, at, end, born, now_ms, log_end, log_end + log.room, maxima, ordered, leave, left
                )
                self._append(connection)
                if state != _ROLL:
                    break
                appended_at, appended_left = at, len(left)
                if total <= config.segment_bytes - BLANK_BYTES:
                    log.roll()
                leave = total > log.room
        except DiskError:
            # Nothing was stored since the last append: the ordinary way says so to each sender.
            core.drop()
            return path.split(buffer, appended_at, end, left[:appended_left])
        except BaseException:
            core.drop()
            raise
        if state == _BROKEN:
            codec.frame_end(buffer, at, end, config.frame_bytes_max)
            raise AssertionError("lengths that cannot be true are refused by the codec as well")
        return at, left

    def _append(self, connection: Connection) -> None:
        if self._core.pending:
            records, block = self._core.take()
            self._path.append(connection, (records,), len(records), cast(Any, block), self._core.answers())
