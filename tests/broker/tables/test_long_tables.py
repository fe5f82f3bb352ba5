"""The promise of what a broker writes: at the limits of its tables, too, a few entries at a time, a change of
a large one alone, and nothing else than what the whole table would be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.requests.transactions import Transactions
from broker.tables import files as module
from broker.tables.modes import POP, PULL, RequestMode, RequestModes
from broker.tables.table_text import TableText
from broker.tables.users import UserTable
from model.acl.directory import Directory
from remoting import bodies
from remoting.slices import joined
from runtime.turns import Slice
from tests.broker.halves import SOON, begin
from tests.broker.helpers import client_of, eventually, running
from tests.broker.turn_meter import counted_slices

MANY = 400
NAMES = st.sampled_from("abcd")


def acl(topic: str) -> dict[str, Any]:
    entry = {"resource": f"Topic:{topic}", "actions": ["Pub"], "decision": "Allow"}
    return {"policies": [{"policyType": "Custom", "entries": [entry]}]}


def travelled(change: dict[str, Any]) -> dict[str, Any]:
    return bodies.believed_object(bodies.dumps_dialect(change))


@settings(max_examples=30)
@given(st.lists(st.tuples(NAMES, NAMES, st.sampled_from([PULL, POP]), st.booleans()), max_size=20))
def test_changes_of_modes_make_the_same_table(changes: list[Any]) -> None:
    ours, theirs = RequestModes(), RequestModes()
    mark = ours.revision
    for topic, group, mode, copied in [*changes, ("a", "a", PULL, True)]:
        ours.put(topic, group, RequestMode(mode, 1))
        if copied:
            change = ours.since(mark)
            assert change is not None
            theirs.adopt(travelled(change))
            mark = ours.revision
            assert theirs.to_json() == ours.to_json()
            assert len(theirs) == len(ours)
    assert ours.adopt({"messageRequestModeMap": {"z": {"g": {"mode": POP}}}})
    assert ours.since(mark) is None, "what was replaced is written whole"


@settings(max_examples=30)
@given(st.lists(st.tuples(st.sampled_from(["user", "acl", "drop", "copy"]), NAMES, NAMES), max_size=20))
def test_changes_of_users_make_the_same_directory(changes: list[Any]) -> None:
    ours, theirs = Directory(), Directory()
    table = UserTable(ours)
    mark = table.mark
    for what, name, topic in [*changes, ("copy", "", "")]:
        if what == "user" and name not in ours.users:
            ours.create_user(name, {"password": topic}, True)
        elif what == "user":
            ours.update_user(name, {"password": topic}, True)
        elif what == "acl" and name in ours.users:
            ours.put_acl(name, acl(topic))
        elif what == "drop":
            ours.delete_user(name, True)
        elif what == "copy":
            change = table.since(mark)
            assert change is not None
            theirs.load_part(travelled(change))
            mark = table.mark
            theirs.check_invariants()
            assert theirs.to_json() == ours.to_json()
            assert travelled(theirs.to_json()) == travelled(table.shown())
    ours.load({})
    theirs.load({})
    assert theirs.to_json() == ours.to_json()


def set_mode(broker: Any, number: int) -> None:
    broker.context.groups.modes.put(f"T{number}", "g", RequestMode(POP, number))


def set_user(broker: Any, number: int) -> None:
    users = broker.context.trust.directory
    users.create_user(f"user{number}", {"password": "p" * 200}, True)
    users.put_acl(f"user{number}", acl("T"))


@pytest.mark.parametrize(("name", "put"), [("modes", set_mode), ("auth", set_user)])
async def test_a_table_of_operators_is_written_one_entry_a_look_and_its_changes_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, put: Callable[[Any, int], None]
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 1000)
    async with running(tmp_path) as broker:
        file = broker.tables.files[name]
        for n in range(MANY):
            put(broker, n)
        slices = counted_slices(monkeypatch)
        await file.flush()
        assert slices.looks >= MANY
        put(broker, MANY)  # the table tells of no changes yet
        await file.flush()
        slices.looks = 0
        put(broker, MANY + 1)
        await file.flush()
        assert slices.looks < MANY // 4, "of other work of the broker, perhaps"
        whole, changes = Path(file.path), Path(f"{file.path}.changes")
        written = travelled_file(whole)
        assert f"{MANY + 1}" not in str(written)
        assert 0 < changes.stat().st_size < 1000
        modes, users = broker.context.groups.modes.to_json(), broker.context.trust.directory.to_json()
        copied = {path: path.read_bytes() for path in (whole, changes)}
    for path, data in copied.items():
        path.write_bytes(data)  # as if it had been killed
    Path(f"{whole}.bak").write_bytes(copied[whole])
    async with running(tmp_path) as broker:
        assert broker.context.groups.modes.to_json() == modes
        assert broker.context.trust.directory.to_json() == users


def travelled_file(path: Path) -> dict[str, Any]:
    return bodies.believed_object(path.read_bytes())


async def test_many_changes_of_a_large_table_are_written_one_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WHOLE_BYTES", 1000)
    async with running(tmp_path) as broker:
        offsets, file = broker.offsets, broker.tables.files["offsets"]
        for number in range(3):
            for n in range(MANY):
                offsets.commit("g", f"T{n}", 0, number)
            slices = counted_slices(monkeypatch)
            await file.flush()
            assert slices.looks >= MANY
        offsets.drop_topic("T7")
        await file.flush()
        assert b'"T7@g":{}' in Path(f"{file.path}.changes").read_bytes()


async def test_keys_that_come_and_go_while_the_others_are_put_in_order_have_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {f"k{n:03}": n for n in range(MANY)}
    text = TableText(lambda: list(table), lambda key: table[key])
    slices = counted_slices(monkeypatch)
    preparing = asyncio.create_task(text.prepare(Slice(lambda: 0.0)))
    await eventually(lambda: slices.looks > 1, "keys are put in order")
    del table["k001"]
    text.changed("k001", False)
    table["k0015"] = 5
    text.changed("k0015", True)
    await preparing
    text.check_invariants()
    expected = bodies.dumps_dialect(table)
    assert bodies.dumps_dialect(text.whole()) == expected
    assert slices.looks >= 2 * MANY
    clearing = asyncio.create_task(text.prepare(Slice(lambda: 0.0)))
    text.clear()
    again = asyncio.create_task(text.prepare(Slice(lambda: 0.0)))
    await asyncio.sleep(0)
    table.clear()
    table["other"] = 1
    text.clear()
    await asyncio.gather(clearing, again)
    text.check_invariants()
    assert await joined(bodies.pieces(text.whole()), Slice(lambda: 0.0)) == b'{"other":1}'


async def test_what_ended_is_read_one_a_look_and_an_asked_half_is_found_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, **SOON) as broker, client_of(broker) as client:
        for _ in range(20):
            await begin(client)
        service = broker.processors.transactions
        await eventually(lambda: len(service._places._former) == 20, "each is asked about")
        assert all(len(former) < 20 for former in service._places._former.values()), "each has its own"
        await eventually(lambda: service._next_op >= 20, "what ended them can be read")
        fresh = Transactions(broker.context, broker.processors.sender)
        slices = counted_slices(monkeypatch)
        await fresh._read_ops()
        assert slices.looks >= 20
