"""The promise of broker.state.effort: what expressions cost is counted before it is done, and no turn of the
loop does more than its share, whoever asks and however many queues are looked through."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from broker.requests.consumers.choosing import is_stalled, look
from broker.requests.consumers.pop import pop as pop_module
from broker.state import effort as effort_module
from broker.state.effort import BYTES_A_STEP, COMPILE_STEPS, RECORD_STEPS, TURN_STEPS, Effort
from model.codes import Request
from model.sql92 import Texts, compile_filter
from remoting.codec import Command
from remoting.headers import PULL_SUBSCRIPTION, PULL_SUSPEND, PullHeader, SendHeader
from remoting.pop_headers import PopAnswer
from store.files.record import decode
from tests.broker.helpers import batch_body, client_of, eventually, records, running
from tests.broker.pop.support import pop
from tests.fakes.broker.store import FakeConnection

LONG = "a" * 31_000
SAME = " OR ".join(["a CONTAINS 'aab'"] * 800)
DEAR = " OR ".join(f"a CONTAINS 'a{number}b'" for number in range(400))
"""Each of its parts is looked for in all of a long property: 50 million characters a message."""
ONE_MORE = RECORD_STEPS + 40_000 // BYTES_A_STEP + 5 * len(LONG) + COMPILE_STEPS * len(DEAR)
"""What may begin when almost nothing is left: a record, a search, an expression that is made."""


@pytest.fixture
def spent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps of each turn of the loop in which there were any."""
    turns: list[int] = []
    turned = Effort._new_turn

    def new_turn(self: Effort) -> None:
        turns.append(TURN_STEPS - self.left)
        turned(self)

    monkeypatch.setattr(Effort, "_new_turn", new_turn)
    return turns


def test_the_same_search_is_done_once() -> None:
    chooses, texts = compile_filter(SAME), Texts({"a": LONG})
    assert len(list(chooses.search(texts))) == 1
    assert chooses.steps(texts) < TURN_STEPS
    both = compile_filter("a CONTAINS 'b' AND (c = 1 OR NOT a CONTAINS 'b')")
    assert len(list(both.search(Texts({"a": "abc"})))) == 1
    assert [both({"a": "abc", "c": number}) for number in "12"] == [True, False]


async def test_a_dear_message_is_looked_at_over_several_turns(spent: list[int]) -> None:
    effort, text = Effort(lambda: 0.0), f"a\x01{LONG}\x02"
    for chooses, expected in ((compile_filter(DEAR), False), (compile_filter(DEAR + " OR a <> 'b'"), True)):
        assert chooses.steps(Texts.parse(text)) > 10 * TURN_STEPS
        found, turns = None, len(spent)
        while found is None:
            await effort.next_turn()
            found = effort.chooses(chooses, len(LONG), text)
        assert found is expected is chooses({"a": LONG})
        await effort.next_turn()
        assert len(spent) - turns > 10
        assert effort.chooses(chooses, len(LONG), text) is expected, "and known to those who ask the same"
        await effort.next_turn()
        assert spent[-1] == RECORD_STEPS + len(LONG) // BYTES_A_STEP
    assert max(spent) <= TURN_STEPS + ONE_MORE


async def test_a_look_that_is_cut_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client:
        for number in range(40):
            await client.send("T", b"%d" % number, properties=f"n\x01{number}\x02")
        await broker.store.caught_up()
        effort, chooses, offset, bodies, looks = Effort(lambda: 0.0), compile_filter("n > 4"), 0, [], 0

        def get(at: int, count: int) -> Any:
            return broker.store.get("T", 0, at, count, 1 << 20, None)

        while offset < 40:
            effort.left = 3 * RECORD_STEPS  # of three records, not quite
            got = look(get, chooses, offset, 32, 1 << 20, effort)
            assert not is_stalled(got, offset)
            assert 0 < got.next_offset - offset <= 4
            bodies += [decode(chunk).body for chunk in got.chunks]
            offset, looks = got.next_offset, looks + 1
        assert bodies == [b"%d" % number for number in range(5, 40)]
        assert looks >= 10


@pytest.mark.parametrize("expression", [DEAR, "n = 'none'"])
async def test_a_pop_of_all_queues_takes_no_more_of_a_turn_than_its_share(
    tmp_path: Path, expression: str, spent: list[int]
) -> None:
    long = expression == DEAR
    async with running(tmp_path) as broker, client_of(broker) as client:
        for queue_id in range(4):
            properties = f"a\x01{LONG}\x02" if long else "n\x011\x02"
            body = [(b"x", properties, 0)] * (1 if long else 300)
            sent = SendHeader("pg", "T", queue_id, 1_700_000_000_000, batch=True, default_topic_queues=4)
            answer = await client.call(Request.SEND_BATCH_MESSAGE, sent.to_ext(), batch_body(body))
            assert answer.code == 0, answer.remark
        await broker.store.caught_up()
        spent.clear()
        at_once = await pop(client, "T", poll_ms=0, expression=expression, expression_type="SQL92")
        assert PopAnswer.parse(at_once.ext).rest > 0
        await pop(client, "T", poll_ms=3_000, expression=expression, expression_type="SQL92")
        assert len(spent) > 2, "the second one went on where the first had to end"
        assert max(spent) <= TURN_STEPS + ONE_MORE


async def test_connections_take_turns_however_many_steps_one_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop by an expression over 65,535 queues kept the one turn of all expressions until its end."""
    monkeypatch.setattr(effort_module, "ROUND", 4)
    effort, order = Effort(lambda: 0.0), list[str]()
    chooses, text = compile_filter(DEAR), f"a\x01{LONG}\x02"

    def steps(name: str, number: int) -> Generator[None, None, str]:
        for _ in range(number):
            order.append(name)
            effort.spend(1)
            yield
        return name

    def dear() -> Generator[None, None, str]:
        while effort.chooses(chooses, len(LONG), text) is None:
            order.append("dear")
            yield
        yield from steps("after", 20)
        return "dear"

    works = (dear(), steps("many", 20), steps("few", 1))
    peers: list[Any] = [FakeConnection() for _ in works]
    found = await asyncio.gather(*(effort.through(*one) for one in zip(peers, works, strict=True)))
    assert found == ["dear", "many", "few"]
    first = order.index("many")
    assert first > 10, "who waits for an evaluation that goes on keeps its turn"
    assert order[first : first + 6] == ["many"] * 4 + ["few", "after"]
    assert (order.count("after"), order.count("many")) == (20, 20)


async def test_who_left_in_the_middle_of_an_evaluation_leaves_nobody_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps that evaluate nothing went by what the last evaluation had said, whosever it was."""
    monkeypatch.setattr(effort_module, "ROUND", 4)
    effort, chooses, text = Effort(lambda: 0.0), compile_filter(DEAR), f"a\x01{LONG}\x02"

    def dear() -> Generator[None, None, None]:
        effort.chooses(chooses, len(LONG), text)
        yield  # it goes on, and its peer leaves
        for _ in range(20):
            yield

    for mine in (iter(range(20)), dear()):
        await effort.next_turn()
        assert effort.chooses(chooses, len(LONG), text) is None
        await effort.next_turn()
        await effort.go_on(mine)  # type: ignore[arg-type]
        assert len(list(mine)) >= 16, "it gave its turn up"


async def test_a_pop_by_an_expression_over_many_queues_gives_its_turn_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort_module, "ROUND", 1)
    monkeypatch.setattr(pop_module, "QUEUES_AT_ONCE", 1)
    turn, turns = Effort.turn, list[bool]()

    def counted(effort: Effort, peer: Any, *, begun: bool = False) -> Any:
        turns.append(begun)
        return turn(effort, peer, begun=begun)

    monkeypatch.setattr(Effort, "turn", counted)
    async with running(tmp_path) as broker, client_of(broker) as client:
        for queue_id in range(4):
            await client.send("T", queue_id=queue_id, properties="n\x011\x02")
        await broker.store.caught_up()
        await pop(client, "T", poll_ms=0, expression="n = 2", expression_type="SQL92")
    assert turns[:4] == [False, True, True, True]


async def test_pulls_that_come_together_share_the_turns(tmp_path: Path, spent: list[int]) -> None:
    async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as other:
        assert (await client.send("T", b"x", properties=f"a\x01{LONG}\x02")).code == 0
        await broker.store.caught_up()

        async def pull(number: int) -> Command:
            header = PullHeader(
                "cg",
                "T",
                0,
                0,
                32,
                PULL_SUBSCRIPTION,
                0,
                0,
                f"{DEAR} OR n = {number}",
                expression_type="SQL92",
            )
            one = client if number % 2 else other
            return await (await one.connection()).call(
                Command(int(Request.PULL_MESSAGE), header.to_ext()), 60
            )

        spent.clear()
        answers = await asyncio.gather(*(pull(number) for number in range(4)))
        assert [answer.ext["nextBeginOffset"] for answer in answers] == ["1"] * 4
        assert not any(records(answer.body) for answer in answers)
        assert max(spent) <= TURN_STEPS + ONE_MORE


async def test_pulls_that_wait_with_one_expression_look_at_a_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = 0
    chooses = Effort.chooses

    def counted(self: Effort, *asked: Any) -> bool | None:
        nonlocal looked
        looked += 1
        return chooses(self, *asked)

    async with running(tmp_path) as broker, client_of(broker) as client, client_of(broker) as sender:
        await client.send("T", b"x", properties="n\x010\x02")
        await broker.store.caught_up()
        held = PullHeader(
            "cg", "T", 0, 1, 32, PULL_SUBSCRIPTION | PULL_SUSPEND, 0, 60_000, "n = 2", expression_type="SQL92"
        )
        connection = await client.connection()
        command = Command(int(Request.PULL_MESSAGE), held.to_ext())
        asked = [asyncio.create_task(connection.call(command, 60)) for _ in range(40)]
        pulls = broker.processors.pulls
        await eventually(lambda: pulls.held == 40, "all wait")
        monkeypatch.setattr(Effort, "chooses", counted)
        await sender.send("T", b"x", properties="n\x011\x02")
        await eventually(
            lambda: [one.offset for one in pulls._held.of(("T", 0))] == [2] * 40, "all wait behind it"
        )
        assert looked == 1
        await sender.send("T", b"x", properties="n\x012\x02")
        assert [len(records((await one).body)) for one in asked] == [1] * 40
