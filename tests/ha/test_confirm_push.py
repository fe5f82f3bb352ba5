"""The promise of ha.master.links: a confirmOffset goes out alone only where no data carries it."""

from __future__ import annotations

import asyncio

import pytest

from ha.master import links
from tests.fakes.ha.frames import encode_ack
from tests.fakes.ha.group import Group, Node, with_master
from tests.fakes.ha.raw_slave import RawSlave


def test_what_is_confirmed_goes_out_alone_only_where_no_data_carries_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "CONFIRM_PUSH_S", 1.0)

    async def test(group: Group, node: Node) -> None:
        slave = await RawSlave.connect(node)
        await slave.greet(answers_heartbeats=True)
        slave.writer.write(encode_ack(0))
        assert not (await slave.transfer()).body  # it is level
        begun_ms, told = node.env.monotonic_ms(), 0
        while node.env.monotonic_ms() - begun_ms < 1300:
            node.store.grow(b"0123456789")
            frame = await slave.transfer()
            assert frame.body, "what was confirmed before is in each frame with data"
            assert frame.confirmed >= told
            told = frame.confirmed
            slave.writer.write(encode_ack(node.store.log.end))
            await asyncio.sleep(0.005)
        assert told > 0
        last = await slave.transfer()
        assert (last.body, last.confirmed) == (b"", node.store.log.end)
        slave.close()

    with_master(test)
