"""The promise of request bodies: no server parses one beyond the bound of its code, and none costs more than
strict JSON does, about."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client.admin import queue_of
from model.codes import Request
from model.config import NamesrvConfig
from model.errors import MqError, PeerError
from namesrv.service import NameServer
from remoting import bodies
from remoting.acl.needs import needs, plain_needs
from remoting.bodies import BELIEVED, REQUEST, Bound, dumps_dialect, loads, queue_key
from remoting.codec import FRAME_BYTES_MAX, Command, encode
from remoting.request_bodies import BOUNDS, REGISTRATION, bound_of, request_object
from runtime.os_env import OsEnv
from tests.broker.helpers import running
from tests.fakes.controller.live import World
from tests.fuzz.hostile.wire import Wire

FIELDS = (
    *("topic", "group", "consumerGroup", "producerGroup", "brokerName", "brokerId", "clusterName", "offset"),
    *("brokerAddr", "username", "subject", "masterBrokerId", "masterEpoch", "brokerAddress", "groupName"),
    *("a", "b", "c", "queueId", "defaultTopic", "defaultTopicQueueNums", "clientID", "clientId", "namespace"),
)
EXT = dict.fromkeys(FIELDS, "1")
"""What requests need before their body is looked at."""
STRICT, ODD = b'{"strict":"', b"{0:[77,"


class Parsed:
    """Sees what reaches the parser, and knows the bodies of this file by how they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self._decode = bodies._decode
        monkeypatch.setattr(bodies, "_decode", self)

    def __call__(self, text: bytes | str) -> Any:
        start = text[:16] if isinstance(text, str) else bytes(text[:16]).decode()
        if start.startswith((STRICT.decode(), ODD.decode(), '{"0":[77,')):
            self.begun.append(len(text))
        return self._decode(text)


def too_long(code: int) -> list[bytes]:
    """A strict body and an odd one, each a few bytes beyond the bound of ``code``; none beyond a frame."""
    size = bound_of(code).size
    assert size is not None
    assert size <= FRAME_BYTES_MAX, f"{code} has a bound"
    if size == FRAME_BYTES_MAX:
        return []
    return [STRICT + b"x" * size + b'"}', ODD + b"1," * (size // 2) + b"1]}"]


async def drive(address: str, parsed: Parsed) -> None:
    """Ask for everything; no key is set: peers' requests are decoded, too."""
    async with Wire(address) as wire:
        await wire.send(encode(Command(int(Request.QUERY_DATA_VERSION), EXT, STRICT + b'"}')))
        await wire.answers(1, 0.2)
    known = len(parsed.begun)
    for code in Request:
        for body in too_long(code):
            async with Wire(address) as wire:
                await wire.send(encode(Command(int(code), EXT, body)))
                await wire.answers(1, 0.02)
        assert len(parsed.begun) == known, f"{code.name} had {parsed.begun[-1]} bytes parsed"


async def test_no_handler_of_a_broker_parses_more_than_the_bound_of_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = Parsed(monkeypatch)
    async with running(tmp_path) as broker:
        await drive(f"127.0.0.1:{broker.port}", parsed)
        async with Wire(f"127.0.0.1:{broker.port}") as wire:
            await wire.send(encode(Command(int(Request.CHECK_CLIENT_CONFIG), EXT, STRICT + b'"}')))
            await wire.answers(1, 1.0)
    assert parsed.begun, "a short one is parsed"


async def test_no_handler_of_a_nameserver_does(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Parsed(monkeypatch)
    server = NameServer(OsEnv(seed=1), NamesrvConfig.from_mapping({"listenPort": "0"}))
    await server.start()
    try:
        await drive(server.address, parsed)
    finally:
        await server.stop()


async def test_no_handler_of_a_controller_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Parsed(monkeypatch)
    world = World(tmp_path, 1)
    await world.start()
    try:
        await drive(world.addresses["n0"], parsed)
    finally:
        for controller in world.running.values():
            await controller.stop()


def test_the_gate_parses_no_more_than_the_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = Parsed(monkeypatch)
    works: list[Callable[[Command], object]] = [
        lambda request: needs(request, "c"),
        lambda request: plain_needs(request, "c"),
    ]
    for code in Request:
        for body in too_long(code):
            for work in works:
                try:
                    work(Command(int(code), EXT, body))
                except MqError:
                    continue
    assert not parsed.begun


PARTS = (b"1,", b'"",', b"[],", b'{"a":1},', b"{1:2},", b'"' + b"x" * 40 + b'":{3:"\\\\"},', b"{{")


def cpu_s(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def times_the_usual(work: Callable[[], object], usual: Callable[[], object], enough: float) -> float:
    """How often ``usual`` could be done in the time of ``work``: the least of some pairs, or the first below
    ``enough``. A machine that stands still, or runs at half its speed, adds to one of a pair and not to each.
    """
    found = []
    for _ in range(8):
        found.append(cpu_s(work) / cpu_s(usual))
        if found[-1] < enough:
            break
    return min(found)


def refused_or_read(data: bytes, bound: Bound) -> None:
    try:
        loads(data, bound)
    except PeerError:
        pass


@pytest.mark.parametrize("bound", sorted({REQUEST, *BOUNDS.values()} - {REGISTRATION}, key=str), ids=str)
def test_no_request_body_costs_more_than_a_few_milliseconds_of_strict_json_do(bound: Bound) -> None:
    strict = b'{"0":[' + b"1," * (1 << 20) + b"1]}"
    usual_s = min(cpu_s(lambda: loads(strict, BELIEVED)) for _ in range(3))  # 2 MiB, that of a lock request
    assert bound.size is not None
    assert bound.tokens is not None
    assert bound.odd is not None
    for size in {bound.size, bound.odd, 16 << 10}:
        for part in (
            b"1,",
            b'"",',
            b"[],",
            b'{"a":1},',
            b"{1:2},",
            b'"' + b"x" * 40 + b'":{3:"\\\\"},',
            b"{{",
        ):
            for end in (b"1]}", b"", b'],{"x":1}:0}'):
                body = b"{0:[" + part * min((size - 16) // len(part), bound.tokens // 3) + end
                work = partial(refused_or_read, body, bound)
                if cpu_s(work) >= 3 * usual_s:
                    times = times_the_usual(work, lambda: loads(strict, BELIEVED), 3)
                    assert times < 3, (size, part, end)


def test_a_long_registration_and_export_in_the_dialect_are_read() -> None:
    """20,000 topics: what a NameServer is told, what a slave copies, and what a client asks for."""
    table = {
        f"topic-{at}": {"currIdMap": {0: 0, 1: 1, 2: 2, 3: 3}, "topic": f'a\\"{at}{{0:'}
        for at in range(20_000)
    }
    text = dumps_dialect({"topicConfigSerializeWrapper": {"topicQueueMappingInfoMap": table}})
    found = request_object(Command(int(Request.REGISTER_BROKER), {}, text))
    assert found == loads(
        bodies.dumps({"topicConfigSerializeWrapper": {"topicQueueMappingInfoMap": table}}), BELIEVED
    )
    offsets = {"offsetTable": {f"topic-{at}@g": {0: at, 1: 7} for at in range(20_000)}}
    assert loads(dumps_dialect(offsets), BELIEVED) == loads(bodies.dumps(offsets), BELIEVED)
    stats = {"offsetTable": {queue_key(f"t-{at}", "b", 0): {"brokerOffset": at} for at in range(20_000)}}
    read = loads(dumps_dialect(stats), BELIEVED)
    assert {queue_of(key).topic for key in read["offsetTable"]} == {f"t-{at}" for at in range(20_000)}
    with pytest.raises(PeerError, match="at most 65536"):
        loads(text)
