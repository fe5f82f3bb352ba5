"""A file of users and policies that is wrong says which entry, or which line, and no secret."""

from __future__ import annotations

from typing import Any

import pytest

from model.acl.directory import Directory

BOB = {"username": "bob", "password": "bob-password"}


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ({"users": {"bob": {"password": "bob-password"}}}, "users, bob: it lacks 'username'"),
        ({"users": {"bob": "bob-password"}}, "users, bob: it is no object of texts"),
        ({"users": ["bob"]}, "users is no object of entries by name"),
        ({"users": {"bob": BOB}, "acls": {"bob": {"policies": []}}}, "acls, bob: The body of acl is null"),
        (
            {"users": {"bob": BOB}, "acls": {"bob": {"policies": [{"entries": [{"resource": "T"}]}]}}},
            "acls, bob: ",
        ),
    ],
)
def test_the_entry_is_named(raw: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}") as wrong:
        Directory().load(raw)
    assert "bob-password" not in str(wrong.value)
