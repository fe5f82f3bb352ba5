"""How does a Controller reach brokers, and what does it tell and ask them by itself?

heartbeat ──► session ──► the connection a keelmq broker is called on; a RocketMQ broker on its own port
election  ──► how far is your log? ──► announcement: the master, and where slaves copy from
handover  ──► step down
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, TypeGuard

from controller.elections.liveness import Liveness
from controller.groups.table import ReplicaTable
from model.codes import Request, Response
from model.config import ControllerConfig
from model.errors import MqError, Refused
from remoting import codec
from remoting.bodies import believed_object, dumps
from remoting.headers import LONG_MAX
from remoting.service import Connection, RemotingClient
from runtime.env import Env
from runtime.tasks import Tasks

log = logging.getLogger(__name__)

STEP_DOWN_S: Final = 1.5  # a master drains within this long, or says no
NOTICE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Said:
    """What a candidate answered: epoch and offset where its log ends (None = it does not say), whether it
    still hears its master, and whether its disk takes no messages. ``reached``: it answered,
    whatever it was."""

    end: tuple[int, int] | None = None
    following: bool = False
    full: bool = False
    reached: bool = False


class Brokers:
    """The brokers of every group, as they can be reached from here."""

    def __init__(
        self, env: Env, config: ControllerConfig, table: ReplicaTable, live: Liveness, client: RemotingClient
    ) -> None:
        self._env = env
        self._config = config
        self._table = table
        self._live = live
        self._client = client
        self._sessions: dict[int, Connection] = {}
        self._session_count = 0
        self._tasks = Tasks(f"controller.{config.self_id}.notices")

    async def stop(self) -> None:
        """Ends ``client`` as well."""
        await self._tasks.cancel()
        await self._client.close()

    # connections

    def opened(self, connection: Connection) -> None:
        """Number the connections in the order they came: a broker's newest is the one that counts."""
        self._session_count += 1
        connection.attributes["session"] = self._session_count

    def session(self, connection: Connection) -> int:
        """The number under which heartbeats on ``connection`` are known."""
        session: int = connection.attributes["session"]
        self._sessions[session] = connection
        return session

    def closed(self, connection: Connection) -> int | None:
        """``connection`` ended: its session, if a broker was heard on it."""
        session: int = connection.attributes["session"]
        return None if self._sessions.pop(session, None) is None else session

    def _connection(self, name: str, broker_id: int) -> Connection | None:
        """The open connection a broker's newest heartbeat came on."""
        beat = self._live.newest(name, broker_id)
        connection = None if beat is None else self._sessions.get(beat.session)
        return None if connection is None or connection.closed else connection

    async def _call(
        self, name: str, broker_id: int, request: codec.Command, timeout_s: float
    ) -> codec.Command:
        """Ask a broker: ours on the connection it beats on, one of RocketMQ where it listens.

        Raises ConnectionError when it cannot be reached, Unknown.
        """
        if self._is_ours(name, broker_id):
            connection = self._connection(name, broker_id)
            if connection is None:
                raise ConnectionError("its connection is closed")
            return await connection.call(request, timeout_s)
        group = self._table.groups.get(name)
        replica = None if group is None else group.replicas.get(broker_id)
        if replica is None:
            raise ConnectionError("it is not registered")
        return await self._client.call(replica.address, request, timeout_s)

    def _is_ours(self, name: str, broker_id: int) -> bool:
        """Whether a broker is keelmq's: it tells an HA address, a RocketMQ broker does not."""
        beat = self._live.newest(name, broker_id)
        group = self._table.groups.get(name)
        replica = None if group is None else group.replicas.get(broker_id)
        return bool(beat and beat.ha_address) or bool(replica and replica.ha_address)

    # what is asked and told

    async def ask_end(self, name: str, broker_id: int, timeout_s: float) -> Said:
        """How far the log of a broker reaches now, and whether it still hears its master."""
        request = codec.Command(Request.GET_BROKER_EPOCH_CACHE, {"brokerName": name})
        try:
            answer = await self._call(name, broker_id, request, timeout_s)
            body = believed_object(answer.body) if answer.code == Response.SUCCESS else {}
        except (MqError, OSError) as error:
            log.info("broker %d of %s does not say how far its log is: %s", broker_id, name, error)
            return Said()
        end, epochs = body.get("maxOffset"), body.get("epochList")
        newest = epochs[-1] if isinstance(epochs, list) and epochs else None
        epoch = newest.get("epoch") if isinstance(newest, dict) else 0
        told = (epoch, end) if is_id(end) and is_id(epoch) else None
        following, full = answer.ext.get("following") == "true", answer.ext.get("writable") == "false"
        return Said(told, following, full, reached=True)

    def announce(self, name: str) -> None:
        """NOTIFY_BROKER_ROLE_CHANGED to all living brokers of the group.

        Ours hear it on the connection they beat on; a RocketMQ broker, which tells no HA address, only on its
        own port, and would otherwise notice by its next look: up to 5 s later.
        """
        group = self._table.groups.get(name)
        if group is None or group.master is None or not self._config.notify_role_changed:
            return
        ext = {
            "masterAddress": group.address(group.master) or "",
            "masterBrokerId": str(group.master),
            "masterEpoch": str(group.epoch),
            "syncStateSetEpoch": str(group.members_epoch),
        }
        body = {"syncStateSet": list(group.members), "syncStateSetEpoch": group.members_epoch}
        notice = codec.Command(
            Request.NOTIFY_BROKER_ROLE_CHANGED, self.with_ha_address(name, ext), dumps(body)
        )
        for broker_id in self._live.alive(name, self._env.monotonic_ms()):
            replica = group.replicas.get(broker_id)
            connection = self._connection(name, broker_id)
            if replica is not None and not self._is_ours(name, broker_id):
                self._tasks.spawn(self._tell(replica.address, notice), name=f"notice.{replica.address}")
            elif connection is not None:
                connection.oneway(notice)

    async def _tell(self, address: str, notice: codec.Command) -> None:
        try:
            await self._client.oneway(address, notice, NOTICE_S)
        except (OSError, MqError, ValueError) as error:
            log.info("Controller %s: no notice to %s: %s", self._config.self_id, address, error)

    def with_ha_address(self, name: str, ext: dict[str, str]) -> dict[str, str]:
        """``ext`` with the address slaves replicate from, if this Controller was told."""
        if "masterBrokerId" not in ext:
            return ext
        master = int(ext["masterBrokerId"])
        beat = self._live.newest(name, master)
        group = self._table.groups.get(name)
        replica = None if group is None else group.replicas.get(master)
        address = (beat.ha_address if beat else "") or (replica.ha_address if replica else "")
        return {**ext, "masterHaAddress": address} if address else ext

    async def step_down(self, name: str, master: int, epoch: int, transfer_target: int, term: int) -> bool:
        """Ask a living master to stop taking writes until ``transfer_target`` has all of its log; whether it
        did. ``term``: leases of a former Raft leader count for it no more.

        Raises Refused when it cannot. One that does not answer is deposed as it is when its lease is over,
        if the transfer target has what the members have; so is a broker of RocketMQ, which does not
        know the request, with whatever the transfer target has.
        """
        connection = self._connection(name, master)
        if connection is None or not self._is_ours(name, master):
            return False
        ext = {
            "brokerName": name,
            "brokerId": str(transfer_target),
            "masterEpoch": str(epoch),
            "designateElect": "true",
            "term": str(term),
        }
        try:
            answer = await connection.call(codec.Command(Request.CONTROLLER_ELECT_MASTER, ext), STEP_DOWN_S)
        except (MqError, OSError) as error:
            log.warning("master %d of %s does not hand over: %s", master, name, error)
            return False
        if answer.code not in (Response.SUCCESS, Response.REQUEST_CODE_NOT_SUPPORTED):
            raise Refused(
                f"master {master} of {name} does not hand over: {answer.remark}",
                Response.CONTROLLER_ELECT_MASTER_FAILED,
            )
        return answer.code == Response.SUCCESS


def is_id(value: object) -> TypeGuard[int]:
    """Whether a number in a body is one a broker id or an offset can be."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LONG_MAX
