"""The promise of ``haSecretFile``: who did not prove that he is a broker of the group is not heard on its HA
port, whatever id he says, and moves neither acknowledgements nor the links of others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ha.master.links import STRANGERS_MAX
from ha.slave.follower import State
from ha.wire.codec import encode_slave_handshake
from ha.wire.proof import Credentials, HandshakeInitiator, Reason, refusal
from model.ids import BrokerId, Epoch, PhysicalOffset
from tests.fakes.ha.frames import encode_ack, slave_handshake
from tests.fakes.ha.group import Group, Node
from tests.fakes.ha.raw_slave import RawSlave
from tests.plain import broker_ids
from tests.waiting import until

RECORD = b"0123456789"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "ha.secret"
    path.write_bytes(b"what the brokers share\n")
    return str(path)


@pytest.fixture
def other_secret(tmp_path: Path) -> str:
    path = tmp_path / "other.secret"
    path.write_bytes(b"what some others share\n")
    return str(path)


_open: list[RawSlave] = []


async def connect(node: Node) -> RawSlave:
    """A connection that ``play`` closes."""
    _open.append(await RawSlave.connect(node))
    return _open[-1]


def play(story: Coroutine[Any, Any, None]) -> None:
    async def all_of_it() -> None:
        try:
            await story
        finally:
            while _open:
                _open.pop().close()
            await asyncio.sleep(0)

    asyncio.run(all_of_it())


async def forge(node: Node, broker_id: int = 2) -> RawSlave:
    """Connect as one who follows the HA protocol and calls himself ``broker_id``; acknowledge everything."""
    slave = await connect(node)
    slave.writer.write(
        encode_slave_handshake(slave_handshake(broker_id, False, False, answers_heartbeats=True))
    )
    slave.writer.write(encode_ack(node.store.log.end))
    return slave


async def prove(node: Node, broker_id: int, *, group: str | None = None) -> RawSlave:
    """Connect and prove to be ``broker_id``; ``group`` other than the node's: of another group."""
    credentials = node.ha.links.credentials
    if group is not None:
        node.config.broker_name, kept = group, node.config.broker_name
        credentials = Credentials.of(node.env, node.config)
        node.config.broker_name = kept
    assert credentials.secret is not None
    knock = HandshakeInitiator(
        node.env, credentials.secret, credentials.scope, BrokerId(broker_id), node.ha.epoch
    )
    slave = await connect(node)
    slave.writer.write(knock.hello)
    proof = knock.feed(await slave.reader.readexactly(80))
    assert proof is not None
    slave.writer.write(proof)
    return slave


def state_of(node: Node) -> tuple[str, str | None]:
    following = node.ha.status()["following"]
    return following["state"], following["reason"]


@asynccontextmanager
async def pair(
    master: dict[str, Any], slave: dict[str, Any], *, classic: bool = False
) -> AsyncIterator[Group]:
    """A master (1, or 0 without Controller) and a slave (2) that was told to follow it."""
    group = Group(Node(0 if classic else 1, **master), Node(2, **slave))
    async with group:
        await (without_controller(group) if classic else group.elect(1))
        yield group


async def without_controller(group: Group) -> None:
    group.master_id = 0
    await group.master.ha.become_master(BrokerId(0), Epoch(0), broker_ids({0}), 0, None)
    await group.nodes[2].ha.become_slave(BrokerId(2), Epoch(0), group.master.address)


@pytest.mark.parametrize("secrets", [False, True])
def test_a_forger_with_a_members_id_has_nothing_acknowledged(secrets: bool, secret: str) -> None:
    """The true member is cut off. Without a secret whoever says its name stands in for it."""
    settings = {"ha_secret_file": secret} if secrets else {}

    async def run() -> None:
        async with Group(Node(1, **settings), Node(2, **settings)) as group:
            await group.elect(1)
            group.master.store.grow(RECORD)
            await group.full()
            await until(lambda: group.master.ha.replicated == 10)
            # The Controller cannot be asked: 2 stays a member, and could be elected.
            await group.master.ha.become_master(
                BrokerId(1), Epoch(group.epoch), group.members, group.set_epoch, None
            )
            await group.nodes[2].ha.become_fenced()
            await until(lambda: not group.master.ha.slaves())
            group.master.store.grow(RECORD)
            assert group.master.ha.replicated == 10
            forger = await forge(group.master)
            if secrets:
                assert await forger.reader.read() == refusal(Reason.NEEDS_PROOF), "not a byte of the log"
                assert (group.master.ha.slaves(), group.master.ha.turned_away_total) == ([], 1)
            else:
                await until(lambda: group.master.ha.replicated == 20, "what the secret is for")
            assert group.master.ha.replicated == (10 if secrets else 20)
            assert group.master.store.confirmed == (10 if secrets else 20)
            await group.follow(2)
            await until(lambda: group.master.ha.replicated == 20, "the true one is heard")
            forger.close()

    play(run())


def test_a_forger_disturbs_no_members_link(secret: str) -> None:
    async def run() -> None:
        nodes = [Node(number, ha_secret_file=secret) for number in (1, 2, 3)]
        async with Group(*nodes) as group:
            await group.elect(1)
            await group.full()
            before = dict(group.master.ha.links.by_id)
            for number in range(STRANGERS_MAX * 2):
                forger = await forge(group.master, 2 + number % 3)
                assert await forger.hung_up()
                group.master.store.grow(RECORD)
            await group.level()
            assert group.master.ha.links.by_id == before
            assert group.members == {1, 2, 3}
            assert group.master.ha.turned_away_total == STRANGERS_MAX * 2
            group.assert_identical()

    play(run())


class Ended(asyncio.Transport):
    """Hears whether it is to end."""

    aborted = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


def test_a_crowd_that_says_nothing_keeps_no_member_out(secret: str) -> None:
    async def run() -> None:
        async with Group(Node(1, ha_secret_file=secret), Node(2, ha_secret_file=secret)) as group:
            await group.elect(1, followers=False)
            crowd = [await connect(group.master) for _ in range(STRANGERS_MAX * 2)]
            await group.follow(2)
            await group.full()
            strangers = group.master.ha.links.strangers
            await until(lambda: len(strangers) <= STRANGERS_MAX, "those that gave way are gone")
            for stranger in crowd:
                stranger.close()

    play(run())


def test_a_crowd_that_comes_in_one_turn_is_bounded_as_well(secret: str) -> None:
    async def run() -> None:
        async with Group(Node(1, ha_secret_file=secret)) as group:
            await group.elect(1)
            links = group.master.ha.links
            crowd = [links.accept() for _ in range(STRANGERS_MAX * 2)]
            assert list(links.strangers) == crowd[STRANGERS_MAX:]
            transport = Ended()
            crowd[0].connection_made(transport)
            assert transport.aborted

    play(run())


def test_a_crowd_does_not_push_out_who_has_proven_himself(secret: str) -> None:
    async def run() -> None:
        async with Group(Node(1, ha_secret_file=secret)) as group:
            await group.elect(1)
            member = await prove(group.master, 2)
            await until(lambda: any(link.proven for link in group.master.ha.links.strangers))
            for _ in range(STRANGERS_MAX * 2):
                await connect(group.master)
            await member.greet(2)
            assert [entry["id"] for entry in group.master.ha.slaves()] == [2]

    play(run())


def test_links_turned_away_share_a_line_in_the_log(secret: str, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async with Group(Node(1, ha_secret_file=secret)) as group:
            await group.elect(1)
            with caplog.at_level(logging.INFO, "ha"):
                for said in (
                    encode_slave_handshake(slave_handshake(2, False, False)),
                    b"\xff" * 8,
                    b"GET /",
                ) * 5:
                    stranger = await connect(group.master)
                    stranger.writer.write(said)
                    assert await stranger.hung_up()
                group.master.ha.links.turned_away.told_ms -= 60_000
                (await forge(group.master)).close()
                await until(lambda: group.master.ha.turned_away_total == 16)
        lines = [r.getMessage() for r in caplog.records if "HA connection" in r.getMessage()]
        assert len(lines) == 2, lines
        assert "turned away: it speaks without having proven who it is" in lines[0]
        assert "(14 more since the last such line)" in lines[1]

    play(run())


def test_strangers_that_make_room_share_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """With a secret or without: a crowd must not fill the log."""

    async def run() -> None:
        async with Group(Node(1)) as group:
            await group.elect(1)
            with caplog.at_level(logging.INFO, "ha"):
                crowd = [await connect(group.master) for _ in range(STRANGERS_MAX + 20)]
                await until(lambda: group.master.ha.turned_away_total == 20, "the oldest make room")
                for stranger in crowd[-5:]:
                    stranger.writer.write(b"\xff" * 16)
                    assert await stranger.hung_up()
                assert group.master.ha.turned_away_total == 25
            for stranger in crowd:
                stranger.close()
        lines = [r.getMessage() for r in caplog.records if "HA connection" in r.getMessage()]
        assert len(lines) == 1, lines
        assert "too many connections without a handshake" in lines[0]

    play(run())


def test_who_has_proven_to_be_one_broker_is_no_other_one(secret: str) -> None:
    async def run() -> None:
        async with Group(*(Node(number, ha_secret_file=secret) for number in (1, 2))) as group:
            await group.elect(1)
            await group.full()
            true_one = group.master.ha.links.by_id[BrokerId(2)]
            liar = await prove(group.master, 3)
            liar.writer.write(encode_slave_handshake(slave_handshake(2, False, False)))
            assert await liar.hung_up()
            assert group.master.ha.links.by_id == {2: true_one}
            honest = await prove(group.master, 3)
            await honest.greet(3)
            assert sorted(group.master.ha.links.by_id) == [2, 3]
            honest.close()

    play(run())


def test_a_broker_of_another_group_with_the_same_secret_is_turned_away(secret: str) -> None:
    async def run() -> None:
        async with pair(
            {"ha_secret_file": secret}, {"ha_secret_file": secret, "broker_name": "broker-b"}
        ) as group:
            await until(lambda: state_of(group.nodes[2])[0] == State.UNPROVEN)
            assert "another brokerClusterName or brokerName" in (state_of(group.nodes[2])[1] or "")
            with pytest.raises(asyncio.IncompleteReadError):
                await prove(group.master, 2, group="broker-b")
            assert group.master.ha.slaves() == []

    play(run())


CASES = {
    "another secret": (["secret"], ["other"], "haSecretFile differs"),
    "a master without": ([], ["secret"], "the master has no haSecretFile"),
    "a slave without": (["secret"], [], "haSecretFile is needed here"),
    "a slave without that trusts": (["secret"], ["trust"], "haSecretFile is needed here"),
    "a trusting master without": (["trust"], ["secret"], "the master has no haSecretFile"),
    "both": (["secret"], ["secret"], None),
    "a trusting slave": (["secret"], ["secret", "trust"], None),
    "a trusting slave, a master without": ([], ["secret", "trust"], None),
    "a trusting master": (["secret", "trust"], ["secret"], None),
    "a trusting master, a slave without": (["secret", "trust"], [], None),
    "both trust": (["secret", "trust"], ["secret", "trust"], None),
    "nobody has one": ([], [], None),
}


@pytest.mark.parametrize("kind", ["ours", "foreign", "classic"])
@pytest.mark.parametrize("case", CASES)
def test_who_follows_whom(case: str, kind: str, secret: str, other_secret: str, caplog: Any) -> None:
    def settings(words: list[str]) -> dict[str, Any]:
        path = secret if "secret" in words else other_secret if "other" in words else ""
        return {"ha_secret_file": path, "trust_peers": "trust" in words}

    master_words, slave_words, problem = CASES[case]

    async def run() -> None:
        master, slave = settings(master_words), settings(slave_words)
        group = Group(Node(0 if kind == "classic" else 1, **master), Node(2, **slave))
        async with group:
            group.nodes[2].ha.expect_master(rocketmq_peer=kind == "foreign")
            if kind == "classic":
                await without_controller(group)
            else:
                await group.elect(1)
            group.master.store.grow(RECORD)
            node = group.nodes[2]
            if problem is None:
                await until(lambda: node.store.confirmed == 10, case)
                assert state_of(node) == (State.FOLLOWING, None)
                assert node.ha.unproven is None
                link = group.master.ha.links.by_id.get(BrokerId(2))
                both_can = {"secret"} <= set(master_words) & set(slave_words)
                asked = kind == "ours" or "trust" not in slave_words or "trust" not in master_words
                assert (link is not None and link.proven == 2) == (both_can and asked)
            else:
                await until(lambda: state_of(node)[0] == State.UNPROVEN, case)
                assert problem in (node.ha.unproven or "")
                assert problem in caplog.text
                await asyncio.sleep(0.2)
                assert state_of(node)[0] == State.UNPROVEN, "while it tries again, too"
                assert (node.store.log.end, group.master.ha.slaves()) == (0, [])

    play(run())


def test_a_slave_follows_when_its_master_was_given_the_secret(secret: str) -> None:
    async def run() -> None:
        async with pair({}, {"ha_secret_file": secret}) as group:
            node = group.nodes[2]
            await until(lambda: node.ha.unproven is not None)
            port = group.master.config.ha_port
            await group.master.ha.stop()
            group.nodes[1] = again = Node(1, ha_secret_file=secret, ha_listen_port=port)
            await again.ha.start()
            await group.promote(1)
            again.store.grow(RECORD)
            await until(lambda: node.store.confirmed == 10)
            assert state_of(node) == (State.FOLLOWING, None)

    play(run())


def test_brokers_with_a_secret_replicate_fail_over_and_rejoin(secret: str) -> None:
    async def run() -> None:
        nodes = [Node(number, ha_secret_file=secret) for number in (1, 2, 3)]
        async with Group(*nodes) as group:
            for master in (1, 2, 3, 1):
                await group.elect(master)
                group.master.store.grow(RECORD * 500)
                await group.full()
                assert all(link.proven == number for number, link in group.master.ha.links.by_id.items())
            # A master that dies; one of the others is elected; it comes back as a slave.
            group.nodes[1].store.grow(RECORD)
            await group.level()
            await group.nodes[1].ha.become_fenced()
            await group.elect(2, followers=False)
            await group.follow(3)
            group.master.store.grow(RECORD)
            await group.follow(1)
            await group.full()
            group.assert_identical()
            assert [node.ha.turned_away_total for node in nodes] == [0, 0, 0]

    play(run())


def test_a_classic_slave_is_known_by_the_id_it_proved(secret: str) -> None:
    """So its second link takes the place of the first, and a stray one never counts."""

    async def run() -> None:
        master_settings = {"ha_secret_file": secret, "in_sync_replicas": 2}
        async with pair(master_settings, {"ha_secret_file": secret}, classic=True) as group:
            master = group.master
            master.store.grow(RECORD)
            await until(lambda: master.ha.replicated == 10)
            assert [entry["id"] for entry in master.ha.slaves()] == [2]
            stray = await connect(master)
            stray.writer.write((10).to_bytes(8, "big"))
            assert await stray.reader.read() == refusal(Reason.NEEDS_PROOF)
            first = master.ha.links.by_id[BrokerId(2)]
            second = await prove(master, 2)
            second.writer.write((0).to_bytes(8, "big"))
            await until(lambda: master.ha.links.by_id.get(BrokerId(2)) not in (None, first))
            assert master.ha.members == {0, 2}
            second.close()

    play(run())


def test_beside_trust_a_link_without_a_proof_takes_no_place_of_one_that_has_it(secret: str) -> None:
    async def run() -> None:
        settings = {"ha_secret_file": secret, "trust_peers": True}
        async with Group(Node(1, **settings), Node(2, **settings), Node(3)) as group:
            await group.elect(1)
            await group.full()
            assert {number: link.proven for number, link in group.master.ha.links.by_id.items()} == {
                2: 2,
                3: None,
            }
            kept = group.master.ha.links.by_id[BrokerId(2)]
            assert await (await forge(group.master, 2)).hung_up()
            assert group.master.ha.links.by_id[BrokerId(2)] is kept
            taken = group.master.ha.links.by_id[BrokerId(3)]
            await forge(group.master, 3)
            await until(lambda: group.master.ha.links.by_id.get(BrokerId(3)) not in (None, taken))

    play(run())


@pytest.mark.parametrize("proven", [False, True])
def test_a_newer_link_of_a_broker_inherits_nothing_of_the_older_one(proven: bool, secret: str) -> None:
    """A level, living link is replaced by one that says the same id and has an empty log: from its handshake
    on nothing is confirmed, it leaves the set, and what is heard on the older link counts nothing."""
    settings = {"ha_secret_file": secret} if proven else {}

    async def link_to(node: Node) -> RawSlave:
        return await prove(node, 2) if proven else await connect(node)

    async def run() -> None:
        async with Group(Node(1, **settings)) as group:
            await group.elect(1)
            master = group.master
            master.store.grow(RECORD)
            older = await link_to(master)
            await older.greet(2, answers_heartbeats=True)
            older.writer.write(encode_ack(10))
            await until(lambda: group.members == {1, 2})
            former = master.ha.links.by_id[BrokerId(2)]
            newer = await link_to(master)
            await newer.greet(2, answers_heartbeats=True)
            assert master.ha.links.by_id[BrokerId(2)] is not former
            assert [entry["ackOffset"] for entry in master.ha.slaves()] == [None]
            master.store.grow(RECORD)
            former.end = PhysicalOffset(20)
            master.ha.links.on_ack(former)
            await asyncio.sleep(0.05)
            assert (master.ha.replicated, master.store.confirmed) == (10, 10)
            assert await older.hung_up()
            newer.writer.write(encode_ack(0))
            await until(lambda: group.members == {1}, "a member without what is confirmed leaves the set")
            await until(lambda: master.ha.replicated == 20)
            newer.writer.write(encode_ack(20))
            await until(lambda: group.members == {1, 2}, "it is back once it has everything")
            newer.close()

    play(run())
