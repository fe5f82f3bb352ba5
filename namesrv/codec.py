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
from typing import Any, Final

from model.errors import PeerError, Refused
from model.topic import DataVersion
from namesrv.core import Queues, Registration
from remoting.bodies import loads, loads_object
from remoting.codec import Command
from remoting.headers import BrokerHeader, opt_bool, opt_int
from remoting.request_bodies import REGISTRATION, request_object

BODY_BYTES_MAX: Final = 64 * 1024 * 1024  # of a compressed body, once decompressed
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

_INT: Final = struct.Struct(">i")


def parse_registration(command: Command) -> Registration:
    """Read REGISTER_BROKER (103). Raises Refused for its fields, PeerError for its body."""
    ext = command.ext
    header = BrokerHeader.parse(ext)
    crc = opt_int(ext, "bodyCrc32", 0)
    if crc and crc != zlib.crc32(command.body) & 0x7FFFFFFF:
        raise Refused(f"the body does not have the bodyCrc32 of the request, {crc}")
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
        _wrapper(found, request_object(command))
    elif opt_bool(ext, "compressed"):
        _Compressed(command.body).read(found, with_mappings=command.version >= VERSION_5_0_0)
    else:
        body = request_object(command)
        _wrapper(found, _object(body.get("topicConfigSerializeWrapper") or {}, "topicConfigSerializeWrapper"))
        found.filter_servers = _texts(body.get("filterServerList") or [])
        found.gone = _texts(body.get(GONE) or [])
    return found


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


def _wrapper(found: Registration, wrapper: dict[str, Any]) -> None:
    found.version = _version(_object(wrapper.get("dataVersion") or {}, "dataVersion"))
    topics = _object(wrapper.get("topicConfigTable") or {}, "topicConfigTable")
    found.topics = {
        str(topic): _queues(_object(config, "topicConfigTable")) for topic, config in topics.items()
    }
    mappings = _object(wrapper.get("topicQueueMappingInfoMap") or {}, "topicQueueMappingInfoMap")
    found.mappings = {
        str(topic): _object(mapping, "topicQueueMappingInfoMap") for topic, mapping in mappings.items()
    }


class _Compressed:
    """Reads the compressed form from front to back."""

    def __init__(self, body: bytes) -> None:
        stream = zlib.decompressobj()
        try:
            self._data = stream.decompress(body, BODY_BYTES_MAX)
        except zlib.error as error:
            raise PeerError(f"compressed registration is not a zlib stream: {error}") from None
        if stream.unconsumed_tail:
            raise PeerError(f"compressed registration is longer than {BODY_BYTES_MAX} bytes")
        if not stream.eof:
            raise PeerError("compressed registration ends too early")
        self._at = 0

    def read(self, found: Registration, *, with_mappings: bool) -> None:
        found.version = _version(loads_object(self._block(), REGISTRATION))
        for _ in range(self._int()):
            name, queues = self._topic(self._block())
            found.topics[name] = queues
        found.filter_servers = _texts(loads(self._block(), REGISTRATION))
        if with_mappings:
            for _ in range(self._int()):
                mapping = loads_object(self._block(), REGISTRATION)
                found.mappings[str(mapping.get("topic"))] = mapping

    def _int(self) -> int:
        try:
            (value,) = _INT.unpack_from(self._data, self._at)
        except struct.error:
            raise PeerError("compressed registration ends too early") from None
        if value < 0:
            raise PeerError(f"compressed registration holds a length of {value}")
        self._at += 4
        return int(value)

    def _block(self) -> bytes:
        size = self._int()
        block = self._data[self._at : self._at + size]
        if len(block) < size:
            raise PeerError("compressed registration ends too early")
        self._at += size
        return block

    @staticmethod
    def _topic(block: bytes) -> tuple[str, Queues]:
        try:
            name, read, write, perm, *_ = block.decode().split(" ", 5)
            return name, Queues(int(read), int(write), int(perm))
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
