"""Which brokers exist, which of them is master of its group, and where does a topic live?

In: registrations, heartbeats, ended sessions, the time. Out: routes and lists, JSON-ready (the ids of
``brokerAddrs`` are ints). The rules are RocketMQ 5.x's (``namesrv/routeinfo/RouteInfoManager``).

Holds: a group has at least one address, no address is listed twice, each is alive; a group that is listed
stands in a cluster and the other way round; a topic has at least one group, and all its groups are listed,
but for those that are being swept (``sweep``), which nobody is told of.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final

from model.config import NamesrvConfig
from model.errors import Refused
from model.ids import MASTER_ID
from model.topic import PERM_READ, PERM_WRITE, DataVersion

MEMBER_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"
UNIT_FLAG: Final = 1
UNIT_SUB_FLAG: Final = 2
TOPICS_A_STEP: Final = 256


@dataclass(frozen=True, slots=True)
class Queues:
    """What one group offers of one topic."""

    read: int
    write: int
    perm: int
    sys_flag: int = 0

    def to_json(self, group: str) -> dict[str, Any]:
        return {
            "brokerName": group,
            "perm": self.perm,
            "readQueueNums": self.read,
            "topicSysFlag": self.sys_flag,
            "writeQueueNums": self.write,
        }


@dataclass(slots=True)
class Registration:
    """What a broker says of itself. ``acting_master`` is None when an old broker does not say."""

    cluster: str
    group: str
    address: str
    broker_id: int
    ha_address: str = ""
    heartbeat_timeout_ms: int | None = None
    acting_master: bool | None = None
    zone: str | None = None
    version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, Queues] = field(default_factory=dict)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    filter_servers: list[str] = field(default_factory=list)
    part: bool = False
    """``topics`` are those that changed since the registration before on the same connection, and ``gone``
    those that were deleted."""
    gone: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MinIdChange:
    """The smallest id of a group changed: ``to`` shall be told (NOTIFY_MIN_BROKER_ID_CHANGE)."""

    group: str
    min_id: int
    min_address: str
    offline_address: str | None
    ha_address: str | None
    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MasterChange:
    """Id 0 of a group is at ``address`` now, and was not before."""

    group: str
    address: str


Notice = MinIdChange | MasterChange


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a registration; the addresses of the master go to slaves. Empty when it was ignored, and
    while the only master known is of an older epoch than the slave."""

    master_address: str | None = None
    ha_address: str | None = None
    notices: tuple[Notice, ...] = ()


@dataclass(slots=True)
class _Group:
    cluster: str
    addresses: dict[int, str]
    acting_master: bool = False
    zone: str | None = None

    def to_json(self, name: str, addresses: Mapping[int, str] | None = None) -> dict[str, Any]:
        return {
            "brokerAddrs": dict(sorted((self.addresses if addresses is None else addresses).items())),
            "brokerName": name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
            "zoneName": self.zone,
        }


@dataclass(slots=True)
class _Live:
    last_ms: int
    timeout_ms: int
    version: DataVersion
    session: int
    ha_address: str
    filter_servers: list[str]


class RouteTable:
    """The tables of a NameServer. ``session`` is the caller's number for the connection a call came on; a
    newer connection has a higher one."""

    def __init__(self, config: NamesrvConfig) -> None:
        self._config = config  # read at each call: an operator may change it while serving
        self._topics: dict[str, dict[str, Queues]] = {}
        self._groups: dict[str, _Group] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, _Live] = {}
        self._mappings: dict[str, dict[str, dict[str, Any]]] = {}
        self.answer_cache: dict[Hashable, bytes] = {}
        """Answers made of these tables; forgotten with every change of them. Clients ask all the time, and
        while they seek a new master twenty times a second each."""
        self.sweep: Callable[[Iterable[None]], None] | None = None
        """Takes the steps that take away what a group that is gone leaves; None: they are taken at once."""
        self._leaving: dict[str, Iterable[None]] = {}
        self.changes = 0
        """Counts the changes: an answer made in slices is kept when there was none meanwhile."""

    def _clear_answers(self) -> None:
        self.changes += 1
        self.answer_cache.clear()

    # brokers come and go

    def register(self, broker: Registration, session: int, now_ms: int) -> Registered:
        """Take a broker in, or renew it. What a connection still brings after the broker made a newer one is
        late, and says nothing; unless it tells of a newer epoch: then another process has the address."""
        found, steps = self.begin(broker, session, now_ms)
        for _ in steps:
            pass
        return found

    def begin(self, broker: Registration, session: int, now_ms: int) -> tuple[Registered, Iterable[None]]:
        """``register``, but for its topics: they are taken in steps, which end when the broker is another
        one's, gone, or registers anew meanwhile. Until the last of them a route may be as it was before."""
        self._finish(broker.group)
        if self._is_overtaken(broker, session):
            return Registered(), ()
        return self._register(broker, session, now_ms)

    def _register(self, broker: Registration, session: int, now_ms: int) -> tuple[Registered, Iterable[None]]:
        self._clear_answers()
        group = self._groups.get(broker.group)
        if broker.part and not self._can_add_to(broker, group, session):
            raise Refused(f"not all of {broker.address} is known here: register every topic")
        listed = dict(group.addresses) if group else {}
        min_before = min(listed, default=0)
        # The same process under a new id: a slave that became master, or the other way round.
        addresses = {i: a for i, a in listed.items() if a != broker.address or i == broker.broker_id}
        held_by = addresses.get(broker.broker_id)
        moved = held_by != broker.address
        if held_by and moved and self._live[held_by].version.state_version > broker.version.state_version:
            # A deposed master still believes in itself: its epoch is older than that of the one listed.
            return Registered(notices=tuple(self.unregister(broker.address))), ()
        if not moved and self._is_deposed_here(broker, session):
            return Registered(), ()
        notices = self._leave_other_groups(broker)
        group = self._groups.setdefault(broker.group, _Group(broker.cluster, {}))
        self._clusters.setdefault(broker.cluster, {})[broker.group] = None
        addresses[broker.broker_id] = broker.address
        group.addresses = addresses
        group.acting_master = bool(broker.acting_master)
        group.zone = broker.zone

        steps = self._take_topics(broker, group, moved=moved)
        self._live[broker.address] = self._life_of(broker, session, now_ms)
        if broker.broker_id == MASTER_ID and listed.get(MASTER_ID) != broker.address:
            notices.append(MasterChange(broker.group, broker.address))
        if broker.broker_id < min_before:
            notices.append(self._min_id_change(broker.group, group, None, broker.ha_address))
        return self._registered(broker, group, notices), steps

    def _life_of(self, broker: Registration, session: int, now_ms: int) -> _Live:
        expiry_ms = broker.heartbeat_timeout_ms
        return _Live(
            now_ms,
            self._config.broker_expiry_ms if expiry_ms is None else expiry_ms,
            broker.version,
            session,
            broker.ha_address,
            list(broker.filter_servers),
        )

    def _can_add_to(self, broker: Registration, group: _Group | None, session: int) -> bool:
        """Whether the table of this broker that a part is to be added to came on the same connection. A slave
        that became master may add to what its group has: it registers all of it next."""
        live = self._live.get(broker.address)
        if live is None or live.session != session or group is None:
            return False
        if broker.broker_id == MASTER_ID:
            return broker.address in group.addresses.values()
        return group.addresses.get(broker.broker_id) == broker.address

    def _is_overtaken(self, broker: Registration, session: int) -> bool:
        """Whether the broker spoke on a newer connection since, and of no older epoch."""
        known = self._live.get(broker.address)
        return (
            known is not None
            and self._is_late(broker.address, session)
            and known.version.state_version >= broker.version.state_version
        )

    def _is_deposed_here(self, broker: Registration, session: int) -> bool:
        """Whether its address, one that belongs to the group, is that of a newer master by now."""
        known = self._live.get(broker.address)
        return (
            known is not None
            and known.session != session
            and known.version.state_version > broker.version.state_version
        )

    def _registered(self, broker: Registration, group: _Group, notices: list[Notice]) -> Registered:
        """What a broker is told of its master."""
        master = group.addresses.get(MASTER_ID) if broker.broker_id != MASTER_ID else None
        if master is None:
            return Registered(notices=tuple(notices))
        live = self._live[master]
        if live.version.state_version < broker.version.state_version:
            # The slave has heard of an election whose winner has not registered yet: id 0 is still the
            # deposed one. A real slave told of it connects there, is served while it copies, and moves no
            # more; told nothing, it asks again. The original tells it.
            return Registered(notices=tuple(notices))
        return Registered(master, live.ha_address, tuple(notices))

    def _leave_other_groups(self, broker: Registration) -> list[Notice]:
        """An address is one process: what it was called before is gone."""
        former = [n for n, g in self._groups.items() if broker.address in g.addresses.values()]
        return [
            notice for name in former if name != broker.group for notice in self._remove(name, broker.address)
        ]

    @staticmethod
    def _min_id_change(name: str, group: _Group, offline: str | None, ha: str | None) -> MinIdChange:
        """All members are told of one that left; of one that came all but itself, unless it is alone."""
        members = sorted(group.addresses.items())
        tell = members if offline is not None or len(members) == 1 else members[1:]
        return MinIdChange(name, *members[0], offline, ha, tuple(address for _, address in tell))

    def _take_topics(self, broker: Registration, group: _Group, *, moved: bool) -> Iterable[None]:
        """Only the master's topics count, or those of the smallest id of a group that may act for one."""
        is_master = broker.broker_id == MASTER_ID
        if not is_master and (broker.acting_master is None or broker.broker_id != min(group.addresses)):
            return ()
        live = self._live.get(broker.address)
        # An unchanged table is not taken again: it would give back a write bit an operator wiped.
        changed = moved or live is None or live.version != broker.version
        return self._steps(
            broker, group, read_only=bool(broker.acting_master) and not is_master, changed=changed
        )

    def _steps(
        self, broker: Registration, group: _Group, *, read_only: bool, changed: bool
    ) -> Iterator[None]:
        """Take the topics, ``TOPICS_A_STEP`` at a time."""
        work = chain(
            self._drop_unnamed(broker) if self._config.delete_topic_with_registration else (),
            self._take_queues(broker, read_only=read_only, changed=changed),
            self._take_mappings(broker) if changed else (),
        )
        life = self._live.get(broker.address)
        for count, _ in enumerate(work, 1):
            if count % TOPICS_A_STEP:
                continue
            yield
            if self._live.get(broker.address) is not life or self._groups.get(broker.group) is not group:
                return
            if group.addresses.get(broker.broker_id) != broker.address:
                return
            self._clear_answers()

    def _take_mappings(self, broker: Registration) -> Iterator[None]:
        for topic, mapping in broker.mappings.items():
            self._mappings.setdefault(topic, {})[broker.group] = mapping
            yield

    def _take_queues(self, broker: Registration, *, read_only: bool, changed: bool) -> Iterator[None]:
        for topic, queues in broker.topics.items():
            groups = self._topics.setdefault(topic, {})
            if changed or broker.group not in groups:
                perm = queues.perm & ~PERM_WRITE if read_only else queues.perm
                groups[broker.group] = replace(queues, perm=perm) if perm != queues.perm else queues
            yield

    def _drop_unnamed(self, broker: Registration) -> Iterator[None]:
        """Take away the group's queues of topics its broker does not name any more."""
        known = broker.gone if broker.part else list(self._topics)
        for topic in known:
            if topic not in broker.topics and broker.group in self._topics.get(topic, {}):
                self._drop_queues(topic, broker.group)
            yield

    def heartbeat(self, address: str, session: int, now_ms: int) -> bool:
        """The broker at ``address`` lives, and speaks on ``session`` now. False when it is not registered."""
        live = self._live.get(address)
        if live is None:
            return False
        if not self._is_late(address, session):
            live.last_ms = now_ms
            live.session = session
        return True

    def _is_late(self, address: str, session: int | None) -> bool:
        """Whether the broker at ``address`` spoke on a newer connection since: after a cut the network
        delivers what it had kept of the older one, its last words included."""
        live = self._live.get(address)
        return live is not None and session is not None and session < live.session

    def data_version(self, address: str) -> DataVersion | None:
        """The version of the topic table the broker at ``address`` registered last."""
        live = self._live.get(address)
        return live.version if live else None

    def unregister(self, address: str, session: int | None = None) -> list[Notice]:
        """Forget a broker. Goes by address: a new master under the same id stays; and so does one that was
        started again and spoke on a newer connection than ``session``, where its goodbye comes from."""
        if self._is_late(address, session):
            return []
        self._clear_answers()
        self._live.pop(address, None)
        return [
            notice
            for name in [n for n, g in self._groups.items() if address in g.addresses.values()]
            for notice in self._remove(name, address)
        ]

    def session_ended(self, session: int) -> list[Notice]:
        """The connection of ``session`` closed: brokers that spoke last on another one stay."""
        gone = [address for address, live in self._live.items() if live.session == session]
        return self._forget(gone)

    def expire(self, now_ms: int) -> tuple[list[int], list[Notice]]:
        """Forget brokers silent for longer than their timeout; their sessions shall be closed."""
        gone = [a for a, live in self._live.items() if live.last_ms + live.timeout_ms < now_ms]
        sessions = list(dict.fromkeys(self._live[address].session for address in gone))
        return sessions, self._forget(gone)

    def _forget(self, addresses: Iterable[str]) -> list[Notice]:
        return [notice for address in addresses for notice in self.unregister(address)]

    def _remove(self, name: str, address: str) -> list[Notice]:
        group = self._groups[name]
        min_before = min(group.addresses)
        group.addresses = {i: a for i, a in group.addresses.items() if a != address}
        if not group.addresses:
            self._remove_group(name)
            return []
        smallest = min(group.addresses)
        if group.acting_master and smallest != MASTER_ID:
            sum(self._change_perm(name, lambda perm: perm & ~PERM_WRITE))
        if not group.acting_master or smallest == min_before:
            return []
        return [self._min_id_change(name, group, address, None)]

    def _remove_group(self, name: str) -> None:
        del self._groups[name]
        for cluster in [c for c, names in self._clusters.items() if name in names]:
            del self._clusters[cluster][name]
            if not self._clusters[cluster]:
                del self._clusters[cluster]
        steps = self._left_by(name)
        self._leaving[name] = steps
        if self.sweep is None:
            self._finish(name)
        else:
            self.sweep(steps)

    def _finish(self, name: str) -> None:
        """Take away at once what a former group of that name left."""
        for _ in self._leaving.get(name, ()):
            pass

    def _left_by(self, name: str) -> Iterator[None]:
        for tables in (self._topics, self._mappings):
            for looked, topic in enumerate(list(tables), 1):
                entries: dict[str, Any] = tables.get(topic, {})
                if name in entries:
                    del entries[name]
                    if not entries:
                        del tables[topic]
                if looked % TOPICS_A_STEP == 0:
                    yield
        self._leaving.pop(name, None)

    def _drop_queues(self, topic: str, group: str) -> None:
        groups = self._topics[topic]
        groups.pop(group, None)
        mappings = self._mappings.get(topic, {})
        mappings.pop(group, None)
        if not mappings:
            self._mappings.pop(topic, None)
        if not groups:
            del self._topics[topic]

    # topics

    def register_topic(self, topic: str, queues: Mapping[str, Queues]) -> None:
        """Announce a topic by hand. Raises Refused when one of the groups is not there."""
        for group in queues:
            if group not in self._groups:
                raise Refused(f"cannot register topic {topic}: no broker group {group} is registered")
        self._clear_answers()
        if queues:
            self._topics.setdefault(topic, {}).update(queues)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, of one cluster or everywhere; nothing happens when it is not known."""
        self._clear_answers()
        for group in list(self._topics.get(topic, {})):
            if cluster is None or group in self._clusters.get(cluster, {}):
                self._drop_queues(topic, group)

    def wipe_write_perm(self, group: str) -> Iterator[int]:
        """Take the write bit from every topic of ``group``, in steps: how many topics each of them found."""
        return self._change_perm(group, lambda perm: perm & ~PERM_WRITE)

    def add_write_perm(self, group: str) -> Iterator[int]:
        """Set every topic of ``group`` to read and write, as the original does, whatever bits it had. As
        ``wipe_write_perm``."""
        return self._change_perm(group, lambda perm: PERM_READ | PERM_WRITE)

    def _change_perm(self, group: str, change: Callable[[int], int]) -> Iterator[int]:
        count = 0
        made: dict[Queues, Queues] = {}  # most topics have the same numbers
        for looked, groups in enumerate(list(self._topics.values()), 1):
            queues = groups.get(group) if group in self._groups else None
            if queues is not None:
                new = made.get(queues)
                if new is None:
                    new = made[queues] = replace(queues, perm=change(queues.perm))
                groups[group] = new
                count += 1
            if looked % TOPICS_A_STEP == 0:
                self._clear_answers()
                yield count
                count = 0
        self._clear_answers()
        yield count

    # questions

    def route(self, topic: str, zone: str | None = None) -> dict[str, Any] | None:
        """TopicRouteData of ``topic``, or None when no broker has it. With a ``zone`` only of the groups
        in it and of those without a master, whose messages are read from wherever they are."""
        offers = {
            name: queues for name, queues in self._topics.get(topic, {}).items() if name in self._groups
        }
        if not offers:
            return None
        addresses = {name: self._seen_by_clients(topic, name) for name in sorted(offers)}
        names = [
            name
            for name, seen in addresses.items()
            if zone is None
            or MASTER_ID not in seen
            or (self._groups[name].zone or "").lower() == zone.lower()
        ]
        filters = {
            address: live.filter_servers
            for name in names
            for address in self._groups[name].addresses.values()
            if (live := self._live[address]).filter_servers
        }
        return {
            "brokerDatas": [self._groups[name].to_json(name, addresses[name]) for name in names],
            "filterServerTable": filters,
            "queueDatas": [offers[name].to_json(name) for name in names],
            "topicQueueMappingByBroker": self._mappings.get(topic),
        }

    def _seen_by_clients(self, topic: str, name: str) -> dict[int, str]:
        """A group without a master shows its smallest id as one, where that is wanted."""
        group = self._groups[name]
        acting = (
            self._config.support_acting_master
            and group.acting_master
            and MASTER_ID not in group.addresses
            and not topic.startswith(MEMBER_TOPIC_PREFIX)
            and not self._topics[topic][name].perm & PERM_WRITE
        )
        if not acting:
            return group.addresses
        smallest = min(group.addresses)
        return {int(MASTER_ID) if i == smallest else i: a for i, a in group.addresses.items()}

    def cluster_info(self) -> dict[str, Any]:
        """ClusterInfo: every group and which cluster has it."""
        return {
            "brokerAddrTable": {name: group.to_json(name) for name, group in self._groups.items()},
            "clusterAddrTable": {cluster: sorted(names) for cluster, names in self._clusters.items()},
        }

    def clusters_of(self, group: str, address: str) -> list[str]:
        """Those of a broker group, and of the groups that have a broker at ``address``."""
        found = {
            each.cluster
            for name, each in self._groups.items()
            if name == group or address in each.addresses.values()
        }
        return sorted(found)

    def clusters_with(self, topic: str) -> set[str]:
        """Those with a broker group that has the topic."""
        return {self._groups[name].cluster for name in self._topics.get(topic, ()) if name in self._groups}

    def member_group(self, cluster: str, name: str) -> dict[str, Any]:
        """BrokerMemberGroup; without addresses when the group is not known."""
        group = self._groups.get(name)
        addresses = dict(sorted(group.addresses.items())) if group else {}
        return {"brokerAddrs": addresses, "brokerName": name, "cluster": cluster}

    # Lists of topics: those of the moment of the question, each looked at when its turn comes.

    # None stands for one that does not belong to it.

    def topics(self) -> Iterator[str | None]:
        known = self._groups.keys()
        return (None if known.isdisjoint(groups) else t for t, groups in list(self._topics.items()))

    def topics_of_cluster(self, cluster: str) -> Iterator[str | None]:
        names = self._clusters.get(cluster, {}).keys()
        return (None if names.isdisjoint(groups) else t for t, groups in list(self._topics.items()))

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and groups, and the address of some broker."""
        names = dict.fromkeys([*self._clusters, *self._groups])
        first = next(iter(self._groups.values()), None)
        return sorted(names), first.addresses[min(first.addresses)] if first else None

    def unit_topics(self, *, unit: bool | None, subscribed: bool | None) -> Iterator[str | None]:
        """Topics by their unit flags; None = either way."""
        return (
            topic if self._is_unit(groups, unit, subscribed) else None
            for topic, groups in list(self._topics.items())
        )

    def _is_unit(self, groups: Mapping[str, Queues], unit: bool | None, subscribed: bool | None) -> bool:
        """By the first group that is there; one that is gone meanwhile has none."""
        flags = next((queues.sys_flag for name, queues in groups.items() if name in self._groups), None)
        return flags is not None and (
            _matches(flags, UNIT_FLAG, unit) and _matches(flags, UNIT_SUB_FLAG, subscribed)
        )

    def brokers(self) -> dict[str, dict[str, str]]:
        """group -> id -> address, for status."""
        return {
            name: {str(i): address for i, address in sorted(group.addresses.items())}
            for name, group in sorted(self._groups.items())
        }

    def topic_count(self) -> int:
        return len(self._topics)


def _matches(flags: int, bit: int, wanted: bool | None) -> bool:
    return wanted is None or bool(flags & bit) == wanted
