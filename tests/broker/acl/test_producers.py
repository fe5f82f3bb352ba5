"""The promise to producers under ACL: what belongs to one account goes to no client of another one."""

from __future__ import annotations

from pathlib import Path

from model.codes import Request
from model.message import property_of
from remoting.auth import Credentials
from remoting.codec import Command
from remoting.headers import SendHeader
from remoting.service import Connection, RemotingClient
from tests.broker.acl.signed import ALICE, ON, ROOT, signing
from tests.broker.halves import HALF, HALVES, SOON, of_topic
from tests.broker.helpers import eventually, heartbeat, running, topic


async def test_a_half_is_shown_to_those_alone_who_may_send_to_its_topic(tmp_path: Path) -> None:
    seen: list[Command] = []

    async def handler(_: Connection, command: Command) -> Command | None:
        seen.append(command)
        return None

    async with running(tmp_path, **ON, **SOON) as broker, signing(broker, ROOT) as (root,):
        await root(Request.UPDATE_AND_CREATE_TOPIC, topic("T"))
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        alice = RemotingClient(broker.env, "alice", credentials=ALICE, handler=handler)
        beat = Command(int(Request.HEART_BEAT), {}, heartbeat("c", "", producer="pg"))
        assert (await alice.call(root.address, beat, 10)).code == 0
        half = SendHeader("pg", "T", 0, 1, properties=f"UNIQ_KEY\x01{'B' * 32}\x02{HALF}").to_ext()
        assert (await root(Request.SEND_MESSAGE_V2, half, b"secret")).code == 0
        await eventually(
            lambda: any(
                property_of(one.properties, "TRANSACTION_CHECK_TIMES") == "2"
                for one in of_topic(broker, HALVES)
            ),
            "its time to be asked about came twice",
        )
        assert seen == []
        await root.allow("alice", "Topic:T")
        await eventually(lambda: seen, "who may send to the topic is asked")
        assert seen[0].code == Request.CHECK_TRANSACTION_STATE
        await alice.close()


async def test_an_id_that_one_account_holds_no_other_one_takes_over(tmp_path: Path) -> None:
    async with running(tmp_path, **ON) as broker, signing(broker, ROOT) as (root,):
        await root.user(Request.AUTH_CREATE_USER, "alice", password=ALICE.secret_key)
        clients = broker.context.clients

        async def beats(key: Credentials) -> RemotingClient:
            client = RemotingClient(broker.env, "beats", credentials=key)
            beat = Command(int(Request.HEART_BEAT), {}, heartbeat("asks", "", producer="pg"))
            assert (await client.call(root.address, beat, 10)).code == 0
            return client

        def held_by() -> str | None:
            at = clients.producer_connection("asks")
            sender = None if at is None else clients.producers["pg"][at].sender
            return None if sender is None else sender.account

        owner = await beats(ROOT)
        first = clients.producer_connection("asks")
        thief = await beats(ALICE)
        assert (held_by(), clients.producer_connection("asks")) == (ROOT.access_key, first)
        again = await beats(ROOT)
        assert held_by() == ROOT.access_key
        assert clients.producer_connection("asks") is not first, "of one account the newest"
        await owner.close()
        await again.close()
        await eventually(lambda: held_by() == ALICE.access_key, "it is free again")
        await thief.close()
