"""What does the body of a registration say, in each of its three forms?

    plain       JSON: {"filterServerList":[..],"topicConfigSerializeWrapper":{"dataVersion":{..},
                "topicConfigTable":{topic:{..}},"topicQueueMappingInfoMap":{topic:{..}}}}
    old         from brokers before 3.0.11: the topicConfigSerializeWrapper alone
    compressed  a zlib stream of
                    4+n  DataVersion JSON
                    4    number of topics, then for each
                    4+n  "topic readQueues writeQueues perm filterType attributes", one space between
                    4+n  filterServerList JSON
                    4    number of queue mappings (brokers from 5.0.0 on), then for each
                    4+n  mapping JSON

Integers are signed and big-endian. Source of the format: RocketMQ 5.x, ``RegisterBrokerBody``.
"""

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

from model.errors import PeerError, Refused
from model.topic import DataVersion
from namesrv.core import Queues, Registration
from remoting.bodies import loads, loads_object
from remoting.codec import Command
from remoting.headers import BrokerHeader, opt_bool, opt_int
from remoting.long_objects import RUN, read
from remoting.request_bodies import request_object
from runtime.turns import Slice

BODY_BYTES_MAX: Final = 64 * 1024 * 1024  # of a compressed body, once decompressed
PART_BYTES: Final = 256 << 10
"""So much is decompressed in one go. No entry is longer."""
PACKED_BYTES: Final = 16 << 10
TOPICS_MAX: Final = 200_000
"""Of one registration; a frame of 16 MiB holds 80,000 as RocketMQ writes them."""
VERSION_BYTES_MAX: Final = 16 << 10
ROUTE_BYTES_MAX: Final = 256 << 10
"""Of the bodies that are no registrations: they are read in one go."""
VERSION_3_0_11: Final = 37
VERSION_5_0_0: Final = 413
ZONE: Final = "__ZONE_NAME"
PART: Final = "keelmqPart"
"""Ours. A master registers topics that changed; the answer to 103 says that this NameServer takes it."""
GONE: Final = "keelmqDeletedTopics"
"""Ours. In the body of such a registration: topics that were deleted."""

WRAPPER: Final = "topicConfigSerializeWrapper"
TOPICS: Final = "topicConfigTable"
MAPPINGS: Final = "topicQueueMappingInfoMap"
DETAILS: Final = "topicQueueMappingDetailMap"
SHARED_MAX: Final = 1024

_INT: Final = struct.Struct(">i")


async def parse_registration(command: Command, slice_: Slice) -> Registration:
    """Read REGISTER_BROKER (103) in slices. Raises Refused for its fields, PeerError for its body."""
    ext = command.ext
    header = BrokerHeader.parse(ext)
    crc = opt_int(ext, "bodyCrc32", 0)
    if crc and crc != zlib.crc32(command.body) & 0x7FFFFFFF:
        raise Refused(f"the body does not have the bodyCrc32 of the request, {crc}")
    await slice_.breathe()
    timeout_ms = opt_int(ext, "heartbeatTimeoutMillis", 0, 0)
    found = Registration(
        header.cluster,
        header.name,
        header.address,
        header.broker_id or 0,
        ext.get("haServerAddr", ""),
        timeout_ms or None,
        opt_bool(ext, "enableActingMaster") if ext.get("enableActingMaster") else None,
        ext.get(ZONE),
        part=opt_bool(ext, PART),
    )
    if not command.body:
        return found
    if command.version < VERSION_3_0_11:
        await _plain(found, command.body, slice_, ())
    elif opt_bool(ext, "compressed"):
        reader = _Compressed(command.body, slice_)
        await reader.read(found, with_mappings=command.version >= VERSION_5_0_0)
    else:
        await _plain(found, command.body, slice_, (WRAPPER,))
    return found


async def _plain(found: Registration, body: bytes, slice_: Slice, wrapper: tuple[str, ...]) -> None:
    """The JSON forms; ``wrapper``: where the tables are. Raises PeerError."""
    made = _Made(found)

    def topics(run: Any) -> None:
        for topic, config in _object(run, TOPICS).items():
            made.topic(topic, config)

    def mappings(run: Any) -> None:
        for topic, mapping in _object(run, MAPPINGS).items():
            found.mappings[topic] = _object(mapping, MAPPINGS)

    tables: dict[tuple[str, ...], Callable[[Any], None]] = {
        (*wrapper, TOPICS): topics,
        (*wrapper, MAPPINGS): mappings,
        (*wrapper, DETAILS): lambda run: None,
    }
    if wrapper:
        tables[GONE,] = lambda run: found.gone.extend(_texts(run))
    others = await read(body, slice_, {wrapper}, tables)
    for name in (TOPICS, MAPPINGS):
        if others.get((*wrapper, name)):
            raise PeerError(f"{name} is not an object")
    if wrapper:
        if others.get(wrapper):
            raise PeerError(f"{WRAPPER} is not an object")
        if others.get((GONE,)):
            raise PeerError(f"{GONE} is not a list of texts")
        found.filter_servers = _texts(others.get(("filterServerList",)) or [])
    found.version = _version(_object(others.get((*wrapper, "dataVersion")) or {}, "dataVersion"))


class _Made:
    """Takes topics into a registration. Most have the same numbers: they share one entry."""

    def __init__(self, found: Registration) -> None:
        self._topics = found.topics
        self._known: dict[tuple[int, int, int, int], Queues] = {}

    def topic(self, name: str, config: Any) -> None:
        """Raises PeerError."""
        data = _object(config, TOPICS)
        self.add(
            name,
            (
                _number(data, "readQueueNums", 16),
                _number(data, "writeQueueNums", 16),
                _number(data, "perm", 6),
                _number(data, "topicSysFlag", 0),
            ),
        )

    def add(self, name: str, numbers: tuple[int, int, int, int]) -> None:
        """Raises PeerError."""
        queues = self._known.get(numbers)
        if queues is None:
            if len(self._known) >= SHARED_MAX:
                self._known.clear()
            queues = self._known[numbers] = Queues(*numbers)
        self._topics[name] = queues
        if len(self._topics) > TOPICS_MAX:
            raise PeerError(f"a registration names at most {TOPICS_MAX} topics")


def parse_version(command: Command) -> DataVersion:
    """The DataVersion in the body of QUERY_DATA_VERSION (322). Raises PeerError."""
    _need_short(command.body, VERSION_BYTES_MAX)
    return _version(request_object(command))


def parse_queues(command: Command) -> dict[str, Queues]:
    """group -> queues of the TopicRouteData in REGISTER_TOPIC_IN_NAMESRV (217). Raises PeerError."""
    _need_short(command.body, ROUTE_BYTES_MAX)
    found: dict[str, Queues] = {}
    listed = request_object(command).get("queueDatas") or []
    if not isinstance(listed, list):
        raise PeerError("queueDatas is not a list")
    for item in listed:
        data = _object(item, "queueDatas")
        name = data.get("brokerName")
        if not isinstance(name, str) or not name:
            raise PeerError("an entry of queueDatas has no brokerName")
        found[name] = _queues(data)
    return found


def _need_short(body: bytes, bytes_max: int) -> None:
    if len(body) > bytes_max:
        raise PeerError(f"a body of {len(body)} bytes, at most {bytes_max}")


class _Compressed:
    """Reads the compressed form from front to back, decompressing what it comes to."""

    def __init__(self, body: bytes, slice_: Slice) -> None:
        self._stream = zlib.decompressobj()
        self._packed = body
        self._taken = 0
        self._slice = slice_
        self._data = b""
        self._at = 0
        self._bytes = 0

    async def read(self, found: Registration, *, with_mappings: bool) -> None:
        """Raises PeerError."""
        found.version = _version(loads_object(await self._block(), RUN))
        made = _Made(found)
        count = await self._int()
        if count > TOPICS_MAX:
            raise PeerError(f"a registration names at most {TOPICS_MAX} topics")
        for _ in range(count):
            made.add(*self._topic(await self._block()))
            await self._slice.breathe()
        found.filter_servers = _texts(loads(await self._block(), RUN))
        if with_mappings:
            for _ in range(await self._int()):
                mapping = loads_object(await self._block(), RUN)
                found.mappings[str(mapping.get("topic"))] = mapping
                await self._slice.breathe()
        while await self._more():
            self._at = len(self._data)

    async def _need(self, size: int) -> None:
        while len(self._data) - self._at < size:
            if not await self._more():
                raise PeerError("compressed registration ends too early")

    async def _more(self) -> bool:
        """Decompress the next part; False at the end of the stream."""
        if self._stream.eof:
            return False
        packed = self._stream.unconsumed_tail
        if not packed:
            packed = self._packed[self._taken : self._taken + PACKED_BYTES]
            self._taken += len(packed)
        if not packed:
            raise PeerError("compressed registration ends too early")
        try:
            part = self._stream.decompress(packed, PART_BYTES)
        except zlib.error as error:
            raise PeerError(f"compressed registration is not a zlib stream: {error}") from None
        self._bytes += len(part)
        if self._bytes > BODY_BYTES_MAX:
            raise PeerError(f"compressed registration is longer than {BODY_BYTES_MAX} bytes")
        self._data, self._at = self._data[self._at :] + part, 0
        await self._slice.breathe()
        return True

    async def _int(self) -> int:
        await self._need(_INT.size)
        (value,) = _INT.unpack_from(self._data, self._at)
        if value < 0:
            raise PeerError(f"compressed registration holds a length of {value}")
        self._at += _INT.size
        return int(value)

    async def _block(self) -> bytes:
        size = await self._int()
        if size > PART_BYTES:
            raise PeerError(f"compressed registration holds an entry of {size} bytes, at most {PART_BYTES}")
        await self._need(size)
        self._at += size
        return self._data[self._at - size : self._at]

    @staticmethod
    def _topic(block: bytes) -> tuple[str, tuple[int, int, int, int]]:
        try:
            name, read, write, perm, *_ = block.decode().split(" ", 5)
            return name, (int(read), int(write), int(perm), 0)
        except ValueError:
            raise PeerError(f"compressed registration holds the topic {block[:80]!r}") from None


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PeerError(f"{name} is not an object")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PeerError("filterServerList is not a list of texts")
    return value


def _number(data: dict[str, Any], name: str, default: int) -> int:
    value = data.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise PeerError(f"{name} is not a number: {str(value)[:40]}")
    return value


def _queues(data: dict[str, Any]) -> Queues:
    return Queues(
        _number(data, "readQueueNums", 16),
        _number(data, "writeQueueNums", 16),
        _number(data, "perm", 6),
        _number(data, "topicSysFlag", 0),
    )


def _version(data: dict[str, Any]) -> DataVersion:
    return DataVersion(
        _number(data, "stateVersion", 0), _number(data, "timestamp", 0), _number(data, "counter", 0)
    )
