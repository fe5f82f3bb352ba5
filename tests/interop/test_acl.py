"""The promise of ACL to official clients: Java 5.5 and 4.9 and Go v2 are allowed and denied as the real
broker allows and denies them, in its words (test_acl_failover.py: also while a master dies)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from chaos.worlds import rocketmq
from tests.interop.acl_sides import (
    ACL_2,
    ALICE,
    Side,
    all_of,
    keelmq_side,
    old_library,
    old_side,
    real_side,
)
from tests.interop.conftest import beside

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SETUP_2 = [
    "updateTopic -b BROKER -t Allowed -r 4 -w 4",
    "updateTopic -b BROKER -t Denied -r 4 -w 4",
    "createUser -b BROKER -u alice -p alice-secret",
    "createUser -b BROKER -u alice -p alice-secret",
    "createUser -b BROKER -u bob -p bob-secret -t Normal",
    "updateUser -b BROKER -u bob -s disable",
    "createAcl -b BROKER -s User:alice -r Topic:Allow* -a Pub,Sub -d Allow",
    "createAcl -b BROKER -s User:alice -r Group:g-allowed -a Sub -d Allow",
    "createAcl -b BROKER -s User:nobody -r Topic:x -a Pub -d Allow",
    "createAcl -b BROKER -s User:alice -r Topic:x -a Pub -d Allow -i 300.1.1.1",
    "updateAcl -b BROKER -s User:alice -r Topic:y -a Pub,Sub -i 10.0.0.0/8 -d Deny",
    "listUser -b BROKER",
    "getUser -b BROKER -u alice",
    "listAcl -b BROKER",
    "getAcl -b BROKER -s User:alice",
    "deleteAcl -b BROKER -s User:alice -r Topic:y",
    "listAcl -b BROKER -s alice",
    "getUser -b BROKER -u nobody",
    "deleteUser -b BROKER -u gone",
    "copyUser -f BROKER -t BROKER -u alice",
    "copyAcl -f BROKER -t BROKER -s User:alice",
]
# A client of 4.9 that misses its first rebalance, on a busy machine, takes its queues 20 s later.
CASES_2 = [
    f"send {ALICE} Allowed 3",
    f"batch {ALICE} Allowed 4",
    f"send {ALICE} Denied 1",
    f"batch {ALICE} Denied 1",
    "send alice wrong-secret Allowed 1",
    "send nobody x-secret Allowed 1",
    "send - - Allowed 1",
    "send bob bob-secret Allowed 1",
    "send rootroot root-secret Denied 2",
    f"pull {ALICE} Allowed g-allowed",
    f"pull {ALICE} Denied g-allowed",
    f"pull {ALICE} Allowed g-denied",
    f"consume {ALICE} Allowed g-allowed 7 60000",
    f"consume {ALICE} Allowed g-denied 1 4000",
]
AS_ALICE_2 = [
    "updateTopic -b BROKER -t Mine -r 4 -w 4",
    "createUser -b BROKER -u eve -p eve-secret",
    "listUser -b BROKER",
    "deleteTopic -c DefaultCluster -t Allowed",
]
LEFT_OPEN_2 = ["updateSubGroup -b BROKER -g g9", "updateBrokerConfig -b BROKER -k brokerPermission -v 6"]
"""What every user of the real broker may change, and here only one with a right."""


def plain(said: str) -> str:
    """What an mqadmin command printed, without the stacks of the JVM and the numbers of a run."""
    noise = ("\tat ", "    at ", "\t...", "    ...")
    lines = [line for line in said.splitlines() if line.strip() and not line.startswith(noise)]
    kept = [line for line in lines if "|-" not in line and "logback" not in line]
    return re.sub(r"\d{10,}|@[0-9a-f]+|\S+plain_acl\.yml|\d{4}-\d\d-\d\d \S+", "N", "\n".join(kept))


@pytest.fixture(scope="module")
def new_library(real_rocketmq: Path) -> Path:
    return real_rocketmq


Made = tuple[Side, list[str]]
"""One broker, and what its set-up printed."""


@pytest.fixture(scope="module")
def sides_2(new_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Made, Made]]:
    """A keelmq broker with ACL 2.0 and a real one."""
    with ExitStack() as ends:
        ours, theirs = beside(
            partial(ends.enter_context, keelmq_side(tmp_path_factory.mktemp("keelmq2"), **ACL_2)),
            partial(ends.enter_context, real_side(tmp_path_factory.mktemp("real2"), **ACL_2)),
        )
        said = beside(*(partial(side.mqadmin, new_library, *SETUP_2) for side in (ours, theirs)))
        yield (ours, said[0]), (theirs, said[1])


@pytest.mark.covers(
    "ACL 2.0: users and policies are made, changed and shown", client="mqadmin 5.5.0", sides="both"
)
def test_users_and_policies_are_made_and_shown_as_by_the_real_broker(
    sides_2: tuple[Made, Made],
) -> None:
    ours, theirs = ([plain(said) for said in side[1]] for side in sides_2)
    for command, one, two in zip(SETUP_2, ours, theirs, strict=True):
        assert one == two, command


def some(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """``rows``, in which a consumer got something or nothing: how much in its time depends on the machine."""
    return [
        {**row, "done": "some"} if row["verb"] == "consume" and row["done"] != "0" else row for row in rows
    ]


@pytest.mark.covers(
    "ACL 2.0: who is let in, who is turned away", client="Java 5.5.0, Java 4.9.7", sides="both"
)
def test_clients_of_5_5_and_4_9_are_let_in_and_turned_away_as_by_the_real_broker(
    sides_2: tuple[Made, Made], new_library: Path
) -> None:
    for library in (new_library, old_library()):
        ours, theirs = beside(*(partial(side.drive, library, *CASES_2) for side, _ in sides_2))
        assert some(ours) == some(theirs)
        assert all_of(ours, "code")[:9] == [(c,) for c in ("0", "0", "16", "16", "16", "16", "16", "16", "0")]


@pytest.mark.covers("ACL 2.0: a user without a right changes nothing", client="mqadmin 5.5.0", sides="both")
def test_a_user_without_a_right_is_no_operator(sides_2: tuple[Made, Made], new_library: Path) -> None:
    alice = ("alice", "alice-secret")
    ours, theirs = beside(
        *(partial(side.mqadmin, new_library, *AS_ALICE_2, key=alice) for side, _ in sides_2)
    )
    assert [plain(said) for said in ours] == [plain(said) for said in theirs]
    assert all("CODE: 16" in said for said in ours)
    for said in sides_2[0][0].mqadmin(new_library, *LEFT_OPEN_2, key=alice):
        assert "has no permission to access" in said
    for said in sides_2[1][0].mqadmin(new_library, *LEFT_OPEN_2, key=alice):
        assert "success" in said, "the real broker closed it: so may our list of differences"


def go_facts(side: Side, driver: Path, *commands: str) -> list[dict[str, str]]:
    words: list[str] = []
    for command in commands:
        words += [*(["--"] if words else []), *command.split()]
    done = subprocess.run([str(driver), side.namesrv, *words], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return side.seen(done.stdout)


@pytest.mark.covers("ACL 2.0: who is let in, who is turned away", client="Go v2", sides="both")
@pytest.mark.more
def test_the_go_client_is_let_in_and_turned_away_as_by_the_real_broker(
    sides_2: tuple[Made, Made], go_driver: Path
) -> None:
    cases = [case for case in CASES_2 if case.split()[0] == "send"]
    cases.append(f"consume {ALICE} Allowed g-allowed 1 10000")
    for side, _ in sides_2:
        side.drive(rocketmq.fetch(), "send rootroot root-secret Allowed 3")
    ours, theirs = beside(*(partial(go_facts, side, go_driver, *cases) for side, _ in sides_2))
    # How much of a topic it was at differs with what was read before.
    assert all_of(ours[:-1], "done", "text") == all_of(theirs[:-1], "done", "text")
    assert "has no permission to access Topic:Denied" in ours[1]["text"]
    assert int(ours[-1]["done"]) > 0
    assert int(theirs[-1]["done"]) > 0


PLAIN_ACL = """globalWhiteRemoteAddresses:
- 10.10.103.*
accounts:
- accessKey: alice-key
  secretKey: alice-secret
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - Allowed=PUB|SUB
  - Denied=DENY
  - PubOnly=PUB
  groupPerms:
  - g-allowed=SUB
- accessKey: rootroot
  secretKey: root-secret
  admin: true
"""
SETUP_1 = [
    *(f"updateTopic -b BROKER -t {name} -r 4 -w 4" for name in ("Allowed", "Denied", "Other", "PubOnly")),
    "updateAclConfig -b BROKER -a bob-key -s bob-secret -i DENY -u SUB -t Allowed=PUB -g g1=SUB -m false",
    "updateAclConfig -b BROKER -a bob-key2 -s bob-secret -t Allowed=ALL",
    "clusterAclConfigVersion -b BROKER",
    "getAccessConfigSubCommand -b BROKER",
    "deleteAccessConfig -b BROKER -a bob-key",
    "updateGlobalWhiteAddr -b BROKER -g 10.10.103.*,192.168.0.*",
]
KEY_1 = "alice-key alice-secret"
CASES_1 = [
    f"send {KEY_1} Allowed 3",
    f"batch {KEY_1} Allowed 4",
    f"send {KEY_1} Denied 1",
    f"send {KEY_1} Other 1",
    f"send {KEY_1} PubOnly 1",
    "send alice-key wrong-secret Allowed 1",
    "send nobody-key x-secret Allowed 1",
    "send - - Allowed 1",
    "send rootroot root-secret Denied 2",
    f"pull {KEY_1} Allowed g-allowed",
    f"pull {KEY_1} PubOnly g-allowed",
    f"pull {KEY_1} Allowed g-denied",
    f"consume {KEY_1} Allowed g-allowed 7 60000",
    f"consume {KEY_1} Allowed g-denied 1 4000",
]


def without_frame(text: str) -> str:
    """The first frame of the stack, which the original shows, and what 4.9 says where 5.2 is more exact."""
    text = re.sub(r", org\.apache\.rocketmq\.acl[\w.]*\(\w+\.java:\d+\)", "", text)
    return text.replace("No default permission for", "No permission for")


@pytest.mark.covers(
    "ACL 1.0: plain_acl.yml and its commands", client="Java 5.5.0, Java 4.9.7, mqadmin 4.9.7", sides="both"
)
@pytest.mark.more
def test_acl_1_as_of_a_real_broker_of_4_9(new_library: Path, tmp_path: Path) -> None:
    library = old_library()
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "plain_acl.yml").write_text(PLAIN_ACL)

    def on(side: Side) -> tuple[list[str], list[list[dict[str, str]]]]:
        said = [plain(one) for one in side.mqadmin(library, *SETUP_1)]
        seen = [side.drive(one, *CASES_1) for one in (new_library, library)]
        denied = side.mqadmin(library, "updateTopic -b BROKER -t Mine", key=("alice-key", "alice-secret"))
        assert "Need admin permission for request code=17, but accessKey=alice-key is not" in denied[0]
        return said, seen

    with ExitStack() as ends:
        ours_begun = keelmq_side(tmp_path / "ours", aclEnable="true", aclHome=tmp_path / "conf")
        theirs_begun = old_side(tmp_path / "theirs", library, PLAIN_ACL)
        one_side, other_side = beside(
            partial(ends.enter_context, ours_begun), partial(ends.enter_context, theirs_begun)
        )
        (our_words, our_rows), (their_words, their_rows) = beside(
            partial(on, one_side), partial(on, other_side)
        )
    for command, one, two in zip(SETUP_1, our_words, their_words, strict=True):
        assert one == two, command
    for ours, theirs in zip(our_rows, their_rows, strict=True):
        for row, their_row in zip(some(ours), some(theirs), strict=True):
            assert {k: without_frame(v) for k, v in row.items()} == {
                k: without_frame(v) for k, v in their_row.items()
            }
