"""A file of users and policies that is wrong says which entry, or which line, and no secret."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from model.acl.directory import Directory
from model.acl.policies import User, policies_of
from remoting import bodies
from remoting.acl.control import _written
from runtime.turns import Slice
from tests.broker.turn_meter import counted_slices

ENTRY = {"resource": "Topic:T", "actions": ["Pub"], "decision": "Allow"}
POLICIES = policies_of({"policies": [{"policyType": "Custom", "entries": [ENTRY]}]})
BOB = {"username": "bob", "password": "bob-password"}
NO_PASSWORD: list[dict[str, Any]] = [{}, {"password": None}, {"password": ""}, {"password": " "}]


async def test_a_long_file_is_written_an_entry_at_a_time_as_it_was_when_that_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 2,000 users with 50 entries each it held a NameServer's or Controller's loop for 0.6 s."""
    directory = Directory()
    names = [f"user{number}" for number in range(300)]
    for name in names:
        directory.users[name] = User(name, "password")
        directory.acls[name] = POLICIES
    wanted = bodies.dumps_dialect(directory.to_json(), indent=True)
    slices = counted_slices(monkeypatch)
    writing = asyncio.ensure_future(_written(directory, Slice(lambda: 0.0)))
    await asyncio.sleep(0)
    directory.users["later"] = User("later", "password")
    assert await writing == wanted
    assert slices.looks > 2 * len(names), "others have their turn"


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"users": {"bob": {"password": "bob-password"}}}, "users, bob: it lacks 'username'"),
        ({"users": {"bob": "bob-password"}}, "users, bob: it is no object of texts"),
        ({"users": {"bob": BOB, "root": BOB}}, "users, root: its username is bob"),
        ({"users": {" ": BOB | {"username": " "}}}, "users: a name is blank"),
        *(
            ({"users": {"bob": {"username": "bob"} | no}}, "users, bob: it has no password")
            for no in NO_PASSWORD
        ),
        ({"users": ["bob"]}, "users is no object of entries by name"),
        ({"users": {"bob": BOB}, "acls": {"bob": {"policies": []}}}, "acls, bob: The body of acl is null"),
        (
            {"users": {"bob": BOB}, "acls": {"bob": {"policies": [{"entries": [{"resource": "T"}]}]}}},
            "acls, bob: ",
        ),
    ],
)
def test_the_entry_is_named(raw: dict[str, Any], text: str) -> None:
    directory = Directory()
    directory.create_user("carol", {"password": "carol-password"}, True)
    before = dict(directory.users)
    with pytest.raises(ValueError, match=f"^{text}") as wrong:
        directory.load(raw)
    assert directory.users == before, "the users in force stay"
    assert "bob-password" not in str(wrong.value)
