"""The promise of broker.discovery.group_address: behind one address only the master of the group answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broker.service import Broker
from model.codes import Request
from model.config import BrokerConfig, NamesrvConfig
from model.errors import ConfigError, Refused, Unknown
from model.ids import BrokerId
from namesrv.service import NameServer
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import RemotingClient
from runtime.os_env import OsEnv
from tests.fakes.broker.role import FakeControllers, broker_at, full
from tests.ports import free_port_of_broker
from tests.waiting import until


class Group:
    """Three brokers behind one address, a NameServer, and a client that knows only that address."""

    def __init__(self, controllers: FakeControllers, brokers: list[Broker], namesrv: NameServer) -> None:
        self.controllers, self.brokers, self.namesrv = controllers, brokers, namesrv
        self.address = brokers[0].config.group_address
        self.client = RemotingClient(OsEnv(), "client")
        self._sent = 0

    @property
    def master(self) -> Broker:
        (found,) = [broker for broker in self.brokers if broker.role_state.is_master]
        return found

    @property
    def route(self) -> dict[str, str]:
        brokers: dict[str, dict[str, str]] = self.namesrv.status()["brokers"]
        return brokers.get("broker-t", {})

    async def send(self, timeout_s: float = 10.0) -> Command:
        self._sent += 1
        text = f"UNIQ_KEY\x01{self._sent:032X}\x02"
        ext = SendHeader("pg", "T", 0, 1_700_000_000_000, properties=text).to_ext()
        return await self.client.call(
            self.address, Command(Request.SEND_MESSAGE_V2, ext, b"hello"), timeout_s
        )

    async def elect_another(self) -> Broker:
        """Depose the master, which lives on; returns the successor once it leads."""
        old = self.master
        assert old.role.broker_id is not None
        del self.controllers.alive[old.role.broker_id]
        self.controllers.elect()
        await until(lambda: any(b.role_state.is_master and b is not old for b in self.brokers), "a successor")
        await until(lambda: not old.role_state.is_master, "the old master hears of it")
        return self.master


@contextlib.asynccontextmanager
async def group(path: Path, lease_ms: int | None = None, **keys: object) -> AsyncIterator[Group]:
    address = f"127.0.0.1:{free_port_of_broker()}"
    env = OsEnv()
    namesrv = NameServer(env, NamesrvConfig(listen_port=0))
    await namesrv.start()
    async with FakeControllers() as controllers:
        controllers.lease_ms = lease_ms
        own: dict[str, object] = {"groupAddress": address, "namesrvAddr": namesrv.address}
        brokers = [broker_at(path / str(n), controllers, **(own | keys)) for n in (1, 2, 3)]
        for n, broker in enumerate(brokers, 1):
            await broker.start()
            await until(lambda broker=broker, n=n: broker.role.broker_id == n)  # type: ignore[misc]
        found = Group(controllers, brokers, namesrv)
        try:
            await full(controllers, brokers)
            yield found
        finally:
            await found.client.close()
            for broker in brokers:
                await broker.stop()
            await found.namesrv.stop()


def listening(brokers: list[Broker]) -> list[bool]:
    found = [broker.group_address.status() for broker in brokers]
    return [status is not None and status["listening"] for status in found]


async def test_only_the_master_listens_and_the_route_shows_the_address_before_and_after_a_failover(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as it:
        first = it.master
        await until(lambda: listening(it.brokers) == [b is first for b in it.brokers], "only it listens")
        await until(lambda: len(it.route) == 3, "all are registered")
        assert it.route["0"] == it.address
        assert first.config.address not in it.route.values()
        assert (await it.send()).code == 0
        second = await it.elect_another()
        await until(lambda: listening(it.brokers) == [b is second for b in it.brokers], "only it listens")
        own = str(first.role.broker_id)
        await until(lambda: it.route.get(own) == first.config.address, "the old master is a slave")
        await until(lambda: second.config.address not in it.route.values(), "not listed twice")
        assert it.route["0"] == it.address


async def test_a_client_that_connects_again_to_the_same_address_is_at_the_successor(tmp_path: Path) -> None:
    async with group(tmp_path) as it:
        assert (await it.send()).code == 0
        connection = await it.client.connection(it.address)
        second = await it.elect_another()
        await until(lambda: connection.closed, "the old master ends the connection")
        assert (await it.send()).code == 0
        assert second.context.stats.put_total == 1


async def test_what_is_sent_during_a_handover_is_not_read_and_the_connection_ends_at_the_successor(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as it:
        assert (await it.send()).code == 0
        old = it.master
        end = old.store.log.end
        transfer_target = next(b.role.broker_id for b in it.brokers if b is not old)
        assert transfer_target is not None
        assert await old.drain(transfer_target, 1.0)
        sending = asyncio.ensure_future(it.send())
        await asyncio.sleep(0.05)
        assert not sending.done(), "neither refused nor taken"
        second = await it.elect_another()
        with pytest.raises(Unknown):
            await sending
        assert (await it.send()).code == 0
        await full(it.controllers, it.brokers)
        assert second.context.stats.put_total == 1
        assert old.store.log.end == second.store.log.end > end


async def test_a_new_master_that_still_refuses_writes_reads_none_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with group(tmp_path) as it:
        old = it.master
        refusing = {broker: True for broker in it.brokers if broker is not old}
        for broker in refusing:
            refuse = broker.ha.refuse

            def refused(broker: Broker = broker, refuse: Any = refuse) -> Refused | None:
                return Refused("no lease yet", 14) if refusing[broker] else refuse()

            monkeypatch.setattr(broker.ha, "refuse", refused)
        second = await it.elect_another()
        await until(lambda: listening([second]) == [True])
        sending = asyncio.ensure_future(it.send())
        await asyncio.sleep(0.05)
        assert not sending.done()
        refusing[second] = False
        assert (await sending).code == 0


async def test_a_handover_that_comes_to_nothing_lets_the_waiting_request_in(tmp_path: Path) -> None:
    async with group(tmp_path) as it:
        assert (await it.send()).code == 0
        old = it.master
        assert not await old.drain(BrokerId(99), 0.02)
        sending = asyncio.ensure_future(it.send())
        await asyncio.sleep(0.02)
        assert not sending.done()
        old.resume()
        assert (await sending).code == 0


async def test_a_stale_master_takes_no_write_on_the_group_address(tmp_path: Path) -> None:
    """It was deposed and does not know: its connections stay open, the checks of a write are the same."""

    async with group(tmp_path) as it:
        assert (await it.send()).code == 0
        old = it.master
        end = old.store.log.end
        old.ha.conditions.holds_lease = lambda: False  # no lease any more
        await old.ha.become_fenced()  # nor slaves
        answer = await it.send(timeout_s=20)
        assert answer.code != 0
        assert old.store.confirmed <= end


async def test_a_port_that_is_taken_is_tried_again_and_the_master_serves_meanwhile(tmp_path: Path) -> None:
    other = await asyncio.start_server(
        lambda reader, writer: None, "127.0.0.1", port := free_port_of_broker()
    )
    async with group(tmp_path, groupAddress=f"127.0.0.1:{port}") as it:
        assert listening(it.brokers) == [False] * 3
        own = it.master.config.address
        await until(lambda: it.route.get("0") == own, "clients find it where it does listen")
        other.close()
        await other.wait_closed()
        await until(lambda: listening([it.master]) == [True], "the port is free")
        assert (await it.send()).code == 0
        await until(lambda: it.route.get("0") == it.address, "clients are told")
        await until(lambda: own not in it.route.values(), "not listed twice")


async def test_a_stop_leaves_the_successors_entry_alone_and_the_last_one_takes_it_away(
    tmp_path: Path,
) -> None:
    async with group(tmp_path) as it:
        await until(lambda: len(it.route) == 3, "all are registered")
        old = it.master
        await it.elect_another()
        await old.stop()
        await until(lambda: str(old.role.broker_id) not in it.route, "it left")
        assert it.route["0"] == it.address
        for broker in it.brokers:
            await broker.stop()
        await until(lambda: it.route == {}, "nobody is there")


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"groupAddress": "10.0.0.1:1;10.0.0.2:2"}, "one address"),
        ({"groupAddress": "10.0.0.1:10911"}, "port of its own"),
        ({"groupAddress": "10.0.0.1:10000", "enableControllerMode": "false"}, "enableControllerMode"),
    ],
)
def test_an_address_that_cannot_be_the_groups_is_refused(keys: dict[str, str], text: str) -> None:
    values = {"enableControllerMode": "true", "controllerAddr": "10.0.0.9:9878", "listenPort": "10911"}
    with pytest.raises(ConfigError, match=text):
        BrokerConfig.from_mapping(values | keys)


async def test_a_master_elected_anew_in_the_middle_of_a_handover_reads_again(tmp_path: Path) -> None:
    """The transfer target came to nothing, and the Controllers name the same master once more: no timer is
    left then.
    """

    async with group(tmp_path) as it:
        assert (await it.send()).code == 0
        old = it.master
        transfer_target = next(b.role.broker_id for b in it.brokers if b is not old)
        ask = Command(
            Request.CONTROLLER_ELECT_MASTER,
            {"brokerId": str(transfer_target), "masterEpoch": str(old.role.epoch)},
        )
        await old.role.hand_over(ask)
        it.controllers.group.epoch += 1
        await until(lambda: old.role.epoch == it.controllers.group.epoch, "it leads the next epoch")
        assert (await it.send(timeout_s=3.0)).code == 0


async def test_the_route_comes_back_while_no_controller_is_there_and_the_group_serves_on(
    tmp_path: Path,
) -> None:
    async with group(tmp_path, lease_ms=300) as it:
        assert (await it.send()).code == 0
        old = it.master
        await it.controllers.stop()
        await until(lambda: not old.role.lease.holds(), "its lease is over")
        assert (await it.send()).code == 0, "every member is there"
        port = int(it.namesrv.address.rpartition(":")[2])
        await it.namesrv.stop()
        it.namesrv = NameServer(OsEnv(), NamesrvConfig(listen_port=port))
        await it.namesrv.start()
        await until(lambda: it.route.get("0") == it.address, "its clients can find it")


async def test_a_master_that_may_have_been_replaced_leaves_the_port_to_its_successor(tmp_path: Path) -> None:
    """Forwarders and virtual IPs go where the port accepts. Cut off from the Controllers alone, it never
    hears that it is not master any more."""

    async with group(tmp_path, lease_ms=300) as it:
        old = it.master
        await until(lambda: listening([old]) == [True])

        async def cut_off(*_: object, **__: object) -> Any:
            raise ConnectionError("cut off from the Controllers")

        links = old.role._controllers
        links.call = links.ask_lease = cut_off  # type: ignore[method-assign]
        links._forget(it.controllers.addresses)  # what was asked before is not answered, either
        assert old.role.broker_id is not None
        del it.controllers.alive[old.role.broker_id]
        old.role.notice = cut_off  # type: ignore[method-assign]
        it.controllers.elect()
        second = next(b for b in it.brokers if b.role.broker_id == it.controllers.group.master)
        await until(lambda: second.role_state.is_master, "a successor")
        assert old.role_state.is_master, "it does not know"
        await until(lambda: listening(it.brokers) == [b is second for b in it.brokers], "only it listens")


async def test_a_master_that_was_alone_for_a_while_listens_again_with_its_next_lease(tmp_path: Path) -> None:
    async with group(tmp_path, lease_ms=300) as it:
        old = it.master
        it.controllers.mute, acked = 0, old.ha.acked_by_all_recently
        old.ha.acked_by_all_recently = lambda: False  # type: ignore[method-assign]
        await until(lambda: listening([old]) == [False], "perhaps another one leads")
        it.controllers.mute, old.ha.acked_by_all_recently = None, acked  # type: ignore[method-assign]
        await until(lambda: listening([old]) == [True], "none does")
        assert (await it.send()).code == 0
