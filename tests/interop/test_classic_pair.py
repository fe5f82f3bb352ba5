"""The promise without Controller: a real RocketMQ broker and ours are master and slave of each other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.service import Broker
from chaos.worlds import rocketmq
from model.codes import Request
from model.config import NamesrvConfig
from namesrv.service import NameServer
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.broker.helpers import config_for, topic
from tests.ports import free_port_of_broker
from tests.waiting import until

pytestmark = [pytest.mark.interop, pytest.mark.xdist_group("interop"), pytest.mark.timeout(300)]

SEGMENT = 1 << 20
COUNT = 100


async def within(what: str, condition: Callable[[], object]) -> None:
    """The JVM may take its time."""
    await until(condition, what, timeout_s=60)


async def send_all(client: RemotingClient, address: str) -> None:
    for number in range(COUNT):
        text = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02"
        header = SendHeader("pg", "T", number % 3, 1_700_000_000_000, properties=text)
        body = b"message %d " % number * (1 + number % 7)
        answer = await client.call(address, Command(int(Request.SEND_MESSAGE_V2), header.to_ext(), body), 20)
        assert answer.code == 0, (answer.code, answer.remark)


def log_on_disk(store: Path, size: int) -> bytes:
    return (store / "commitlog" / f"{0:020d}").read_bytes()[:size]


@pytest.mark.covers(
    "Classic HA without Controllers: master of one kind, slave of the other",
    client="broker 5.5.0",
    sides="together",
)
@pytest.mark.parametrize("ours", ["master", "slave"])
async def test_a_real_broker_and_ours_replicate_the_classic_way(
    ours: str, real_rocketmq: Path, tmp_path: Path
) -> None:
    env = OsEnv(seed=1)
    namesrv_port = free_port_of_broker()
    namesrv = NameServer(env, NamesrvConfig(listen_port=namesrv_port))
    names = f"127.0.0.1:{namesrv_port}"
    await namesrv.start()
    real_port = free_port_of_broker()
    real = rocketmq.broker_node(
        tmp_path / "real",
        real_port,
        names,
        brokerName="broker-t",
        brokerId=1 if ours == "master" else 0,
        brokerRole="SLAVE" if ours == "master" else "SYNC_MASTER",
        inSyncReplicas=2,
        mappedFileSizeCommitLog=SEGMENT,
        registerNameServerPeriod=10000,
        **rocketmq.QUICK_BROKER,
    )
    role = {"brokerId": 0} if ours == "master" else {"brokerId": 1, "brokerRole": "SLAVE"}
    broker = Broker(
        env,
        config_for(
            tmp_path / "ours",
            namesrvAddr=names,
            inSyncReplicas=2,
            registerNameServerPeriod="500",
            slaveSyncMetadataPeriod="500",
            slaveTimeout="20000",
            **role,
        ),
    )
    client = RemotingClient(env, "test")
    master = broker.config.address if ours == "master" else f"127.0.0.1:{real_port}"
    try:
        await broker.start()
        real.start()
        await within("both are registered", lambda: len(namesrv.status()["brokers"].get("broker-t", {})) == 2)
        if ours == "master":
            await within("the real slave is connected", lambda: len(broker.ha.members) == 2)
        else:
            await within("our slave follows", lambda: broker.ha.status()["following"]["state"] == "following")
        made = await client.call(master, Command(int(Request.UPDATE_AND_CREATE_TOPIC), topic("T")), 20)
        assert made.code == 0, made.remark
        # inSyncReplicas=2: each answer waited for the other kind of broker.
        await send_all(client, master)
        # A real broker is silent for 5 s; that must not end the link.
        links = [entry["id"] for entry in broker.ha.slaves()]
        await asyncio.sleep(7)
        assert [entry["id"] for entry in broker.ha.slaves()] == links
        if ours == "slave":
            assert broker.ha.status()["following"]["state"] == "following"
        if ours == "slave":
            # With a log of its own it compares the end of it first, and goes on.
            config = broker.config
            await broker.stop()
            broker = Broker(env, config)
            await broker.start()
            await within("our slave is back", lambda: broker.ha.follows)
            await send_all(client, master)
        end = broker.store.log.end
        if ours == "slave":
            assert broker.topics.get("T") is not None or await _copied(broker)
            await within("all is dispatched", lambda: broker.store.dispatched == broker.store.log.end)
            assert sum(broker.store.max_queue_offset("T", queue) for queue in range(3)) == 2 * COUNT
        broker.store.sync_to(end)
        await within("our log is on disk", lambda: broker.store.log.flushed >= end)
        assert log_on_disk(tmp_path / "ours", end) == log_on_disk(tmp_path / "real" / "store", end)
        assert end > COUNT * 100
    except AssertionError as error:
        raise AssertionError(f"{error}\n{real.tail()}") from None
    finally:
        await client.close()
        await broker.stop()
        await asyncio.get_running_loop().run_in_executor(None, real.stop, signal.SIGKILL)
        await namesrv.stop()


async def _copied(broker: Broker) -> bool:
    await within("the topic is copied", lambda: broker.topics.get("T") is not None)
    return True
