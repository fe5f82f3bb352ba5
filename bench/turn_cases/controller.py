"""A Controller with many groups of brokers, and the dearest request of each of its codes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

from bench.turn_cases.filled import MIB, entries, free_port, json_bytes
from bench.turn_cases.measure import Ask, Case, Site, until
from bench.turn_cases.namesrv import users_cases
from controller.elections.liveness import Heartbeat
from controller.groups.commands import ApplyBrokerId, ElectMaster, RegisterBroker
from controller.service import GROUP_MAX, Controller
from model.acl.directory import USERS_MAX
from model.acl.policies import User, policies_of
from model.codes import Request
from model.config import ControllerConfig
from runtime.os_env import OsEnv

CASES: Final[list[Case]] = []
GROUPS: Final = 5000
BROKERS: Final = 3
WIDE: Final = "wide"
WIDE_BROKERS: Final = GROUP_MAX
"""As many as a group may have. The other groups have about as many as a Controller hears of (BROKERS_MAX)."""
BODY_MAX: Final = 15 * MIB


class ControllerSite(Site):
    """One Controller that leads alone, filled."""

    def __init__(self, path: Path, share: float) -> None:
        port = free_port()
        raft_port = port + 1
        super().__init__(port, share)
        config = ControllerConfig.from_mapping(
            {
                "controllerDLegerPeers": f"n0-127.0.0.1:{port}",
                "controllerDLegerSelfId": "n0",
                "raftPeers": f"n0-127.0.0.1:{raft_port}",
                "controllerStorePath": str(path / "controller"),
                "authConfigPath": str(path),
            }
        )
        self.env = OsEnv(seed=1)
        self.server = Controller(self.env, config)

    @property
    def codes(self) -> set[int]:
        return set(self.server.codes)

    def fill(self) -> None:
        for n in range(self.size(GROUPS)):
            self._group(f"group{n:05}", BROKERS)
        self._group(WIDE, self.size(WIDE_BROKERS))
        access = self.server._access._control
        access.gate.authenticates = True  # the port, made without, asks for no signature
        directory = access.directory
        policies = policies_of({"policies": [{"policyType": "Custom", "entries": entries(50)}]})
        for n in range(min(self.size(USERS_MAX), USERS_MAX - 8)):
            directory.users[f"user{n:05}"] = User(f"user{n:05}", "password")
            directory.acls[f"user{n:05}"] = policies

    def _group(self, name: str, brokers: int) -> None:
        table, live = self.server._table, self.server._live
        made = []
        for broker_id in range(1, brokers + 1):
            address = address_of(broker_id)
            made.append(
                ApplyBrokerId(group=name, cluster="c", broker_id=broker_id, check_code=f"{address};1")
            )
            live.heartbeat(
                name,
                broker_id,
                Heartbeat(
                    session=0,
                    at_ms=self.env.monotonic_ms(),
                    timeout_ms=10**9,
                    cluster="c",
                    address=address,
                    ha_address=address,
                    epoch=1,
                    max_offset=0,
                ),
            )
        alive = tuple(range(1, brokers + 1))
        for command in made:
            table._carry_out(command)
        for broker_id in alive:
            table._carry_out(
                RegisterBroker(group=name, cluster="c", broker_id=broker_id, address=address_of(broker_id))
            )
        table._carry_out(ElectMaster(group=name, broker_id=1, alive=alive))


def address_of(broker_id: int) -> str:
    return f"10.{broker_id >> 8}.{broker_id & 255}.1:10911"


@contextlib.asynccontextmanager
async def controller_site(path: Path, share: float = 1.0) -> AsyncIterator[ControllerSite]:
    site = ControllerSite(path, share)
    await site.server.start()
    try:
        await until(lambda: site.server.raft.is_leader)
        site.fill()
        yield site
    finally:
        await site.server.stop()


def case(what: str, *codes: Request) -> Callable[[Callable[[Any, int], Ask]], Callable[[Any, int], Ask]]:
    """Send what it gives for each of these codes."""

    def add(make: Callable[[Any, int], Ask]) -> Callable[[Any, int], Ask]:
        CASES.extend(Case(code, what, make) for code in codes)
        return make

    return add


def group_ext(name: str = WIDE, **more: str) -> dict[str, str]:
    return {"brokerName": name, "clusterName": "c", **more}


@case("a member of a group of 1,000", Request.BROKER_HEARTBEAT)
def beat(site: ControllerSite, run: int) -> Ask:
    last = max(site.server._table.groups[WIDE].replicas)
    numbers = {"brokerId": str(last), "epoch": "1", "maxOffset": "5", "heartbeatTimeoutMills": "100000"}
    return Ask(group_ext(**numbers, brokerAddr=address_of(last), leaseEpoch="1"))


@case("as it is", Request.CONTROLLER_GET_METADATA_INFO, Request.GET_CONTROLLER_CONFIG)
def plain(site: ControllerSite, run: int) -> Ask:
    return Ask()


@case("to nobody: it leads alone", Request.KEELMQ_TRANSFER_LEADERSHIP)
def transfer(site: ControllerSite, run: int) -> Ask:
    return Ask()


@case("of the only one", Request.KEELMQ_REPLACE_CONTROLLER)
def replace(site: ControllerSite, run: int) -> Ask:
    return Ask({"controllerId": "n0", "address": "127.0.0.1:1"})


@case("one of a group of 1,000", Request.KEELMQ_SET_MAINTENANCE)
def maintain(site: ControllerSite, run: int) -> Ask:
    group = site.server._table.groups[WIDE]
    return Ask(group_ext(brokerId=str(list(group.replicas)[run + 1]), maintenance="true"))


@case("16 MiB of comment lines", Request.UPDATE_CONTROLLER_CONFIG)
def update_config(site: ControllerSite, run: int) -> Ask:
    return Ask({}, b"#\n" * site.size(BODY_MAX // 2) + b"electMasterMaxRetryCount=3\n")


@case("all members of a group of 1,000", Request.CONTROLLER_ALTER_SYNC_STATE_SET)
def alter(site: ControllerSite, run: int) -> Ask:
    group = site.server._table.groups[WIDE]
    members = list(group.replicas)[: len(group.replicas) - run - 1]
    body = {"syncStateSet": members, "syncStateSetEpoch": group.members_epoch}
    return Ask(group_ext(masterBrokerId=str(group.master), masterEpoch=str(group.epoch)), json_bytes(body))


@case("a list of 7,000,000 ids", Request.CONTROLLER_ALTER_SYNC_STATE_SET)
def alter_many(site: ControllerSite, run: int) -> Ask:
    group = site.server._table.groups[WIDE]
    body = b'{"syncStateSetEpoch":1,"syncStateSet":[' + b"1," * site.size(BODY_MAX // 2) + b"1]}"
    return Ask(group_ext(masterBrokerId=str(group.master), masterEpoch=str(group.epoch)), body)


@case("in a group of 1,000", Request.CONTROLLER_ELECT_MASTER)
def elect(site: ControllerSite, run: int) -> Ask:
    return Ask(group_ext(brokerId="1"))


@case("in a group of 1,000", Request.CONTROLLER_REGISTER_BROKER)
def register(site: ControllerSite, run: int) -> Ask:
    return Ask(group_ext(brokerId="3", brokerAddress=address_of(3), heartbeatTimeoutMills="100000"))


@case("of a group of 1,000", Request.CONTROLLER_GET_REPLICA_INFO)
def replica_info(site: ControllerSite, run: int) -> Ask:
    return Ask(group_ext())


@case("of 5,000 groups, 16,000 brokers", Request.CONTROLLER_GET_SYNC_STATE_DATA)
def all_sets(site: ControllerSite, run: int) -> Ask:
    return Ask()


@case("of one group of 1,000, named 1,000 times", Request.CONTROLLER_GET_SYNC_STATE_DATA)
def repeated_sets(site: ControllerSite, run: int) -> Ask:
    return Ask({}, json_bytes([WIDE] * site.size(1000)))


@case("600 ids of a group of 1,000", Request.CLEAN_BROKER_DATA)
def clean(site: ControllerSite, run: int) -> Ask:
    begin = 100 + run * site.size(600)
    ids = ";".join(str(n) for n in range(begin, begin + site.size(600)))
    return Ask(group_ext(brokerControllerIdsToClean=ids, isCleanLivingBroker="true"))


@case("of a group of 1,000", Request.CONTROLLER_GET_NEXT_BROKER_ID)
def next_id(site: ControllerSite, run: int) -> Ask:
    return Ask(group_ext())


@case("in a group of 1,000", Request.CONTROLLER_APPLY_BROKER_ID)
def apply_id(site: ControllerSite, run: int) -> Ask:
    number = site.server._table.next_id(WIDE)
    return Ask(group_ext(appliedBrokerId=str(number), registerCheckCode=f"10.0.0.1:{run};1"))


users_cases(CASES)
