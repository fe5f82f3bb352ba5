"""Brokers of a Controller that sign, and every request that changes something at one."""

from __future__ import annotations

from typing import Any

from model.codes import Request
from remoting.auth import Credentials
from remoting.bodies import dumps
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.controller.live import Broker, World
from tests.remoting.keys import KEY

READS = {
    Request.CONTROLLER_GET_METADATA_INFO,
    Request.CONTROLLER_GET_REPLICA_INFO,
    Request.CONTROLLER_GET_SYNC_STATE_DATA,
    Request.GET_CONTROLLER_CONFIG,
}


class Signer(Broker):
    """A broker that signs, and believes only what is signed."""

    def __init__(self, world: World, broker_id: int, credentials: Credentials | None = KEY) -> None:
        super().__init__(world, broker_id)
        self.client = RemotingClient(
            OsEnv(), f"broker.{broker_id}", handler=self.on_request, credentials=credentials
        )


async def group_of_two(world: World) -> tuple[Signer, Signer]:
    one, two = Signer(world, 1), Signer(world, 2)
    world.brokers += [one, two]
    for broker in (one, two):
        await broker.join()
    assert (await one.elect()).code == 0
    assert (await one.alter([1, 2], 1, 1)).code == 0
    return one, two


def mutations(two: Broker) -> dict[int, tuple[dict[str, Any], bytes]]:
    """Every request that changes something, each as it would have an effect on the group of two."""
    members = dumps({"syncStateSet": [1], "syncStateSetEpoch": 2})
    third = {"brokerId": 3, "brokerAddress": "127.0.0.1:20003"}
    return {
        Request.CONTROLLER_ALTER_SYNC_STATE_SET: ({"masterBrokerId": 1, "masterEpoch": 1}, members),
        Request.CONTROLLER_ELECT_MASTER: ({"brokerId": 2, "designateElect": "true"}, b""),
        Request.CONTROLLER_REGISTER_BROKER: ({**third, "brokerId": 2}, b""),
        Request.CONTROLLER_GET_NEXT_BROKER_ID: ({}, b""),
        Request.CONTROLLER_APPLY_BROKER_ID: ({"appliedBrokerId": 3, "registerCheckCode": "x"}, b""),
        Request.BROKER_HEARTBEAT: ({"brokerId": 4, "brokerAddr": "127.0.0.1:20004"}, b""),
        Request.UPDATE_CONTROLLER_CONFIG: ({}, b"enableElectUncleanMaster=true"),
        Request.CLEAN_BROKER_DATA: (
            {"brokerControllerIdsToClean": str(two.id), "isCleanLivingBroker": "true"},
            b"",
        ),
        Request.KEELMQ_TRANSFER_LEADERSHIP: ({}, b""),
        Request.KEELMQ_SET_MAINTENANCE: ({"brokerName": "a", "brokerId": "1", "maintenance": "true"}, b""),
        Request.KEELMQ_REPLACE_CONTROLLER: ({"controllerId": "n1", "address": "127.0.0.1:9"}, b""),
    }
