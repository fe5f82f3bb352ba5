"""The promise of a broker whose process runs out of descriptors: nothing breaks, clients hear a refusal, and
it serves again by itself."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from model.codes import Response
from remoting.guard import PROBATION_SHORT
from runtime.descriptors import SPARE
from tests.broker.helpers import client_of, eventually, running
from tests.descriptors import no_descriptors


class Out:
    """While ``now`` no file is opened and no directory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = False
        original = os.open

        def open_(path: str, flags: int, mode: int = 0o777) -> int:
            if self.now:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
            return original(path, flags, mode)

        patch.setattr(os, "open", open_)


async def test_without_descriptors_writes_are_refused_and_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Out(monkeypatch)
    keys = {"flushIntervalConsumeQueue": "20", "mappedFileSizeCommitLog": str(64 * 1024)}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        assert (await client.send("T", b"x")).code == 0
        out.now = True
        for at in range(20):
            await client.send(f"new-{at}", b"x" * 8000)  # new queues, and more than a segment
        await eventually(lambda: broker.store.why_not_writable is not None, "refuses")
        # On a machine that stands still a round may write one queue that can be written, and end.
        for _ in range(500):
            if (await client.send("T", b"x")).code == Response.SERVICE_NOT_AVAILABLE:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("writes are taken")
        await eventually(lambda: broker.health() is not None, "says so")
        await asyncio.sleep(0.5)
        assert broker.store.files.health.broken is None
        out.now = False
        await eventually(lambda: broker.store.why_not_writable is None, "takes writes")
        assert (await client.send("new-0", b"x")).code == 0
        assert broker.health() is None
        end = broker.store.log.end
        await eventually(lambda: broker.store.dispatched == end, "dispatched")


async def test_a_store_goes_on_with_descriptors_that_are_held_back_and_new_clients_are_refused(
    tmp_path: Path,
) -> None:
    SPARE.keep(16)
    try:
        async with running(tmp_path, flushIntervalConsumeQueue="20") as broker, client_of(broker) as client:
            assert (await client.send("T", b"x")).code == 0
            with no_descriptors():
                for at in range(3):
                    assert (await client.send(f"new-{at}", b"x")).code == 0
                await eventually(lambda: SPARE.short, "short")
                assert broker.store.why_not_writable is None
            writers = []
            for _ in range(PROBATION_SHORT + 1):
                _, writer = await asyncio.open_connection("127.0.0.1", broker.config.listen_port)
                writers.append(writer)
            await eventually(lambda: broker.server.guard.refused["descriptors"] > 0, "refuses clients")
            SPARE.refill()
            assert not SPARE.short
            for writer in writers:
                writer.close()
            assert (await client.send("T", b"x")).code == 0
            assert broker.health() is None
    finally:
        SPARE.keep(0)
