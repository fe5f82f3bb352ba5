"""The promise of all ways of a pull (ordinary, fast in Python, fast compiled): the same bytes.

Pulls of both dialects from a seed, at one broker whose log and queues have rolled, lost their first files,
and hold batches and damaged entries.
"""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.requests import batch
from broker.requests.consumers import fast_pull, pull_heads
from broker.requests.consumers.fast_pull import FastReads
from broker.requests.consumers.pull_heads import Answers
from broker.service import Broker
from model.codes import Request
from model.errors import Refused
from remoting import bodies, codec
from remoting.codec import Command
from remoting.headers import (
    PULL_COMMIT_OFFSET,
    PULL_SUBSCRIPTION,
    PULL_SUSPEND,
    PullHeader,
    SendHeader,
)
from runtime import native
from runtime.report.slow_turns import SlowTurns
from store.files.compiled import compiled
from tests.broker.helpers import Client, batch_body, client_of, heartbeat, running, topic

PULLS: int = 600
TOPICS = ["T", "T", "T", "T", "Again", "Empty", "None"]


class Sink:
    """A connection whose bytes are kept."""

    def __init__(self) -> None:
        self.attributes: dict[str, object] = {batch.PULLS: True}
        self.handling = self.untaken = 0
        self.remote = "x:1"
        self.closed = self.goes_first = False
        self.written = b""

    def room_for(self, most: int) -> int:
        return -1 if self.handling else most - self.untaken

    def write(self, data: bytes) -> None:
        self.written += data

    def write_all(self, frames: list[bytes], size: int) -> None:
        assert sum(map(len, frames)) == size
        self.written += b"".join(frames)

    def send(self, command: Command) -> None:
        self.written += codec.encode(command)

    def taken(self) -> bytes:
        found, self.written = self.written, b""
        return found


class Way:
    """One way of a broker's pulls. ``module``: the compiled path, or None; ``fast``: by ``FastReads``."""

    def __init__(self, broker: Broker, module: Any, *, fast: bool) -> None:
        self._broker = broker
        self._module = module
        self._sink = Sink()
        guard = SimpleNamespace(
            starts=SimpleNamespace(
                take=lambda: True,
                take_known=lambda: True,
                known_room=lambda: 8,
                begun_known=lambda count, took_ms, now_ms: None,
            ),
            made=SimpleNamespace(size=0, add=lambda size: None),
            slow=SlowTurns("broker", lambda: 0.0),
        )
        with pytest.MonkeyPatch.context() as patch:
            for where in (fast_pull, pull_heads):
                patch.setattr(where, "compiled", lambda: module)
            sends = SimpleNamespace(
                process=lambda connection, buffer, at, end: (at, []),
                join_or=lambda otherwise, rest: otherwise,
                config=SimpleNamespace(frame_bytes_max=codec.FRAME_BYTES_MAX),
            )
            self._reads = FastReads(
                cast(Any, sends), broker.processors.pulls, cast(Any, guard), broker.context
            )
        self._fast = fast
        self._count_whole()
        self._maps = None if module is None else module.Maps()
        self.fast_pulls = self.plain_reads = 0

    def _count_whole(self) -> None:
        self.whole_answers = self.together_max = 0
        made = self._reads._whole
        if made is not None:
            to = made.to

            def counted(*asked: Any) -> Answers | None:
                found = to(*asked)
                count = 0 if found is None else len(found[3])
                self.whole_answers += count
                self.together_max = max(self.together_max, count)
                return found

            made.to = counted

    def _read_plain(self, *asked: Any) -> tuple[bytes, int, int] | None:
        found: tuple[bytes, int, int] | None = self._module.read_plain(self._maps, *asked)
        self.plain_reads += found is not None
        return found

    async def outcome(self, frames: list[bytes]) -> tuple[bytes, object]:
        """What these pulls, which come in one read, are answered with, and what they leave behind."""
        before = _counted(self._broker)
        answers = await self._answers(frames)
        counted = {key: count - before.get(key, 0) for key, count in _counted(self._broker).items()}
        offsets, pulled = self._broker.context.offsets.to_json()["offsetTable"], _pulled(self._broker)
        return answers, (sorted(counted.items()), repr(offsets), pulled)

    async def _answers(self, frames: list[bytes]) -> bytes:
        await self._broker.processors.pulls._context.effort.next_turn()  # each way has all of it
        self._broker.store.reader._read_plain = None if self._module is None else self._read_plain
        data, at = bytearray(b"".join(frames)), 0
        while at < len(data):
            before = at
            if self._fast:
                at, _ = self._reads.process(cast(Any, self._sink), data, at, len(data)) or (len(data), [])
                self.fast_pulls += at > before
            if at < len(data):
                stop = codec.frame_end(data, at, len(data))
                await self._ordinary(codec.decode(data[at:stop]))
                at = stop
        return self._sink.taken()

    async def _ordinary(self, request: Command) -> None:
        try:
            answer = await self._broker.processors.pulls.pull(cast(Any, self._sink), request)
        except Refused as refused:
            answer = request.reply(refused.code, remark=refused.remark)
        if answer is not None and not request.is_oneway:
            self._sink.send(answer)


def _counted(broker: Broker) -> dict[str, int]:
    stats = broker.context.stats
    # What was stored is counted now and then, whoever pulls.
    counters = {f"{key}": one.total for key, one in stats.counters._counters.items() if "_GET_" in key[0]}
    totals = {name: count for name, count in stats.totals._asdict().items() if name != "put"}
    return {**counters, **totals, "aged": stats.age_when_read.to_json()["counts"][-1]}


def _pulled(broker: Broker) -> str:
    return repr(sorted(broker.context.stats.pulled._offsets.items()))


def a_consumers_pull(broker: Broker, chance: random.Random, opaque: int) -> bytes:
    """One that comes again and again, with other numbers."""
    queue_id = chance.randrange(3)
    at = chance.randrange(broker.store.max_queue_offset("T", queue_id) + 2)
    group = chance.choice(["all", "all", "some"])
    count_max = chance.choice([2, 32, 32])
    header = PullHeader(
        group, "T", queue_id, at, count_max, PULL_COMMIT_OFFSET, chance.randrange(at + 1), 0, ""
    )
    command = Command(int(Request.PULL_MESSAGE), header.to_ext(), b"", opaque)
    command.serialize = chance.choice([codec.JSON, codec.ROCKETMQ])
    return codec.encode(command)


def a_pull(broker: Broker, chance: random.Random, opaque: int) -> bytes:
    if chance.random() < 0.5:
        return a_consumers_pull(broker, chance, opaque)
    name, queue_id = chance.choice(TOPICS), chance.choice([0, 0, 1, 2, 2, 3, 7])
    end = broker.store.max_queue_offset(name, queue_id)
    first = broker.store.min_queue_offset(name, queue_id)
    flags = chance.choice([PULL_SUBSCRIPTION] * 3 + [0, 0]) | chance.choice(
        [0, PULL_COMMIT_OFFSET, PULL_SUSPEND]
    )
    wanted = [("*", "TAG"), ("*", "TAG"), ("A", "TAG"), ("B || C", "TAG"), ("D", "TAG"), ("n > 3", "SQL92")]
    expression, kind = chance.choice(wanted)
    header = PullHeader(
        chance.choice(["all", "all", "some", "sql", "stranger"]),
        name,
        queue_id,
        chance.choice([first, first - 1, 0, end - 1, end, end + 3, *[chance.randrange(end + 1)] * 9]),
        chance.choice([0, 1, 2, 32, 32, 500, 2000]),
        flags,
        chance.choice([0, 1, 10**6]),
        0,  # what finds nothing does not wait
        expression if flags & PULL_SUBSCRIPTION else "",
        chance.choice([0, 0, 1]),
        kind,
        chance.choice([None, None, 0, 1, 900, 40_000]),
    )
    code = chance.choice([Request.PULL_MESSAGE] * 9 + [Request.LITE_PULL_MESSAGE])
    command = Command(int(code), header.to_ext(), b"", opaque)
    command.serialize = chance.choice([codec.JSON, codec.ROCKETMQ])
    command.flag = codec.FLAG_ONEWAY if chance.random() < 0.02 else 0
    return codec.encode(command)


async def fill(client: Client, chance: random.Random, name: str, count: int) -> None:
    for number in range(count):
        tag = chance.choice(["TAGS\x01A\x02", "TAGS\x01B\x02", "TAGS\x01C\x02", ""])
        properties = f"{tag}n\x01{number % 9}\x02"
        queue_id = chance.choice([0, 0, 1, 2])
        if chance.random() < 0.1:
            batch = batch_body([(b"one of them", properties, 0)] * chance.choice([1, 3, 20]))
            ext = SendHeader("pg", name, queue_id, 1, properties="UNIQ_KEY\x01A\x02", batch=True).to_ext()
            assert (await client.call(Request.SEND_BATCH_MESSAGE, ext, batch)).code == 0
        else:
            body = chance.randbytes(chance.choice([0, 10, 700, 3000]))
            assert (await client.send(name, body, queue_id=queue_id, properties=properties)).code == 0


async def fill_all(broker: Broker, client: Client, chance: random.Random) -> None:
    for name in ("T", "Again", "Empty"):
        assert (await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic(name, 4))).code == 0
    await fill(client, chance, "Again", 20)
    await client.call(Request.DELETE_TOPIC_IN_BROKER, {"topic": "Again"})
    await client.call(Request.UPDATE_AND_CREATE_TOPIC, topic("Again", 4))
    await fill(client, chance, "Again", 20)
    await fill(client, chance, "T", 260)
    for group, expression, kind in (
        ("all", "*", "TAG"),
        ("some", "A || C", "TAG"),
        ("sql", "n > 3", "SQL92"),
    ):
        data = bodies.loads(heartbeat(f"c-{group}", group, *set(TOPICS)))
        for one in data["consumerDataSet"][0]["subscriptionDataSet"]:
            one |= {"subString": expression, "expressionType": kind}
        assert (await client.call(Request.HEART_BEAT, {}, bodies.dumps(data))).code == 0
    await broker.store.caught_up()


async def take_first_segments(broker: Broker, count: int) -> None:
    for _ in range(count):
        broker.store.log.forget_first()
    await broker.store.background.retention.follow_log_start()


def spoil_entries(broker: Broker, chance: random.Random) -> None:
    """Some name other places, or none."""
    for _ in range(4):
        queue = broker.store.files.queues.get("T", chance.randrange(3))
        assert queue is not None
        index = chance.randrange(queue.min_offset, queue.max_offset)
        offset, size, code = queue.entry(index) or (0, 0, 0)
        wrong = chance.choice(
            [(offset + 1, size), (-5, size), (offset, size + 9), (offset, 3), (1 << 50, size)]
        )
        queue.patch(index, *wrong, code)


@pytest.mark.parametrize("seed", range(4))
async def test_all_ways_answer_with_the_same_bytes(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    keys = {"mappedFileSizeCommitLog": 1 << 16, "mappedFileSizeConsumeQueue": 20 * 50, "maxMessageSize": 8192}
    async with running(tmp_path, enablePropertyFilter=True, **keys) as broker, client_of(broker) as client:
        await fill_all(broker, client, chance)
        broker.processors.pulls._context.effort._clock_ms = lambda: 0.0  # steps alone end a look
        broker.store.reader.mend_entry = lambda topic, queue_id, index: False  # all ways find the same damage
        ways = [Way(broker, None, fast=False), Way(broker, None, fast=True)]
        if compiled() is not None:
            ways.append(Way(broker, compiled(), fast=True))
        answered, opaque = 0, 0
        while opaque < PULLS:
            if opaque == PULLS // 3:
                await take_first_segments(broker, 2)
            if opaque > PULLS // 2:
                spoil_entries(broker, chance)
            frames = [a_pull(broker, chance, opaque + number) for number in range(6)]
            opaque += len(frames)
            found = [await way.outcome(frames) for way in chance.sample(ways, len(ways))]
            assert all(one == found[0] for one in found), (
                f"seed {seed}, pulls {opaque - len(frames)} to {opaque}"
            )
            answered += found[0][0].count(b"nextBeginOffset")
        assert answered > PULLS // 2, "most of them are no mistakes"
        assert all(way.fast_pulls > 50 for way in ways[1:]), native.describe()
        assert all(way.plain_reads > 50 and way.whole_answers > 50 for way in ways[2:]), (
            "compiled code had its part"
        )
        assert all(way.together_max > 1 for way in ways[2:]), "some of them together"
