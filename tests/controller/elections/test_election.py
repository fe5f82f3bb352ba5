"""The promises of controller.elections.election, whatever happens in whichever order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller.elections import signals
from controller.elections.election import ANNOUNCEMENTS_MAX, ElectionDecider
from controller.elections.liveness import DEFAULT_TIMEOUT_MS, Heartbeat
from controller.elections.preview import ElectionRequest
from controller.elections.underway import GROUPS_AT_ONCE, NEVER, Election, Phase
from controller.groups.commands import (
    Answer,
    SetMaintenance,
)
from model.errors import MqError, Refused, Unknown
from tests.fakes.controller.decider import G, Lab

IDS = (1, 2, 3)
BROKER = st.sampled_from(IDS)
END = st.tuples(st.integers(1, 3), st.integers(0, 200))
REQUEST = st.builds(
    ElectionRequest,
    broker_id=BROKER,
    designate=st.booleans(),
    restarted=st.booleans(),
    suspect=st.booleans(),
    log_epoch=st.integers(1, 3),
    master_epoch=st.sampled_from([-1, -1, 1, 2]),
    handed_over_by=st.sampled_from([-1, -1, 1, 2]),
    steps_down=st.booleans(),
    needed=st.integers(1, 2),
)
STEP = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, 4000)),
    st.tuples(st.just("beat"), BROKER, END, st.booleans(), st.booleans()),
    st.tuples(st.just("close"), BROKER),
    st.tuples(st.just("lease"), BROKER),
    st.tuples(st.just("lead"), st.booleans()),
    st.tuples(st.just("settle"), st.booleans()),
    st.tuples(st.just("answer"), BROKER, st.none() | END, st.booleans()),
    st.tuples(st.just("commit")),
    st.tuples(st.just("fail"), st.sampled_from(["unknown", "applied", "refused", "deposed"])),
    st.tuples(st.just("request"), REQUEST),
    st.tuples(st.just("step_down"), st.sampled_from(["yes", "no", "cannot"])),
    st.tuples(st.just("alter"), st.sets(BROKER, min_size=1)),
    st.tuples(st.just("maintenance"), BROKER, st.booleans()),
    st.tuples(st.just("stood_still"), st.integers(500, 5000)),
)


class Play:
    """A group of three, and steps in any order; ``Lab`` looks at the promises after each of them."""

    def __init__(self, *, majority: bool) -> None:
        self.lab = Lab()
        self.lab.make_group([*IDS], majority=majority)
        self.lab.make_master(1, [*IDS])
        self.term = 1
        self.lab.lead(self.term)

    def do(self, step: tuple[Any, ...]) -> None:
        lab, (name, *values) = self.lab, step
        match name:
            case "wait":
                lab.run_until(lab.now_ms + values[0])
            case "beat":
                broker_id, (epoch, offset), leases, all_ack = values
                lab.beat(broker_id, epoch=epoch, max_offset=offset, leases=leases, all_ack=all_ack)
                if not leases:
                    lab.release(broker_id)
            case "close":
                lab.close(values[0])
            case "lease":
                lab.grant(values[0], lab.group().epoch)
            case "lead":
                self.lead(values[0])
            case "settle":
                lab.settle(None if values[0] else Unknown("no majority"))
            case "answer":
                lab.answer(values[0], values[1], following=values[2])
            case "commit" if lab.state.mandate.is_raft_leader:
                lab.commit()
            case "commit":
                self.fail("deposed")
            case "fail":
                self.fail(values[0])
            case "request":
                self.request(values[0])
            case "step_down":
                lab.step_down(done=values[0] == "yes", error=Refused("no") if values[0] == "cannot" else None)
            case "alter":
                lab.alter(sorted({lab.group().master or 1, *values[0]}))
            case "maintenance":
                lab.apply(SetMaintenance(group=G, broker_id=values[0], on=values[1]))
            case "stood_still":
                lab.now_ms += values[0]
                lab.feed(signals.StoodStill(values[0]))

    def lead(self, leads: bool) -> None:
        lab = self.lab
        self.term += 1
        lab.leases.clear()  # what another leader granted is waited for by a rule of its own: test_lease
        if leads:
            lab.lead(self.term)
        else:
            lab.follow(self.term)

    def fail(self, how: str) -> None:
        error: MqError = Unknown("no majority") if how in ("unknown", "applied") else Refused("not now")
        self.lab.fail(error, deposed=how == "deposed", applied=how == "applied")

    def request(self, request: ElectionRequest) -> None:
        lab, group = self.lab, self.lab.group()
        if request.master_epoch in (-1, group.epoch) and group.master is not None:
            if request.restarted and request.broker_id == group.master:
                lab.release(group.master)
            if request.designate and request.handed_over_by == group.master:
                lab.release(group.master)
        lab.request(request)

    def heal(self) -> None:
        """From now on everything works: this Controller leads, brokers are heard and answer, proposals are
        committed."""
        lab = self.lab
        self.lead(True)
        for _ in range(400):
            for broker_id in IDS:
                lab.beat(broker_id, epoch=lab.group().epoch, max_offset=200, all_ack=True)
            lab.settle()
            for broker_id in IDS:
                lab.answer(broker_id, (lab.group().epoch, 200))
            lab.step_down(done=True)
            lab.commit()
            lab.run_until(lab.now_ms + 50)


@given(steps=st.lists(STEP, max_size=40), majority=st.booleans())
@example(
    steps=[("settle", True), ("beat", 1, (1, 1), False, True), ("close", 1), ("wait", 4000)], majority=False
)
@settings(max_examples=150, deadline=None)
def test_no_order_of_events_breaks_a_promise_and_a_healthy_group_gets_a_master(
    steps: list[tuple[Any, ...]], majority: bool
) -> None:
    """The promises of each step are in ``Lab``: never a proposal for a group whose master is alive or whose
    lease lasts, one proposal at a time, always a time to come again, each request answered once."""
    play = Play(majority=majority)
    lab = play.lab
    for step in steps:
        play.do(step)
        assert lab.wake_ms <= lab.now_ms + lab.config.scan_not_active_ms, "it comes again soon"
    play.heal()
    master = lab.group().master
    assert master is not None, "a healthy group has a master"
    assert lab.live.is_alive(G, master, lab.now_ms)
    assert not lab.state.elections, "and no election under way"
    assert not lab.open, "every request was answered"
    assert lab.announced[-1] == (G, master, lab.group().epoch), "and its brokers were told"


def test_a_new_leader_tells_many_groups_in_many_steps() -> None:
    """All at once would keep it from its followers for longer than they bear."""
    lab = Lab()
    names = [f"g{number}" for number in range(2 * ANNOUNCEMENTS_MAX + 1)]
    for name in names:
        lab.make_group([1], name=name)
        lab.make_master(1, [1], name)
    lab.lead(1)
    lab.settle()
    seen = lab.run_until(200)
    told = [sum(isinstance(action, signals.Announce) for action in actions) for _, actions in seen]
    assert sorted(told) == [1, ANNOUNCEMENTS_MAX, ANNOUNCEMENTS_MAX], "in one look at the groups"
    assert sorted({name for name, _, _ in lab.announced}) == sorted(names)
    assert len(lab.announced) == len(names)


def test_of_many_groups_a_few_are_looked_at_in_a_step_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lab, steps = Lab(), list[list[str]]()
    names = [f"g{number:03}" for number in range(2 * GROUPS_AT_ONCE + 1)]
    for name in names:
        lab.make_group([1], name=name)
        lab.make_master(1, [1], name)
        lab.live.heartbeat(name, 1, Heartbeat(session=1, at_ms=0, timeout_ms=1000))
    elect = ElectionDecider._elect_if_needed

    def noted(state: ElectionDecider, name: str) -> None:
        steps[-1].append(name)
        elect(state, name)

    monkeypatch.setattr(ElectionDecider, "_elect_if_needed", noted)

    def looked(*events: signals.Event) -> list[int]:
        steps.clear()
        for event in events:
            steps.append([])
            lab.feed(event)
        assert sorted(name for step in steps for name in step) == names
        return list(map(len, steps))

    few = [GROUPS_AT_ONCE, GROUPS_AT_ONCE, 1]
    lab.lead(1)
    lab.settle()
    lab.now_ms += 1
    assert looked(*[signals.Tick()] * 3) == few
    assert lab.wake_ms > lab.now_ms, "all were looked at"
    lost = signals.SessionsEnded(tuple(lab.live.closed(1)))
    assert looked(lost, *[signals.Tick()] * 2) == few, "all masters are lost at once"
    assert sorted(lab.state.elections) == names


def test_a_group_that_was_still_to_be_looked_at_is_not_forgotten_with_the_leadership() -> None:
    lab = Lab()
    names = [f"g{number:03}" for number in range(3 * GROUPS_AT_ONCE)]
    for name in names:
        lab.make_group([1], name=name)
        lab.make_master(1, [1], name)
    lab.lead(1)
    lab.settle()
    lab.now_ms += DEFAULT_TIMEOUT_MS + 1  # nobody was heard
    lab.feed(signals.Tick())
    assert len(lab.state.elections) == GROUPS_AT_ONCE
    lab.follow(1)
    lab.feed(signals.Tick())
    lab.lead(2)
    lab.settle()
    lab.now_ms += 2 * DEFAULT_TIMEOUT_MS
    for _ in range(4):
        lab.feed(signals.Tick())
    assert sorted(lab.state.elections) == names


def test_after_a_mistake_nothing_is_left_of_a_round() -> None:
    """It would go on with it at once, and fail again."""
    lab = Lab()
    for number in range(2 * GROUPS_AT_ONCE):
        lab.make_group([1], name=f"g{number:03}")
    lab.lead(1)
    lab.settle()
    lab.feed(signals.Tick())
    assert lab.wake_ms == lab.now_ms, "the other half is next"
    lab.state.abandon(lab.now_ms)
    assert lab.state._wake_ms() > lab.now_ms


def test_a_late_answer_to_an_earlier_question_counts_for_nothing() -> None:
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    for broker_id in IDS:
        lab.beat(broker_id, all_ack=True)
    lab.lead(1)
    lab.settle()
    lab.close(1)
    first = lab.asks[G]
    lab.answer(2, (1, 5), following=True)
    lab.answer(3, (1, 5))
    lab.run_until(50)
    assert lab.asks[G].inquiry != first.inquiry
    lab.feed(signals.Answered(G, first.inquiry, 2, (1, 900)))
    assert lab.live.ends(G)[2].max_offset == 5


def test_a_suspect_that_was_elected_and_asks_anew_has_every_replica_asked() -> None:
    """To the Controllers it is no suspect any more, to itself it is: without the others' answers it would be
    deposed, elected again by all of them, and ask anew, for ever."""
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [1])
    for broker_id in IDS:
        lab.beat(broker_id, epoch=1, max_offset=100, all_ack=True)
    lab.lead(1)
    lab.settle()
    assert not lab.group().suspect
    epoch = lab.group().epoch
    lab.release(1)
    lab.request(ElectionRequest(broker_id=1, restarted=True, suspect=True, log_epoch=1))
    assert set(lab.asks[G].broker_ids) == set(IDS)
    for broker_id in IDS:
        lab.answer(broker_id, (1, 100))
    lab.commit()
    assert (lab.group().master, lab.group().epoch) == (1, epoch + 1)


def test_one_that_forgot_after_its_election_waits_for_the_lease_before_it() -> None:
    """A sound member was elected at once: it acknowledged nothing to its former master any more. When it then
    forgets its log, what it acknowledged before may still be counted by that master, until its lease ends."""
    lab = Lab(enableElectUncleanMaster="true")
    lab.make_group([1, 2])
    lab.make_master(1, [1, 2])
    for broker_id in (1, 2):
        lab.beat(broker_id, epoch=1, max_offset=100, leases=True, all_ack=True)
    lab.lead(1)
    lab.settle()
    assert lab.grant(1, 1) > 0
    lab.close(1)
    lab.answer(2, (1, 100))
    lab.commit()
    assert (lab.group().master, lab.group().epoch) == (2, 2), "at once, though the lease of 1 runs"
    lab.request(ElectionRequest(broker_id=2, restarted=True, suspect=True, log_epoch=1))
    lab.answer(2, (1, 50))
    assert not lab.proposals
    (refused,) = lab.replies.values()
    assert "the lease of the former master" in str(refused)


def test_a_question_that_began_before_the_outcome_was_unknown_settles_nothing() -> None:
    """A barrier that was asked for before the proposal says nothing about it."""
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    for broker_id in IDS:
        lab.beat(broker_id, all_ack=True)
    lab.lead(1)
    earlier = lab.state.mandate.number
    lab.settle()
    lab.close(1)
    lab.answer(2, (1, 5))
    lab.answer(3, (1, 5))
    lab.fail(Unknown("no majority"))
    lab.feed(signals.Settled(earlier))
    assert not lab.state.mandate.decides
    lab.settle()
    assert lab.state.mandate.decides


@pytest.mark.parametrize("where", ["_elect_if_needed", "_look_at_answers", "_propose"])
def test_a_group_whose_step_fails_each_time_keeps_no_other_from_its_master(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    lab = Lab()
    lab.mistakes = []
    for name in ("bad", "good"):
        lab.make_group([1, 2], name=name)
        lab.make_master(1, [1, 2], name)
        for broker_id in (1, 2):
            lab.beat(broker_id, name=name, all_ack=True)
    lab.lead(1)
    lab.settle()
    as_it_is = getattr(ElectionDecider, where)

    def fails(state: ElectionDecider, *what: Any) -> None:
        if "bad" in what or (where == "_propose" and what[1].group == "bad"):
            raise ZeroDivisionError
        as_it_is(state, *what)

    monkeypatch.setattr(ElectionDecider, where, fails)
    for name in ("bad", "good"):
        lab.close(1, name)
    settled = lab.state.mandate.number
    for _ in range(20):
        for name in ("bad", "good"):
            lab.answer(2, (1, 5), name=name)
        lab.commit("good")
        lab.run_until(lab.now_ms + 50)
    assert lab.group("good").master == 2
    assert "bad" not in lab.proposals
    assert all("bad" in text for text in lab.mistakes)
    assert 2 <= len(lab.mistakes) <= 12, "it is tried again and again, after a while that grows"
    assert lab.state.mandate.number == settled, "what concerns one group unsettles nothing"


def with_a_master() -> Lab:
    """A group whose brokers live and whose master is 1; mistakes are kept."""
    lab = Lab()
    lab.mistakes = []
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    for broker_id in IDS:
        lab.beat(broker_id, all_ack=True)
    lab.lead(1)
    lab.settle()
    return lab


def test_who_asked_for_an_election_that_failed_by_a_mistake_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lab = with_a_master()
    monkeypatch.setattr(ElectionDecider, "_ask", lambda *_: 1 / 0)
    lab.request(ElectionRequest(broker_id=2, designate=True, handed_over_by=1))
    assert not lab.open
    assert [type(reply) for reply in lab.replies.values()] == [Unknown]
    assert not lab.state.elections


def test_a_proposal_whose_election_failed_by_a_mistake_is_settled_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may still be committed: until that is known no lease is granted, and nothing proposed."""
    lab = with_a_master()
    lab.close(1)
    for broker_id in (2, 3):
        lab.answer(broker_id, (1, 5))
    assert G in lab.proposals
    with monkeypatch.context() as patched:
        patched.setattr(Election, "check", lambda *_: 1 / 0)
        lab.feed(signals.Tick())
    assert (G in lab.state.elections, lab.state.mandate.decides) == (False, False)
    lab.commit()
    lab.settle()
    lab.run_until(lab.now_ms + 200)
    assert lab.group().master in (2, 3)
    assert lab.state.mandate.decides


def test_after_a_mistake_of_ours_that_concerns_no_single_group_all_begins_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was proposed may still be committed: the table is settled before anything else is decided."""
    lab = Lab()
    lab.make_group([*IDS])
    lab.make_master(1, [*IDS])
    for broker_id in IDS:
        lab.beat(broker_id, all_ack=True)
    lab.lead(1)
    lab.settle()
    lab.close(1)
    lab.answer(2, (1, 5))
    with monkeypatch.context() as patched:
        patched.setattr(ElectionDecider, "_on_tick", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            lab.feed(signals.Tick())
    actions = lab.state.abandon(lab.now_ms)
    for action in actions:
        lab._note(action)
    assert signals.StopAsking(G) in actions
    assert not lab.state.mandate.decides
    lab.settle()
    lab.run_until(lab.now_ms + 1)
    for broker_id in (2, 3):
        lab.answer(broker_id, (1, 5))
    committed = lab.commit()
    assert any(isinstance(action, signals.Announce) for action in committed)


@pytest.mark.parametrize(
    ("election", "rule"),
    [
        (Election(phase=Phase.ASKING, due_ms=5), "asked in no other phase"),
        (Election(phase=Phase.AWAITING_RETURN), "nothing makes it go on"),
        (Election(phase=Phase.PROPOSING, due_ms=5), "nothing makes it go on"),
        (Election(phase=Phase.STEPPING_DOWN, due_ms=NEVER), "only a request drains"),
    ],
)
def test_an_election_that_could_neither_go_on_nor_end_is_a_broken_invariant(
    election: Election, rule: str
) -> None:
    with pytest.raises(AssertionError, match=rule):
        election.check(G)


def test_an_election_of_its_own_under_a_lease_is_a_broken_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    lab.make_group([1, 2])
    lab.make_master(1, [1, 2])
    for broker_id in (1, 2):
        lab.beat(broker_id, epoch=1, max_offset=100, leases=True)
    lab.lead(1)
    lab.settle()
    assert lab.grant(1, 1) > 0
    monkeypatch.setattr(
        ElectionDecider, "_lease_left_ms", lambda *_: 0.0
    )  # as a mistake of ours would have it
    lab.close(1)
    with pytest.raises(AssertionError, match="the lease of the former master of g matters for"):
        lab.answer(2, (1, 100))


def test_groups_that_are_not_looked_at_again_are_a_broken_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    lab.lead(1)
    monkeypatch.setattr(ElectionDecider, "_look_now", lambda state: setattr(state._scan, "look_ms", NEVER))
    with pytest.raises(AssertionError, match="look at every group again"):
        lab.settle()


def test_an_answer_to_a_request_carries_what_the_table_says() -> None:
    lab = Lab()
    lab.make_group([*IDS])
    lab.lead(1)
    lab.settle()
    lab.request(ElectionRequest(broker_id=2))
    lab.commit()
    answer = lab.replies[1]
    assert isinstance(answer, Answer)
    assert answer.ext["masterBrokerId"] == "2"
