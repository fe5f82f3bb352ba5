"""The promise of the HA port: real peers are served as they expect, strangers move nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from ha.master import slave_link as link_of_master
from ha.master.log_reader import KEPT_BYTES_MIN, LogReader
from ha.master.slave_link import SlaveLink
from ha.slave import master_link as link_module
from ha.wire.codec import encode_slave_handshake
from model.ids import BrokerId, Epoch, PhysicalOffset
from runtime.env import Buffer
from store.message_store import MessageStore
from tests.fakes.ha.frames import (
    encode_ack,
    encode_master_handshake,
    encode_transfer_header,
    master_handshake,
    slave_handshake,
    transfer,
)
from tests.fakes.ha.group import Group, Node, with_master
from tests.fakes.ha.raw_slave import RawSlave
from tests.fakes.ha.store import FakeStore
from tests.ports import free_port
from tests.waiting import until


def test_a_handshake_cut_in_pieces_is_waited_for_whole() -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        data = encode_slave_handshake(slave_handshake(2**33, False, False))
        for at in range(len(data)):
            slave.writer.write(data[at : at + 1])
            await asyncio.sleep(0.001)
        frame = await slave.next()
        assert frame == master_handshake(30, 1, ((1, 0),))
        assert [entry["id"] for entry in node.ha.slaves()] == [2**33]
        slave.close()

    with_master(test, b"0123456789" * 3)


def test_a_real_slave_that_says_its_handshake_again_is_answered_once_and_served() -> None:
    # AutoSwitchHAClient does while it has not the whole answer: after 5 s, or when that came in two pieces.
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        handshake = encode_slave_handshake(slave_handshake(2, False, False))
        slave.writer.write(handshake)
        assert await slave.next() == master_handshake(10, 1, ((1, 0),))
        slave.writer.write(handshake * 2 + encode_ack(0))
        assert (await slave.transfer()).body == b"0123456789"
        assert [entry["id"] for entry in node.ha.slaves()] == [2]
        slave.close()

    with_master(test, b"0123456789")


def test_frames_respect_batch_segment_and_epoch_ends_and_are_labelled_as_a_real_masters() -> None:
    async def test(group: Group, node: Node) -> None:
        node.store.grow(b"x" * 5000)
        await group.elect(1)
        node.store.grow(b"y" * 3000)
        slave = await RawSlave.connect(node)
        await slave.greet()
        slave.writer.write(encode_ack(0))
        got, at = [], 0
        while at < 8000:
            frame = await slave.transfer()
            assert frame.offset == at
            at += len(frame.body)
            got.append((frame.offset, len(frame.body), frame.epoch, frame.epoch_start))
        # Segments of 4096 bytes; epoch 2 starts at 5000 and is announced by the batch that ends there.
        assert got == [(0, 4096, 1, 0), (4096, 904, 2, 5000), (5000, 3000, 2, 5000)]
        slave.close()

    with_master(test)


def test_the_first_ack_of_a_level_slave_is_answered_at_once() -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet()
        slave.writer.write(encode_ack(10))
        assert await slave.transfer() == transfer(10, 1, 0, 10, b"")
        slave.close()

    with_master(test, b"0123456789")


def test_level_slaves_are_served_from_one_read_of_the_log() -> None:
    async def test(group: Group, node: Node) -> None:
        slaves = [await RawSlave.connect(node) for _ in range(3)]
        for broker_id, slave in enumerate(slaves, 2):
            await slave.greet(broker_id)
            slave.writer.write(encode_ack(0))
            await slave.transfer()
        reads: list[tuple[int, int]] = []
        read = node.store.log.read

        def counted(offset: int, size_max: int) -> bytes:
            reads.append((offset, size_max))
            data: bytes = read(offset, size_max)
            return data

        node.store.log.read = counted
        for number in range(5):
            data = b"%010d" % number * 3
            node.store.grow(data)
            for slave in slaves:
                assert (await slave.transfer()).body == data
        assert reads == [(number * 30, 30) for number in range(5)]
        # A slave that comes later is sent what the log holds then: a repair may have mended what was read.
        node.store.log.data[:10] = b"mended!!!!"
        late = await RawSlave.connect(node)
        await late.greet(9)
        late.writer.write(encode_ack(0))
        assert (await late.transfer()).body == bytes(node.store.log.data)
        for slave in (*slaves, late):
            slave.close()

    with_master(test)


def test_slaves_at_different_places_of_the_log_get_each_its_own_bytes() -> None:
    store = FakeStore()
    store.log.data += bytes(range(256)) * 40  # more than two segments

    class Reading:
        def __init__(self, *asked: tuple[int, int]) -> None:
            self.asked = asked
            self.got: list[Buffer] = []

        def pump(self) -> None:
            self.got = [shared.read(PhysicalOffset(offset), size) for offset, size in self.asked]

    shared = LogReader(cast(MessageStore, store))
    links = [
        Reading((0, 100)),
        Reading((50, 100), (0, 40)),
        Reading((0, 300)),
        Reading((4000, 500), (10_240, 9)),
    ]
    shared.turn(cast(list[SlaveLink], links))
    for link in links:
        assert link.got == [store.log.read(offset, size) for offset, size in link.asked]
    store.log.data[:3] = b"new"
    assert shared.read(PhysicalOffset(0), 3) == b"new"


def test_what_was_appended_in_the_turn_is_not_read_from_the_log() -> None:
    store = FakeStore(segment_bytes=1 << 20)
    shared, got = LogReader(cast(MessageStore, store)), list[bytes]()

    class Reading:
        def pump(self) -> None:
            for offset, size in ((0, KEPT_BYTES_MIN), (5, 100), (KEPT_BYTES_MIN, 40)):
                got.append(bytes(shared.read(PhysicalOffset(offset), size)))

    def turn() -> list[bytes]:
        reads.clear()
        got.clear()
        shared.turn(cast(list[SlaveLink], [Reading()]))
        return list(got)

    reads, read = list[int](), store.log.read

    def counted(offset: int, size_max: int) -> bytes:
        reads.append(offset)
        return read(offset, size_max)

    store.log.read = counted  # type: ignore[method-assign]
    store.on_append.append(lambda end: shared.appended(store.appended))
    first, small = random.Random(1).randbytes(KEPT_BYTES_MIN), b"small" * 8
    store.grow(first)
    store.grow(small)
    expected = [first, first[5:105], small]
    assert turn() == expected
    assert reads == [KEPT_BYTES_MIN], "what is short is read: a frame of its own would cost the slave more"
    assert turn() == expected
    assert len(reads) == 3, "it is kept for one turn"
    store.log.data.clear()
    store.grow(first)
    store.log.generation += 1  # it was cut, and is another one now
    store.log.data[:] = b"x" * len(first)
    store.grow(small)
    assert turn() == [b"x" * len(first), b"x" * 100, small]


def test_appends_of_one_turn_of_the_loop_travel_together() -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet()
        slave.writer.write(encode_ack(0))
        await slave.transfer()
        for _ in range(5):
            node.store.grow(b"0123456789")
        assert (await slave.transfer()).body == b"0123456789" * 5
        slave.close()

    with_master(test)


@pytest.mark.parametrize("answers", [True, False])
def test_while_an_answer_is_under_way_appends_are_gathered(
    monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(link_of_master, "ACK_WAIT_S", 60.0 if answers else 0.02)

    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet(answers_heartbeats=True)
        slave.writer.write(encode_ack(0))
        assert (await slave.transfer()).body == b"0"  # it answers nothing yet
        for number in range(1, 10):
            node.store.grow(b"%d" % number)
            if answers:
                await asyncio.sleep(0.001)
        if answers:
            slave.writer.write(encode_ack(1))
        while not (frame := await slave.transfer()).body:
            pass  # a heartbeat
        assert frame.body == b"123456789", "in one, also where no answer comes"
        slave.close()

    with_master(test, b"0")


def test_a_slave_that_syncs_from_the_last_file_gets_the_last_segment() -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet(from_last_file=True)
        slave.writer.write(encode_ack(0))
        assert (await slave.transfer()).offset == 8192
        slave.close()

    with_master(test, b"0123456789" * 1000)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("a stranger", b"GET / HTTP/1.1\r\n\r\n"),
        ("a classic slave", (0).to_bytes(8, "big") * 2),
        ("id 0", encode_slave_handshake(slave_handshake(0, False, False))),
        ("a negative id", encode_slave_handshake(slave_handshake(-5, False, False))),
        ("the master's own id", encode_slave_handshake(slave_handshake(1, False, False))),
        ("an ack before the handshake", encode_ack(10) * 2),
        (
            "an ack beyond the log",
            encode_slave_handshake(slave_handshake(2, False, False)) + encode_ack(11),
        ),
        (
            "a negative ack",
            encode_slave_handshake(slave_handshake(2, False, False)) + encode_ack(-1),
        ),
        (
            "an ack that goes back",
            encode_slave_handshake(slave_handshake(2, False, False)) + encode_ack(10) + encode_ack(5),
        ),
    ],
)
def test_what_no_slave_sends_ends_the_connection_and_moves_nothing(what: str, data: bytes) -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        slave.writer.write(data)
        assert await slave.hung_up(), what
        slave.close()
        await until(lambda: node.ha.slaves() == [])
        await until(lambda: group.members == {1})
        node.store.grow(b"0123456789")
        await until(lambda: node.ha.replicated == 20, "writes go on")

    with_master(test, b"0123456789")


def test_an_ack_for_bytes_never_sent_on_this_connection_is_refused() -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet()
        slave.writer.write(encode_ack(0))
        await slave.transfer()
        slave.writer.transport.pause_reading()  # type: ignore[attr-defined]
        node.store.grow(b"z" * 40_000_000)  # more than the window: the rest waits in the log
        slave.writer.write(encode_ack(40_000_000))
        await until(lambda: node.ha.slaves() == [], "the forger is gone")
        slave.writer.transport.abort()

    with_master(test)


def test_a_slave_that_does_not_read_costs_a_bounded_buffer() -> None:
    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet()
        slave.writer.write(encode_ack(0))
        slave.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: node.ha.slaves()[0]["ackOffset"] == 0)
        node.store.grow(b"z" * 40_000_000)
        await asyncio.sleep(0.1)
        link = node.ha.links.by_id[BrokerId(2)]
        assert link._transport is not None
        assert link._transport.get_write_buffer_size() < 2 * 1024 * 1024
        assert link.next < 40_000_000
        slave.writer.transport.abort()

    with_master(test)


def test_the_same_broker_connecting_again_replaces_its_former_connection() -> None:
    async def test(group: Group, node: Node) -> None:
        first = await RawSlave.connect(node)
        await first.greet(2)
        second = await RawSlave.connect(node)
        await second.greet(2)
        assert await first.hung_up()
        second.writer.write(encode_ack(0))
        assert (await second.transfer()).body == b"0123456789"
        assert len(node.ha.slaves()) == 1
        first.close()
        second.close()

    with_master(test, b"0123456789")


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with Group(Node(1, ha_housekeeping_ms=200)) as group:
        await group.elect(1)
        slave = await RawSlave.connect(group.master)
        assert await slave.hung_up()
        slave.close()


# The slave's side: a master written by hand


class RawMaster:
    """Sends each slave that connects what ``script`` says, after its handshake came."""

    def __init__(self, script: bytes, cuts: random.Random | None = None) -> None:
        self.port = free_port()
        self.script = script
        self.cuts = cuts
        self.connections = 0
        self.received = b""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> RawMaster:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await reader.readexactly(16)
            rest = self.script
            while rest:
                size = self.cuts.randrange(1, 50) if self.cuts is not None else len(rest)
                writer.write(rest[:size])
                rest = rest[size:]
                await asyncio.sleep(0)
            while data := await reader.read(4096):
                self.received += data
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def frame(offset: int, body: bytes, epoch: int = 1, start: int = 0, confirmed: int = 0) -> bytes:
    return encode_transfer_header(offset, len(body), epoch, start, confirmed) + body


def with_slave(script: bytes, test: Callable[[RawMaster, Node], Awaitable[None]], seed: int = -1) -> None:
    async def run() -> None:
        node = Node(2, ha_heartbeat_ms=60_000, ha_housekeeping_ms=60_000)
        async with RawMaster(script, random.Random(seed) if seed >= 0 else None) as master, Group(node):
            await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{master.port}")
            await test(master, node)
            await node.ha.become_fenced()

    asyncio.run(run())


HELLO = encode_master_handshake(40, [(1, 0)])


@pytest.mark.parametrize("seed", range(5))
def test_a_slave_takes_a_masters_stream_cut_anywhere(seed: int) -> None:
    script = HELLO + b"".join(frame(at, b"0123456789", confirmed=at) for at in range(0, 1000, 10))

    async def test(master: RawMaster, node: Node) -> None:
        await until(lambda: node.store.log.end == 1000)
        assert bytes(node.store.log.data) == b"0123456789" * 100
        assert node.store.confirmed == 990
        await until(lambda: master.received.endswith(encode_ack(1000)), "it reports how far it got")
        assert master.received.startswith(encode_ack(0)), "at once after the handshake"

    with_slave(script, test, seed)


def test_a_short_epoch_a_real_master_never_labels_is_learned_from_its_handshake() -> None:
    script = encode_master_handshake(30, [(1, 0), (2, 10), (5, 20)])
    script += frame(0, b"0123456789", 2, 10) + frame(10, b"0123456789", 5, 20) + frame(20, b"", 5, 20)

    async def test(master: RawMaster, node: Node) -> None:
        await until(lambda: node.store.log.end == 20)
        assert node.store.epochs.entries == [(1, 0), (2, 10), (5, 20)]

    with_slave(script, test)


def test_a_real_master_without_a_log_says_so_until_it_has_one() -> None:
    # AutoSwitchHAConnection knows no place to go on from then, and says -1 in its heartbeats.
    script = encode_master_handshake(0, [(3, 0)]) + frame(-1, b"", 3) * 2 + frame(0, b"0123456789", 3)

    async def test(master: RawMaster, node: Node) -> None:
        await until(lambda: node.store.log.end == 10)
        assert master.connections == 1
        assert node.store.epochs.entries == [(3, 0)]

    with_slave(script, test)


@pytest.mark.parametrize(
    ("what", "script", "kept"),
    [
        ("not a handshake", b"\0\0\0\5" * 8, 0),
        ("a frame at another offset", HELLO + frame(0, b"0123456789") + frame(0, b"0123456789"), 10),
        ("a huge body", HELLO + encode_transfer_header(0, 2**31 - 1, 1, 0, 0), 0),
        ("no place in a log", HELLO + frame(0, b"0123456789") + frame(-1, b""), 10),
        ("an epoch that goes back", HELLO + frame(0, b"0123456789", 3) + frame(10, b"0123456789", 2), 10),
        ("an epoch that moves", HELLO + frame(0, b"0123456789", 3, 0) + frame(10, b"0123456789", 3, 5), 10),
        ("an epoch from the future", HELLO + frame(0, b"0123456789", 3, 500), 0),
        ("a state of no frame", HELLO + b"\0\0\0\3" + frame(0, b"")[4:], 0),
    ],
)
def test_what_no_master_sends_ends_the_connection_and_is_tried_again(
    what: str, script: bytes, kept: int
) -> None:
    async def test(master: RawMaster, node: Node) -> None:
        await until(lambda: master.connections >= 2, what)
        assert node.store.log.end == kept
        assert node.ha.needs_reseed is None

    with_slave(script, test)


def test_a_master_that_knows_only_older_epochs_cuts_nothing() -> None:
    async def test(master: RawMaster, node: Node) -> None:
        await node.ha.become_fenced()
        node.store.log.data += b"0123456789" * 5
        node.store.epochs.append(1, 0)
        node.store.epochs.append(3, 20)
        await node.ha.become_slave(BrokerId(2), Epoch(4), f"127.0.0.1:{master.port}")
        await until(lambda: "newest epoch is 1" in str(node.ha.status()["following"]["reason"]))
        assert node.store.log.end == 50
        assert node.store.cuts == []

    with_slave(HELLO, test)


def test_a_real_master_that_recorded_no_epoch_is_followed_when_it_was_elected_since() -> None:
    async def test(master: RawMaster, node: Node) -> None:
        await node.ha.become_fenced()
        node.store.log.data += b"0123456789" * 5
        node.store.epochs.append(1, 0)
        node.store.epochs.append(3, 20)
        master.script = encode_master_handshake(20, [(1, 0)]) + frame(20, b"of epoch 4")
        node.ha.expect_master(rocketmq_peer=True)
        await node.ha.become_slave(BrokerId(2), Epoch(3), f"127.0.0.1:{master.port}")
        await until(lambda: "newest epoch is 1" in str(node.ha.status()["following"]["reason"]))
        assert node.store.cuts == [], "the Controller's word is no newer than our log"
        await node.ha.become_slave(BrokerId(2), Epoch(4), f"127.0.0.1:{master.port}")
        await until(lambda: bytes(node.store.log.data[20:]) == b"of epoch 4")
        assert node.store.cuts == [20]

    with_slave(HELLO, test)


def test_a_real_master_without_our_newest_epoch_cuts_nothing_that_was_confirmed() -> None:
    async def test(master: RawMaster, node: Node) -> None:
        await node.ha.become_fenced()
        node.store.log.data += b"0123456789" * 5
        node.store.epochs.append(1, 0)
        node.store.epochs.append(3, 20)
        node.store.confirm(40)
        master.script = encode_master_handshake(30, [(1, 0)])
        node.ha.expect_master(rocketmq_peer=True)
        await node.ha.become_slave(BrokerId(2), Epoch(4), f"127.0.0.1:{master.port}")
        await until(lambda: "confirmed up to 40" in str(node.ha.status()["following"]["reason"]))
        assert node.store.cuts == []

    with_slave(HELLO, test)


@pytest.mark.parametrize("rocketmq_peer", [True, False])
async def test_a_real_master_that_is_elected_again_is_asked_for_its_epochs_once(
    rocketmq_peer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # AutoSwitchHAConnection goes on under the old epoch's number; who believes that cuts all of it one day.
    monkeypatch.setattr(link_module, "ANEW_MS", 200)

    node = Node(2, ha_heartbeat_ms=50, ha_housekeeping_ms=60_000)
    script = encode_master_handshake(20, [(1, 0)]) + frame(0, b"0123456789" * 3, confirmed=30)
    async with RawMaster(script) as master, Group(node):
        node.ha.expect_master(rocketmq_peer=rocketmq_peer)
        told: list[int] = []

        async def tell() -> None:
            told.append(node.store.log.end)

        node.ha.conditions.before_reseed = tell
        await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{master.port}")
        await until(lambda: node.store.log.end == 30)
        master.script = encode_master_handshake(30, [(1, 0), (2, 20)]) + frame(20, b"0123456789", 2, 20)
        await node.ha.become_slave(BrokerId(2), Epoch(2), f"127.0.0.1:{master.port}")
        # Once more for the cut: the Controllers hear first that what is confirmed here goes.
        connections = 3 if rocketmq_peer else 1
        await until(lambda: master.connections == connections)
        if rocketmq_peer:
            await until(lambda: node.store.log.end == 30 and node.store.epochs.last == (2, 20))
        await asyncio.sleep(0.6)
        assert master.connections == connections, "and no more"
        assert told == ([30] if rocketmq_peer else [])
        assert node.store.epochs.entries == ([(1, 0), (2, 20)] if rocketmq_peer else [(1, 0)])
        assert bytes(node.store.log.data) == b"0123456789" * 3
        await node.ha.become_fenced()


async def test_a_silent_slave_is_left_and_a_real_one_is_given_the_time_its_kind_takes() -> None:
    async with Group(Node(1, ha_heartbeat_ms=50, ha_housekeeping_ms=200)) as group:
        await group.elect(1)
        real, ours = await RawSlave.connect(group.master), await RawSlave.connect(group.master)
        await real.greet(2, answers_heartbeats=False)
        await ours.greet(3, answers_heartbeats=True)
        assert await ours.hung_up()
        await asyncio.sleep(0.5)
        assert [slave["id"] for slave in group.master.ha.slaves()] == [2]
        real.close()
        ours.close()


async def test_a_real_master_is_given_the_time_its_kind_takes_between_heartbeats() -> None:
    node = Node(2, ha_heartbeat_ms=100, ha_housekeeping_ms=200)
    async with RawMaster(HELLO) as master, Group(node):
        node.ha.expect_master(rocketmq_peer=True)
        await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{master.port}")
        await asyncio.sleep(1)
        assert master.connections == 1
        await node.ha.become_fenced()


async def test_a_master_that_falls_silent_is_left() -> None:
    node = Node(2, ha_heartbeat_ms=100, ha_housekeeping_ms=200)
    async with RawMaster(HELLO) as master, Group(node):
        await node.ha.become_slave(BrokerId(2), Epoch(1), f"127.0.0.1:{master.port}")
        await until(lambda: master.connections >= 2, "it connects again")
        assert "nothing from the master" in str(node.ha.status()["following"]["reason"])
        await node.ha.become_fenced()


async def test_a_fenced_slave_appends_nothing_more() -> None:
    async with Group(Node(1), Node(2)) as group:
        await group.elect(1)
        await group.full()
        group.master.store.grow(b"0123456789")
        node = group.nodes[2]
        stopping = asyncio.ensure_future(node.ha.become_fenced())
        await asyncio.sleep(0)
        end = node.store.log.end
        group.master.store.grow(b"0123456789")
        await stopping
        await asyncio.sleep(0.05)
        assert node.store.log.end == end
        assert node.ha.status()["following"] is None
