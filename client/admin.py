"""What do operators' tools ask? Topics, routes, offsets, groups of brokers, and the Controller's view of
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from client.lifecycle import Lifecycle
from client.message import NameServersSilent, NoMaster, Queue
from client.routes import Route
from client.session import Session
from model.codes import Request, Response
from model.errors import MqError, PeerError, Refused
from model.topic import AUTO_CREATE_TOPIC, PERM_READ, PERM_WRITE, TopicConfig, topic_name_error
from remoting import bodies
from remoting.codec import Command
from remoting.headers import MASTER_ONLY, flag
from remoting.keys import Signer
from runtime.env import Env


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """Clusters and their groups; groups and their members' addresses by id (0 = master)."""

    clusters: Mapping[str, Sequence[str]]
    brokers: Mapping[str, Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue's readable range in messages. ``last_ms``: when the newest of them was stored, 0 = none."""

    queue: Queue
    min_offset: int
    max_offset: int
    last_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStats:
    """How far a group is in one queue; ``lag`` in messages. ``last_ms``: when the last message it read was
    stored, 0 = it read none, or that one is gone."""

    queue: Queue
    broker_offset: int
    consumer_offset: int
    last_ms: int = 0

    @property
    def lag(self) -> int:
        return self.broker_offset - self.consumer_offset


@dataclass(frozen=True, slots=True)
class SyncState:
    """A Controller's view of one group, by the ids it gives; ``master`` None = no master now. ``ends``:
    (epoch, offset) of the ends of logs, as last heard; ``priorities``: of equal logs the lowest is
    elected; both, and who is in ``maintenance``, only from Controllers that tell."""

    group: str
    master: int | None
    master_address: str | None
    epoch: int
    sync_state_set_epoch: int
    in_sync: Mapping[int, str]
    not_in_sync: Mapping[int, str]
    alive: Mapping[int, bool]
    ends: Mapping[int, tuple[int, int]]
    priorities: Mapping[int, int]
    maintenance: Sequence[int] = ()


class AdminClient(Lifecycle):
    """Asks NameServers, brokers and Controllers of one cluster. Use as ``async with``, or ``start`` and
    ``stop``.

    Methods raise Refused (the server said no; ``code`` says why), Unknown (no answer), OSError (not reached).
    """

    def __init__(
        self,
        env: Env,
        namesrv: str | Sequence[str] = (),
        *,
        credentials: Signer | None = None,
    ) -> None:
        """``credentials``: the key of a cluster with ``peerCredentialsFile``."""
        self.session = Session(env, namesrv, credentials=credentials)

    async def start(self) -> None:
        await self.session.start()

    async def stop(self) -> None:
        await self.session.stop()

    # --- NameServers

    async def cluster_info(self) -> ClusterInfo:
        """Raises NameServersSilent when none answers."""
        return cluster_info_of((await self._nameserver(Request.GET_BROKER_CLUSTER_INFO)).body)

    async def route(self, topic: str) -> Route:
        """Ask now, whatever is cached. Raises NoRoute."""
        return await self.session.routes.refresh(topic)

    async def topics(self) -> list[str]:
        response = await self._nameserver(Request.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(str(name) for name in bodies.believed_object(response.body).get("topicList") or [])

    # --- topics

    async def create_topic(
        self,
        topic: str,
        queues: int = 8,
        *,
        brokers: Sequence[str] = (),
        perm: int = PERM_READ | PERM_WRITE,
        order: bool = False,
        timeout_s: float = 5.0,
    ) -> TopicConfig:
        """Create or change ``topic`` on the named groups, or on every group that has a master.

        Returns when each master has answered; the NameServers may learn of it a moment later. Raises
        ValueError for a name or a count that cannot be, Refused with the group that refuses and those that
        have it by then.
        """
        problem = topic_name_error(topic)
        if problem is not None:
            raise ValueError(problem)
        if not 1 <= queues <= 65535:
            raise ValueError(f"a topic has 1 to 65535 queues, not {queues}")
        config = TopicConfig(topic, read_queues=queues, write_queues=queues, perm=perm, order=order)
        info = await self.cluster_info()
        done: list[str] = []
        for name in _some(brokers or info.brokers):
            address = self._master(info, name)
            try:
                await self.put_topic(address, config, timeout_s=timeout_s)
            except Refused as error:
                made = f"; made on {', '.join(done)}" if done else ""
                raise Refused(f"{name} at {address}: {error}{made}", error.code) from error
            done.append(name)
        return config

    async def put_topic(
        self, address: str, config: TopicConfig, attributes: str = "", *, timeout_s: float = 5.0
    ) -> None:
        """Have the master at ``address`` take ``config``. Of its attributes only the changes travel, as
        ``+name=value,-name``."""
        header = {
            "topic": config.name,
            "defaultTopic": AUTO_CREATE_TOPIC,
            "readQueueNums": str(config.read_queues),
            "writeQueueNums": str(config.write_queues),
            "perm": str(config.perm),
            "topicFilterType": config.filter_type,
            "topicSysFlag": str(config.sys_flag),
            "order": flag(config.order),
            **({"attributes": attributes} if attributes else {}),
        }
        await self.session.call(address, Request.UPDATE_AND_CREATE_TOPIC, header, timeout_s=timeout_s)

    async def topic_configs(self, topic: str) -> dict[str, tuple[str, TopicConfig]]:
        """``topic`` on each group that has it: its master's address, and what that has. Raises NoRoute,
        NoMaster."""
        found = {}
        for name, members in (await self.route(topic)).brokers.items():
            if 0 not in members:
                raise NoMaster(f"group {name} has no master")
            response = await self.session.call(members[0], Request.GET_TOPIC_CONFIG, {"topic": topic})
            try:
                config = TopicConfig.from_json(bodies.believed_object(response.body))
            except (KeyError, TypeError, ValueError) as error:
                raise PeerError(f"{members[0]}: {topic} is no topic: {error!r}") from None
            found[name] = (members[0], config)
        return found

    async def groups_of(self, topic: str) -> list[str]:
        """The consumer groups that read ``topic``, or did."""
        found: set[str] = set()
        for address in (await self.route(topic)).masters():
            answer = await self.session.call(address, Request.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": topic})
            found |= {str(name) for name in bodies.believed_object(answer.body).get("groupList") or []}
        return sorted(found)

    async def delete_topic(self, topic: str) -> None:
        """Delete it on every group, then at the NameServers.

        Raises NoMaster, with nothing deleted, when a group has none: its slaves have the topic. Raises
        Refused when the master that a NameServer names is a slave now: nothing was deleted there.
        """
        info = await self.cluster_info()
        masters = [self._master(info, name) for name in _some(info.brokers)]
        ext = {"topic": topic, MASTER_ONLY: flag(True)}
        for address in masters:
            await self.session.call(address, Request.DELETE_TOPIC_IN_BROKER, ext)
        for address in self.session.routes.nameservers:
            await self.session.call(address, Request.DELETE_TOPIC_IN_NAMESRV, {"topic": topic})
        self.session.routes.forget(topic)

    async def topic_stats(self, topic: str) -> list[QueueStats]:
        """Every queue of ``topic``, from the masters."""
        found: list[QueueStats] = []
        for address in (await self.route(topic)).masters():
            response = await self.session.call(address, Request.GET_TOPIC_STATS_INFO, {"topic": topic})
            for key, value in self._table(response, "offsetTable").items():
                found.append(
                    QueueStats(
                        queue_of(key),
                        int(value["minOffset"]),
                        int(value["maxOffset"]),
                        int(value.get("lastUpdateTimestamp") or 0),
                    )
                )
        return sorted(found, key=lambda stats: stats.queue)

    async def consume_stats(self, group: str, topic: str) -> list[ConsumeStats]:
        """How far ``group`` is in each queue of ``topic``."""
        found: list[ConsumeStats] = []
        for address in (await self.route(topic)).masters():
            ext = {"consumerGroup": group, "topic": topic}
            response = await self.session.call(address, Request.GET_CONSUME_STATS, ext)
            found += [consume_stats_of(k, v) for k, v in self._table(response, "offsetTable").items()]
        return sorted(found, key=lambda stats: stats.queue)

    # --- brokers

    async def ha_status(self, address: str) -> dict[str, Any]:
        """A broker's own view of its replication (HARuntimeInfo)."""
        return bodies.loads_object((await self.session.call(address, Request.GET_BROKER_HA_STATUS)).body)

    async def epochs(self, address: str) -> dict[str, Any]:
        """A broker's epoch list; Refused outside controller mode."""
        return bodies.loads_object((await self.session.call(address, Request.GET_BROKER_EPOCH_CACHE)).body)

    # --- Controllers

    async def controller_leader(self, controllers: Sequence[str]) -> str | None:
        """The leader's address as the first Controller that knows one has it, or None."""
        return (await self._find_leader(controllers))[0]

    async def _find_leader(self, controllers: Sequence[str]) -> tuple[str | None, list[str]]:
        """The leader's address, and what was wrong with those that were asked before it was found."""
        problems = []
        for address in controllers:
            try:
                response = await self.session.call(
                    address, Request.CONTROLLER_GET_METADATA_INFO, timeout_s=1.0
                )
            except (OSError, MqError) as error:
                # A Controller that is down is no error: the others know.
                text = str(error) or type(error).__name__
                problems.append(text if address in text else f"{address}: {text}")
                continue
            if leader := response.ext.get("controllerLeaderAddress"):
                return leader, problems
            problems.append(f"{address} knows no leader")
        return None, problems

    async def sync_state(self, controllers: Sequence[str], groups: Sequence[str]) -> dict[str, SyncState]:
        """What the Controller leader knows of ``groups``; one it does not know is left out."""
        response = await self._leader(
            controllers, Request.CONTROLLER_GET_SYNC_STATE_DATA, {}, bodies.dumps(list(groups))
        )
        return self._sync_states(response)

    async def sync_state_at(self, controller: str, groups: Sequence[str]) -> dict[str, SyncState]:
        """What this Controller itself knows of ``groups``. Raises Refused where it does not lead."""
        code, body = Request.CONTROLLER_GET_SYNC_STATE_DATA, bodies.dumps(list(groups))
        return self._sync_states(await self.session.call(controller, code, {}, body, timeout_s=1.0))

    def _sync_states(self, response: Command) -> dict[str, SyncState]:
        table = self._table(response, "replicasInfoTable")
        return {str(name): self._sync_state(str(name), value) for name, value in sorted(table.items())}

    async def elect(
        self, controllers: Sequence[str], cluster: str, group: str, broker_id: int
    ) -> tuple[int, int]:
        """Hand the group over to ``broker_id``, a member of its SyncStateSet. Returns (master id, epoch)."""
        response = await self._leader(
            controllers,
            Request.CONTROLLER_ELECT_MASTER,
            {
                "clusterName": cluster,
                "brokerName": group,
                "brokerId": str(broker_id),
                "designateElect": "true",
                "invokeTime": str(self.session.env.now_ms()),
            },
            b"",
        )
        try:
            return int(response.ext["masterBrokerId"]), int(response.ext["masterEpoch"])
        except (KeyError, ValueError):
            raise PeerError(f"answer of an election lacks its header: {response.ext}") from None

    async def need_election_right(self, controllers: Sequence[str]) -> None:
        """Raises Refused where this key may not ask for an election. What is asked for names no group: who
        may ask is refused for that alone, and nothing changes."""
        ext = {"designateElect": "true"}
        try:
            await self._leader(controllers, Request.CONTROLLER_ELECT_MASTER, ext, b"")
        except Refused as error:
            if "brokerName" not in str(error):
                raise

    async def forget(
        self, controllers: Sequence[str], cluster: str, group: str, ids: Sequence[int] = ()
    ) -> None:
        """Have the Controllers forget brokers ``ids`` of ``group``, or all of it, as mqadmin's
        cleanBrokerMetadata does. Raises Refused: one of them lives, or the group has a master."""
        ext = {
            "clusterName": cluster,
            "brokerName": group,
            "isCleanLivingBroker": "false",
        }
        if ids:
            ext["brokerControllerIdsToClean"] = ";".join(map(str, ids))
        await self._leader(controllers, Request.CLEAN_BROKER_DATA, ext, b"")

    async def set_maintenance(
        self, controllers: Sequence[str], cluster: str, group: str, broker_id: int, on: bool
    ) -> None:
        """While ``on``, the broker is elected only where no other one can be. Raises Refused."""
        ext = {
            "clusterName": cluster,
            "brokerName": group,
            "brokerId": str(broker_id),
            "maintenance": "true" if on else "false",
        }
        await self._leader(controllers, Request.KEELMQ_SET_MAINTENANCE, ext, b"")

    async def transfer_leadership(self, controllers: Sequence[str], to: str | None = None) -> tuple[str, str]:
        """Have Controller ``to``, or any other, lead the Controllers. Returns its (id, address)."""
        ext = {} if to is None else {"toControllerId": to}
        response = await self._leader(controllers, Request.KEELMQ_TRANSFER_LEADERSHIP, ext, b"")
        try:
            return response.ext["controllerLeaderId"], response.ext["controllerLeaderAddress"]
        except KeyError:
            raise PeerError(f"answer of a transfer lacks its header: {response.ext}") from None

    async def replace_controller(
        self,
        controllers: Sequence[str],
        old: str,
        address: str,
        raft_address: str | None = None,
        *,
        lost: bool = False,
    ) -> tuple[int, str]:
        """Give the id ``old`` to the Controller at ``address``. Returns its incarnation and Raft address.
        Refused while ``old`` answers, unless ``lost`` says that it counts as lost."""
        ext = {"controllerId": old, "address": address}
        if lost:
            ext["lost"] = "true"
        if raft_address is not None:
            ext["raftAddress"] = raft_address
        response = await self._leader(controllers, Request.KEELMQ_REPLACE_CONTROLLER, ext, b"")
        try:
            return int(response.ext["incarnation"]), response.ext["raftAddress"]
        except (KeyError, ValueError):
            raise PeerError(f"answer of a replacement lacks its header: {response.ext}") from None

    # --- how

    async def _nameserver(self, code: int) -> Command:
        problems = []
        for address in self.session.routes.nameservers:
            try:
                return await self.session.call(address, code)
            except (OSError, MqError) as error:
                problems.append(f"{address}: {error or type(error).__name__}")
        raise NameServersSilent("; ".join(problems))

    async def _leader(
        self, controllers: Sequence[str], code: int, ext: Mapping[str, str], body: bytes
    ) -> Command:
        leader, problems = await self._find_leader(controllers)
        if leader is None:
            text = f"no Controller is leader: {'; '.join(problems) or 'none is named'}"
            raise Refused(text, Response.CONTROLLER_NOT_LEADER)
        return await self.session.call(leader, code, ext, body)

    @staticmethod
    def _master(info: ClusterInfo, name: str) -> str:
        master = info.brokers.get(name, {}).get(0)
        if master is None:
            raise NoMaster(f"group {name} has no master")
        return master

    @staticmethod
    def _table(response: Command, member: str) -> dict[Any, Any]:
        table = bodies.believed_object(response.body).get(member)
        if not isinstance(table, dict):
            raise PeerError(f"answer has no {member}")
        return table

    @staticmethod
    def _sync_state(group: str, value: Mapping[str, Any]) -> SyncState:
        def members(name: str) -> dict[int, str]:
            return {int(r["brokerId"]): str(r.get("brokerAddress") or "") for r in value.get(name) or []}

        replicas = [*(value.get("inSyncReplicas") or []), *(value.get("notInSyncReplicas") or [])]
        master = value.get("masterBrokerId")
        return SyncState(
            group,
            int(master) if master is not None and int(master) >= 0 else None,
            value.get("masterAddress"),
            int(value.get("masterEpoch", 0)),
            int(value.get("syncStateSetEpoch", 0)),
            members("inSyncReplicas"),
            members("notInSyncReplicas"),
            {int(r["brokerId"]): bool(r.get("alive")) for r in replicas},
            {
                int(r["brokerId"]): (int(r["epoch"]), int(r["maxOffset"]))
                for r in replicas
                if "maxOffset" in r
            },
            {int(r["brokerId"]): int(r["electionPriority"]) for r in replicas if "electionPriority" in r},
            sorted(int(r["brokerId"]) for r in replicas if r.get("maintenance") is True),
        )


def _some(groups: Iterable[str]) -> list[str]:
    """Raises NoMaster where there is none."""
    found = list(groups)
    if not found:
        raise NoMaster("the NameServers know no broker yet")
    return found


def queue_of(key: object) -> Queue:
    """The queue that is a key of a JSON table: fastjson writes an object there, strict JSON its text."""
    members = key.to_dict() if isinstance(key, bodies.ObjectKey) else bodies.loads_object(str(key).encode())
    return Queue(str(members["topic"]), str(members["brokerName"]), int(members["queueId"]))


def consume_stats_of(key: object, value: Mapping[str, Any]) -> ConsumeStats:
    """A row of a table of ConsumeStats."""
    offsets = int(value["brokerOffset"]), int(value["consumerOffset"])
    return ConsumeStats(queue_of(key), *offsets, int(value.get("lastTimestamp") or 0))


def cluster_info_of(body: bytes) -> ClusterInfo:
    """Raises PeerError."""
    data = bodies.believed_object(body)
    brokers = data.get("brokerAddrTable") or {}
    return ClusterInfo(
        {str(c): sorted(names) for c, names in sorted((data.get("clusterAddrTable") or {}).items())},
        {
            str(name): {int(i): str(a) for i, a in sorted((broker.get("brokerAddrs") or {}).items())}
            for name, broker in sorted(brokers.items())
        },
    )
