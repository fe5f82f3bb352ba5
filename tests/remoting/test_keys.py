"""The promise of keys: what keelmq's parts sign is good for one code, one body, once; peers' keys are not
operators'; and keys change while everybody goes on."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.codes import Request, Response
from model.errors import ConfigError, Refused
from remoting.acl.audit import Audit
from remoting.acl.gate import Gate
from remoting.auth import AMONG_PEERS, OF_OPERATORS, PEER_CODES, Credentials
from remoting.codec import Command, decode, encode
from remoting.keys import (
    AHEAD_MS,
    NONCE,
    OPERATORS,
    OWN_SIGNATURE,
    PEERS,
    SKEW_MS,
    TIME,
    Keyring,
    Replays,
    clock_of,
    own_signature,
)
from remoting.service import Connection, RemotingClient, RemotingServer
from runtime.os_env import OsEnv
from runtime.secret import Secrets, read_secret

SECRET = "0123456789abcdef"
OTHER = "another secret of many bytes"
TOPIC = Command(Request.UPDATE_AND_CREATE_TOPIC, {"topic": "T"}, b"body")


class Clock(OsEnv):
    """Its time is what the test says."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.at_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.at_ms


def write(path: Path, *keys: dict[str, Any]) -> str:
    content: dict[str, Any] = keys[0] if len(keys) == 1 else {"keys": list(keys)}
    path.write_text(json.dumps(content))
    os.utime(path, ns=(0, 0))  # a time tells nothing: two writes may share a tick of the clock
    return str(path)


def key(name: str = "peers", secret: str = SECRET, **more: Any) -> dict[str, Any]:
    return {"accessKey": name, "secretKey": secret, **more}


def ring(path: Path, *keys: dict[str, Any], role: str = PEERS, env: Clock | None = None) -> Keyring:
    return Keyring(env or Clock(), write(path / "keys.json", *keys), role)


def sent(command: Command) -> Command:
    """As it comes out of the frame."""
    return decode(encode(command))


def why(one: Keyring, command: Command) -> str:
    with pytest.raises(Refused) as refused:
        one.check(command)
    assert refused.value.code == Response.NO_PERMISSION
    return refused.value.remark


def test_a_request_is_taken_once(tmp_path: Path) -> None:
    one = ring(tmp_path, key())
    signed = one.signed(TOPIC)
    again = sent(signed)
    one.check(signed)
    one.check(signed)  # the same request, looked at twice on its way to a handler
    assert "it was sent before" in why(one, again)
    one.check(one.signed(TOPIC))


@pytest.mark.parametrize("strict", [True, False])
def test_the_acl_says_why_it_does_not_believe_a_key_of_the_file(tmp_path: Path, strict: bool) -> None:
    env = Clock()
    one = ring(tmp_path, key(strict=strict), env=env)
    (tmp_path / "other").mkdir()
    other = ring(tmp_path / "other", key(secret="another-secret-of-32-bytes-or-so", strict=strict), env=env)
    users = Gate(Audit("test", lambda: 0.0), authenticates=True, authorizes=True)

    def told(command: Command) -> str:
        with pytest.raises(Refused) as refused:
            users.check(sent(command), "127.0.0.1:5", one)
        assert refused.value.code == Response.NO_PERMISSION
        return refused.value.remark

    late = one.signed(TOPIC)
    users.check(sent(one.signed(TOPIC)), "127.0.0.1:5", one)
    env.at_ms += 400_000
    of_a_peer = "User:peers is not found.; peers is a key of peerCredentialsFile, and "
    assert told(late).startswith(of_a_peer)
    assert told(late).endswith("its time is 400 s behind this server's clock")
    assert clock_of(told(late)) == 400_000
    assert "signed with another key than this server's peerCredentialsFile" in told(other.signed(TOPIC))
    assert "peerCredentialsFile" not in told(Credentials("nobody", SECRET).signed(TOPIC))
    (tmp_path / "retired").mkdir()
    retired = ring(tmp_path / "retired", key("people", strict=strict), env=env)
    hint = "User:people is not found.; nor is people a key of peerCredentialsFile here"
    assert told(retired.signed(TOPIC)) == hint


def test_a_clock_is_told_by_both_ends_and_what_is_no_number_is_none() -> None:
    assert clock_of("X is refused: its time is 599 s ahead of this server's clock") == -599_000
    assert clock_of("its time is long before this server's clock") is None


def test_a_request_of_another_time_is_refused(tmp_path: Path) -> None:
    env = Clock()
    one = ring(tmp_path, key(), env=env)
    early, late = one.signed(TOPIC), one.signed(TOPIC)
    env.at_ms += SKEW_MS
    one.check(early)
    env.at_ms += 1
    assert "300 s behind this server's clock" in why(one, late)
    env.at_ms -= 2 * SKEW_MS + 2
    assert "ahead of this server's clock" in why(one, late)
    for time in ("", "x", "9" * 30):
        signed = one.signed(TOPIC)
        signed.ext[TIME] = time
        signed.ext[OWN_SIGNATURE] = own_signature(signed, SECRET)
        why(one, signed)


@pytest.mark.parametrize("strict", [False, True])
def test_a_signature_is_of_one_code_one_body_and_its_fields(tmp_path: Path, strict: bool) -> None:
    one = ring(tmp_path, key(strict=strict))
    signed = one.signed(TOPIC)
    for changed in (
        replace(signed, code=int(Request.DELETE_TOPIC_IN_BROKER)),
        replace(signed, body=b"Body"),
        replace(signed, ext={**signed.ext, "topic": "U"}),
        replace(signed, ext={**signed.ext, "order": "true"}),
        replace(signed, ext={**signed.ext, NONCE: "0" * 32}),
        replace(signed, ext={**{k: v for k, v in signed.ext.items() if k != "topic"}, "Topic": "T"}),
    ):
        assert "another key" in why(one, changed)
    one.check(signed)


def test_without_its_own_signature_only_a_key_that_is_not_strict_is_good(tmp_path: Path) -> None:
    plain = Credentials("peers", SECRET)
    ring(tmp_path, key()).check(plain.signed(TOPIC))
    strict = ring(tmp_path, key(strict=True))
    assert "the key peers is strict here" in why(strict, plain.signed(TOPIC))
    assert "must be signed" in why(strict, TOPIC)
    signed = strict.signed(TOPIC)
    assert "Signature" not in signed.ext
    # What was overheard is good under no other names of its fields either.
    renamed = {{OWN_SIGNATURE: "Signature", TIME: "kqTimf"}.get(k, k): v for k, v in signed.ext.items()}
    assert "is strict here" in why(strict, replace(signed, ext=renamed))


@given(ext=st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=4), body=st.binary(max_size=9))
def test_two_requests_never_have_one_signature_by_moving_a_border(ext: dict[str, str], body: bytes) -> None:
    made = own_signature(Command(17, ext, body), SECRET)
    for name, value in ext.items():
        if value:
            moved = {k: v for k, v in ext.items() if k != name} | {name + value[0]: value[1:]}
            if moved != ext:
                assert own_signature(Command(17, moved, body), SECRET) != made
    if body:
        assert own_signature(Command(17, {**ext, "zzzzz": ""}, body), SECRET) != made


def test_keys_of_peers_and_of_operators_are_not_each_others(tmp_path: Path) -> None:
    keys = (key("brokers", **{"for": PEERS}), key("people", OTHER, **{"for": OPERATORS}))
    server = ring(tmp_path, *keys)
    operator = ring(tmp_path, *keys, role=OPERATORS)
    assert (server.access_key, operator.access_key) == ("brokers", "people")
    both = {Request.CONTROLLER_ELECT_MASTER}
    for code in sorted(PEER_CODES):
        request = Command(code, {"topic": "T"})
        if code in OF_OPERATORS:
            server.check(operator.signed(request))
        else:
            assert "is not for the key people, which is one for" in why(server, operator.signed(request))
        if code in AMONG_PEERS | both:
            server.check(server.signed(request))
        else:
            assert "which is one for peers" in why(server, server.signed(request))


def test_a_file_that_is_gone_or_says_the_same_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = ring(tmp_path, key())
    path = tmp_path / "keys.json"
    content = path.read_text()
    path.unlink()
    for _ in range(3):
        one.look()
    assert caplog.messages == [f"the keys in force stay: peerCredentialsFile={path} cannot be read any more"]
    path.write_text(content + "\n")
    one.look()
    assert len(caplog.messages) == 1, "its keys are the same"
    path.unlink()
    one.look()
    assert len(caplog.messages) == 2
    assert one.knows("peers")


def test_secrets_of_raft_that_are_gone_or_the_same_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "raft.secret"
    path.write_text(SECRET)
    secrets = Secrets(OsEnv().disk, str(path), "raftSecretFile")
    path.write_text(SECRET + "\n")
    assert secrets.current() == (SECRET.encode(),)
    assert caplog.messages == []
    path.unlink()
    for _ in range(2):
        assert secrets.current() == (SECRET.encode(),)
    assert caplog.messages == [f"the secrets in force stay: raftSecretFile={path} cannot be read any more"]


def test_keys_change_without_a_stop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """New behind old everywhere, new before old everywhere, old out: nobody is refused in between."""
    env = Clock()
    old, new = key("peers"), key("peers", OTHER)
    a, b = ring(tmp_path, old, env=env), Keyring(env, write(tmp_path / "b.json", old))

    def talk() -> None:
        a.check(sent(b.signed(TOPIC)))
        b.check(sent(a.signed(TOPIC)))

    talk()
    for content in ((old, new), (new, old), (new,)):
        for one, path in ((a, "keys.json"), (b, "b.json")):
            write(tmp_path / path, *content)
            one.look()
            talk()
    with pytest.raises(Refused):
        a.check(Credentials("peers", SECRET).signed(TOPIC))
    (tmp_path / "keys.json").write_text("{")
    a.look()
    talk()
    assert "stay" in caplog.text
    assert OTHER not in caplog.text


def test_new_keys_that_could_not_be_read_are_read_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = ring(tmp_path, key())
    write(tmp_path / "keys.json", key("other", OTHER))

    def no_descriptor(*_: object) -> bytes:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("remoting.keys.read_file", no_descriptor)
        one.look()
        one.look()
    assert (one.knows("other"), caplog.text.count("stay")) == (False, 1)
    one.look()
    assert one.knows("other")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        ("", "not JSON"),
        ("{not", "not JSON"),
        ("{}", "expected"),
        ("[]", "expected"),
        ('{"keys": []}', "expected"),
        ('{"keys": [7]}', "expected"),
        ('{"accessKey": "a"}', "expected"),
        (json.dumps(key(name="")), "expected"),
        ('{"accessKey": "a", "secretKey": 1234567890123456}', "expected"),
        (json.dumps(key(secret=SECRET[:-1])), "at least 16 bytes"),
        ('{"accessKey": "a", "secretKey": "0123456789abcde\\ud800"}', "surrogate"),
        (json.dumps(key(**{"for": "nobody"})), "for"),
        (json.dumps(key(strict="yes")), "strict"),
        (json.dumps({"keys": [key()], "more": 1}), "expected"),
        (json.dumps(key(extra="x")), "accessKey, secretKey, for, strict and nothing else"),
    ],
)
def test_a_file_that_is_none_is_refused_without_its_secrets(
    tmp_path: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=says) as error:
        Keyring(Clock(), str(path))
    assert f"peerCredentialsFile={path}" in str(error.value)
    assert SECRET[:-1] not in str(error.value)


@pytest.mark.parametrize("value", [json.dumps(key()), SECRET])
def test_a_secret_in_the_place_of_its_files_path_is_not_told(value: str) -> None:
    with pytest.raises(ConfigError, match=r"peerCredentialsFile .*not shown.*No such file") as error:
        Keyring(Clock(), value)
    assert SECRET not in str(error.value)
    with pytest.raises(ConfigError, match=r"haSecretFile .*not shown.*No such file") as error:
        read_secret(Clock().disk, value, "haSecretFile")
    assert SECRET not in str(error.value)


def test_what_was_seen_is_remembered_as_long_as_it_would_be_taken_and_no_longer() -> None:
    seen = Replays(skew_ms=10, most=3)
    now = 1000
    for number in range(3):
        assert seen.take(now, f"n{number}", now) is None
    assert seen.take(now, "n0", now + 10) == "it was sent before"
    assert seen.take(now + 21, "n0", now + 21) is None, "its time is over long since"
    seen.check_invariants()
    full = Replays(skew_ms=10, most=2)
    for number in range(5):
        assert full.take(now + number, f"n{number}", now + number) is None
        full.check_invariants()
    for number in range(5):
        assert full.take(now + number, f"n{number}", now + 5) == "it was sent before", number


def test_a_full_memory_forgets_the_earliest_time_and_knows_which_it_forgot() -> None:
    """A late one that says a time long ago drives out nothing that could be said again."""
    seen = Replays(skew_ms=300, most=3)
    assert seen.take(1290, "a", 1000) is None, "its sender's clock is ahead"
    assert seen.take(1000, "b", 1001) is None
    assert seen.take(1001, "c", 1002) is None
    assert seen.take(800, "late", 1003) is None, "full: what says 800 or less is refused from now on"
    seen.check_invariants()
    for time_ms, name in ((1290, "a"), (1000, "b"), (1001, "c"), (800, "late"), (799, "later")):
        assert seen.take(time_ms, name, 1004) == "it was sent before", name
    assert seen.take(1005, "d", 1005) is None
    assert seen.take(1000, "b", 1006) == "it was sent before"
    seen.check_invariants()


def test_times_ahead_of_the_clock_push_out_no_present_one() -> None:
    """Many of them filled the memory: of two peers that asked in the same ms the second was refused."""
    seen = Replays(most=8)
    now = 1_000_000
    ahead = [seen.take(now + SKEW_MS - number, f"ahead{number}", now) for number in range(20)]
    assert ahead[:2] == [None, None]
    text = "its time is ahead of this server's clock, and so are those of 2 others"
    assert ahead[2:] == [text] * 18
    for number in range(6):
        assert seen.take(now - number, f"n{number}", now) is None
    assert seen.take(now + AHEAD_MS, "a little ahead", now) is None
    seen.check_invariants()
    later = now + SKEW_MS
    assert seen.take(later + 2000, "there is room again", later) is None
    for number in range(2):
        assert seen.take(now + SKEW_MS - number, f"ahead{number}", later) == "it was sent before"
    seen.check_invariants()


def test_one_key_pushes_out_no_signature_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replays.__init__, "__defaults__", (SKEW_MS, 4))
    env = Clock()
    peers = Keyring(env, write(tmp_path / "peers.json", key()))
    tools = Keyring(env, write(tmp_path / "tools.json", key("tools", OTHER)))
    server = Keyring(env, write(tmp_path / "both.json", key(), key("tools", OTHER)))
    late = sent(peers.signed(TOPIC))
    env.at_ms += 1
    for _ in range(9):
        server.check(sent(tools.signed(TOPIC)))
        env.at_ms += 1
    server.check(late)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 12), st.integers(0, 3)), max_size=60))
def test_nothing_is_taken_twice_however_little_is_remembered(
    steps: list[tuple[int, int, int]],
) -> None:
    seen, taken, now = Replays(skew_ms=2000, most=5), set(), 10_000
    for ahead, name, later in steps:
        now += 100 * later
        said = (now + 100 * (ahead - 20), f"n{name}")
        if seen.take(*said, now) is None:
            assert said not in taken
            taken.add(said)
        seen.check_invariants()


async def test_an_overheard_request_is_refused_by_a_server(tmp_path: Path) -> None:
    heard: list[Command] = []

    async def handler(connection: Connection, request: Command) -> Command:
        heard.append(request)
        return request.reply()

    env = OsEnv(seed=1)
    keys = Keyring(env, write(tmp_path / "keys.json", key(strict=True)))
    server = RemotingServer(env, "server", handler, credentials=keys)
    port = await server.start("127.0.0.1", 0)
    client = RemotingClient(env, "client", credentials=keys)
    eavesdropper = RemotingClient(env, "eavesdropper")
    try:
        for _ in range(3):
            assert (await client.call(f"127.0.0.1:{port}", TOPIC)).code == 0
        overheard = replace(heard[0], ext=dict(heard[0].ext), proven=False)
        answer = await eavesdropper.call(f"127.0.0.1:{port}", overheard)
        assert (answer.code, answer.remark) == (
            Response.NO_PERMISSION,
            "UPDATE_AND_CREATE_TOPIC is refused: it was sent before",
        )
        overheard.code = int(Request.DELETE_TOPIC_IN_BROKER)
        assert (await eavesdropper.call(f"127.0.0.1:{port}", overheard)).code == Response.NO_PERMISSION
        assert len(heard) == 3
    finally:
        for closing in (client, eavesdropper):
            await closing.close()
        await server.stop()
