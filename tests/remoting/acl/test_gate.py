"""The promise of the gate: the right signature and a right, or the original's code and text; and a line."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from model.codes import Request, Response
from model.config import NamesrvConfig
from model.errors import ConfigError, Refused
from remoting.acl.audit import Audit
from remoting.acl.gate import PLAIN_ERROR, Admission, Gate, Sender
from remoting.acl.needs import SETTINGS, plain_needs
from remoting.acl.plain_files import PlainFiles
from remoting.auth import PEER_CODES, Credentials
from remoting.codec import Command
from runtime.os_env import OsEnv
from tests.lines import lines_of
from tests.remoting.keys import KEY, WRONG

ALICE = Credentials("alice", "alice-secret")
ROOT = Credentials("rootroot", "root-secret")
FROM = "127.0.0.1:5"


def send(topic: str = "abc") -> Command:
    return Command(Request.SEND_MESSAGE_V2, {"a": "pg", "b": topic}, b"body")


def gate(**keys: str) -> Gate:
    config = NamesrvConfig.from_mapping(
        {"authenticationEnabled": "true", "authorizationEnabled": "true", **keys}
    )
    made = Gate.of(config, Audit("test", lambda: 0.0), None, "c")
    made.directory.create_user("alice", {"password": ALICE.secret_key}, True)
    made.directory.create_user("rootroot", {"password": ROOT.secret_key, "userType": "Super"}, True)
    entry = {"resource": "Topic:abc", "actions": ["Pub"], "decision": "Allow"}
    made.directory.put_acl("alice", {"policies": [{"entries": [entry]}]})
    return made


def why(gate: Gate, request: Command, key: Credentials | None = None) -> tuple[int, str]:
    with pytest.raises(Refused) as refused:
        gate.check(request, FROM, key)
    return refused.value.code, refused.value.remark


def test_who_may_and_who_may_not() -> None:
    one = gate()
    assert one.check(ALICE.signed(send()), FROM, None) is Admission.RIGHT
    assert one.check(ROOT.signed(send("other")), FROM, None) is Admission.RIGHT
    no = Response.NO_PERMISSION
    assert why(one, send()) == (no, "username cannot be null.")
    assert why(one, Credentials("bob", "x").signed(send())) == (no, "User:bob is not found.")
    assert why(one, Credentials("alice", "x").signed(send())) == (no, "check signature failed.")
    other = "User:alice has no permission to access Topic:other from 127.0.0.1, no matched policies."
    assert why(one, ALICE.signed(send("other"))) == (no, other)
    assert one.audit.denied == {"SEND_MESSAGE_V2": 4}


def test_a_signature_is_of_one_body_and_its_fields() -> None:
    one = gate()
    signed = ALICE.signed(send())
    signed.body = b"another"
    assert why(one, signed)[1] == "check signature failed."
    signed = ALICE.signed(send("other"))
    signed.ext["b"] = "abc"
    assert why(one, signed)[1] == "check signature failed."


def test_the_key_of_the_peers_passes_and_one_that_has_its_name_does_not() -> None:
    one = gate()
    # No right of its own: what the key is good for is looked at next.
    assert one.check(KEY.signed(Command(Request.REGISTER_BROKER)), FROM, KEY) is Admission.PEER
    assert why(one, WRONG.signed(Command(Request.REGISTER_BROKER)), KEY)[0] == Response.NO_PERMISSION


def test_what_a_user_without_a_policy_may_ask_gives_no_right_of_an_operator() -> None:
    one = gate()
    assert (
        one.check(ALICE.signed(Command(Request.GET_MAX_OFFSET, {"queueId": "0"})), FROM, None)
        is Admission.CLIENT
    )
    for code in (Request.UPDATE_BROKER_CONFIG, Request.KEELMQ_COPY_TABLES, Request.AUTH_LIST_USER):
        assert why(one, ALICE.signed(Command(code, {"x": "y"})))[1].startswith("User:alice has no permission")
        assert one.check(ROOT.signed(Command(code)), FROM, None) is Admission.RIGHT


def test_authentication_alone_asks_for_a_signature_and_no_right() -> None:
    one = gate(authorizationEnabled="false")
    assert one.check(ALICE.signed(send("other")), FROM, None) is Admission.CLIENT
    assert one.check(ROOT.signed(send("other")), FROM, None) is Admission.RIGHT
    assert why(one, send())[1] == "username cannot be null."


@pytest.mark.parametrize("wrong", ["SEND_MESSAGE", "10;310", "-1", "1" * 5000])
def test_a_white_list_of_anything_but_codes_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"authenticationWhitelist=.*numbers of requests"):
        gate(authenticationWhitelist=wrong)


def test_white_lists_of_codes() -> None:
    one = gate(authenticationWhitelist="310", authorizationWhitelist=" 310, 11")
    assert one.check(send("other"), FROM, None) is Admission.CLIENT
    assert why(one, Command(Request.QUERY_MESSAGE, {"topic": "abc"}))[1] == "username cannot be null."


def test_a_name_that_nobody_proved_has_no_rights() -> None:
    """A code that needs no signature: the original believes the name all the same."""
    one = gate(authenticationWhitelist="310")
    said = Command(Request.SEND_MESSAGE_V2, {"a": "pg", "b": "other", "AccessKey": ROOT.access_key}, b"body")
    assert why(one, said)[0] == Response.NO_PERMISSION
    assert one.check(ROOT.signed(send("other")), FROM, None) is Admission.RIGHT
    assert one.check(ALICE.signed(send()), FROM, None) is Admission.RIGHT
    alone = gate(authenticationWhitelist="17", authorizationEnabled="false")
    topic = Command(Request.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "AccessKey": ROOT.access_key})
    assert why(alone, topic)[0] == Response.NO_PERMISSION
    assert not alone.of_operator(topic)
    assert alone.of_operator(ROOT.signed(topic))
    assert not alone.of_operator(ALICE.signed(topic))


@pytest.mark.parametrize("authorizes", ["true", "false"])
def test_a_name_that_a_heartbeat_only_says_is_sent_nothing_later(authorizes: str) -> None:
    one = gate(authenticationWhitelist="34", authorizationWhitelist="34", authorizationEnabled=authorizes)
    beat = Command(Request.HEART_BEAT, {})
    said = Command(Request.HEART_BEAT, {"AccessKey": ALICE.access_key})
    wrong = Credentials(ALICE.access_key, "x").signed(Command(Request.HEART_BEAT, {}))
    for request in (beat, said, wrong):
        one.check(request, FROM, None)
        sender = one.sender(request, FROM, by_peer=False)
        assert sender.account is None, "no other one's client id is taken over"
        assert not one.may_publish(sender, "abc")
    sender = one.sender(ALICE.signed(beat), FROM, by_peer=False)
    assert sender.account == ALICE.access_key
    assert one.may_publish(sender, "abc")


@pytest.mark.parametrize(
    "change", [{"kind": "Normal"}, {"enabled": False}, None], ids=["demoted", "off", "gone"]
)
def test_who_was_a_super_user_when_it_said_that_it_is_there_is_none_for_that(
    change: dict[str, Any] | None,
) -> None:
    one = gate()
    sender = one.sender(ROOT.signed(Command(Request.HEART_BEAT, {})), FROM, by_peer=False)
    assert one.may_publish(sender, "other")
    user = one.directory.users.pop(ROOT.access_key)
    if change is not None:
        one.directory.users[user.name] = replace(user, **change)
    assert not one.may_publish(sender, "other")


def test_an_address_on_a_white_list_proves_no_name(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(
        "globalWhiteRemoteAddresses: [127.0.0.1]\n"
        "accounts:\n- {accessKey: accountA, secretKey: secret-of-A, defaultTopicPerm: PUB}\n"
    )
    one = Gate(Audit("test", lambda: 0.0), PlainFiles(OsEnv(seed=1), str(tmp_path)))
    assert one.plain is not None
    one.plain.load()
    key = Credentials("accountA", "secret-of-A")
    said = Command(Request.HEART_BEAT, {"AccessKey": key.access_key})
    signed = key.signed(Command(Request.HEART_BEAT, {}))
    senders = [one.sender(request, FROM, by_peer=False) for request in (said, signed)]
    assert [sender.account for sender in senders] == [None, key.access_key]
    one.plain.acl = replace(one.plain.acl, white=())
    assert [one.may_publish(sender, "T") for sender in senders] == [False, True]


def test_of_a_heartbeat_nothing_is_kept_but_who_sent_it() -> None:
    """Any field of it may have megabytes, and its sender is kept for as long as it is there."""
    one, long = gate(authorizationEnabled="false"), "x" * 10_000
    sender = one.sender(
        ALICE.signed(Command(Request.HEART_BEAT, {"topic": long, "consumerGroup": long})),
        FROM,
        by_peer=False,
    )
    assert sender == Sender(ALICE.access_key, "127.0.0.1", one.directory.users["alice"], False)
    assert sender.account is one.directory.users["alice"].name


def test_an_account_that_stands_twice_is_complained_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "acl").mkdir()
    account = "- {accessKey: accountA, secretKey: secret-of-%s}\n"
    (tmp_path / "acl" / "more.yml").write_text("accounts:\n" + account % "A")
    (tmp_path / "plain_acl.yml").write_text(
        "accounts:\n" + (account % "B").replace("tA", "tB") * 2 + account % "C"
    )
    files = PlainFiles(OsEnv(seed=1), str(tmp_path))
    with caplog.at_level("WARNING", "remoting.acl.plain_files"):
        files.load()
    at = f"{tmp_path}/plain_acl.yml: account"
    assert files.without_effect == [
        f"{at} accountB stands before: this one has no effect",
        f"{at} accountA stands in {tmp_path}/acl/more.yml before: this one has no effect",
    ]
    assert files.without_effect[0] in caplog.text
    assert files.acl.accounts["accountA"].secret_key == "secret-of-A"


def test_authorization_without_authentication_is_refused_as_configuration() -> None:
    with pytest.raises(ConfigError, match="set both"):
        gate(authenticationEnabled="false")


def test_with_authentication_alone_a_user_does_nothing_of_an_operator() -> None:
    one = gate(authorizationEnabled="false")
    topic = Command(Request.UPDATE_AND_CREATE_TOPIC, {"topic": "T"})
    assert "is for super users" in why(one, ALICE.signed(topic))[1]
    assert one.check(ROOT.signed(topic), FROM, None) is Admission.RIGHT
    for code in SETTINGS:
        assert "is for super users" in why(one, ALICE.signed(Command(code)))[1]
        assert one.check(ROOT.signed(Command(code)), FROM, None) is Admission.RIGHT
    assert one.check(ALICE.signed(Command(Request.GET_BROKER_RUNTIME_INFO)), FROM, None) is Admission.CLIENT


PLAIN = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: alice123
    secretKey: 12345678
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - abc=PUB|SUB
  - accessKey: rootroot
    secretKey: root-secret
    admin: true
"""


def plain_gate(home: Path) -> tuple[Gate, PlainFiles]:
    (home / "plain_acl.yml").write_text(PLAIN)
    files = PlainFiles(OsEnv(seed=1), str(home))
    files.load()
    return Gate.of(NamesrvConfig(acl_enable=True), Audit("test", lambda: 0.0), files, "c"), files


def test_acl_1_answers_as_the_original(tmp_path: Path) -> None:
    one, _ = plain_gate(tmp_path)
    alice = Credentials("alice123", "12345678")
    assert one.check(alice.signed(send()), FROM, None) is Admission.CLIENT
    assert one.check(send("anything"), "10.10.103.9:1", None) is Admission.CLIENT
    failed = Response.SYSTEM_ERROR
    assert why(one, send()) == (failed, f"{PLAIN_ERROR}No accessKey is configured")
    assert why(one, alice.signed(send("no"))) == (failed, f"{PLAIN_ERROR}No default permission for topic:no")
    admin = Command(Request.UPDATE_BROKER_CONFIG)
    assert "Need admin permission for request code=25" in why(one, alice.signed(admin))[1]
    assert one.check(ROOT.signed(admin), FROM, None) is Admission.RIGHT


def test_acl_1_reads_the_body_of_nobody_who_has_not_proven_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, _ = plain_gate(tmp_path)
    alice, read = Credentials("alice123", "12345678"), []

    def counted(request: Command, cluster: str) -> list[Any]:
        read.append(request)
        return plain_needs(request, cluster)

    monkeypatch.setattr("remoting.acl.gate.plain_needs", counted)
    beat = Command(Request.HEART_BEAT, {}, b'{"consumerDataSet":[{"groupName":"g"}]}')
    for unproven in (
        beat,
        Credentials("nobody1", "12345678").signed(beat),
        Credentials("alice123", "wrong-secret").signed(beat),
    ):
        why(one, unproven)
    assert not read
    assert one.check(alice.signed(beat), FROM, None) is Admission.CLIENT
    assert len(read) == 1
    wrong = alice.signed(Command(Request.HEART_BEAT, {}, b'{"consumerDataSet":[1]}'))
    assert why(one, wrong)[0] != 0
    assert len(read) == 2


def test_a_white_list_lets_send_and_makes_nobody_an_operator(tmp_path: Path) -> None:
    """There is no key of peers here that would ask for a signature afterwards."""
    one, files = plain_gate(tmp_path)
    files.put_account({"accessKey": "shop-key", "secretKey": "shop-secret", "whiteRemoteAddress": "10.1.1.1"})
    shop = Credentials("shop-key", "shop-secret")
    for code in (*PEER_CODES, *SETTINGS):
        named = Command(code, {"AccessKey": "shop-key"})
        forged = Command(code, {"AccessKey": "rootroot"})
        strangers = [(Command(code), "10.10.103.9:1"), (forged, "10.10.103.9:1")]
        for request, remote in [
            *strangers,
            (named, "10.1.1.1:1"),
            (shop.signed(Command(code)), "10.1.1.1:1"),
        ]:
            with pytest.raises(Refused, match=f"Need admin permission for request code={code}, but") as no:
                one.check(request, remote, None)
            assert no.value.code == Response.SYSTEM_ERROR
        assert one.check(ROOT.signed(Command(code)), "10.10.103.9:1", None) is Admission.RIGHT
    assert one.check(Command(Request.SEND_MESSAGE_V2, {"b": "T"}), "10.10.103.9:1", None) is Admission.CLIENT
    assert one.check(Command(Request.GET_BROKER_RUNTIME_INFO), "10.10.103.9:1", None) is Admission.CLIENT


def test_a_denial_leaves_one_line_with_who_from_where_and_what(caplog: pytest.LogCaptureFixture) -> None:
    one = gate()
    with caplog.at_level(logging.WARNING, "keelmq.audit"):
        why(one, ALICE.signed(send("other")))
        for number in range(50):
            why(one, Command(Request.PULL_MESSAGE, {"AccessKey": f"bob{number}\n"}))
    lines = [record.getMessage() for record in lines_of(caplog)]
    assert lines[0] == (
        "test: denied: alice from 127.0.0.1:5 asked for SEND_MESSAGE_V2: User:alice has no permission"
        " to access Topic:other from 127.0.0.1, no matched policies. (needs Pub)"
    )
    assert len(lines) == 10
    assert not any("\n" in line for line in lines)
    assert one.audit.denied == {"SEND_MESSAGE_V2": 1, "PULL_MESSAGE": 50}


class Long(str):
    """Megabytes that nobody goes through."""

    def isprintable(self) -> bool:
        raise AssertionError("all of it is looked at")


class LongBody(bytes):
    def decode(self, *_: Any, **__: Any) -> str:
        raise AssertionError("all of it is decoded")


def test_of_long_texts_and_bodies_the_audit_line_reads_the_begin_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refused change of 13 MB held the loop for 40 ms, to write the first 1,024 characters of it."""
    audit = Audit("test", lambda: 0.0)
    body = LongBody(b'{"decision":"\n' + b"x" * 100_000)
    audit.on_act(Command(Request.AUTH_UPDATE_ACL, {"subject": Long("u" * 100_000)}, body), FROM, 1)
    (line,) = caplog.messages
    assert len(line) < 2_000
    assert "subject=uuu" in line
    assert "\n" not in line


def test_an_act_of_an_operator_leaves_a_line_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit("test", lambda: 0.0)
    user = Command(
        Request.AUTH_CREATE_USER, {"username": "bob", "AccessKey": "root"}, b'{"password":"pass-word"}'
    )
    account = Command(
        Request.UPDATE_AND_CREATE_ACL_CONFIG, {"accessKey": "bob1234", "secretKey": "pass-word"}
    )
    with caplog.at_level(logging.WARNING, "keelmq.audit"):
        audit.on_act(user, FROM, 0)
        audit.on_act(account, FROM, 209)
        audit.on_act(Command(Request.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}), FROM, 0)
        audit.on_act(Command(Request.AUTH_UPDATE_ACL, {"subject": "User:b"}, b'{"decision":"Deny"}'), FROM, 0)
        audit.on_act(Command(Request.SEND_MESSAGE), FROM, 0)
        audit.on_act(Command(Request.BROKER_HEARTBEAT), FROM, 0)
        audit.on_act(Command(Request.CONTROLLER_ELECT_MASTER), FROM, 0)
        audit.on_act(Command(Request.CONTROLLER_ELECT_MASTER, {"designateElect": "true"}), FROM, 0)
    assert [record.getMessage() for record in lines_of(caplog)] == [
        "test: act: root from 127.0.0.1:5: AUTH_CREATE_USER (username=bob, password=***): done",
        "test: act: an unsigned request from 127.0.0.1:5: UPDATE_AND_CREATE_ACL_CONFIG (accessKey=bob1234):"
        " answered 209",
        "test: act: an unsigned request from 127.0.0.1:5: UPDATE_AND_CREATE_TOPIC (topic=T): done",
        "test: act: an unsigned request from 127.0.0.1:5: AUTH_UPDATE_ACL"
        ' (subject=User:b, {"decision":"Deny"}): done',
        "test: act: an unsigned request from 127.0.0.1:5: CONTROLLER_ELECT_MASTER: done",
    ]
    assert "pass-word" not in caplog.text
    assert sum(audit.acts.values()) == 5


@pytest.mark.parametrize(
    ("code", "ext", "body", "told"),
    [
        (
            Request.AUTH_UPDATE_USER,
            {"username": "bob"},
            b'{"userType":"Super","userStatus":"disable"}',
            "username=bob, userType=Super, userStatus=disable",
        ),
        (
            Request.AUTH_UPDATE_USER,
            {"username": "bob"},
            b'{"password":"pass-word"}',
            "username=bob, password=***",
        ),
        (Request.AUTH_UPDATE_USER, {"username": "bob"}, b'{"password":"pass-word"', "username=bob"),
        (
            Request.UPDATE_BROKER_CONFIG,
            {},
            b"#pass-word=1\nfileReservedTime=24\nsome=pass-word\n",
            "keys=fileReservedTime some",
        ),
        (Request.UPDATE_BROKER_CONFIG, {}, b"a=1\n" * 2_000 + b"z=1\n", "keys=" + "a " * 512 + "..."),
        (
            Request.CLEAN_BROKER_DATA,
            {"brokerName": "b", "brokerControllerIdsToClean": "2;3"},
            b"",
            "brokerName=b, brokerControllerIdsToClean=2;3",
        ),
        (
            Request.KEELMQ_REPLACE_CONTROLLER,
            {"controllerId": "n2", "address": "h:1", "raftAddress": "h:2", "lost": "true"},
            b"",
            "controllerId=n2, address=h:1, raftAddress=h:2, lost=true",
        ),
        (
            Request.UPDATE_AND_CREATE_ACL_CONFIG,
            {"accessKey": "bob1234", "secretKey": "pass-word", "admin": "true"},
            b"",
            "accessKey=bob1234, admin=true",
        ),
    ],
)
def test_an_act_says_what_it_changed(
    code: int, ext: dict[str, str], body: bytes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    Audit("test", lambda: 0.0).on_act(Command(code, ext, body), FROM, 0)
    (line,) = caplog.messages
    assert line.partition(" (")[2] == f"{told}): done"
    assert "pass-word" not in line


def test_no_change_of_a_proven_operator_is_left_out_and_refused_ones_hide_no_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = [0.0]
    audit = Audit("test", lambda: now[0])
    topic = Command(Request.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "AccessKey": "root"})
    with caplog.at_level(logging.WARNING, "keelmq.audit"):
        for _ in range(40):
            audit.on_act(topic, FROM, 0)
            audit.on_act(topic, FROM, Response.SYSTEM_ERROR)  # its copies did not come: it was made
        assert len(caplog.messages) == 80
        # Part of it was done before its lease ended; a file of accounts was written.
        for outcome in (Response.SERVICE_NOT_AVAILABLE, 209, 210, 211) * 10:
            audit.on_act(topic, FROM, outcome)
        assert len(caplog.messages) == 120
        caplog.clear()
        for _ in range(50):
            audit.on_act(topic, FROM, Response.INVALID_PARAMETER)
        audit.on_act(Command(Request.CLEAN_UNUSED_TOPIC, {"AccessKey": "root"}), FROM, 3)
        audit.on_act(Command(topic.code, {"topic": "T", "AccessKey": "other"}), FROM, 29)
        assert len(caplog.messages) == 12
        for number in range(50):  # nobody proves who he is: one address, whatever it says
            said = Command(Request.UPDATE_AND_CREATE_TOPIC, {"topic": "T", "AccessKey": f"u{number}"})
            audit.on_act(said, FROM, 0, proven=False)
        assert len(caplog.messages) == 22
        now[0] += 2
        audit.tell_left_out()
    assert caplog.messages[22:] == [
        "test: act: root: UPDATE_AND_CREATE_TOPIC (40 more such lines left out)",
        "test: act: 127.0.0.1: UPDATE_AND_CREATE_TOPIC (40 more such lines left out)",
    ]


def test_the_log_names_the_permission_that_lacks_in_acl_1(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = plain_gate(tmp_path)
    why(one, Credentials("alice123", "12345678").signed(send("no")))
    why(one, Credentials("alice123", "wrong-one").signed(send("no")))
    assert caplog.messages[0].endswith("No default permission for topic:no (needs PUB)")
    assert "needs" not in caplog.messages[1]


async def test_files_are_read_anew_and_a_bad_one_leaves_what_was(tmp_path: Path) -> None:
    one, files = plain_gate(tmp_path)
    (tmp_path / "acl" / "more").mkdir(parents=True)
    more = tmp_path / "acl" / "more" / "team.yml"
    more.write_text("accounts:\n- {accessKey: team-key, secretKey: team-secret, defaultTopicPerm: PUB}\n")
    await files.look()
    assert set(files.acl.accounts) == {"alice123", "rootroot", "team-key"}
    assert one.plain is files
    for wrong in ("accounts: [", "accounts: 7", "accounts:\n- {accessKey: x, secretKey: y-secret}", "- 1"):
        more.write_text(wrong)
        await files.look()
        assert files.failed is not None
        assert "y-secret" not in files.failed
        assert "team-key" in files.acl.accounts
    more.unlink()
    await files.look()
    assert files.failed is None
    assert set(files.acl.accounts) == {"alice123", "rootroot"}


async def test_an_empty_or_missing_file_keeps_the_rules_and_says_so(tmp_path: Path) -> None:
    _, files = plain_gate(tmp_path)
    default = tmp_path / "plain_acl.yml"
    (tmp_path / "acl").mkdir()
    (tmp_path / "acl" / "unused.yml").write_text("# nothing yet\n")
    for empty in ("", "# all of it is a comment\n", "accounts:\n"):
        default.write_text(empty)
        await files.look()
        assert set(files.acl.accounts) == {"alice123", "rootroot"}
        assert files.failed is not None
        assert "plain_acl.yml is empty" in files.failed
    default.unlink()
    await files.look()
    assert set(files.acl.accounts) == {"alice123", "rootroot"}
    assert files.failed is not None
    assert "plain_acl.yml is gone" in files.failed
    default.write_text(PLAIN.replace("rootroot", "chiefchief"))
    await files.look()
    assert files.failed is None
    assert set(files.acl.accounts) == {"alice123", "chiefchief"}
    default.write_text("accounts: []\n")
    await files.look()
    assert (files.failed, dict(files.acl.accounts)) == (None, {})


def test_what_has_no_effect_and_what_is_wrong_is_named_with_its_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plain_acl.yml").write_text(
        "globalWhiteRemoteAdresses: []\n"
        "accounts:\n- {accessKey: bob-key, secretKey: bob-secret, topicPerm: [], topicPerms: [T=PUBB]}\n"
    )
    files = PlainFiles(OsEnv(seed=1), str(tmp_path))
    with caplog.at_level(logging.WARNING, "remoting.acl.plain_files"):
        files.load()
    at = f"{tmp_path}/plain_acl.yml"
    assert [record.getMessage() for record in lines_of(caplog)] == [
        f"{at}: globalWhiteRemoteAdresses is no key of the file and has no effect",
        f"{at}: account bob-key: topicPerm is no key of an account and has no effect",
        f"{at}: account bob-key: topicPerms: T=PUBB has no permission and counts as DENY",
    ]
    assert "bob-secret" not in caplog.text
    (tmp_path / "plain_acl.yml").write_text("globalWhiteRemoteAddresses: [10.10.300.*]\n")
    with pytest.raises(ConfigError, match=f"{at}: .*10.10.300"):
        files.load()


async def test_changes_by_request_are_written_and_read_again(tmp_path: Path) -> None:
    _, files = plain_gate(tmp_path)
    files.put_account(
        {"accessKey": "bob-key", "secretKey": "bob-secret", "topicPerms": ["T=PUB"], "admin": "false"}
    )
    files.put_account({"accessKey": "alice123", "secretKey": "changed-secret", "topicPerms": None})
    assert files.set_white(["1.2.3.*"], "")
    assert not files.set_white(["1.2.3.*"], "/etc/passwd")
    again = PlainFiles(OsEnv(seed=1), str(tmp_path))
    again.load()
    assert again.acl == files.acl
    assert again.acl.accounts["alice123"].secret_key == "changed-secret"
    assert again.acl.accounts["alice123"].topics
    assert again.acl.on_white_list("1.2.3.4")
    assert files.delete_account("bob-key")
    assert not files.delete_account("bob-key")
    assert set(files.acl.accounts) == {"alice123", "rootroot"}
