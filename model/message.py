"""What a message carries besides its body: properties text, sysFlag bits, tag codes, ids.

Properties are ``name 0x01 value 0x02`` repeated. Tag codes and key hashes are Java's ``String.hashCode``.
A broker message id is the store host and the CommitLog offset in upper-case hex.
Source of the formats: Apache RocketMQ 5.x, ``common/message/MessageDecoder``.
"""

import ipaddress
import struct
from collections.abc import Mapping
from typing import Final

from model.codes import Response
from model.errors import Refused

_IPV4_HOST: Final = struct.Struct(">4BI")

NAME_END: Final = "\x01"
VALUE_END: Final = "\x02"

COMPRESSED: Final = 0x1
TRANSACTION_MASK: Final = 0xC
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

CRC32: Final = "__CRC32#"
DELAYED_AS: Final = "DELAYED_AS"
"""Which delayed or timer message a broker's copy is of: a successor takes it for delivered."""
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
UNIQ_KEY: Final = "UNIQ_KEY"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
TRANSACTION_PREPARED_PROPERTY: Final = "TRAN_MSG"
CLUSTER: Final = "CLUSTER"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
REPLY: Final = "reply"  # the MSG_TYPE of a reply
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
ARRIVE_TIME: Final = "ARRIVE_TIME"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
TRANSACTION_ENDED_AS: Final = "TRANSACTION_ENDED_AS"
"""Of an op record, keelmq's own: how the transaction ended. RocketMQ's do not say it."""
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
BROKERS_OWN: Final = (
    CRC32,
    REAL_TOPIC,
    REAL_QID,
    INNER_NUM,
    INNER_BASE,
    INNER_MULTI_QUEUE_OFFSET,
    DELAYED_AS,
    TIMER_OUT_MS,
    TIMER_ENQUEUE_MS,
    TIMER_DEQUEUE_MS,
    TIMER_ROLL_TIMES,
    TRANSACTION_ENDED_AS,
    TRANSACTION_CHECK_TIMES,
)
"""Properties by which brokers tell each other what to do with a record: a client's are taken out."""
OWN_MARKS: Final = ("__CRC32#", "REAL_", "INNER_", DELAYED_AS, "TIMER_", "TRANSACTION_")
"""Text without any of these holds none of ``BROKERS_OWN``."""

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"  # behind the name of the cluster
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
PROPERTIES_BYTES_MAX: Final = 32767
ZEROS: Final = "\0" * 512
"""Properties with so many NULs in a row are refused. After a power loss a record that holds them could not be
told from one of which a block never came to the disk: it would be cut, although it was acknowledged."""


def encode_properties(properties: Mapping[str, str]) -> str:
    """Return the properties text; the trailing 0x02 is kept, as current clients do.

    Raises Refused for a name or a value that would end early, and so begin a property of its own."""
    text = "".join(f"{name}{NAME_END}{value}{VALUE_END}" for name, value in properties.items())
    if text.count(VALUE_END) != len(properties) or any(NAME_END in name for name in properties):
        raise Refused("a property holds 0x01 or 0x02, which separate them", Response.MESSAGE_ILLEGAL)
    return text


def decode_properties(text: str) -> dict[str, str]:
    """Parse a properties text; entries without a name or a value are dropped, as the original does."""
    found: dict[str, str] = {}
    for entry in text.split(VALUE_END):
        name, separator, value = entry.partition(NAME_END)
        if separator and name and value:
            found[name] = value
    return found


def property_of(text: str, name: str) -> str | None:
    """Return one property of a properties text without parsing the rest, or None. As in ``decode_properties``
    the last one counts that has a value."""
    mark = name + NAME_END
    if mark not in text:
        return None
    marked, mark = VALUE_END + text + VALUE_END, VALUE_END + mark
    at = len(marked)
    while (at := marked.rfind(mark, 0, at)) >= 0:
        begin = at + len(mark)
        if value := marked[begin : marked.find(VALUE_END, begin)]:
            return value
    return None


def java_hash(text: str) -> int:
    """Java's ``String.hashCode``: a signed 32-bit sum over UTF-16 code units."""
    value = 0
    if text.isascii():
        for unit in text.encode():
            value = (31 * value + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        for at in range(0, len(units), 2):
            value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def tags_code(tags: str | None) -> int:
    """The number a ConsumeQueue entry carries for ``tags``; 0 for none."""
    return java_hash(tags) if tags else 0


def encode_host(address: str) -> bytes:
    """``ip:port`` as a record stores it: 4 or 16 address bytes and the port as an int.

    Raises ValueError for anything that is not a numeric address.
    """
    host, _, port = address.rpartition(":")
    return ipaddress.ip_address(host.strip("[]")).packed + int(port).to_bytes(4, "big")


def decode_host(raw: bytes) -> str:
    """The ``ip:port`` text of 8 (IPv4) or 20 (IPv6) host bytes."""
    if len(raw) == _IPV4_HOST.size:
        a, b, c, d, port = _IPV4_HOST.unpack(raw)
        return f"{a}.{b}.{c}.{d}:{port}"
    ip = ipaddress.ip_address(bytes(raw[:-4]))
    port = int.from_bytes(raw[-4:], "big")
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


def message_id(host: bytes, physical_offset: int) -> str:
    """The broker's message id: store host bytes and CommitLog offset, upper-case hex."""
    return (host + physical_offset.to_bytes(8, "big")).hex().upper()


def parse_message_id(text: str) -> tuple[str, int]:
    """Return (``ip:port``, CommitLog offset) of a broker message id; raises ValueError."""
    raw = bytes.fromhex(text)
    if len(raw) not in (16, 28):
        raise ValueError(f"message id {text!r} has {len(text)} digits, expected 32 or 56")
    return decode_host(raw[:-8]), int.from_bytes(raw[-8:], "big")


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def reply_topic(cluster: str) -> str:
    return f"{cluster}{REPLY_TOPIC_SUFFIX}"


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
