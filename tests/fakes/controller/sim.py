"""Controllers and brokers without logs under virtual time: killed, paused and cut off from one seed."""

from __future__ import annotations

import asyncio
import random

from chaos.sim.disk import Machine
from chaos.sim.env import SimEnv
from chaos.sim.loop import Life, SimLoop
from chaos.sim.net import Fabric
from controller.service import Controller
from model.codes import Request
from model.config import ControllerConfig
from model.errors import Unknown
from remoting.bodies import dumps, loads
from remoting.codec import Command
from remoting.service import Connection, RemotingClient
from runtime.env import write_file
from runtime.report.events import Event
from tests.fakes.controller.raft_sim import SECRET

G = "broker-a"


NAMES = ("k0", "k1", "k2")


ADDRESSES = {name: f"{name}:9878" for name in NAMES}


class World:
    """Three Controllers and three brokers; anything may be killed, paused or cut off."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"world:{seed}")
        self.loop = SimLoop(seed)
        self.fabric = Fabric(self.loop, seed)
        self.machines = {name: Machine(name, seed, lambda: 0) for name in NAMES}
        self.controllers: dict[str, tuple[Life, Controller]] = {}
        self.brokers = [Broker(self, number) for number in (1, 2, 3)]
        self.masters: dict[int, set[int]] = {}  # epoch -> masters the Controllers announced

    def watch(self, event: Event) -> None:
        if event.name == "master_elected":
            self.masters.setdefault(event.fields["epoch"], set()).add(event.fields["broker_id"])

    async def start(self, name: str) -> None:
        life = self.loop.new_life(name)
        machine = self.machines[name]
        env = SimEnv(self.loop, life, self.fabric, machine, name, seed=self.seed, watch=self.watch)

        async def begin() -> Controller:
            env.disk.makedirs("/k")
            write_file(env.disk, "/k/secret", SECRET)
            values = {
                "controllerDLegerPeers": ";".join(f"{n}-{a}" for n, a in ADDRESSES.items()),
                "controllerDLegerSelfId": name,
                "controllerStorePath": "/k",
                "raftSecretFile": "/k/secret",
                "bindAddress": name,
                "trustPeers": "true",
            }
            controller = Controller(env, ControllerConfig.from_mapping(values))
            await controller.start()
            return controller

        self.controllers[name] = (life, await self.loop.spawn(life, begin(), name="start"))

    def kill(self, name: str) -> None:
        life, _ = self.controllers.pop(name)
        self.loop.kill(life)
        self.fabric.process_died(life)
        self.machines[name].process_died(life)
        self.machines[name].lose_power()

    def leader(self) -> Controller | None:
        return next((c for _, c in self.controllers.values() if c.raft.is_leader), None)

    def settled(self) -> bool:
        """One living master that every Controller and every broker knows."""
        states = {repr(c.status()["groups"].get(G, {}).get("master")) for _, c in self.controllers.values()}
        known = {(broker.master, broker.epoch) for broker in self.brokers if broker.life is not None}
        leader = self.leader()
        if leader is None or len(states) > 1 or len(known) > 1 or len(self.controllers) < 3:
            return False
        group = leader.status()["groups"].get(G)
        return (
            group is not None
            and group["master"] is not None
            and group["brokers"][str(group["master"])]["alive"]
            and known == {(group["master"], group["epoch"])}
            and group["syncStateSet"] == [1, 2, 3]
        )


class Broker:
    """A broker without a log: it keeps its id, beats, follows notices, polls, and as master invites all."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.id = world, number
        self.host = f"b{number}"
        self.life: Life | None = None
        self.master, self.epoch = 0, 0

    def start(self) -> None:
        world = self.world
        self.life = world.loop.new_life(self.host)
        machine = Machine(self.host, world.seed, lambda: 0)
        env = SimEnv(world.loop, self.life, world.fabric, machine, self.host, seed=world.seed)
        self.master = self.epoch = 0
        world.loop.spawn(self.life, self.live(env), name="live")

    def kill(self) -> None:
        assert self.life is not None
        self.world.loop.kill(self.life)
        self.world.fabric.process_died(self.life)
        self.life = None

    async def live(self, env: SimEnv) -> None:
        client = RemotingClient(env, self.host, handler=self.on_request)
        asyncio.get_running_loop().create_task(self.beat(client))
        while True:
            for address in ADDRESSES.values():
                try:
                    await self.talk(client, address)
                except (ConnectionError, Unknown):
                    continue
            await asyncio.sleep(0.3)

    async def beat(self, client: RemotingClient) -> None:
        ext = {
            "clusterName": "c",
            "brokerName": G,
            "brokerAddr": f"{self.host}:1",
            "brokerId": str(self.id),
            "heartbeatTimeoutMills": "2000",
        }
        while True:
            beats = [
                client.oneway(a, Command(Request.BROKER_HEARTBEAT, dict(ext)), 0.5)
                for a in ADDRESSES.values()
            ]
            await asyncio.gather(*beats, return_exceptions=True)
            await asyncio.sleep(0.25)

    async def talk(self, client: RemotingClient, address: str) -> None:
        """One turn: id, registration, mastership, set; a Controller that does not lead answers 2007."""
        base = {"clusterName": "c", "brokerName": G}

        async def ask(code: int, body: bytes = b"", **ext: object) -> Command:
            fields = {**base, **{k: str(v) for k, v in ext.items()}}
            return await client.call(address, Command(code, fields, body), 1.0)

        register = Request.CONTROLLER_REGISTER_BROKER
        answer = await ask(register, brokerId=self.id, brokerAddress=f"{self.host}:1")
        if answer.code == 2010:
            code = f"{self.host}:1;1"
            await ask(Request.CONTROLLER_APPLY_BROKER_ID, appliedBrokerId=self.id, registerCheckCode=code)
        if answer.code != 0:
            return
        self.learn(answer)
        if "masterBrokerId" not in answer.ext:
            await ask(Request.CONTROLLER_ELECT_MASTER, brokerId=self.id)
        elif answer.ext["masterBrokerId"] == str(self.id) and loads(answer.body)["syncStateSet"] != [1, 2, 3]:
            body = {
                "syncStateSet": [1, 2, 3],
                "syncStateSetEpoch": int(answer.ext["syncStateSetEpoch"]),
            }
            await ask(
                Request.CONTROLLER_ALTER_SYNC_STATE_SET,
                dumps(body),
                masterBrokerId=self.id,
                masterEpoch=answer.ext["masterEpoch"],
            )

    def learn(self, told: Command) -> None:
        epoch = int(told.ext["masterEpoch"])
        if epoch >= self.epoch and "masterBrokerId" in told.ext:
            self.master, self.epoch = int(told.ext["masterBrokerId"]), epoch

    async def on_request(self, _connection: Connection, request: Command) -> Command | None:
        self.learn(request)
        return None
