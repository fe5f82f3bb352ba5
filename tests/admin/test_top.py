"""The promise of ``keelmq top``: rates of two looks, lag by group, and a silent server is named."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from admin.commands.top import top
from admin.exits import UNFINISHED, run
from admin.top import screen
from admin.top.look import ANSWER_S, Heard, Look, Progress, look, progress_of
from admin.top.view import ConsumerRow, View, view
from client.admin import AdminClient, ConsumeStats, SyncState
from client.message import Queue
from model.errors import PeerError
from remoting import bodies
from runtime.os_env import OsEnv
from tests.ports import free_ports

MASTER, SLAVE, LOST = "h:1", "h:2", "h:3"


def runtime(**table: object) -> dict[str, str]:
    told = {"putTps": "7.00 7.00 7.00", "getTransferredTps": "3.50 0 0", "commitLogDiskRatio": "0.2500"}
    return told | {name: str(value) for name, value in table.items()}


def broker(address: str, role: str, put: int, got: int, end: int) -> Heard:
    table = {"putMessageTimesTotal": put, "msgGetTotalTodayNow": got, "commitLogMaxOffset": end}
    return Heard(address, runtime(brokerRole=role, **table))


def queue(number: int, end: int, at: int, last_ms: int = 0, topic: str = "orders") -> ConsumeStats:
    return ConsumeStats(Queue(topic, "broker-a", number), end, at, last_ms)


STATE = SyncState(
    "broker-a", 2, MASTER, 7, 3, {2: MASTER, 1: SLAVE}, {3: LOST}, {1: True, 2: True, 3: False}, {}, {}
)
FIRST = Look(
    1_000_000,
    5_000.0,
    [Heard("n:1", {"broker-a": {0: MASTER, 1: SLAVE}}), Heard("n:2", problem="no answer within 1 s")],
    [Heard("c:1", {"controllerLeaderAddress": "c:1"}), Heard("c:2", {"controllerLeaderAddress": "c:1"})],
    {
        MASTER: broker(MASTER, "master", 100, 40, 9_000),
        SLAVE: broker(SLAVE, "slave", 0, 0, 8_000),
        LOST: Heard(LOST, problem="h:3 refused the connection"),
    },
    {"broker-a": {0: MASTER, 1: SLAVE}},
    {"broker-a": STATE},
    "",
    [Progress(MASTER, {"billing": [queue(0, 50, 40, 997_000), queue(1, 50, 50, 999_000)], "new": []})],
)
SECOND = replace(
    FIRST,
    at_ms=1_002_000,
    mono_ms=7_000.0,
    brokers={**FIRST.brokers, MASTER: broker(MASTER, "master", 300, 60, 29_000)},
    progress=[
        Progress(MASTER, {"billing": [queue(0, 90, 60, 999_000), queue(1, 50, 50)], "new": [queue(2, 5, 0)]})
    ],
)


def test_one_look_shows_what_the_servers_say_of_themselves() -> None:
    seen = view(FIRST, None)
    (group,) = seen.groups
    assert (group.name, group.master, group.epoch, group.sync_state_set) == ("broker-a", 2, 7, (1, 2))
    slave, master, lost = group.brokers
    assert (master.role, master.in_sync, master.in_tps, master.out_tps) == ("master", True, 7.0, 3.5)
    assert (slave.role, slave.behind_bytes, slave.disk) == ("slave", 1_000, 0.25)
    assert (lost.role, lost.in_sync, lost.problem, lost.end) == (
        "silent",
        False,
        "h:3 refused the connection",
        None,
    )
    assert [one.problem for one in seen.nameservers] == ["", "no answer within 1 s"]
    assert [one.leads for one in seen.controllers] == [True, False]


def test_two_looks_give_rates() -> None:
    seen = view(SECOND, FIRST)
    master = seen.groups[0].brokers[1]
    assert (master.in_tps, master.out_tps) == (100.0, 10.0)
    assert {row.group: row.out_tps for row in seen.consumers} == {"billing": 10.0, "new": None}


def test_a_restarted_broker_counts_from_what_it_says_itself() -> None:
    fresh = {**SECOND.brokers, MASTER: broker(MASTER, "master", 5, 0, 29_000)}
    restarted = replace(SECOND, mono_ms=9_000.0, brokers=fresh)
    assert view(restarted, SECOND).groups[0].brokers[1].in_tps == 7.0


def test_lag_is_summed_by_group_and_its_age_is_that_of_the_oldest_queue_with_a_lag() -> None:
    assert view(SECOND, FIRST).consumers == (
        ConsumerRow("billing", 1, 30, 3_000, 10.0),
        ConsumerRow("new", 1, 5, None, None),
    )


def test_a_reset_back_is_no_negative_rate() -> None:
    back = replace(SECOND, mono_ms=9_000.0, progress=[Progress(MASTER, {"billing": [queue(0, 90, 0)]})])
    assert view(back, SECOND).consumers[0].out_tps == 0.0


def test_a_group_without_controllers_has_its_master_at_id_0() -> None:
    classic = replace(FIRST, controllers=[], states={})
    (group,) = view(classic, None).groups
    assert (group.master, group.epoch, group.sync_state_set) == (0, None, None)
    assert [row.address for row in group.brokers] == [MASTER, SLAVE]


def test_names_of_rocketmqs_roles_are_shown_as_ours() -> None:
    real = replace(FIRST, brokers={**FIRST.brokers, MASTER: broker(MASTER, "SYNC_MASTER", 1, 1, 1)})
    assert view(real, None).groups[0].brokers[1].role == "master"


def test_the_screen_names_what_is_silent_and_sums_what_is_too_much() -> None:
    text = "\n".join(screen.lines(view(SECOND, FIRST), groups_max=1))
    assert "n:2 SILENT" in text
    assert "c:1 leads" in text
    assert "3 h:3" in text
    assert "SILENT  h:3 refused the connection  NOT IN SYNC" in text
    assert "epoch 7  master 2  in sync {1,2} of 3  in 100/s  out 10/s" in text
    assert "and 1 groups more, with a lag of 5" in text


def test_a_master_that_does_not_tell_the_lag_is_named() -> None:
    silent = replace(FIRST, progress=[Progress(MASTER, problem="no answer within 1 s")])
    assert screen.lines(view(silent, None), 5)[-1] == "without what h:1: no answer within 1 s"


def test_json_has_the_same_and_names_as_elsewhere() -> None:
    found = view(SECOND, FIRST).to_json()
    assert found["groups"][0]["syncStateSet"] == [1, 2]
    assert found["groups"][0]["brokers"][1]["inTps"] == 100.0
    assert found["consumers"][0] == {
        "group": "billing",
        "topics": 1,
        "lag": 30,
        "behindMs": 3_000,
        "outTps": 10.0,
    }


@pytest.mark.parametrize(("height", "last"), [(40, "new"), (4, "... ")])
def test_lines_are_cut_to_the_terminal(height: int, last: str) -> None:
    shown = screen.cut(screen.lines(view(SECOND, FIRST), 5), 60, height)
    assert len(shown) <= height
    assert max(map(len, shown)) <= 60
    assert shown[-1].startswith(last)


def test_consume_stats_of_a_broker_are_read() -> None:
    rows = {
        '{"brokerName":"b","queueId":1,"topic":"t"}': {
            "brokerOffset": 9,
            "consumerOffset": 4,
            "lastTimestamp": 3,
        }
    }
    body = bodies.dumps({"consumeStatsList": [{"g": [{"offsetTable": rows}]}, {"idle": []}]})
    assert progress_of(body) == {"g": [ConsumeStats(Queue("t", "b", 1), 9, 4, 3)], "idle": []}


@pytest.mark.parametrize("table", [{"g": [{"offsetTable": {"x": {}}}]}, ["g"], {"g": [1]}])
def test_consume_stats_that_make_no_sense_are_a_problem_of_that_broker(table: object) -> None:
    with pytest.raises(PeerError):
        progress_of(bodies.dumps({"consumeStatsList": [table]}))


async def test_servers_that_are_not_there_or_do_not_answer_are_named() -> None:
    """Nobody listens at one address; at the other connections are taken and never answered."""
    (dead,) = free_ports(1)
    nobody = f"127.0.0.1:{dead}"
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()  # the kernel takes connections, and nobody reads
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        async with AdminClient(OsEnv(), [address]) as admin:
            seen = view(await look(admin, [nobody, address], [address]), None)
    assert [bool(one.problem) for one in seen.nameservers] == [True, True]
    assert seen.nameservers[1].problem == f"no answer within {ANSWER_S:g} s"
    assert seen.states_problem == "no Controller names a leader"
    assert isinstance(seen, View)
    assert "no broker group is known" in screen.lines(seen, 5)


def test_a_look_that_nobody_answers_could_not_finish(capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    asked = ["--once", "--namesrv", f"127.0.0.1:{port}"]
    assert run(top, asked) == run(top, [*asked, "--json"]) == UNFINISHED
    assert f"127.0.0.1:{port} SILENT" in capsys.readouterr().out
