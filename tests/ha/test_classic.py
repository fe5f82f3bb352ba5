"""The promises of a group without Controller: the original's bytes on the HA port, and answers that wait for
so many slaves as the configuration says."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.master.ack_policy import AckPolicy, Wait
from ha.master.connected_set import ConnectedSet
from ha.slave.follower import State
from ha.wire.classic_codec import ReportReader, TransferReader
from model.config import BrokerConfig
from model.errors import ConfigError, PeerError
from model.ids import BrokerId, Epoch, PhysicalOffset
from tests.fakes.ha.fed import Fed
from tests.fakes.ha.frames import ack, encode_header, encode_report, transfer
from tests.fakes.ha.group import Node
from tests.plain import broker_ids
from tests.waiting import until


@contextlib.asynccontextmanager
async def classic(*slaves: Node, data: bytes = b"", **settings: object) -> AsyncIterator[Node]:
    """A classic master whose log holds ``data``, and its slaves."""
    master = Node(0, **settings)
    master.store.grow(data)
    nodes = [master, *slaves]
    try:
        for node in nodes:
            await node.ha.start()
        await master.ha.become_master(BrokerId(0), Epoch(0), broker_ids({0}), 0, None)
        for slave in slaves:
            await slave.ha.become_slave(BrokerId(slave.id), Epoch(0), master.address)
        yield master
    finally:
        for node in nodes:
            await node.ha.stop()


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1), st.lists(st.integers(0, 100)))
def test_the_newest_report_survives_any_cut_of_the_stream(ends: list[int], cuts: list[int]) -> None:
    data = b"".join(encode_report(end) for end in ends)
    reader, found, at = ReportReader(), [], 0
    for cut in [*cuts, len(data)]:
        found += reader.feed(data[at : at + cut])
        at += cut
    assert found[-1] == ack(ends[-1])


@given(st.lists(st.tuples(st.integers(0, 2**40), st.binary(max_size=50))), st.lists(st.integers(0, 100)))
def test_transfers_survive_any_cut_of_the_stream(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(encode_header(offset, len(body)) + body for offset, body in frames)
    reader, found, at = Fed(TransferReader()), [], 0
    for cut in [*cuts, len(data)]:
        found += reader.feed(data[at : at + cut])
        at += cut
    assert found == [transfer(offset, 0, 0, 0, body) for offset, body in frames]


@pytest.mark.parametrize(
    "data",
    [encode_header(-1, 0), encode_header(0, -1), encode_header(0, 1 << 30), encode_header(2**63 - 1, 9)],
)
def test_frames_no_master_sends_are_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        Fed(TransferReader()).feed(data)


def test_a_negative_report_is_refused() -> None:
    with pytest.raises(PeerError):
        ReportReader().feed(encode_report(-1))


async def test_slaves_copy_what_the_master_has_and_gets_and_serve_all_of_it() -> None:
    slaves = Node(1), Node(2)
    async with classic(*slaves, data=b"0123456789" * 1000) as master:
        await until(lambda: all(s.store.log.end == 10_000 for s in slaves))
        master.store.grow(b"abcdefghij")
        await until(lambda: all(s.store.confirmed == 10_010 for s in slaves))
        assert {bytes(s.store.log.data) for s in slaves} == {bytes(master.store.log.data)}
        await until(lambda: [e["ackOffset"] for e in master.ha.slaves()] == [10_010, 10_010])
        assert master.ha.members == {0, 1, 2}


async def test_an_answer_waits_for_in_sync_replicas_of_connected_slaves() -> None:
    one, two = Node(1), Node(2)
    async with classic(one, in_sync_replicas=3, min_in_sync_replicas=2) as master:
        await until(lambda: len(master.ha.members) == 2)
        master.store.grow(b"0123456789")
        await until(lambda: one.store.log.end == 10)
        await asyncio.sleep(0.05)
        assert master.ha.replicated < 10, "one slave of two has it"
        assert master.store.confirmed == 10, (
            "as in the original, consumers of a classic group wait for nobody"
        )
        assert master.ha.refuse() is None
        await two.ha.start()
        await two.ha.become_slave(BrokerId(2), Epoch(0), master.address)
        await until(lambda: master.ha.replicated == 10)
        await two.ha.stop()
        await one.ha.stop()
        await until(lambda: len(master.ha.members) == 1)
        refused = master.ha.refuse()
        assert refused is not None
        assert refused.code == 1


async def test_an_async_master_waits_for_nobody() -> None:
    async with classic(broker_role="ASYNC_MASTER", in_sync_replicas=2) as master:
        master.store.grow(b"0123456789")
        assert master.ha.replicated == 10


async def test_the_bytes_on_the_port_are_the_originals() -> None:
    async with classic(data=b"0123456789" * 500, ha_heartbeat_ms=50) as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_port)
        writer.write(struct.pack(">q", 4000))
        # To the end of the segment (4096 bytes), then the rest, then heartbeats with the next offset.
        assert struct.unpack(">qi", await reader.readexactly(12)) == (4000, 96)
        assert await reader.readexactly(96) == (b"0123456789" * 500)[4000:4096]
        assert struct.unpack(">qi", await reader.readexactly(12)) == (4096, 904)
        await reader.readexactly(904)
        assert struct.unpack(">qi", await reader.readexactly(12)) == (5000, 0)
        writer.close()


@pytest.mark.parametrize(("last_file", "begin"), [(True, 4096), (False, 0)])
async def test_an_empty_slave_gets_the_whole_log_or_as_the_original_does_the_last_segment(
    last_file: bool, begin: int
) -> None:
    async with classic(data=b"0123456789" * 500, sync_from_last_file=last_file) as master:
        reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_port)
        writer.write(struct.pack(">q", 0))
        offset, _ = struct.unpack(">qi", await reader.readexactly(12))
        assert offset == begin
        writer.close()


async def test_a_slave_of_a_master_that_deleted_its_range_or_has_another_log_says_so() -> None:
    behind, ahead = Node(1), Node(2)
    behind.store.grow(b"0123456789")
    ahead.store.grow(b"x" * 50_000)
    async with classic(data=b"0123456789" * 1000) as master:
        del master.store.log.data[:4096]
        master.store.log.min_offset = 4096
        for slave in (behind, ahead):
            await slave.ha.start()
            await slave.ha.become_slave(BrokerId(slave.id), Epoch(0), master.address)
            await until(lambda s=slave: s.ha.needs_reseed is not None)  # type: ignore[misc]
        assert "is gone there" in (behind.ha.needs_reseed or "")
        assert "not the log we copied" in (ahead.ha.needs_reseed or "")
        assert ahead.store.log.end == 50_000
        assert behind.ha.status()["following"]["state"] == State.NEEDS_RESEED
        await behind.ha.stop()
        await ahead.ha.stop()


async def test_a_slave_whose_master_lost_the_end_of_its_log_and_wrote_on_does_not_continue_it() -> None:
    """The master wrote other bytes where the slave has what only it still holds, and is beyond it by now:
    from the slave's end on, the stream begins in the middle of a record."""

    slave = Node(1, auto_reseed=True)
    slave.store.grow(b"0123456789" * 300 + b"the end, lost there.")
    slave.store.confirm(slave.store.log.end)
    async with classic(slave, data=b"0123456789" * 300 + b"what was written since" * 100):
        await until(lambda: slave.ha.needs_reseed is not None)
        assert "differs from the master's at 3000" in (slave.ha.needs_reseed or "")
        await asyncio.sleep(0.3)
        assert slave.store.log.end == 3020, "nothing is added to it, nothing is cut from it"
        assert not slave.ha.follows


async def test_where_a_slave_says_it_ends_acknowledges_nothing_before_it_has_compared() -> None:
    """The master wrote on where it had lost its end, and answers wait for a slave. The one that comes holds
    other bytes there, as far back as it does not look."""

    slave = Node(1)
    slave.store.grow(b"0123456789" * 300 + b"the end, lost there." * 60)
    assert slave.store.log.end % slave.config.segment_bytes < 1000
    async with classic(slave, data=b"0123456789" * 300, in_sync_replicas=2) as master:
        answered: list[int] = []
        master.ha.on_replicated.append(answered.append)
        master.store.grow(b"what was written since" * 100)
        await until(lambda: slave.ha.needs_reseed is not None)
        await asyncio.sleep(0.1)
        assert answered == []


@pytest.mark.parametrize("lost", [1, 10, 2000])
async def test_a_slave_that_is_longer_than_its_master_says_so(
    lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ha.slave.tail.COMPARE_WAIT_MS", 150)

    slave = Node(1)
    slave.store.grow(b"0123456789" * 300)
    async with classic(slave, data=(b"0123456789" * 300)[:-lost], in_sync_replicas=2) as master:
        await until(lambda: slave.ha.needs_reseed is not None)
        assert slave.store.log.end == 3000
        master.store.grow(b"x" * 5000)
        await asyncio.sleep(0.3)
        assert slave.ha.needs_reseed is not None, "also when the master is beyond it by now"
        assert slave.store.log.end == 3000
        assert master.ha.replicated == 0


@pytest.mark.parametrize("end", [10, 4095, 4096, 4097, 9000])
async def test_a_slave_that_comes_back_goes_on_where_it_was(end: int) -> None:
    slave, data = Node(1), b"0123456789" * 1000
    slave.store.grow(data[:end])
    # To one that says 0 such a master would send the last segment only.
    async with classic(slave, data=data, in_sync_replicas=2, sync_from_last_file=True) as master:
        # What is cut off as half a record comes again.
        await until(lambda: slave.store.log.end == 10_000)
        assert bytes(slave.store.log.data) == data
        await until(lambda: master.ha.replicated == 10_000)
        await slave.ha.become_fenced()
        await slave.ha.become_slave(BrokerId(1), Epoch(0), master.address)
        await until(lambda: slave.ha.follows)
        await until(lambda: [s["ackOffset"] for s in master.ha.slaves()] == [10_000])


async def test_a_stray_connection_moves_no_ack_of_a_classic_master() -> None:
    """What it says was never sent to it, or lies beyond the log: the link ends."""

    async with classic(data=b"0123456789" * 10, in_sync_replicas=2) as master:
        for first in (b"GET / HTTP/1.1\r\n\r\n", struct.pack(">q", -5), struct.pack(">q", 10_000)):
            _, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_port)
            writer.write(first)
            await until(lambda: not master.ha.slaves())
            writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", master.config.ha_port)
        writer.write(struct.pack(">q", 100))
        await until(lambda: master.ha.slaves())
        writer.write(struct.pack(">q", 100))
        await until(lambda: master.ha.replicated == 100)
        writer.write(struct.pack(">q", 110))
        while await reader.read(1000):
            pass
        await until(lambda: not master.ha.slaves())
        master.store.grow(b"0123456789")
        assert master.ha.replicated == 100
        writer.close()


@given(st.lists(st.tuples(st.sampled_from(["grow", "join", "ack", "leave"]), st.integers(1, 4)), max_size=40))
def test_replicated_is_what_so_many_connected_slaves_have(steps: list[tuple[str, int]]) -> None:
    sync = ConnectedSet(
        BrokerId(0),
        AckPolicy(Wait.COUNT, acks_min=2),
        end=PhysicalOffset(0),
        flushed=PhysicalOffset(0),
        confirmed=PhysicalOffset(0),
    )
    ends: dict[int, int] = {}
    most = 0
    for step, who in steps:
        if step == "grow":
            sync.on_append(PhysicalOffset(sync.end + who))
        elif step == "join":
            sync.on_connect(BrokerId(who), 0)
            ends[who] = -1
        elif step == "ack" and who in ends:
            ends[who] = sync.end
            sync.on_ack(BrokerId(who), sync.end, 0)
        elif step == "leave":
            sync.on_disconnect(BrokerId(who))
            ends.pop(who, None)
        most = max([most, *ends.values()])
        assert sync.replicated <= most
        assert sync.members == {0, *ends}
        sync.check_invariants()
        assert sync.confirmed == sync.end


def test_roles_that_cannot_be_are_named_before_the_start() -> None:
    for keys in (
        {"brokerRole": "SLAVE"},
        {"brokerRole": "SLAVE", "brokerId": "0"},
        {"brokerRole": "SYNC_MASTER", "brokerId": "2"},
    ):
        with pytest.raises(ConfigError, match="brokerId"):
            BrokerConfig.from_mapping(keys)
    assert BrokerConfig.from_mapping({"brokerRole": "SLAVE", "brokerId": "1"}).broker_id == 1


def test_of_connections_that_ended_only_those_are_remembered_that_prove_what_was_answered() -> None:
    """A slave without an id is another one on each connection: it connects anew for months."""
    begin = PhysicalOffset(0)
    master = ConnectedSet(BrokerId(0), AckPolicy(Wait.COUNT, 2), begin, begin, begin)
    for number in range(1, 500):
        slave = BrokerId(number)
        master.on_connect(slave, 0.0)
        master.on_append(PhysicalOffset(100 * number))
        if number % 3:
            master.on_ack(slave, PhysicalOffset(100 * number), 0.0)
        master.check_invariants()
        master.on_checked()
        master.on_disconnect(slave)
        master.check_invariants()
        assert len(master.evidence.acknowledged) <= 2
    assert master.replicated == 49_900
