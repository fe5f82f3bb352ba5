"""A broker whose store breaks in the middle of a change takes up no role at its end."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.upkeep.topic_repair import TopicRepair
from model.errors import DiskError
from model.ids import BrokerId, Epoch, PhysicalOffset
from runtime.turns import Slice
from store.files.epoch_file import EpochEntry
from tests.broker.helpers import elected, eventually, pair


async def test_a_store_that_breaks_while_its_broker_becomes_master_makes_no_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair(tmp_path) as (_, two):
        look = TopicRepair.look

        async def breaks(repair: TopicRepair, slice_: Slice) -> None:
            await look(repair, slice_)
            for hook in two.store.on_broken:
                hook(DiskError("no sync"))

        monkeypatch.setattr(TopicRepair, "look", breaks)
        await two.lead(elected(2, 2, {1, 2}, 3))
        assert not two.role_state.is_master
        await eventually(lambda: two.role_state.role == "fenced", "it fences itself")


async def test_a_broken_broker_follows_nobody_and_takes_no_writes_again(tmp_path: Path) -> None:
    async with pair(tmp_path) as (one, two):
        for hook in one.store.on_broken:
            hook(DiskError("no sync"))
        one.roles.resume()
        await eventually(lambda: one.role_state.role == "fenced", "it fences itself")
        await one.follow(BrokerId(1), Epoch(2), two.config.address, two.config.ha_address)
        assert one.role_state.role == "fenced"


async def test_an_epoch_whose_first_bytes_never_came_keeps_nobody_from_leading(tmp_path: Path) -> None:
    """Noted before its bytes, as builds before this one did when the append behind it failed."""
    async with pair(tmp_path) as (_, two):
        end = two.store.log.end
        two.store.epochs.append(Epoch(7), PhysicalOffset(end + 100))
        await two.lead(elected(2, 8, {1, 2}, 3))
        assert two.role_state.is_master
        assert two.store.epochs.entries[-1] == EpochEntry(Epoch(8), end)
