"""A cluster under numbered messages: what was acknowledged has to be at whoever leads in the end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from broker.service import Broker
from chaos.sim.cluster import BROKER_PORT, Node
from chaos.sim.net import NetProfile
from controller.groups.group import Group
from controller.service import Controller
from model.codes import Request, Response
from model.errors import MqError
from remoting.codec import Command
from remoting.service import RemotingClient
from store.files.record import records_in
from tests.sim.world import SEND, World

Mode = dict[str, str]
ALL: Mode = {}
MAJORITY: Mode = {"majorityAck": "true", "allAckInSyncStateSet": "false", "totalReplicas": "3"}
TWO: Mode = {"allAckInSyncStateSet": "false", "inSyncReplicas": "2"}


class Kept(World):
    """``acked``: the numbers of the messages that were answered OK, in order."""

    def __init__(self, seed: int, mode: Mode, network: NetProfile | None = None) -> None:
        self.modes: dict[str, Mode] = {}
        """What each broker is configured with at its next start."""
        self._keys = dict(mode)
        super().__init__(seed, self._keys, network)
        self.modes = {node.name: mode for node in self.cluster.of("broker")}
        self.acked: list[int] = []
        self.quiet = False
        """No more is sent."""
        self._operator: tuple[Node, RemotingClient] | None = None

    def start(self, name: str) -> None:
        """The broker's configuration is read when it boots, within this turn and the next ones."""
        self._keys.clear()
        self._keys.update(self.modes[name])
        self.cluster.start(name)

    def rules(self) -> list[tuple[bool | None, int]]:
        """By which the group is led, then what each broker registered: (all_ack, majority_of)."""
        group = self.group()
        found = [group.rule, *(replica.rule for replica in group.replicas.values())]
        return [(rule.all_ack, rule.majority_of) for rule in found if rule is not None]

    async def serves(self, name: str, within_s: float = 10.0) -> None:
        node = self.cluster.nodes[name]
        assert (
            await self.cluster.until(lambda: None if node.running else f"{name} is not up", within_s) is None
        )

    def group(self) -> Group:
        """As the leader of the Controllers has it."""
        leader = self.cluster.leader()
        assert leader is not None
        controller: Controller = cast(Any, self.cluster.nodes[leader].server).controller
        return controller._table.groups["broker-a"]

    def send_on(self, *, every_s: float = 0.01) -> None:
        """From now on, to whoever is master."""
        node, env = self.cluster.client("sender")
        client = RemotingClient(env, "sender")

        async def send() -> None:
            number = 0
            while not self.quiet:
                await asyncio.sleep(every_s)
                master = self.cluster.master()
                if master is None:
                    continue
                number += 1
                address = f"{self.cluster.nodes[master].host}:{BROKER_PORT}"
                try:
                    command = Command(Request.SEND_MESSAGE, dict(SEND), b"m%06d" % number)
                    answer = await client.call(address, command, 2.0)
                except (MqError, OSError):
                    client.drop(address)
                    continue
                if answer.code == 0:
                    self.acked.append(number)

        self.cluster.inside(node, send(), name="send")

    async def ask(self, code: Request, ext: dict[str, str], body: bytes = b"") -> Command:
        """What the master answers. Raises MqError, OSError."""
        master = self.cluster.master()
        assert master is not None
        if self._operator is None:
            node, env = self.cluster.client("operator")
            self._operator = node, RemotingClient(env, "operator")
        node, client = self._operator
        call = client.call(f"{self.cluster.nodes[master].host}:{BROKER_PORT}", Command(code, ext, body), 5.0)
        return await self.cluster.inside(node, call)

    def broker(self, name: str) -> Broker:
        found = self.cluster.nodes[name].server
        assert found is not None, f"{name} is down"
        return cast(Broker, found)

    def stored(self, name: str) -> set[int]:
        """The numbers of the messages that this broker can serve."""
        store, found = self.broker(name).store, set[int]()
        for topic, queue_id in store.queues():
            got = store.get(topic, queue_id, store.min_queue_offset(topic, queue_id), 1 << 20, 1 << 30)
            for chunk in got.chunks:
                bodies = [bytes(record.body) for record in records_in(chunk)]
                found |= {int(body[1:]) for body in bodies if body.startswith(b"m")}
        return found

    def stored_by_log(self, name: str) -> set[int]:
        """The numbers of the messages in its log, confirmed or not."""
        log = self.broker(name).store.log
        records = records_in(log.read(log.min_offset, log.end - log.min_offset))
        return {int(bytes(record.body)[1:]) for record in records if bytes(record.body).startswith(b"m")}

    async def settled(self) -> None:
        """All are there, one leads, and it has what was acknowledged; so has everybody else."""
        cluster, self.quiet = self.cluster, True
        assert await cluster.until(cluster.converged, 30.0) is None
        await asyncio.sleep(3)
        for node in cluster.of("broker"):
            missing = set(self.acked) - self.stored(node.name)
            assert not missing, f"{node.name} lacks {sorted(missing)[:9]} of {len(self.acked)} acknowledged"
        leader = cluster.leader()
        assert leader is not None
        status = cluster.status(leader)
        assert status is not None
        assert status["controller"]["groups"]["broker-a"]["uncleanElections"] == 0


async def ok(world: Kept, code: Request, ext: dict[str, str], body: bytes = b"") -> Command:
    answer = await world.ask(code, ext, body)
    assert answer.code == Response.SUCCESS, answer.remark
    return answer


async def sent(world: Kept, body: bytes, properties: str = "") -> Command:
    return await ok(world, Request.SEND_MESSAGE, {**SEND, "properties": properties}, body)
