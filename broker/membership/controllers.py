"""How does a broker talk to the Controllers: who leads them, and what do their answers say?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from broker.membership.view import TableSource, View
from model.codes import Request, Response
from model.config import BrokerConfig
from model.errors import MqError, PeerError, Refused, Unknown
from model.ids import NO_EPOCH, BrokerId, Epoch
from model.settings import addresses
from remoting.bodies import believed_object, dumps, loads_object
from remoting.codec import Command
from remoting.headers import flag, need_int, opt_int
from remoting.service import RemotingClient
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

CALL_S: Final = 3.0
FIND_S: Final = 1.0
NO_LEADER: Final = "it knows no leader"

NOT_APPLIED: Final = frozenset(
    {
        Response.NO_PERMISSION,
        Response.REQUEST_CODE_NOT_SUPPORTED,
        Response.CONTROLLER_FENCED_MASTER_EPOCH,
        Response.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        Response.CONTROLLER_INVALID_MASTER,
        Response.CONTROLLER_INVALID_REPLICAS,
        Response.CONTROLLER_INVALID_REQUEST,
        Response.CONTROLLER_BROKER_NOT_ALIVE,
        Response.CONTROLLER_NOT_LEADER,
        Response.CONTROLLER_BROKER_METADATA_NOT_EXIST,
        Response.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
        Response.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    }
)
"""Answers after which a proposed SyncStateSet is certainly not in force; any other failure leaves it
unknown."""


@dataclass(frozen=True, slots=True)
class Granted:
    """The leader's answer to a heartbeat sent at ``asked_ms`` (Env.monotonic_ms). ``lease_ms``: from then on;
    None from a Controller without leases. ``term``: in which it leads, None = not said. ``elects_outsiders``:
    it may elect a broker from outside of the SyncStateSet (``enableElectUncleanMaster``)."""

    asked_ms: float
    lease_ms: int | None = None
    term: int | None = None
    elects_outsiders: bool = False


NONE_BEFORE: Final = "none"
"""An empty text would be none in a ROCKETMQ header, and its sender one that names no starts."""


@dataclass(frozen=True, slots=True)
class Start:
    """Which registration this is: the ``nth`` of ``process``, the ``starts``'th start of this broker's
    disk. ``before``: the starts that the disk knows of besides; empty = an older version noted none."""

    starts: int
    process: str
    nth: int
    before: tuple[str, ...] = ()


class Overtaken(MqError):
    """The Controllers know of a later registration: of another ``process``, and of ``starts`` starts."""

    def __init__(self, text: str, starts: int, process: str) -> None:
        super().__init__(text)
        self.starts = starts
        self.process = process


class Controllers:
    """The Controllers as one: calls go to their leader, wherever it is."""

    def __init__(self, env: Env, config: BrokerConfig, client: RemotingClient) -> None:
        self.leader: str | None = None
        self._env = env
        self._config = config
        self._client = client
        self._known = addresses(config.controller_addr)
        self._tasks = Tasks("controllers")
        self._beating: set[str] = set()
        self._reading: asyncio.Timeout | None = None
        self._hung_up = False
        self._why: dict[str, str] = {}  # no leader was learnt from them

    def reconfigure(self) -> None:
        """``controllerAddr`` may have changed. A leader that is not named any more is not asked."""
        before, self._known = self._known, addresses(self._config.controller_addr)
        if self.leader in before and self.leader not in self._known:
            self.leader = None

    async def stop(self) -> None:
        await self._tasks.cancel()

    def all(self) -> list[str]:
        """Every Controller configured, and the leader when it calls itself something else."""
        extra = [self.leader] if self.leader is not None and self.leader not in self._known else []
        return [*self._known, *extra]

    def heard_of_election(self, address: str) -> None:
        """A notice of an election came on the connection made to ``address``.

        If that is a configured Controller, it is asked first from now on. A read that waits for another one's
        answer is asked again there: that leader may have died without closing its connection. The notice
        itself is not believed, and a Controller that does not lead says so.
        """
        if address not in self._known or address == self.leader:
            return
        self.leader = address
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(0)

    # Calls

    async def call(self, command: Command, *, also: Iterable[int] = ()) -> Command:
        """The leader's answer when its code is 0 or in ``also``.

        Raises Refused with any other code, ConnectionError when no leader was reached (nothing happened),
        Unknown when the leader did not answer.
        """
        for attempt in (1, 2):
            if self._hung_up:
                raise ConnectionError("this broker has left the Controllers")
            leader = self.leader or await self._find()
            try:
                answer = await self._client.call(leader, command, CALL_S)
            except (OSError, Unknown):
                self._forget(leader)
                raise
            if answer.code == Response.CONTROLLER_NOT_LEADER and attempt == 1:
                # It did nothing, so another one may be asked.
                self.leader = None
                continue
            if answer.code == Response.CONTROLLER_NOT_LEADER:
                self.leader = None
                raise ConnectionError(f"no leader among the Controllers {self._known}")
            if answer.code != Response.SUCCESS and answer.code not in also:
                raise _refusal(answer)
            return answer
        raise AssertionError("the second attempt returns or raises")

    def _forget(self, leader: str) -> None:
        # A request that timed out must not arrive much later, when a broken link is back.
        self._client.reset(leader)
        self.leader = None

    async def _find(self) -> str:
        """Ask all of them at once which one leads; the first answer counts. Raises ConnectionError."""
        tasks = [
            self._tasks.spawn(self._ask_leader(address), name=f"find.{address}") for address in self._known
        ]
        pending: set[asyncio.Task[str | None]] = set(tasks)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                # In the order of the configuration, not of the set.
                for task in tasks:
                    found: str | None = task.result() if task.done() and not task.cancelled() else None
                    if found is not None:
                        self.leader = found
                        return found
        finally:
            for task in tasks:
                task.cancel()
        raise ConnectionError(self._no_leader())

    def _no_leader(self) -> str:
        """Why none of the Controllers can be used. Those that say the same are named together."""
        alike: dict[str, list[str]] = {}
        for address in self._known:
            alike.setdefault(self._why.get(address, NO_LEADER), []).append(address)
        if list(alike) == [NO_LEADER]:
            return f"none of the Controllers {self._known} knows a leader"
        said = "; ".join(f"{', '.join(addresses)}: {why}" for why, addresses in alike.items())
        return f"none of the Controllers can be used: {said}"

    async def _ask_leader(self, address: str) -> str | None:
        try:
            answer = await self._client.call(address, Command(Request.CONTROLLER_GET_METADATA_INFO), FIND_S)
        except (OSError, MqError) as error:
            self._why[address] = str(error) or type(error).__name__
            return None
        if answer.code != Response.SUCCESS:
            self._why[address] = f"it answered {answer.code}: {answer.remark}"
            return None
        self._why.pop(address, None)
        if answer.ext.get("isLeader") == "true":
            return address
        return answer.ext.get("controllerLeaderAddress") or None

    # Requests

    def _group(self, **fields: object) -> dict[str, str]:
        named = {"clusterName": self._config.cluster_name, "brokerName": self._config.broker_name}
        given = {name: str(value) for name, value in fields.items()}
        return named | given | {"invokeTime": str(self._env.now_ms())}

    async def next_id(self) -> BrokerId:
        answer = await self.call(Command(Request.CONTROLLER_GET_NEXT_BROKER_ID, self._group()))
        return BrokerId(need_int(answer.ext, "nextBrokerId", 1))

    async def apply_id(self, broker_id: BrokerId, check_code: str) -> bool:
        """Whether the id is this broker's now; False: another broker has it."""
        ext = self._group(appliedBrokerId=broker_id, registerCheckCode=check_code)
        refused = Response.CONTROLLER_BROKER_ID_INVALID
        answer = await self.call(Command(Request.CONTROLLER_APPLY_BROKER_ID, ext), also=[refused])
        return answer.code == Response.SUCCESS

    async def register(
        self,
        broker_id: BrokerId,
        start: Start | None = None,
        *,
        unclean: bool = False,
        suspect: bool = False,
        old: bool = False,
    ) -> View:
        """``unclean``: this broker was not shut down in order; ``suspect``: its log may lack its end. Such a
        one leaves the SyncStateSet, or is not elected, until it caught up; an ``old`` disk's tables are old,
        too. A real Controller ignores these.

        Raises Overtaken when the Controllers know of a later start of this broker.
        """
        ext = self._group(
            brokerId=broker_id,
            brokerAddress=self._config.address,
            haServerAddr=self._config.ha_address,
        )
        said = {"unclean": unclean, "doubtful": suspect, "old": old, "learner": self._config.async_learner}
        ext |= {name: "true" for name, value in said.items() if value}
        if self._config.majority_ack:
            ext["majorityOf"] = str(self._config.total_replicas)
        # How this broker acknowledges as master, and how long its leases are. Elections go by what was
        # registered, not by a heartbeat that was sent before under another configuration.
        ext["allAckInSyncStateSet"] = flag(self._config.waits_for_every_member)
        ext["heartbeatTimeoutMills"] = str(self._config.controller_heartbeat_timeout_ms)
        if start is not None:
            ext |= {"starts": str(start.starts), "process": start.process, "nth": str(start.nth)}
            ext["startsBefore"] = ",".join(start.before) or NONE_BEFORE
        asked_ms = self._env.monotonic_ms()
        invalid = Response.CONTROLLER_BROKER_ID_INVALID
        answer = await self.call(Command(Request.CONTROLLER_REGISTER_BROKER, ext), also=[invalid])
        if answer.code == invalid and "starts" in answer.ext:
            raise Overtaken(
                answer.remark or "", need_int(answer.ext, "starts", 0), answer.ext.get("process", "")
            )
        if answer.code == invalid:
            raise _refusal(answer)
        return view_of(answer, asked_ms)

    async def replica_info(self, broker_id: BrokerId) -> View:
        """``broker_id``: the asker's; keelmq's Controllers say where they have it registered."""
        command = Command(Request.CONTROLLER_GET_REPLICA_INFO, self._group(brokerId=broker_id))
        while True:
            asked_ms = self._env.monotonic_ms()
            self._reading = asyncio.timeout(None)
            try:
                async with self._reading as reading:
                    return view_of(await self.call(command), asked_ms)
            except TimeoutError:
                if not reading.expired():
                    raise
                # Another Controller leads by now. A read may be given up: it changes nothing.
            finally:
                self._reading = None

    async def alive(self) -> set[BrokerId]:
        """Ids of the group's replicas that the leader takes for alive. Raises as ``call``, PeerError."""
        name = self._config.broker_name
        body = dumps([name])
        answer = await self.call(Command(Request.CONTROLLER_GET_SYNC_STATE_DATA, self._group(), body))
        try:
            group = believed_object(answer.body)["replicasInfoTable"].get(name, {})
            replicas = [*(group.get("inSyncReplicas") or ()), *(group.get("notInSyncReplicas") or ())]
            return {BrokerId(int(one["brokerId"])) for one in replicas if one.get("alive")}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PeerError(f"no list of replicas: {error!r}") from None

    async def elect(
        self,
        broker_id: BrokerId,
        *,
        restarted: bool = False,
        log_epoch: Epoch = NO_EPOCH,
        suspect: bool = False,
        cannot_begin: bool = False,
        yields: BrokerId | None = None,
        epoch: Epoch | None = None,
    ) -> View:
        """Ask for this broker to become master; a master that is there already is an answer, too.

        ``restarted``: this broker is the master, and came back from a restart, with a log whose last epoch is
        ``log_epoch`` and which, if ``suspect``, may lack its end. It asks for a new epoch, or for another
        master; a real Controller ignores the field. ``cannot_begin``: rather another one of an equal log.
        ``yields``: the master with this id is drained and steps
        down for ``broker_id``.
        ``epoch``: the master's, as this broker knows it: with ``restarted`` or ``yields`` the request is for
        that one only, and refused with FENCED_MASTER_EPOCH in another.
        """
        designate = "false" if yields is None else "true"
        ext = self._group(brokerId=broker_id, designateElect=designate)
        if yields is not None:
            ext["yields"] = str(yields)
        if epoch is not None:
            ext["masterEpoch"] = str(epoch)
        if restarted:
            ext["restarted"] = "true"
            ext["logEpoch"] = str(log_epoch)
            ext["doubtful"] = str(suspect).lower()
            if cannot_begin:
                ext["cannotBegin"] = "true"
        asked_ms = self._env.monotonic_ms()
        still = Response.CONTROLLER_MASTER_STILL_EXIST
        return view_of(await self.call(Command(Request.CONTROLLER_ELECT_MASTER, ext), also=[still]), asked_ms)

    async def step_down(
        self, broker_id: BrokerId, epoch: Epoch, needed: int, target: BrokerId | None
    ) -> View:
        """This broker is master of ``epoch`` and cannot serve: ask for another one, as if it were dead, that
        reaches ``needed`` copies; or for ``target``, which is to have all of its log first. Raises Refused:
        nobody else can, or not now. A real Controller has no answer but that the master is alive.
        """
        chosen, named = (broker_id, "false") if target is None else (target, "true")
        ext = self._group(brokerId=chosen, designateElect=named, masterEpoch=epoch)
        ext |= {"stepsDown": "true", "copiesNeeded": str(needed)}
        asked_ms = self._env.monotonic_ms()
        return view_of(await self.call(Command(Request.CONTROLLER_ELECT_MASTER, ext)), asked_ms)

    async def alter(
        self,
        broker_id: BrokerId,
        epoch: Epoch,
        members: frozenset[BrokerId],
        set_epoch: int,
        incarnations: Mapping[BrokerId, int] | None = None,
    ) -> tuple[frozenset[BrokerId], int] | None:
        """Propose a SyncStateSet. Returns the one in force now, or None after a definite no; raises Unknown
        otherwise. ``incarnations``: of the members, as of when their links began. A member with a newer one
        lost something since, and is not taken in."""
        ext = self._group(masterBrokerId=broker_id, masterEpoch=epoch)
        if incarnations:
            ext["incarnations"] = ";".join(f"{i}:{times}" for i, times in sorted(incarnations.items()))
        body = dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": set_epoch})
        command = Command(Request.CONTROLLER_ALTER_SYNC_STATE_SET, ext, body)
        try:
            answer = await self.call(command)
        except Refused as refused:
            log.info("SyncStateSet %s refused: %s", sorted(members), refused.remark)
            if refused.code in NOT_APPLIED:
                return None
            raise Unknown(f"the Controller answered {refused.code}: {refused.remark}") from None
        try:
            view = view_of(answer, self._env.monotonic_ms())
        except (PeerError, Refused) as error:
            raise Unknown(f"the Controller's answer cannot be read: {error}") from None
        return view.members, opt_int(answer.ext, "newSyncStateSetEpoch", view.set_epoch)

    # Heartbeats

    def beat(self, ext: dict[str, str], *, skip: str | None = None) -> None:
        """Send one heartbeat to every Controller but ``skip``, oneway. One that cannot be reached delays no
        other."""
        command = Command(Request.BROKER_HEARTBEAT, ext)
        for address in self.all():
            if address not in self._beating and address != skip and not self._hung_up:
                self._beating.add(address)
                self._tasks.spawn(self._beat(address, command), name=f"beat.{address}")

    async def ask_lease(self, ext: dict[str, str], timeout_s: float) -> Granted:
        """Send a heartbeat that asks the leader for a lease.

        Raises ConnectionError or Unknown when there is no answer, Refused when it is a no.
        """
        leader = self.leader or await self._find()
        if self._hung_up:
            raise ConnectionError("this broker has left the Controllers")
        asked_ms = self._env.monotonic_ms()
        try:
            answer = await self._client.call(leader, Command(Request.BROKER_HEARTBEAT, ext), timeout_s)
        except (OSError, Unknown):
            if self.leader == leader:
                self.leader = None  # perhaps another one leads by now; its connection may stay
            raise
        if answer.code != Response.SUCCESS:
            raise _refusal(answer)
        if "leaseMs" not in answer.ext:
            return Granted(asked_ms)
        if answer.ext.get("isLeader") == "false" and self.leader == leader:
            self.leader = None
        term = opt_int(answer.ext, "term", -1)
        return Granted(
            asked_ms,
            need_int(answer.ext, "leaseMs", 0),
            term if term >= 0 else None,
            answer.ext.get("electsOutsiders") == "true",
        )

    async def beat_leader(self, ext: dict[str, str]) -> None:
        """Send a heartbeat to the leader before whatever is sent to it next. Raises ConnectionError."""
        leader = self.leader or await self._find()
        if self._hung_up:
            raise ConnectionError("this broker has left the Controllers")
        await self._client.oneway(leader, Command(Request.BROKER_HEARTBEAT, ext))

    async def _beat(self, address: str, command: Command) -> None:
        try:
            connection = await self._client.connection(address)
            if not self._hung_up:
                connection.oneway(command)
        except (OSError, MqError) as error:
            log.debug("no heartbeat to %s: %s", address, error)
        finally:
            self._beating.discard(address)

    def hang_up(self) -> None:
        """Close the connections and make no more: the Controllers take this broker for dead from now on."""
        self._hung_up = True
        for address in self.all():
            self._client.drop(address)


def _refusal(answer: Command) -> Refused:
    return Refused(answer.remark or f"the Controller answered {answer.code}", answer.code)


def view_of(answer: Command, asked_ms: float) -> View:
    """What an answer of 1001 to 1004 says of the group. Raises PeerError, Refused."""
    ext = answer.ext
    master_id = opt_int(ext, "masterBrokerId", -1)
    body: dict[str, Any] = loads_object(answer.body) if answer.body else {}
    members = body.get("syncStateSet", [])
    set_epoch = body.get("syncStateSetEpoch", opt_int(ext, "syncStateSetEpoch", 0))
    numbers = isinstance(members, list) and all(type(member) is int for member in members)
    if not numbers or type(set_epoch) is not int:
        raise PeerError(f"not a SyncStateSet: {answer.body[:200]!r}")
    known = master_id >= 0 and bool(ext.get("masterAddress"))
    return View(
        epoch=Epoch(opt_int(ext, "masterEpoch", 0, 0)),
        master_id=BrokerId(master_id) if known else None,
        master_address=ext.get("masterAddress") or None,
        master_ha_address=ext.get("masterHaAddress") or None,
        members=frozenset(members),
        set_epoch=set_epoch,
        asked_ms=asked_ms,
        suspects=_ids(ext.get("doubtful", "")),
        maintenance=_ids(ext.get("maintenance", "")),
        incarnations=_incarnations(ext.get("incarnations", "")),
        registered_at=ext.get("registeredAddress"),
        needs_lease=ext.get("electsOutsiders") == "true",
        table_sources=_table_sources(ext.get("tablesAt", ""), ext.get("tablesLife", "")),
    )


def _ids(text: str) -> frozenset[BrokerId]:
    """Of ``2;3``; anything else is ignored."""
    return frozenset(BrokerId(int(i)) for i in text.split(";") if i.isdecimal())


def _incarnations(text: str) -> dict[BrokerId, int]:
    """Of ``2:1;3:4``; anything else is ignored."""
    pairs = (pair.partition(":") for pair in text.split(";"))
    return {BrokerId(int(i)): int(times) for i, _, times in pairs if i.isdecimal() and times.isdecimal()}


def _table_sources(text: str, life: str) -> tuple[TableSource, ...]:
    """Of ``6@1=127.0.0.1:10911,3=127.0.0.1:10931;7@2=127.0.0.1:10921``. Raises PeerError."""
    found = []
    for source in text.split(";") if text else ():
        epoch, _, brokers = source.partition("@")
        pairs = [pair.partition("=") for pair in brokers.split(",")]
        if not epoch.isdecimal() or not all(i.isdecimal() and address for i, _, address in pairs):
            raise PeerError(f"not where to take tables from: {text[:200]!r}")
        addresses = {BrokerId(int(i)): address for i, _, address in pairs}
        found.append(TableSource(Epoch(int(epoch)), addresses, life))
    return tuple(found)
