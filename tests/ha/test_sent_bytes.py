"""The promise of ha.master.log_reader.LogReader: what a slave is sent is what the log's files hold.

Also where it was not read from them: a write that failed or was torn, what was cut, and what another epoch
wrote in its place, is sent to nobody.
"""

from __future__ import annotations

import errno
import random
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.master.log_reader import KEPT_BYTES_MIN, LogReader
from ha.master.slave_link import SlaveLink
from model.errors import DiskError
from model.ids import PhysicalOffset
from store.message_store import MessageStore
from tests.fakes.disk.memory import FaultyEnv
from tests.store.support import message, opened

SEGMENT_BYTES = 6 * KEPT_BYTES_MIN


def _full(what: str, path: str) -> int | None:
    """A write leaves its first half behind, and nothing can be erased either."""
    return errno.ENOSPC if what in ("pwrite", "data_from") and "/commitlog/" in path else None


class Behind:
    """Reads as a link does: from where it is, as far as the log goes, in frames of any size."""

    def __init__(self, store: MessageStore, reader: LogReader, chance: random.Random) -> None:
        self.store, self.reader, self.chance = store, reader, chance
        self.next = PhysicalOffset(0)

    def pump(self) -> None:
        log = self.store.log
        while self.next < log.end:
            most = self.chance.choice([100, KEPT_BYTES_MIN, 32 * 1024, 128 * 1024])
            got = bytes(self.reader.read(self.next, min(most, log.end - self.next)))
            assert got
            assert got == log.read(self.next, len(got)), f"sent from {self.next}: not what the file holds"
            self.next = PhysicalOffset(self.next + len(got))


@given(seed=st.integers(0, 2**40))
async def test_what_is_sent_is_what_the_files_hold(seed: int) -> None:
    chance, env = random.Random(seed), FaultyEnv()
    async with opened(env, segment_bytes=SEGMENT_BYTES, message_bytes_max=SEGMENT_BYTES) as store:
        reader = LogReader(store)
        store.on_append.append(lambda end: reader.appended(store.appended))
        links = [Behind(store, reader, chance) for _ in range(2)]

        for _ in range(chance.randrange(1, 12)):
            step = chance.choice(["put", "put", "put", "fail", "cut", "roll"])
            ends = [store.log.end]
            if step == "put":
                for _ in range(chance.randrange(1, 4)):
                    size = chance.choice([10, KEPT_BYTES_MIN, 2 * KEPT_BYTES_MIN])
                    store.put(message(chance.randbytes(size)))
                    ends.append(store.log.end)
            if step == "fail":
                env.disk.fail = _full
                with pytest.raises(DiskError):
                    store.put(message(chance.randbytes(2 * KEPT_BYTES_MIN)))
                env.disk.fail = lambda what, path: None
                store.log.retry_space()
            if step == "roll":
                store.log.roll()
            if step in ("put", "cut") and chance.random() < 0.3:
                to = ends[0]
                store.truncate(to)
                for link in links:
                    link.next = min(link.next, to)
                if chance.random() < 0.7:
                    store.put(message(chance.randbytes(chance.choice([10, 2 * KEPT_BYTES_MIN]))))
            if chance.random() < 0.7:
                reader.turn(cast(list[SlaveLink], links[: chance.randrange(3)]))
        reader.turn(cast(list[SlaveLink], links))
        assert [link.next for link in links] == [store.log.end] * 2


async def test_a_torn_write_is_sent_to_nobody_and_what_took_its_place_is() -> None:
    env = FaultyEnv()
    async with opened(env, segment_bytes=SEGMENT_BYTES, message_bytes_max=SEGMENT_BYTES) as store:
        reader, links = LogReader(store), list[Behind]()
        links.append(Behind(store, reader, random.Random(1)))
        store.on_append.append(lambda end: reader.appended(store.appended))
        store.put(message(b"a" * KEPT_BYTES_MIN))
        before = store.log.end
        env.disk.fail = _full
        for _ in range(2):
            with pytest.raises(DiskError):
                store.put(message(b"b" * 2 * KEPT_BYTES_MIN))
            assert store.log.end == before
        env.disk.fail = lambda what, path: None
        file = store.log.segments[0].file
        assert b"bbbb" in file.pread(SEGMENT_BYTES, 0), "half of it lies in the file"
        assert store.appended == b""
        reader.turn(cast(list[SlaveLink], links))
        assert links[0].next == before
        store.log.retry_space()
        store.put(message(b"c" * 2 * KEPT_BYTES_MIN))
        reader.turn(cast(list[SlaveLink], links))
        assert links[0].next == store.log.end
        assert b"bbbb" not in file.pread(SEGMENT_BYTES, 0)
