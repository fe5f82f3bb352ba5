"""Decoders of tables, clients' bodies and configuration."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, Final, TypeVar, cast

from admin.host.serve import plan
from audit.ledgers.columns import from_rows
from audit.ledgers.history import lines_of
from audit.ledgers.ledger import _json_lines
from broker.membership.identity import Application, Identity
from broker.membership.reboot import Noted, UncleanRebootDetector
from broker.requests.consumers.locks import LockProcessor
from broker.requests.operators.tables import TableProcessor
from broker.state.clients import Client, Clients, Subscription
from broker.tables.files import _mend, _parse
from broker.tables.groups import Groups
from broker.tables.offsets import OffsetTable
from broker.tables.topics import Topics
from broker.upkeep.delay import DelayOffsets
from chaos import history
from client.message import Queue
from model.codes import Request
from model.config import BrokerConfig
from model.errors import ConfigError, DiskError, PeerError, Refused
from model.ids import BrokerId
from model.settings import addresses, parse_file, peers
from model.topic import SubscriptionGroupConfig, TopicConfig
from namesrv.kv_file import KvFile
from remoting import bodies
from remoting.codec import Command
from remoting.keys import read_keys
from runtime.secret import read_secret
from runtime.turns import Slice
from store.files.sealed import seal
from tests.broker.helpers import heartbeat
from tests.fakes.broker.store import FakeConnection
from tests.fakes.disk.memory import FaultyEnv
from tests.fuzz.targets import golden
from tests.fuzz.targets.target import Target, disk_with

T = TypeVar("T")

CONFIG: Final = BrokerConfig.from_mapping({"brokerName": "broker-a", "storePathRootDir": "/s"})
OF_TABLES: Final = (KeyError, TypeError, ValueError, AttributeError)
"""What ``TableFiles.load`` takes for a damaged table, and ``table_sync`` for a master that sends none."""


def _now() -> int:
    return 1_700_000_000_000


def _adopted(make: Callable[[], Any]) -> Callable[[bytes], None]:
    """A table file, or a master's table: what is taken can be written and read again."""

    def run(data: bytes) -> None:
        wrapper = _parse(_mend(data))
        table = make()
        table.adopt(wrapper)
        content = table.to_json()
        again = make()
        again.adopt(_parse(bodies.dumps_dialect(content, indent=True)))
        found = again.to_json()
        for one in (content, found):
            one.pop("groupTopicMap", None)  # in the order of the table, which is made of it
        assert found == content

    return run


def _table_seeds(*tables: dict[str, Any]) -> Callable[[], list[bytes]]:
    def seeds() -> list[bytes]:
        found = [bodies.dumps_dialect(table) for table in tables]
        return [*found, *map(seal, found)]

    return seeds


VERSION: Final = {"counter": 3, "stateVersion": 1, "timestamp": 5}
TOPIC: Final = TopicConfig("T", attributes={"a": "b"}).to_json()
GROUP: Final = SubscriptionGroupConfig("g").to_json()


def _changed_topics(data: bytes) -> None:
    topics = Topics(CONFIG, _now)
    topics.apply(_parse(data))
    assert bodies.dumps_dialect(topics.to_json())


def _heartbeat(data: bytes) -> None:
    body = bodies.loads_object(data)
    clients = Clients()
    client = Client(str(body["clientID"]), cast(Any, FakeConnection()), "JAVA", 479, 0.0)
    for consumer in body.get("consumerDataSet") or []:
        clients.consumer(consumer, client)
        clients.check_invariants()
    for producer in body.get("producerDataSet") or []:
        clients.producer(str(producer["groupName"]), client)
    clients.closed(client.connection)
    clients.check_invariants()


def _in_one_go(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that waits for nothing: its slice is never over."""
    try:
        work.send(None)
    except StopIteration as stop:
        found: T = stop.value
        return found
    raise AssertionError("it waits")


def _lock(data: bytes) -> None:
    processor = cast(Any, SimpleNamespace(_context=SimpleNamespace(config=CONFIG)))
    parsing = LockProcessor._parse(processor, Command(41, {}, data), cast(Any, Slice(lambda: 0.0)))
    group, client, queues = _in_one_go(parsing)
    assert isinstance(group, str)
    assert isinstance(client, str)
    assert isinstance(queues, list)


def _group(data: bytes) -> None:
    groups = Groups(CONFIG, _now)
    processor = cast(Any, SimpleNamespace(_context=SimpleNamespace(groups=groups)))
    groups.put(TableProcessor._group(processor, bodies.loads_object(data)))
    groups.put(SubscriptionGroupConfig("another"))
    assert bodies.dumps(groups.to_json())


def _subscription(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    found = Subscription.of("T", text, "TAG", 1)
    assert len(found.codes) <= len(found.tags) <= len(text)


def _config(data: bytes) -> None:
    """The first byte says whose configuration it is, and whether it is TOML."""
    kind = data[0] if data else 0
    name = "a.toml" if kind & 4 else "a.conf"
    values = parse_file(name, data[1:].decode("utf-8", "replace"))
    plan(("broker", "namesrv", "controller")[kind % 3], values)


def _config_seeds() -> Iterable[bytes]:
    yield b"\0brokerName=broker-a\nlistenPort=10911\nnamesrvAddr=127.0.0.1:9876\nbrokerIP1=127.0.0.1\n"
    yield b"\1listenPort=9876\n# comment\nadminPort=0\n"
    yield b"\2controllerDLegerPeers=n0-127.0.0.1:1\ncontrollerDLegerSelfId=n0\nraftPeers=n0-127.0.0.1:2\n"
    yield b'\3brokerName="b"\nlistenPort=10911\nenableControllerMode=true\ncontrollerAddr="h:1"\n'


def _addresses(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    for parse in (addresses, peers):
        try:
            parse(text)
        except ConfigError:
            continue


def _credentials(data: bytes) -> None:
    """The same bytes as peers' keys and as the secret of the HA links."""
    disk = disk_with("/c/file", data)
    request = Command(Request.GET_BROKER_RUNTIME_INFO)
    try:
        ring = read_keys(FaultyEnv(disk), "/c/file")
        assert ring is not None
        ring.check(ring.signed(request))
    except ConfigError:
        pass
    secret = read_secret(disk, "/c/file", "haSecretFile")
    assert secret is None or len(secret) >= 16


def _identity(data: bytes) -> None:
    """The file of the id, the application for one, and the copies of the id: all hold these bytes."""
    disk = disk_with("/s/brokerIdentity", data)
    for name in ("brokerIdentity-temp", "brokerIdentity.crc"):
        disk.open(f"/s/{name}", create=True).pwrite(data, 0)
    identity = Identity(disk, CONFIG)
    for ask in (identity.application, identity.broker_id):
        try:
            found = ask()
        except (ConfigError, DiskError):
            continue
        assert found is None or isinstance(found, Application) or found > 0


def _identity_seeds() -> Iterable[bytes]:
    disk = disk_with("/s/x", b"")
    identity = Identity(disk, CONFIG)
    identity.apply_for(Application(BrokerId(2), "h:1;5"))
    yield bytes(disk.nodes["/s/brokerIdentity-temp"].cache)
    identity.keep(BrokerId(2))
    yield bytes(disk.nodes["/s/brokerIdentity"].cache)
    yield bytes(disk.nodes["/s/brokerIdentity.crc"].cache)


def _boot(data: bytes) -> None:
    env = FaultyEnv(disk_with("/s/bootId.json", data))
    found = UncleanRebootDetector._read(cast(Any, SimpleNamespace(_env=env, _path="/s/bootId.json")))
    assert isinstance(found, Noted), "the file is there"


def _ledger(data: bytes) -> None:
    from_rows(_json_lines("ledger", lines_of(io.BytesIO(data))))


def _ledger_seeds() -> Iterable[bytes]:
    row = {"uniq_key": "k", "topic": "T", "queue_id": 0, "queue_offset": 1, "body_crc": 5, "acked_ms": 1.5}
    yield json.dumps(row).encode()
    yield from golden.store_files("ha-81", "ledger", 500)


def _history(data: bytes) -> None:
    event = history.from_json(data.decode("utf-8", "replace"))
    line = json.dumps(history.to_json(event))
    assert json.dumps(history.to_json(history.from_json(line))) == line


def _history_seeds() -> Iterable[bytes]:
    queue = Queue("T", "broker-a", 0)
    for event in (
        history.Invoke(5.0, "p", "k", queue, 7),
        history.Ok(5.0, "p", "k", queue, 1, 100, "h:1"),
        history.Unknown(5.0, "p", "k", "no answer"),
        history.Observed(5.0, "a", 1, "master", 2, 100, 200),
        history.Happened(5.0, "a", "promoted", {"epoch": 2}),
    ):
        yield json.dumps(history.to_json(event)).encode()


def _kv(data: bytes) -> None:
    env = cast(Any, SimpleNamespace(disk=disk_with("/n/kvConfig.json", data), offload=None))
    KvFile(env, "/n/kvConfig.json").load()


for _name in ("broker.membership.identity", "broker.membership.reboot"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

TARGETS: Final = (
    Target(
        name="topic_table",
        run=_adopted(lambda: Topics(CONFIG, _now)),
        declared=(DiskError, *OF_TABLES),
        seeds=_table_seeds(
            {"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC}, "keelmqDeleted": {"U": {"0": 5}}},
            {"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC}, "part": ["T", "U"]},
        ),
        weight=3,
    ),
    Target(
        name="group_table",
        run=_adopted(lambda: Groups(CONFIG, _now)),
        declared=(DiskError, *OF_TABLES),
        seeds=_table_seeds(
            {
                "dataVersion": VERSION,
                "subscriptionGroupTable": {"g": GROUP},
                "forbiddenTable": {"g": {"T": 4}},
            }
        ),
        weight=3,
    ),
    Target(
        name="offset_table",
        run=_adopted(lambda: OffsetTable(_now)),
        declared=(DiskError, *OF_TABLES),
        seeds=_table_seeds({"dataVersion": VERSION, "offsetTable": {"T@g": {0: 5, 1: 7}, "U@g": {0: 1}}}),
        weight=4,
    ),
    Target(
        name="delay_table",
        run=_adopted(lambda: DelayOffsets(_now)),
        declared=(DiskError, *OF_TABLES),
        seeds=_table_seeds({"dataVersion": VERSION, "offsetTable": {1: 5, 2: 7}}),
        weight=4,
    ),
    Target(
        name="topic_changes",
        run=_changed_topics,
        declared=(DiskError, *OF_TABLES),
        seeds=_table_seeds({"dataVersion": VERSION, "topicConfigTable": {"T": TOPIC}, "part": ["T"]}),
        weight=3,
    ),
    Target(
        name="heartbeat",
        run=_heartbeat,
        declared=(PeerError, *OF_TABLES),
        seeds=lambda: [*golden.bodies_of(34), heartbeat("c", "g", "T", "U", producer="p")],
        weight=4,
    ),
    Target(
        name="lock",
        run=_lock,
        declared=(Refused,),
        seeds=lambda: (
            golden.bodies_of(41, 42)
            or [b'{"consumerGroup":"g","clientId":"c","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}']
        ),
    ),
    Target(
        name="group_body",
        run=_group,
        declared=(PeerError, Refused),
        seeds=lambda: [bodies.dumps(GROUP), bodies.dumps({"groupName": "g", "attributes": {"+a": "b"}})],
        weight=3,
    ),
    Target(
        name="subscription",
        run=_subscription,
        declared=(ValueError,),
        seeds=lambda: [b"a || b||c", b"*"],
        weight=8,
    ),
    Target(name="configuration", run=_config, declared=(ConfigError,), seeds=_config_seeds, weight=2),
    Target(
        name="addresses",
        run=_addresses,
        declared=(),
        seeds=lambda: [b"h:1;[::1]:2", b"n0-h:1;n1-h:2"],
        weight=8,
    ),
    Target(
        name="credentials",
        run=_credentials,
        declared=(ConfigError,),
        seeds=lambda: [b'{"accessKey":"peers","secretKey":"0123456789abcdef"}', b"0123456789abcdef0123\n"],
        weight=3,
    ),
    Target(name="identity", run=_identity, declared=(), seeds=_identity_seeds, weight=2),
    Target(
        name="boot_note",
        run=_boot,
        declared=(),
        seeds=lambda: [b'{"bootId":"a-b","doubtful":true,"synced":null,"written":true}'],
        weight=3,
    ),
    Target(name="ledger", run=_ledger, declared=(ConfigError, OSError), seeds=_ledger_seeds, weight=1),
    Target(name="history", run=_history, declared=(ValueError,), seeds=_history_seeds, weight=3),
    Target(
        name="kv_config",
        run=_kv,
        declared=(DiskError,),
        seeds=lambda: [b'{"configTable":{"n":{"k":"v"}}}'],
        weight=3,
    ),
)
