"""Requests and answers by their newer ways: pulls known by their bytes, signed sends, bodies that name what a
right is asked for, a Controller's view of a group, timers, modes, what a compiled reader gathers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final, cast

from broker.acl.signed_path import SignedPath
from broker.membership.controllers import view_of
from broker.requests.consumers.fast_pull import KnownPulls
from broker.tables.modes import RequestModes
from broker.timers import codec as timers
from model.codes import Request
from model.errors import ConfigError, PeerError, Refused
from model.recall import RecallHandle
from remoting import bodies, codec, named, request_bodies
from remoting.codec import Command
from remoting.headers import PullHeader
from runtime.secret import read_secrets
from store.files import record
from store.files.compiled import compiled
from store.files.consume_queue import ENTRY
from tests.fakes.broker.send_path import WAYS, Side
from tests.fuzz.targets import golden
from tests.fuzz.targets.disk import message
from tests.fuzz.targets.tables import OF_TABLES
from tests.fuzz.targets.target import Target, disk_with

KNOWN: Final = KnownPulls()


def _pull(data: bytes) -> None:
    """What is known by its bytes is read as the ordinary way reads it."""
    frame = struct.pack(">I", max(len(data) - 4, 0)) + data[4:]
    if len(frame) < 8:
        return
    found = KNOWN.find(frame)
    if found is None:
        return
    command = codec.decode(frame)
    assert PullHeader.parse(command.ext) == found[1], "another pull"
    command.ext = {}
    assert command == found[0]


def _pull_seeds() -> Iterable[bytes]:
    for serialize in (codec.JSON, codec.ROCKETMQ):
        for subscription in ("*", "A || B"):
            header = PullHeader("g", "T", 1, 5, 32, 2, 7, 9, subscription)
            command = Command(11, header.to_ext(), b"", 3)
            command.serialize = serialize
            yield codec.encode(command)


BODIES: Final = (
    (Request.HEART_BEAT, named.consumers_in),
    (Request.LOCK_BATCH_MQ, named.queues_in),
    (Request.BATCH_ACK_MESSAGE, named.acks_in),
    (Request.UPDATE_AND_CREATE_TOPIC_LIST, named.topics_in),
    (Request.LITE_SUBSCRIPTION_CTL, named.lite_subscriptions_in),
    (
        Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        lambda data: named.groups_in(Request.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, data),
    ),
)


def _named(data: bytes) -> None:
    """The first byte says of which code it is."""
    code, found = BODIES[(data[0] if data else 0) % len(BODIES)]
    names = found(request_bodies.request_object(Command(int(code), body=data[1:])))
    assert all(isinstance(one, dict) for one in names)


def _named_seeds() -> Iterable[bytes]:
    yield b'\0{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}]}'
    yield b'\1{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T","brokerName":"b","queueId":1}]}'
    yield b'\2{"brokerName":"b","acks":[{"c":"g","t":"T","r":"0","so":1,"q":0,"rq":0,"pt":5,"it":1,"b":[1]}]}'
    yield b'\3{"topicConfigList":[{"topicName":"T","readQueueNums":1}]}'
    yield b'\4{"subscriptionSet":[{"action":"PARTIAL_ADD","topic":"T","group":"g","clientId":"c"}]}'
    yield b'\5{"groupConfigList":[{"groupName":"g"}]}'
    for number in range(len(BODIES)):
        yield from (bytes((number,)) + body for body in list(golden.bodies_of())[:3])


def _view(data: bytes) -> None:
    """Ext fields, a zero byte, a body: an answer of a Controller, which may be anybody without a key."""
    head, _, body = data.partition(b"\0")
    pairs = (line.partition("=") for line in head.decode("utf-8", "replace").split("\n"))
    view = view_of(Command(0, {name: value for name, _, value in pairs}, body), 0.0)
    assert view.epoch >= 0
    assert all(isinstance(member, int) for member in view.members)


def _view_seeds() -> Iterable[bytes]:
    ext = (
        "masterBrokerId=1\nmasterEpoch=3\nmasterAddress=h:1\nmasterHaAddress=h:2\nsyncStateSetEpoch=2\n"
        "registeredAddress=h:9\nincarnations=1:2;2:1\ndoubtful=2;3\nmaintenance=1\nelectsOutsiders=true"
    )
    yield ext.encode() + b'\0{"syncStateSet":[1,2],"syncStateSetEpoch":4}'
    yield ext.encode()


def _timers(data: bytes) -> None:
    check = timers.decode_check(data)
    if check is not None:
        assert timers.decode_check(timers.encode_check(check.note, check.version)) is not None
    timers.decode_told(data)


def _timer_seeds() -> Iterable[bytes]:
    check = timers.Check()
    yield timers.encode_check(check.note, check.version)
    yield timers.encode_told(check.note, check.version)


def _handle(data: bytes) -> None:
    handle = RecallHandle.decode(data.decode("latin-1"), 1)
    assert RecallHandle.decode(handle.encode(), 1) == handle


def _modes(data: bytes) -> None:
    table = RequestModes()
    table.adopt(bodies.loads_object(data))
    assert len(table) >= 0


def _secrets(data: bytes) -> None:
    found = read_secrets(disk_with("/c/file", data), "/c/file", "raftSecretFile")
    assert found
    assert all(len(secret) >= 16 for secret in found)


def _signed(data: bytes) -> None:
    """Of a send that nobody signed no fast path stores anything, however its header is written."""
    account = SimpleNamespace(secret_key="s" * 20)
    plain = SimpleNamespace(acl=SimpleNamespace(accounts={"u": account}))
    sends = SimpleNamespace(process=None, join_or=lambda process: process)
    path = SignedPath(cast(Any, sends), cast(Any, SimpleNamespace(plain=plain, authenticates=False)), 1 << 20)
    frame = struct.pack(">I", max(len(data) - 4, 0)) + data[4:]
    if len(frame) < 8 or 8 + int.from_bytes(frame[4:8], "big") > len(frame):
        return
    if path._passes(memoryview(frame), 0, len(frame), "h"):
        for way in WAYS:
            side = Side(compiled=way)
            side.hot.process(cast(Any, side.connection), bytearray(frame), 0, len(frame))
            assert not side.store.log.data, "a send that nobody signed was stored"


def _signed_seeds() -> Iterable[bytes]:
    ext = {"a": "g", "b": "T", "e": "1", "i": "", "AccessKey": "u", "Signature": "x"}
    for version in (0, 400):
        yield codec.encode(Command(310, ext, b"body", 1, version=version))
        frame = codec.encode(Command(310, ext, b"body", 1, version=version))
        header = frame[8:-4].replace(b'"code":310', b'"code":310,"code":11')
        yield struct.pack(">II", 4 + len(header) + 4, len(header)) + header + b"body"
    yield codec.encode(Command(11, {}, b"", 1))


@lru_cache(maxsize=1)
def _log_file() -> int:
    return os.memfd_create("log")


ENTRIES: Final = 4


def _gathered(data: bytes) -> None:
    """Queue entries, then the log they name: what comes is that many whole records of the log, or nothing."""
    module = compiled()
    if module is None:
        return
    entries, log = data[: ENTRIES * 20].ljust(ENTRIES * 20, b"\0"), data[ENTRIES * 20 :]
    os.ftruncate(_log_file(), 0)
    os.pwrite(_log_file(), log, 0)
    span = (0, 0, len(log))
    found = module.gather(_log_file(), entries, 0, True, 1, span, 32, 1 << 20, None)
    if found is not None:
        records, count, following = found
        assert 0 < count <= following <= ENTRIES
        assert len(records) <= ENTRIES * len(log)


def _gather_seeds() -> Iterable[bytes]:
    entries, log = b"", b""
    for number in range(ENTRIES):
        one = record.encode(message(b"x" * number), number, len(log), 5)
        entries += ENTRY.pack(len(log), len(one), 0)
        log += one
    yield entries + log


TARGETS: Final = (
    Target(name="known_pulls", run=_pull, declared=(), seeds=_pull_seeds, weight=6),
    Target(name="named_bodies", run=_named, declared=(PeerError,), seeds=_named_seeds, weight=4),
    Target(name="group_view", run=_view, declared=(PeerError, Refused), seeds=_view_seeds, weight=4),
    Target(
        name="timer_check", run=_timers, declared=(ValueError,), seeds=_timer_seeds, weight=5, bytes_max=300
    ),
    Target(
        name="recall_handle",
        run=_handle,
        declared=(Refused,),
        seeds=lambda: [RecallHandle("T", "broker-a", "1700000000000", "7F00").encode().encode()],
        weight=6,
    ),
    Target(
        name="request_modes",
        run=_modes,
        declared=(PeerError, *OF_TABLES),
        seeds=lambda: [
            b'{"messageRequestModeMap":{"T":{"g":{"mode":"POP","popShareQueueNum":2,"topic":"T"}}},"part":true}'
        ],
        weight=4,
    ),
    Target(
        name="secrets",
        run=_secrets,
        declared=(ConfigError,),
        seeds=lambda: [b"s" * 32 + b"\n", b'{"secrets": ["0123456789abcdef", "another secret of 24"]}'],
        weight=3,
    ),
    Target(name="signed_sends", run=_signed, declared=(PeerError,), seeds=_signed_seeds, weight=2),
    Target(name="compiled_gather", run=_gathered, declared=(), seeds=_gather_seeds, weight=3, bytes_max=1500),
)
