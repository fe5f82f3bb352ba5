"""Which values does a hostile client put into a well-formed request? Chance in, values out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from remoting import bodies

TOPIC: Final = "Normal"
"""What the well-behaved client sends to."""
GROUP: Final = "GID_normal"
POOL: Final = 40
SYSTEM: Final = (
    *("TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "DefaultCluster", "broker-a"),
    *("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"),
    *("TRANS_CHECK_MAX_TIME_TOPIC", "RMQ_SYS_TRACE_TOPIC", "rmq_sys_REVIVE_LOG_DefaultCluster"),
    *("%LMQ%light", "%LMQ%", f"%RETRY%{GROUP}", f"%DLQ%{GROUP}", "%RETRY%", "%DLQ%"),
    *("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_x", "CID_SYS_RMQ_TRANS", "TOOLS_CONSUMER"),
)
ODD: Final = (
    *("", " ", ".", "..", "../../etc/passwd", "a/b", "a\0b", "a;b;a;b", "\x01\x02", "%", "-1", "null", "*"),
    *("é" * 200, "\U0001f600", "{}", '{"a":1}', "a\nb", "@", "a" * 127, "a" * 128, "a" * 255, "a" * 256),
)
LONG: Final = (4096, 32767, 32768, 65536)
NUMBERS: Final = (
    *("0", "1", "-1", "2", "7", "8", "32", "1024", "2147483647", "-2147483648", "2147483648"),
    *("9223372036854775807", "-9223372036854775808", "9223372036854775808", "1" + "0" * 40),
    *("0x10", "1e9", "", " 1", "+1", "NaN", "٣", "true", "1_000", "1" * 5000),
)
DEEP: Final = (10, 99, 101, 500, 5000)


def name(chance: random.Random) -> str:
    """A topic or a group: mostly of a small pool, else a system's, the neighbour's, new, odd or huge."""
    kind = chance.random()
    if kind < 0.5:
        return f"H{chance.randrange(POOL)}"
    if kind < 0.62:
        return chance.choice(SYSTEM)
    if kind < 0.7:
        return chance.choice((TOPIC, GROUP))
    if kind < 0.82:
        return f"F{chance.getrandbits(40):x}"
    if kind < 0.97:
        return chance.choice(ODD)
    return "h" * chance.choice(LONG)


def number(chance: random.Random, most: int = 8) -> str:
    """Mostly a small one that fits."""
    return str(chance.randrange(most)) if chance.random() < 0.7 else chance.choice(NUMBERS)


def text(chance: random.Random) -> str:
    return chance.choice((name, number))(chance)


def spoil(chance: random.Random, ext: dict[str, str]) -> dict[str, str]:
    """Most headers stay as they are; of the others a value, a key or the number of keys is wrong."""
    if chance.random() < 0.6:
        return ext
    for key in chance.sample(sorted(ext), min(len(ext), chance.randrange(1, 4))):
        if chance.random() < 0.2:
            del ext[key]
        else:
            ext[key] = text(chance)
    if chance.random() < 0.1:
        ext.update((f"k{n}", name(chance)[:20]) for n in range(chance.choice((1, 20, 20, 1023, 1100))))
    return ext


def properties(chance: random.Random) -> str:
    found = {"UNIQ_KEY": f"{chance.getrandbits(128):032X}"}
    for key, value in _PROPERTIES:
        if chance.random() < 0.12:
            found[key] = value(chance)
    if chance.random() < 0.03:
        found.update((f"p{n}", "v") for n in range(chance.choice((100, 2000))))
    return "".join(f"{key}\x01{value}\x02" for key, value in found.items())


_PROPERTIES: Final[tuple[tuple[str, Callable[[random.Random], str]], ...]] = (
    ("KEYS", name),
    ("TAGS", name),
    ("WAIT", lambda chance: chance.choice(("true", "false", "x"))),
    ("DELAY", number),
    ("TRAN_MSG", lambda chance: chance.choice(("true", "false"))),
    ("PGROUP", name),
    ("__CRC32#", number),
    ("REAL_TOPIC", name),
    ("REAL_QID", number),
    ("INNER_NUM", number),
    ("INNER_BASE", number),
    ("INNER_MULTI_DISPATCH", lambda chance: ",".join(["%LMQ%" + name(chance)] * chance.choice((1, 3, 200)))),
    ("INNER_MULTI_QUEUE_OFFSET", number),
    ("RETRY_TOPIC", name),
    ("ORIGIN_MESSAGE_ID", text),
    ("CONSUME_START_TIME", number),
    ("MSG_REGION", name),
    ("TIMER_DELAY_MS", number),
    ("__SHARDINGKEY", name),
    ("CLUSTER", name),
)


def plain(chance: random.Random, size_max: int = 1024) -> bytes:
    return chance.randbytes(chance.randrange(size_max))


def deep(chance: random.Random) -> bytes:
    depth = chance.choice(DEEP)
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"{{", b"}:1}")))
    return opening * depth + b"1" + closing * depth


def value(chance: random.Random, depth: int = 0) -> Any:
    """Some JSON value."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind == 1:
        return chance.choice((0, -1, 2**31, 2**63, 2**70, 1.5, -0.0, 1e308))
    if kind < 5:
        return text(chance)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {name(chance)[:300]: value(chance, depth + 1) for _ in range(chance.randrange(4))}


def json_body(chance: random.Random, shape: Any) -> bytes:
    """``shape`` as JSON; sometimes with a member replaced, sometimes something else altogether."""
    kind = chance.random()
    if kind < 0.05:
        return deep(chance)
    if kind < 0.1:
        return plain(chance)
    if kind < 0.4 and isinstance(shape, dict) and shape:
        shape = {**shape, chance.choice(sorted(shape)): value(chance)}
    return bodies.dumps(shape)
