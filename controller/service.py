"""Which requests does a Controller answer?

The public port speaks RocketMQ's remoting; the other Controllers are reached on the Raft port. Heartbeats and
GET_METADATA_INFO are served by every Controller, everything that needs the shared state by the leader only;
others answer 2007 (CONTROLLER_NOT_LEADER). Reads of the shared state wait until a majority said that it
still follows: a leader that was cut off answers nothing old.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from typing import Any, Final

import msgspec

from controller.elections.brokers import Brokers, is_id
from controller.elections.coordinator import ElectionCoordinator
from controller.elections.liveness import (
    DEFAULT_TIMEOUT_MS,
    TIMEOUT_MAX_MS,
    TIMEOUT_MIN_MS,
    Heartbeat,
    Liveness,
)
from controller.elections.preview import ElectionRequest
from controller.giving_way import GivingWay
from controller.groups.commands import (
    SUCCESS,
    AlterSyncStateSet,
    Answer,
    ApplyBrokerId,
    CleanBrokers,
    Command,
    ElectMaster,
    KeepToLeases,
    RegisterBroker,
    SetMaintenance,
    decode_answer,
    encode_command,
)
from controller.groups.elect import PRIORITY_LAST
from controller.groups.table import ReplicaTable
from controller.links.tls import TlsFiles
from controller.links.transport import Security
from controller.raft.calls import StateMachine
from controller.raft.raft import Raft
from controller.raft.seats import taken_port
from controller.raft.timing import RaftConfig
from model.codes import Request, Response
from model.config import ControllerConfig
from model.config.controller import raft_port_of
from model.errors import ConfigError, PeerError, Refused, Unknown
from model.settings import one_address, peers, split_address
from remoting import codec
from remoting.acl.control import StandaloneAccess, own_credentials
from remoting.bodies import Members
from remoting.headers import INT_MAX, flag, need, need_int, opt_bool, opt_int, told_clock
from remoting.keys import Signer
from remoting.operators.live_keys import LiveKeys, Rules
from remoting.request_bodies import request_object, request_value
from remoting.service import Connection, Guard, Limits, RemotingClient, RemotingServer, unsupported
from remoting.slices import written
from runtime.env import Env
from runtime.secret import Secrets
from runtime.turns import Slice

log = logging.getLogger(__name__)

PROCESS_NAME_MAX: Final = 32
PROCESSES_MAX: Final = 64
BROKERS_MAX: Final = 20_000  # heard of; a guard against a flood of invented names
GROUP_MAX: Final = 1000
"""Brokers of one group: what is decided about a group looks at all of them in one go, 5 us each."""
RULES: Final = Rules(
    "controller",
    frozenset(
        {
            "scanNotActiveBrokerInterval",
            "scanInactiveMasterInterval",
            "enableElectUncleanMaster",
            "notifyBrokerRoleChanged",
            "electMasterMaxRetryCount",
        }
    ),
    frozenset({"configBlackList", "configStorePath", "rocketmqHome"}),
)
"""What UPDATE_CONTROLLER_CONFIG may change: none of it can break the Raft group."""

ALL_ACK: Final = "allAckInSyncStateSet"

_Ask = Callable[[codec.Command], Awaitable[Answer]]
_Handler = Callable[[Connection, codec.Command], codec.Command | Awaitable[codec.Command]]


class Controller:
    """One Controller of the group named in its configuration."""

    def __init__(self, env: Env, config: ControllerConfig) -> None:
        """Raises ConfigError: members, secret, times."""
        config.check()
        self._env = env
        self._config = config
        self.live_keys = LiveKeys(env, config, RULES)
        self._peers = peers(config.peers)
        self._table = ReplicaTable()
        self._live = Liveness()
        boot = f"{config.self_id}.{env.random.getrandbits(64):016x}"
        self._request_ids = (f"{boot}.{number}" for number in count(1))
        self._raft = self._make_raft()
        credentials, signing = own_credentials(env, config)
        name = f"controller.{config.self_id}"
        client = RemotingClient(env, name, credentials=signing)
        guard = Guard(name, Limits.of(config), env.monotonic_ms)
        self._access = StandaloneAccess(env, config, guard, credentials)
        self._access.hold_to(self._clusters_of)
        self._brokers = Brokers(env, config, self._table, self._live, client)
        self._coordinator = ElectionCoordinator(
            env,
            config,
            self._raft,
            self._table,
            self._live,
            self._brokers,
            self._propose_own,
        )
        self._giving_way = GivingWay(
            env, config, self._raft, self._live, client, self._addresses, self._coordinator.without_hope
        )
        self._server = self._make_server(credentials, guard)
        asks: dict[int, _Ask] = {
            Request.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter,
            Request.CONTROLLER_ELECT_MASTER: self._elect,
            Request.CONTROLLER_REGISTER_BROKER: self._register,
            Request.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            Request.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_state_data,
            Request.CLEAN_BROKER_DATA: self._clean,
            Request.CONTROLLER_GET_NEXT_BROKER_ID: self._next_id,
            Request.CONTROLLER_APPLY_BROKER_ID: self._apply_id,
            Request.KEELMQ_SET_MAINTENANCE: self._maintain,
        }
        self._answers: dict[int, _Handler] = {
            Request.BROKER_HEARTBEAT: self._heartbeat,
            Request.CONTROLLER_GET_METADATA_INFO: self._told_metadata,
            Request.KEELMQ_TRANSFER_LEADERSHIP: lambda _, request: self._transfer(request),
            Request.KEELMQ_REPLACE_CONTROLLER: lambda _, request: self._replace(request),
            Request.UPDATE_CONTROLLER_CONFIG: self.live_keys.update,
            Request.GET_CONTROLLER_CONFIG: lambda _, r: r.reply(body=self._config.shown().encode()),
            **{code: partial(self._asked, ask) for code, ask in asks.items()},
        }
        self._stopped = False

    def _make_raft(self) -> Raft:
        env, config, table = self._env, self._config, self._table
        tls = TlsFiles(config.raft_tls_cert, config.raft_tls_key, config.raft_tls_ca_file)
        return Raft(
            env,
            config.self_id,
            config.raft_addresses(),
            config.store_path or f"store/controller-{config.self_id}",
            StateMachine(table.apply_bytes, table.snapshot, table.restore),
            config=RaftConfig(
                append_ms=config.raft_append_period_ms,
                election_min_ms=config.raft_election_min_ms,
                election_max_ms=config.raft_election_max_ms,
            ),
            security=Security(
                Secrets(env.disk, config.raft_secret_file, "raftSecretFile").current,
                tls if config.raft_tls_cert else None,
            ),
        )

    def _make_server(self, credentials: Signer | None, guard: Guard) -> RemotingServer:
        config = self._config
        server = RemotingServer(
            self._env,
            f"controller.{config.self_id}",
            self._handle,
            on_open=self._brokers.opened,
            on_close=self._on_close,
            credentials=credentials,
            guard=guard,
        )
        server.sign_calls()  # it calls brokers only, on the connections they beat on
        return server

    async def start(self) -> None:
        """Take part and listen. Raises DiskError on a damaged directory, ConfigError for an ACL that cannot
        be read, OSError for a taken port."""
        await self._access.start()
        try:
            await self._raft.start()
        except BaseException:
            await self._access.stop()
            raise
        try:
            _, port = split_address(self._peers[self._config.self_id])
            await self._server.start(self._config.bind_address, port)
        except BaseException:
            await self._access.stop()
            await self._raft.stop()
            raise
        self._coordinator.start()
        self._giving_way.start()

    async def stop(self) -> None:
        """Hand leadership over, answer what is under way, end. Idempotent."""
        if self._stopped:
            return
        self._stopped = True
        await self._access.stop()
        await self._giving_way.stop()
        await self._raft.stop()
        await self._coordinator.stop()
        await self._brokers.stop()
        await self._server.stop()

    @property
    def raft(self) -> Raft:
        return self._raft

    @property
    def codes(self) -> frozenset[int]:
        """The request codes it answers."""
        return frozenset(map(int, (*self._answers, *self._access.answers)))

    def health(self) -> str | None:
        """None, or why this Controller cannot do its work."""
        return self._raft.health()

    def status(self) -> dict[str, Any]:
        now_ms = self._env.monotonic_ms()
        return {
            "id": self._config.self_id,
            "leader": self._raft.leader_id,
            "isLeader": self._raft.is_leader,
            "term": self._raft.term,
            "commitIndex": self._raft.commit_index,
            "admitted": self._raft.admitted,
            "replaced": {
                node: {"incarnation": seat.incarnation, "address": seat.address}
                for node, seat in sorted(self._raft.seats.items())
            },
            "raft": self._raft.status(),
            "withoutMaster": self._coordinator.state.without_master.to_json(),
            "groups": {
                name: {
                    "master": group.master,
                    "epoch": group.epoch,
                    "syncStateSet": list(group.members),
                    "syncStateSetEpoch": group.members_epoch,
                    "uncleanElections": group.unclean_elections,
                    "maintenance": list(group.maintenance),
                    "brokers": {
                        str(broker_id): {
                            "address": replica.address,
                            "alive": self._live.is_alive(name, broker_id, now_ms),
                        }
                        for broker_id, replica in sorted(group.replicas.items())
                    },
                }
                for name, group in sorted(self._table.groups.items())
            },
            "ports": self._server.guard.status(),
            "events": self._env.events.to_json(),
            "eventTotals": dict(self._env.events.totals),
        }

    # connections

    async def _handle(self, connection: Connection, request: codec.Command) -> codec.Command | None:
        if request.code in self._access.answers:
            return await self._access.answers[request.code](request)
        answer = self._answers.get(request.code)
        if answer is None:
            raise unsupported(request)
        found = answer(connection, request)
        return found if isinstance(found, codec.Command) else await found

    async def _asked(self, ask: _Ask, connection: Connection, request: codec.Command) -> codec.Command:
        """What needs the shared state: the leader alone answers it. Raises Refused."""
        try:
            await self._coordinator.ready()
            answer = await ask(request)
        except Unknown as error:
            # On the wire this looks as a no, so the text says that it is none.
            raise Refused(f"outcome not known: {error}", Response.SYSTEM_ERROR) from None
        except PeerError as error:
            raise Refused(str(error), Response.CONTROLLER_INVALID_REQUEST) from None
        body = b"" if answer.body is None else await written(answer.body, Slice(self._env.monotonic_ms))
        return request.reply(answer.code, remark=answer.remark, ext=answer.ext, body=body)

    def _clusters_of(self, request: codec.Command) -> list[str]:
        group = self._table.groups.get(request.ext.get("brokerName", ""))
        return [] if group is None else [group.cluster]

    def _on_close(self, connection: Connection) -> None:
        session = self._brokers.closed(connection)
        if session is not None:
            self._coordinator.brokers_lost(self._live.closed(session))

    def _heartbeat(self, connection: Connection, request: codec.Command) -> codec.Command:
        ext = request.ext
        cluster, group = need(ext, "clusterName"), need(ext, "brokerName")
        address = need(ext, "brokerAddr")
        if not ext.get("brokerId"):
            raise Refused("the heartbeat has no brokerId", Response.CONTROLLER_INVALID_REQUEST)
        broker_id = need_int(ext, "brokerId", 0)
        self._refuse_a_double(group, broker_id, address)
        if not self._live.knows(group, broker_id) and len(self._live) >= BROKERS_MAX:
            raise Refused(f"more than {BROKERS_MAX} brokers", Response.SYSTEM_BUSY)
        beat = Heartbeat(
            session=self._brokers.session(connection),
            at_ms=self._env.monotonic_ms(),
            timeout_ms=_timeout_ms(ext, DEFAULT_TIMEOUT_MS),
            cluster=cluster,
            address=address,
            ha_address=ext.get("haServerAddr", ""),
            epoch=opt_int(ext, "epoch", -1),
            max_offset=opt_int(ext, "maxOffset", -1),
            confirm_offset=opt_int(ext, "confirmOffset", -1),
            priority=opt_int(ext, "electionPriority", PRIORITY_LAST),
            leases=opt_bool(ext, "leases"),
            all_ack=opt_bool(ext, ALL_ACK),
        )
        if self._live.heartbeat(group, broker_id, beat):
            self._coordinator.broker_back(group)
        answer = request.reply(remark="Heart beat success")
        if "leaseEpoch" in ext:
            epoch = need_int(ext, "leaseEpoch")
            lease_ms = self._coordinator.grant(group, broker_id, epoch, beat)
            if opt_bool(ext, "keepsToLeases"):
                self._coordinator.keeps_to_leases(group, broker_id, epoch)
            answer.ext = {
                "leaseMs": str(lease_ms),
                "electsOutsiders": flag(self._config.elect_unclean_master),
                "isLeader": flag(self._raft.is_leader),
                "term": str(self._raft.term),
            }
        return answer

    def _refuse_a_double(self, group: str, broker_id: int, address: str) -> None:
        """Raises Refused for the second of two processes that have one identity at the same time. A broker
        that moved to another address is no double: its old process hung up or fell silent."""
        other = self._live.lives_elsewhere(group, broker_id, address, self._env.monotonic_ms())
        if other is not None:
            text = f"id {broker_id} of {group} is alive at {other}: is the store at {address} a copy of its?"
            raise Refused(text, Response.CONTROLLER_BROKER_ID_INVALID)

    # any Controller

    def _addresses(self) -> dict[str, str]:
        """id -> request port of each Controller: as configured, or where its replacement is."""
        return {**self._peers, **{node: seat.address for node, seat in self._raft.seats.items()}}

    def _told_metadata(self, connection: Connection, request: codec.Command) -> codec.Command:
        clock = told_clock(request.ext, self._env.now_ms())
        return request.reply(ext={**self._metadata(), **clock, **self._giving_way.told(request)})

    def _metadata(self) -> dict[str, str]:
        ext = {
            "group": self._config.group,
            "isLeader": flag(self._raft.is_leader),
            "peers": "".join(f"{node}:{address};" for node, address in self._addresses().items()),
        }
        leader = self._raft.leader_id
        if leader is not None:
            ext |= {"controllerLeaderId": leader, "controllerLeaderAddress": self._addresses()[leader]}
        return ext

    async def _transfer(self, request: codec.Command) -> codec.Command:
        """keelmq's own: the leader makes ``toControllerId``, or any member, leader in its place."""
        try:
            leader = await self._raft.transfer(request.ext.get("toControllerId") or None)
        except Unknown as error:
            raise Refused(f"outcome not known: {error}", Response.SYSTEM_ERROR) from None
        return request.reply(
            ext={"controllerLeaderId": leader, "controllerLeaderAddress": self._addresses()[leader]}
        )

    async def _replace(self, request: codec.Command) -> codec.Command:
        """keelmq's own: the leader gives the id of a lost Controller to the one at another address."""
        old, ext = need(request.ext, "controllerId"), request.ext
        try:
            address = one_address(need(ext, "address"))
            raft_address = one_address(ext.get("raftAddress") or raft_port_of(address))
        except ConfigError as error:
            raise Refused(str(error), Response.INVALID_PARAMETER) from None
        rafts, requests = self._raft.addresses, self._addresses()
        why = taken_port(
            old, (address, raft_address), {node: (requests[node], at) for node, at in rafts.items()}
        )
        if why is not None:
            raise Refused(why, Response.INVALID_PARAMETER)
        try:
            lost = opt_bool(ext, "lost")
            incarnation = await self._raft.replace(old, address, raft_address, lost=lost)
        except Unknown as error:
            raise Refused(f"outcome not known: {error}", Response.SYSTEM_ERROR) from None
        return request.reply(
            ext={
                "controllerId": old,
                "address": address,
                "raftAddress": raft_address,
                "incarnation": str(incarnation),
            }
        )

    # the leader

    async def _propose(self, command: Command) -> Answer:
        return decode_answer(await self._raft.propose(encode_command(command)))

    async def _propose_own(self, command: ElectMaster | KeepToLeases) -> Answer:
        request_id, now_ms = next(self._request_ids), self._env.now_ms()
        return await self._propose(msgspec.structs.replace(command, request_id=request_id, now_ms=now_ms))

    def _known(self, name: str) -> dict[str, Any]:
        """What every command carries."""
        now_ms = self._env.monotonic_ms()
        group = self._table.groups.get(name)
        return {
            "group": name,
            "request_id": next(self._request_ids),
            "now_ms": self._env.now_ms(),
            "alive": tuple(self._live.alive(name, now_ms)),
            "within_grace": tuple(self._live.presumed_alive(name, group.replicas if group else (), now_ms)),
        }

    async def _alter(self, request: codec.Command) -> Answer:
        ext = request.ext
        body = request_object(request)
        members, members_epoch = body.get("syncStateSet"), body.get("syncStateSetEpoch")
        if isinstance(members, list) and len(members) > BROKERS_MAX:
            raise PeerError(f"syncStateSet has more than {BROKERS_MAX} members")
        if not isinstance(members, list) or not all(is_id(member) for member in members):
            raise PeerError("syncStateSet is not a list of broker ids")
        if not isinstance(members_epoch, int) or isinstance(members_epoch, bool):
            raise PeerError("syncStateSetEpoch is not a number")
        return await self._propose(
            AlterSyncStateSet(
                **self._known(need(ext, "brokerName")),
                master_id=need_int(ext, "masterBrokerId"),
                master_epoch=need_int(ext, "masterEpoch"),
                members=tuple(members),
                members_epoch=members_epoch,
                incarnations=_incarnations(ext.get("incarnations", "")),
            )
        )

    async def _elect(self, request: codec.Command) -> Answer:
        ext = request.ext
        name = need(ext, "brokerName")
        restarted, handed_over_by = opt_bool(ext, "restarted"), opt_int(ext, "yields", -1)
        steps_down = opt_bool(ext, "stepsDown")
        as_master = restarted or steps_down or handed_over_by >= 0
        wanted = ElectionRequest(
            broker_id=need_int(ext, "brokerId", -1),
            designate=opt_bool(ext, "designateElect"),
            restarted=restarted,
            log_epoch=opt_int(ext, "logEpoch", PRIORITY_LAST),
            cannot_begin=opt_bool(ext, "cannotBegin"),
            suspect=opt_bool(ext, "doubtful"),
            # The master of this epoch says so; an older broker names no epoch.
            master_epoch=opt_int(ext, "masterEpoch", -1) if as_master else -1,
            handed_over_by=handed_over_by,
            steps_down=steps_down,
            needed=opt_int(ext, "copiesNeeded", 1, 1),
        )
        return self._told_ha_address(name, await self._coordinator.elect(name, wanted))

    async def _register(self, request: codec.Command) -> Answer:
        ext = request.ext
        name = need(ext, "brokerName")
        broker_id, address = need_int(ext, "brokerId", 0), need(ext, "brokerAddress")
        self._refuse_a_double(name, broker_id, address)
        answer = await self._propose(
            RegisterBroker(
                **self._known(name),
                cluster=need(ext, "clusterName"),
                broker_id=broker_id,
                address=address,
                ha_address=ext.get("haServerAddr", ""),
                unclean=opt_bool(ext, "unclean"),
                suspect=opt_bool(ext, "doubtful"),
                majority_of=opt_int(ext, "majorityOf", 0, 0, INT_MAX),
                old=opt_bool(ext, "old"),
                learner=opt_bool(ext, "learner"),
                all_ack=opt_bool(ext, ALL_ACK) if ALL_ACK in ext else None,
                timeout_ms=_timeout_ms(ext, 0),
                starts=opt_int(ext, "starts", 0, 0),
                process=ext.get("process", "")[:PROCESS_NAME_MAX],
                nth=opt_int(ext, "nth", 0, 0),
                before=_names(ext["startsBefore"]) if "startsBefore" in ext else None,
            )
        )
        return self._told_ha_address(name, answer)

    async def _replica_info(self, request: codec.Command) -> Answer:
        name = need(request.ext, "brokerName")
        asker = opt_int(request.ext, "brokerId", -1)
        await self._raft.barrier()
        return self._told_ha_address(name, self._table.replica_info(name, asker))

    async def _sync_state_data(self, request: codec.Command) -> Answer:
        names = request_value(request) if request.body else None
        if names is not None and not (isinstance(names, list) and all(isinstance(n, str) for n in names)):
            raise PeerError("the body is not a list of group names")
        if names is not None:
            names = list(dict.fromkeys(names))
            if len(names) > BROKERS_MAX:
                raise PeerError(f"the body names more than {BROKERS_MAX} groups")
        await self._raft.barrier()
        # Each group is looked at when it is written: the groups of a leader are many, and change one by one.
        return Answer(body={"replicasInfoTable": Members(self._rows(names))})

    def _rows(self, names: list[str] | None) -> Iterator[tuple[str, Any]]:
        now_ms = self._env.monotonic_ms()
        for name in sorted(self._table.groups) if names is None else names:
            told = self._table.sync_state_data(
                [name],
                lambda group, broker_id: self._live.is_alive(group, broker_id, now_ms),
                self._live.ends,
            )
            yield from told.body["replicasInfoTable"].items()

    async def _clean(self, request: codec.Command) -> Answer:
        ext = request.ext
        name, text = need(ext, "brokerName"), ext.get("brokerControllerIdsToClean", "")
        parts = [part.strip() for part in text.split(";") if part.strip()]
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in parts):
            raise PeerError(f"brokerControllerIdsToClean={text!r}: expected ids like 1;2")
        ids = tuple(int(part) for part in parts) if parts else None
        group = self._table.groups.get(name)
        every_id = tuple(group.replicas) if group is not None else ()
        answer = await self._propose(
            CleanBrokers(**self._known(name), broker_ids=ids, living=opt_bool(ext, "isCleanLivingBroker"))
        )
        if answer.code == SUCCESS:
            for broker_id in every_id if ids is None else ids:
                self._live.forget(name, broker_id)
        return answer

    async def _maintain(self, request: codec.Command) -> Answer:
        ext = request.ext
        name, broker_id = need(ext, "brokerName"), need_int(ext, "brokerId", 0, INT_MAX)
        answer = await self._propose(
            SetMaintenance(**self._known(name), broker_id=broker_id, on=opt_bool(ext, "maintenance"))
        )
        if answer.changed:
            self._brokers.announce(name)  # a master that stops a moment later is to know
        return answer

    async def _next_id(self, request: codec.Command) -> Answer:
        cluster, name = need(request.ext, "clusterName"), need(request.ext, "brokerName")
        await self._raft.barrier()
        return Answer(
            ext={"clusterName": cluster, "brokerName": name, "nextBrokerId": str(self._table.next_id(name))}
        )

    async def _apply_id(self, request: codec.Command) -> Answer:
        ext = request.ext
        name, broker_id = need(ext, "brokerName"), need_int(ext, "appliedBrokerId", 0, INT_MAX)
        group = self._table.groups.get(name)
        known = {} if group is None else group.replicas
        if len(known) >= GROUP_MAX and broker_id not in known:
            raise Refused(f"group {name} has {GROUP_MAX} brokers: no more", Response.SYSTEM_BUSY)
        return await self._propose(
            ApplyBrokerId(
                **self._known(name),
                cluster=need(ext, "clusterName"),
                broker_id=broker_id,
                check_code=need(ext, "registerCheckCode"),
            )
        )

    def _told_ha_address(self, name: str, answer: Answer) -> Answer:
        return msgspec.structs.replace(answer, ext=self._brokers.with_ha_address(name, answer.ext))


def _timeout_ms(ext: dict[str, str], unsaid: int) -> int:
    if not ext.get("heartbeatTimeoutMills"):
        return unsaid
    return min(max(opt_int(ext, "heartbeatTimeoutMills", 0), TIMEOUT_MIN_MS), TIMEOUT_MAX_MS)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name[:PROCESS_NAME_MAX] for name in text.split(",")[:PROCESSES_MAX] if name)


def _incarnations(text: str) -> dict[int, int]:
    """``2:1;3:4``: how often each broker had forgotten, as the master knows. Raises PeerError."""
    pairs = [pair.split(":") for pair in text.split(";") if pair]
    numbers = [number for pair in pairs for number in pair]
    if any(len(pair) != 2 for pair in pairs) or not all(n.isdecimal() and len(n) < 19 for n in numbers):
        raise PeerError(f"incarnations={text[:80]!r}: expected ids and numbers like 2:1;3:4")
    return {int(broker_id): int(times) for broker_id, times in pairs}
