"""The promise on a full disk: a producer hears the real code and text, everybody else is served, and writes
are taken again, without a hand's turn, once there is space."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from runtime import os_env
from runtime.env import DiskUsage
from store.files import commit_log
from tests.broker.helpers import client_of, eventually, log_records, running

SEGMENT = 64 * 1024
BODY = b"x" * 8000


class Disk:
    """The operating system's, until ``full``: then no file grows, and nothing is free."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.full = False
        usage, allocate, truncate = os_env.OsDisk.usage, os_env.OsFile.allocate, os_env.OsFile.truncate

        def usage_now(disk: os_env.OsDisk, path: str) -> DiskUsage:
            found = usage(disk, path)
            return DiskUsage(found.total_bytes, 0) if self.full else found

        def allocate_if(file: os_env.OsFile, size: int) -> None:
            self._need(file, size)
            allocate(file, size)

        def truncate_if(file: os_env.OsFile, size: int) -> None:
            self._need(file, size)
            truncate(file, size)

        patch.setattr(os_env.OsDisk, "usage", usage_now)
        patch.setattr(os_env.OsFile, "allocate", allocate_if)
        patch.setattr(os_env.OsFile, "truncate", truncate_if)

    def _need(self, file: os_env.OsFile, size: int) -> None:
        if self.full and size > file.size():
            raise OSError(errno.ENOSPC, "No space left on device", file.path)


async def test_a_producer_hears_that_the_disk_is_full_and_is_served_again_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    monkeypatch.setattr(commit_log, "RETRY_FREE_BYTES", 1)

    keys = {"mappedFileSizeCommitLog": str(SEGMENT), "flushIntervalConsumeQueue": "20"}
    async with running(tmp_path, **keys) as broker, client_of(broker) as client:
        assert (await client.send("T", BODY)).code == 0
        disk.full = True
        sent = 1
        while (answer := await client.send("T", BODY)).code == 0:
            sent += 1
            assert sent < 100, "the disk is full and every message is taken"
        assert answer.code == 14
        remark = answer.remark or ""
        assert remark.startswith(
            "service not available now. It may be caused by one of the following reasons: "
            "the broker's disk is full ["
        )
        assert remark.endswith("], messages are put to the slave, message store has been shut down, etc.")
        for properties in ("", "DELAY\x011\x02"):
            assert (await client.send("T", BODY, properties=properties)).code == 14
        found = await client.pull_until("T", 0, sent)
        assert [record.queue_offset for record in found] == list(range(sent))
        end = broker.store.log.end
        assert broker.store.confirmed == end
        assert len(log_records(broker)) <= sent

        disk.full = False
        await eventually(lambda: broker.store.why_not_writable is None, "writes are taken again")
        assert (await client.send("T", BODY)).code == 0
        assert len(await client.pull_until("T", 0, sent + 1)) == sent + 1
