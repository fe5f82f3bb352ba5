"""No bit that a client sets of a message (sysFlag with its hosts, compression and transaction, flag, numbers
of a batch) makes a recovery, a scrub, a check of the store or an audit speak of damage: by the compiled path,
by Python's and by the ordinary way, in both dialects."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import pytest

from broker.service import Broker
from model.codes import Request
from remoting import codec
from remoting.codec import Command
from remoting.headers import SendHeader
from runtime import native
from runtime.os_env import OsEnv
from store.files.record import DispatchParser, whole
from store.offline.verify import verify
from tests.audit.plants import run_local
from tests.broker.helpers import client_of, log_records, running

BITS = [*(1 << n for n in range(31)), -1 << 31, -1, 0x7FFFFFFF, 0x30, 0x3C, 0x0C, 0x700, 0x301]
KINDS = ["", "DELAY\x011\x02", "TRAN_MSG\x01true\x02PGROUP\x01pg\x02", "TIMER_DELAY_SEC\x011\x02"]
NUMBERS = itertools.count(1)
INNER = struct.Struct(">iiiii")


def key() -> str:
    return f"UNIQ_KEY\x01{next(NUMBERS):032X}\x02"


def inner(body: bytes, properties: str, magic: int, crc: int, flag: int) -> bytes:
    raw = properties.encode()
    size = INNER.size + len(body) + 2 + len(raw)
    return INNER.pack(size, magic, crc, flag, len(body)) + body + struct.pack(">h", len(raw)) + raw


def singles() -> list[tuple[Request, dict[str, str], bytes]]:
    found = []
    for flag, kind in itertools.product(BITS, KINDS):
        for code in (Request.SEND_MESSAGE, Request.SEND_MESSAGE_V2):
            header = SendHeader("pg", "T", 0, 1, sys_flag=flag, flag=flag, properties=key() + kind)
            found.append((code, header.to_ext(full_names=code == Request.SEND_MESSAGE), b"body"))
    return found


def batches() -> list[tuple[Request, dict[str, str], bytes]]:
    found = []
    for flag in BITS:
        header = SendHeader("pg", "T", 1, 1, sys_flag=flag, flag=flag, properties=key(), batch=True)
        body = b"".join(inner(b"one of them", key(), flag, flag, flag) for _ in range(3))
        found.append((Request.SEND_BATCH_MESSAGE, header.to_ext(), body))
    return found


async def sent(broker: Broker, *, slow: bool) -> list[int]:
    """The codes of all answers. ``slow``: by the ordinary way, where a field that nobody sends leads."""
    codes = []
    async with client_of(broker) as client:
        connection = await client.connection()
        for dialect in (codec.JSON, codec.ROCKETMQ):
            commands = [
                Command(int(code), {**ext, **({"odd": "field"} if slow else {})}, body, serialize=dialect)
                for code, ext, body in singles() + batches()
            ]
            for command in commands:  # one by one: what waits for another one takes the ordinary way
                codes.append((await connection.call(command, 30)).code)
    return codes


@pytest.mark.parametrize("way", ["compiled", "python", "ordinary"])
async def test_no_bit_of_a_message_is_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way != "compiled":
        monkeypatch.setattr(native, "_module", None)
    elif native.module() is None:
        pytest.skip(native.describe())
    keys: dict[str, Any] = {"brokerName": "broker-a", "enableControllerMode": "false"}
    async with running(tmp_path, **keys) as broker:
        codes = await sent(broker, slow=way == "ordinary")
        assert codes.count(0) > len(codes) / 2
        data = broker.store.log.read(0, 1 << 30)
        for record in log_records(broker):
            at = record.physical_offset
            assert whole(data, at, at, prop_crc=True) == broker.store.log.whole(data, at, at) == record.size
        assert DispatchParser([0, 1000]).parse(data, 0, len(data))[1] == len(data)
    (root,) = {path.parent for path in tmp_path.rglob("commitlog")}
    told = verify(OsEnv().disk, str(root))
    assert (told["ok"], told["damage"]) == (True, [])
    report = run_local([root], None)
    assert report.findings == []
    async with running(tmp_path, **keys) as broker:
        assert broker.store.log.read(0, 1 << 30)[: len(data)] == data
        assert broker.store.damage.ranges == []
