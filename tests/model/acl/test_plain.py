"""The promise of ACL 1.0: the original's decisions, in its order and words."""

from __future__ import annotations

from typing import Any

import pytest

from model.acl.plain import Need, Perm, PlainAcl, account_of, acl_of, check_perms, perm_of
from model.errors import ConfigError

ACCOUNT: dict[str, Any] = {
    "accessKey": "RocketMQ",
    "secretKey": "12345678",
    "whiteRemoteAddress": "192.168.0.*",
    "defaultTopicPerm": "DENY",
    "defaultGroupPerm": "SUB",
    "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC=SUB", "topicD=PUB"],
    "groupPerms": ["groupA=DENY", "groupB=PUB|SUB"],
}
ADMIN = {"accessKey": "rocketmq2", "secretKey": "12345678", "admin": "true"}
ACL = acl_of([{"globalWhiteRemoteAddresses": ["10.10.103.*"], "accounts": [ACCOUNT, ADMIN]}])


def refused(
    key: str | None = "RocketMQ",
    needs: list[Need] | None = None,
    *,
    address: str = "1.2.3.4",
    secret: str = "12345678",
    admin_code: int | None = None,
    acl: PlainAcl = ACL,
) -> str | None:
    return acl.refuses(address, key, lambda known: known == secret, needs or [], admin_code)


def topic(name: str, perm: Perm) -> list[Need]:
    return [Need(name, False, perm)]


def group(name: str) -> list[Need]:
    return [Need(name, True, Perm.SUB)]


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        (topic("topicA", Perm.PUB), "No permission for topic:topicA"),
        (topic("topicB", Perm.PUB), None),
        (topic("topicB", Perm.SUB), None),
        (topic("topicC", Perm.PUB), "No permission for topic:topicC"),
        (topic("topicC", Perm.SUB), None),
        (topic("topicC", Perm.ANY), None),
        (topic("topicD", Perm.SUB), "No permission for topic:topicD"),
        (topic("other", Perm.PUB), "No default permission for topic:other"),
        (group("groupA"), "No permission for group:groupA"),
        (group("groupB"), None),
        (group("other"), None),
        (topic("topicB", Perm.SUB) + group("groupA"), "No permission for group:groupA"),
        (topic("topicA", Perm.PUB) + topic("RMQ_SYS_TRACE_TOPIC", Perm.PUB), None),
    ],
)
def test_what_an_account_may_do(needs: list[Need], why: str | None) -> None:
    assert refused(needs=needs) == why
    assert refused("rocketmq2", needs) is None


def test_who_is_let_in_and_in_which_order() -> None:
    bad = topic("topicA", Perm.PUB)
    assert refused(None, bad, address="10.10.103.7") is None
    assert refused("nobody", bad, address="10.10.103.7", secret="x") is None
    assert refused(None, bad) == "No accessKey is configured"
    assert refused("nobody", bad) == "No acl config for nobody"
    assert refused("RocketMQ", bad, address="192.168.0.9", secret="x") is None
    assert refused("RocketMQ", bad, secret="x") == "Check signature failed for accessKey=RocketMQ"
    text = "Need admin permission for request code=17, but accessKey=RocketMQ is not"
    assert refused(admin_code=17) == text
    assert refused("rocketmq2", admin_code=17) is None


def test_without_defaults_nothing_is_allowed() -> None:
    acl = acl_of([{"accounts": [{"accessKey": "lonely1", "secretKey": "12345678"}]}])
    assert refused("lonely1", topic("t", Perm.PUB), acl=acl) == "No default permission for topic:t"
    assert refused("lonely1", group("g"), acl=acl) == "No default permission for group:g"
    assert refused("lonely1", acl=acl) is None


def test_what_is_no_permission_denies() -> None:
    assert perm_of("pub") == Perm.DENY
    assert perm_of(None) == Perm.DENY
    assert perm_of(" SUB|PUB ") == Perm.PUB | Perm.SUB
    assert not (Perm.DENY | Perm.PUB).allows(Perm.PUB)


def test_an_access_key_counts_where_it_stands_first() -> None:
    acl = acl_of([{"accounts": [ADMIN]}, {"accounts": [{**ADMIN, "admin": "false"}]}])
    assert acl.accounts["rocketmq2"].admin


@pytest.mark.parametrize(
    "change",
    [
        {"accessKey": "short1"},
        {"accessKey": None},
        {"secretKey": "123456"},
        {"topicPerms": ["topic"]},
        {"topicPerms": ["a=b=c"]},
        {"topicPerms": "a=PUB"},
        {"whiteRemoteAddress": "nowhere"},
    ],
)
def test_an_account_that_cannot_be_right_is_refused_without_its_secret(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as error:
        account_of({**ACCOUNT, "secretKey": "a secret text", **change})
    assert "a secret text" not in str(error.value)
    assert "a secret text" not in repr(account_of({**ACCOUNT, "secretKey": "a secret text"}))


def test_an_operators_change_is_looked_at_more_closely() -> None:
    check_perms(["a=DENY", "b=PUB|SUB", "c= SUB "])
    for wrong in ("a", "a=b=c", "a=ALL"):
        with pytest.raises(ConfigError):
            check_perms([wrong])
