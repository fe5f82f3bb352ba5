"""The promise of elections and of who lives: the best living member wins; only its session ends a broker."""

from collections.abc import Iterator
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from controller.elections.liveness import (
    DEFAULT_TIMEOUT_MS,
    ENDS_A_BROKER,
    FORGOTTEN_MS,
    Heartbeat,
    Liveness,
)
from controller.groups.elect import Ballot, End, choose

G = "broker-a"
IDS = st.frozensets(st.integers(1, 8), max_size=6)
ENDS = st.dictionaries(
    st.integers(1, 8), st.builds(End, st.integers(0, 3), st.integers(0, 2**63 - 1), st.integers(0, 2))
)


@given(
    members=IDS,
    replicas=IDS,
    alive=IDS,
    master=st.none() | st.integers(1, 8),
    ends=ENDS,
    unclean=st.booleans(),
)
def test_the_winner_lives_and_nobody_of_its_set_reaches_further(
    members: frozenset[int],
    replicas: frozenset[int],
    alive: frozenset[int],
    master: int | None,
    ends: dict[int, End],
    unclean: bool,
) -> None:
    voters = members | replicas
    if master is not None and master not in members:
        master = None
    ballot = Ballot(members=members, voters=voters, alive=alive, master=master, ends=ends, unclean=unclean)
    won = choose(ballot)
    able = members & alive
    if not able and unclean:
        able = voters & alive
    if not able:
        assert won is None
    elif master in able:
        assert won == master
    else:
        assert won in able
        best = max((ends.get(b, End()).epoch, ends.get(b, End()).max_offset) for b in able)
        assert (ends.get(won, End()).epoch, ends.get(won, End()).max_offset) == best


def test_equal_logs_are_decided_by_priority_then_by_id() -> None:
    ends = {1: End(1, 5, 9), 2: End(1, 5, 1), 3: End(1, 5, 1)}
    assert choose(Ballot(members=[3, 2, 1], voters=[1, 2, 3], alive=[1, 2, 3], ends=ends)) == 2


def test_a_preference_is_met_or_nobody_wins() -> None:
    ballot = Ballot(members=[1, 2], voters=[1, 2, 3], alive=[1, 2], master=1, preferred=2)
    assert choose(ballot) == 2
    assert choose(replace(ballot, preferred=3)) is None
    assert choose(replace(ballot, preferred=1)) == 1
    assert choose(replace(ballot, alive=[3], preferred=3, unclean=True)) == 3


def beat(session: int, at_ms: float, timeout_ms: int = 1000) -> Heartbeat:
    return Heartbeat(session=session, at_ms=at_ms, timeout_ms=timeout_ms)


def test_the_close_of_an_older_connection_kills_nobody() -> None:
    live = Liveness()
    live.heartbeat(G, 1, beat(1, 0))
    live.heartbeat(G, 1, beat(2, 100))
    assert live.closed(1) == []
    assert live.is_alive(G, 1, 200)
    assert live.closed(2) == [(G, 1)]
    assert not live.is_alive(G, 1, 200)


def test_the_close_of_the_newest_connection_kills_at_once_also_under_a_new_leader() -> None:
    live = Liveness()
    live.heartbeat(G, 1, beat(1, 0))
    live.lead(10)
    live.closed(1)
    assert not live.is_presumed_alive(G, 1, 20)
    assert live.heartbeat(G, 1, beat(2, 30))
    assert live.is_alive(G, 1, 40)


def test_silence_ends_a_session_once_and_a_heartbeat_begins_another() -> None:
    live = Liveness()
    live.heartbeat(G, 1, beat(1, 0))
    assert live.next_expiry_ms() == 1000
    assert live.expired(1000) == []
    assert live.expired(1001) == [(G, 1)]
    assert live.expired(1002) == []
    assert live.next_expiry_ms() is None
    assert live.heartbeat(G, 1, beat(1, 2000))
    assert not live.heartbeat(G, 1, beat(1, 2100))


def test_a_new_leader_presumes_for_one_timeout_that_silent_brokers_live() -> None:
    live = Liveness()
    live.heartbeat(G, 1, beat(1, 0))
    live.lead(5000)
    assert not live.is_alive(G, 1, 5500)
    assert live.is_presumed_alive(G, 1, 5500)
    assert not live.is_presumed_alive(G, 1, 6001)
    assert live.presumed_alive(G, [1, 2], 5500) == [1, 2]  # 2 was never heard
    assert live.presumed_alive(G, [1, 2], 6001) == []


def test_without_any_heartbeat_the_grace_is_the_longest_default() -> None:
    live = Liveness()
    live.lead(0)
    assert live.is_presumed_alive(G, 1, DEFAULT_TIMEOUT_MS)
    assert not live.is_presumed_alive(G, 1, DEFAULT_TIMEOUT_MS + 1)


def test_the_newest_heartbeat_says_how_far_a_log_reaches_even_if_that_is_less() -> None:
    live = Liveness()
    live.heartbeat(G, 1, Heartbeat(session=1, at_ms=0, epoch=2, max_offset=900))
    live.heartbeat(G, 1, Heartbeat(session=2, at_ms=1, epoch=2, max_offset=500))
    assert live.ends(G)[1].max_offset == 500


@given(st.lists(st.tuples(st.sampled_from(["beat", "close", "tick"]), st.integers(1, 3)), max_size=40))
def test_a_broker_is_alive_exactly_while_its_newest_session_is_open_and_recent(
    steps: list[tuple[str, int]],
) -> None:
    live, now, newest, at, ended = Liveness(), 0.0, None, 0.0, False
    for what, session in steps:
        if what == "beat":
            live.heartbeat(G, 1, beat(session, now))
            if newest is None or session >= newest or ended or now > at + 1000:
                newest, at, ended = session, now, False
        elif what == "close":
            live.closed(session)
            ended = ended or session == newest
        else:
            now += 300 * session
            live.expired(now)
        assert live.is_alive(G, 1, now) == (newest is not None and not ended and now <= at + 1000)


class Unlisted(dict[tuple[str, int], Heartbeat]):
    """Gives what is asked for by name, and never all of it."""

    def __iter__(self) -> Iterator[tuple[str, int]]:
        raise AssertionError("looked at the brokers of all groups")

    def items(self) -> Any:
        return iter(self)

    def values(self) -> Any:
        return iter(self)


def test_who_asks_for_one_group_pays_for_one_group() -> None:
    """A Controller asks this for each group when it looks at all of them: among thousands of groups it would
    be busy for longer than its followers bear."""
    live = Liveness()
    for number in range(10):
        for broker_id in (1, 2, 3):
            live.heartbeat(f"g{number}", broker_id, beat(3 * number + broker_id, 0))
    live._beats = Unlisted(live._beats)
    assert live.alive("g7", 1) == [1, 2, 3]
    assert live.presumed_alive("g7", (1, 2), 1) == [1, 2]
    live.forget("g7", 2)
    assert live.alive("g7", 1) == [1, 3]
    assert sorted(live.ends("g7")) == [1, 3]
    assert live.alive("nobody", 1) == []


def test_what_each_step_of_the_elections_asks_looks_at_no_other_broker() -> None:
    live = Liveness()
    live.lead(0)
    for number in range(10):
        live.heartbeat(f"g{number}", 1, beat(number, number, timeout_ms=500))
    live._beats = Unlisted(live._beats)
    live.heartbeat("g0", 1, beat(11, 100))
    assert live.next_expiry_ms() == 501, "of g1, as g0 was heard again"
    assert live.is_presumed_alive("g0", 2, 1000), "it may have the longest timeout that is in use"
    assert not live.is_presumed_alive("g0", 2, 1001)
    assert live.expired(502) == [("g1", 1)]
    assert live.next_expiry_ms() == 502
    live.forget("g0", 1)
    assert not live.is_presumed_alive("g0", 1, 501), "nobody has so long a timeout any more"


STEP = st.tuples(
    st.sampled_from(["beat", "close", "forget", "tick"]), st.integers(1, 4), st.sampled_from([300, 500, 1000])
)


@given(st.lists(STEP, max_size=60))
def test_the_next_end_of_a_session_and_the_longest_timeout_are_those_of_all(steps: list[Any]) -> None:
    live, now = Liveness(), 0.0
    live.lead(0.0)
    for what, broker_id, ms in steps:
        if what == "beat":
            live.heartbeat(G, broker_id, beat(broker_id, now, ms))
        elif what == "close":
            live.closed(broker_id)
        elif what == "forget":
            live.forget(G, broker_id)
        else:
            now += ms
            due = [b for b, held in live._beats.items() if b not in live._over and held.until_ms < now]
            assert live.expired(now) == sorted(due)
        untils = [held.until_ms for b, held in live._beats.items() if b not in live._over]
        assert live.next_expiry_ms() == min(untils, default=None)
        timeouts = [held.timeout_ms for held in live._beats.values()]
        assert live.grace_ms("other", 1) == max(timeouts, default=DEFAULT_TIMEOUT_MS)
        assert len(live._ends) <= ENDS_A_BROKER * max(len(live._beats), 1), "what was put off goes in time"


def test_a_broker_that_is_long_silent_is_forgotten() -> None:
    """A follower hears no CLEAN_BROKER_DATA: it would refuse brokers after 20,000 former ones."""
    live = Liveness()
    for broker_id in (1, 2):
        live.heartbeat(G, broker_id, beat(broker_id, 0))
    assert live.closed(1) == [(G, 1)]
    assert live.expired(2_000) == [(G, 2)]
    live.heartbeat(G, 3, beat(3, FORGOTTEN_MS))
    assert live.expired(FORGOTTEN_MS + 1_000) == []
    assert len(live) == 3
    assert live.expired(FORGOTTEN_MS + 1_001) == [(G, 3)]
    assert (len(live), live.knows(G, 3), live.connection_closed(G, 1)) == (1, True, False)
