"""The promise of ha.master.sync_set: a confirmed byte is on every member, late answers or not."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha.master.ack_policy import AckPolicy, Wait
from ha.master.membership import REFUSED_MS, UNKNOWN_HOLD_MS, Proposal
from ha.master.sync_set import JOIN_LAG_MS, JOINING_MS, Leadership, LogEnds, SyncSet
from model.errors import PeerError

SELF = 1
NOT_CATCHUP_MS = 3000


def sync_set(
    members: set[int] | None = None,
    *,
    end: int = 0,
    confirmed: int = 0,
    all_ack: bool = True,
    ack_count: int = 1,
    epoch_start: int = 0,
    majority_of: int = 0,
    flushed: int | None = None,
    copies_min: int = 1,
    holds_lease: Callable[[], bool] = lambda: True,
    may_confirm: Callable[[bool], bool] | None = None,
) -> SyncSet:
    wait = Wait.MAJORITY if majority_of else Wait.ALL if all_ack else Wait.COUNT
    policy = AckPolicy(
        wait, count=ack_count, replicas=majority_of, copies_min=copies_min, synced=flushed is not None
    )
    return SyncSet(
        SELF,
        Leadership(1, epoch_start, frozenset(members or {SELF}), 1),
        LogEnds(end, confirmed, flushed or 0),
        policy,
        not_catchup_ms=NOT_CATCHUP_MS,
        now_ms=0.0,
        may_confirm=may_confirm or (lambda by_all: by_all or holds_lease()),
    )


def with_slaves(
    *slaves: int, all_ack: bool = True, ack_count: int = 1, majority_of: int = 0, copies_min: int = 1
) -> SyncSet:
    """A master whose slaves are all members and level at 100."""
    sync = sync_set(
        {SELF, *slaves},
        end=100,
        all_ack=all_ack,
        ack_count=ack_count,
        majority_of=majority_of,
        copies_min=copies_min,
    )
    for slave in slaves:
        sync.on_connect(slave, 0)
        sync.on_ack(slave, 100, 0)
        sync.on_ack(slave, 100, 0)
    return sync


class Model:
    """A master's SyncSet, the Controller with requests on their way, and what slaves really hold."""

    def __init__(self, all_ack: bool, ack_count: int, *, majority_of: int = 0, copies_min: int = 1) -> None:
        self.sync = sync_set(
            all_ack=all_ack, ack_count=ack_count, majority_of=majority_of, copies_min=copies_min
        )
        self.now_ms = 0.0
        self.members, self.set_epoch = frozenset({SELF}), 1
        self.held = {2: 0, 3: 0, 4: 0}
        self.on_the_way: list[Proposal] = []  # may still reach the Controller
        self.waiting: Proposal | None = None  # the master waits for this one's answer

    def step(self, what: str, who: int, amount: int) -> None:
        sync, now = self.sync, self.now_ms
        match what:
            case "append":
                sync.on_append(sync.end + amount)
            case "connect":
                sync.on_connect(who, now)
            case "disconnect":
                sync.on_disconnect(who)
            case "ack" if who in sync.slave_ends():
                self.held[who] = min(sync.end, self.held[who] + amount * 5)
                sync.on_ack(who, self.held[who], now)
            case "wait":
                self.now_ms += amount * 20
                sync.on_tick(self.now_ms)
            case "propose" if self.waiting is None:
                self.waiting = sync.propose(now)
                if self.waiting is not None:
                    self.on_the_way.append(self.waiting)
            case "apply" if self.on_the_way:
                self.apply(self.on_the_way[amount % len(self.on_the_way)])
            case "answer" if self.waiting is not None:
                waiting, self.waiting = self.waiting, None
                if waiting in self.on_the_way:  # decided now, at the latest
                    base = self.set_epoch
                    self.apply(waiting)
                    if self.set_epoch == base:
                        sync.on_refused(waiting, now)
                        sync.check_invariants()
                        return
                sync.on_view(self.members, self.set_epoch)
            case "refuse" if self.waiting in self.on_the_way and self.waiting is not None:
                self.on_the_way.remove(self.waiting)
                sync.on_refused(self.waiting, now)
                self.waiting = None
            case "lose" if self.waiting is not None:
                sync.on_unanswered(self.waiting)
                self.waiting = None
            case "read":
                sync.on_view(self.members, self.set_epoch, now)
            case _:
                pass
        sync.check_invariants()
        # The Controller works on a request for a bounded time.
        self.on_the_way = [p for p in self.on_the_way if self.now_ms - p.sent_ms < UNKNOWN_HOLD_MS]

    def apply(self, proposal: Proposal) -> None:
        self.on_the_way.remove(proposal)
        if proposal.base == self.set_epoch and proposal.members != self.members:
            self.members, self.set_epoch = proposal.members, self.set_epoch + 1


WORDS = [
    *("append", "connect", "disconnect", "ack", "ack", "ack", "wait"),
    *("propose", "propose", "apply", "answer", "answer", "refuse", "lose", "read"),
]
STEPS = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from([2, 3, 4]), st.integers(1, 120)), max_size=80
)


@given(steps=STEPS, mode=st.sampled_from([(True, 1), (False, 1), (False, 2), (False, 3)]))
@settings(max_examples=400)
def test_confirmed_never_passes_a_member_nor_moves_back(
    steps: list[tuple[str, int, int]], mode: tuple[bool, int]
) -> None:
    model = Model(*mode)
    confirmed = replicated = 0
    for what, who, amount in steps:
        model.step(what, who, amount)
        sync = model.sync
        assert confirmed <= sync.confirmed <= sync.end
        assert replicated <= sync.replicated <= sync.end
        confirmed, replicated = sync.confirmed, sync.replicated
        for member in model.members - {SELF}:
            assert confirmed <= model.held[member], f"{member} may be elected and lacks confirmed bytes"


@given(
    steps=STEPS,
    mode=st.sampled_from([(True, 1, 0), (False, 1, 0), (False, 2, 0), (False, 1, 3)]),
    copies_min=st.sampled_from([2, 3]),
)
@settings(max_examples=400)
def test_no_answer_leaves_for_what_fewer_members_have_than_min_in_sync_replicas(
    steps: list[tuple[str, int, int]], mode: tuple[bool, int, int], copies_min: int
) -> None:
    all_ack, ack_count, majority_of = mode
    model = Model(all_ack, ack_count, majority_of=majority_of, copies_min=copies_min)
    for what, who, amount in steps:
        before = model.sync.replicated
        model.step(what, who, amount)
        sync = model.sync
        if sync.replicated > before:
            having = [broker for broker in sync.members - {SELF} if model.held[broker] >= sync.replicated]
            assert 1 + len(having) >= copies_min


@given(steps=STEPS)
@settings(max_examples=200)
def test_when_the_dust_settles_every_level_slave_joins_and_every_silent_one_leaves(
    steps: list[tuple[str, int, int]],
) -> None:
    model = Model(True, 1)
    for what, who, amount in steps:
        model.step(what, who, amount)
    sync = model.sync
    sync.on_disconnect(4)
    for slave in (2, 3):
        if slave not in sync.slave_ends():
            model.step("connect", slave, 0)
    for _ in range(120):
        model.now_ms += 100
        sync.on_tick(model.now_ms)
        for slave in (2, 3):
            model.held[slave] = sync.end
            sync.on_ack(slave, sync.end, model.now_ms)
        for what in ("answer", "read", "propose", "answer"):
            model.step(what, 2, 1)
    assert sync.members == model.members == {SELF, 2, 3}
    assert sync.confirmed == sync.replicated == sync.end
    assert sync.proposed == frozenset()


def test_a_lone_master_confirms_what_it_has() -> None:
    sync = sync_set(end=50)
    assert (sync.confirmed, sync.replicated) == (50, 50)
    sync.on_append(80)
    assert (sync.confirmed, sync.replicated) == (80, 80)


def test_a_lone_master_confirms_nothing_while_another_may_have_been_elected() -> None:
    holds_lease = True
    sync = sync_set(end=50, holds_lease=lambda: holds_lease)
    assert sync.replicated == 50
    holds_lease = False
    sync.on_append(80)
    assert (sync.confirmed, sync.replicated) == (50, 50)
    holds_lease = True
    sync.on_lease()
    assert (sync.confirmed, sync.replicated) == (80, 80)


def test_members_stand_for_a_lease_while_they_acknowledge_all_there_is() -> None:
    sync = with_slaves(2, 3)
    assert sync.acked_by_all_recently(1000, 1000)
    assert not sync.acked_by_all_recently(1001, 1000), "silent"
    sync.on_append(200)
    sync.on_ack(2, 200, 1500)
    sync.on_ack(3, 100, 1500)
    assert not sync.acked_by_all_recently(1500, 1000), "3 has not got what was there when it was level last"
    sync.on_ack(3, 200, 1600)
    assert sync.acked_by_all_recently(1600, 1000)
    sync.on_disconnect(3)
    assert not sync.acked_by_all_recently(1600, 1000)
    assert not sync_set(end=50).acked_by_all_recently(0, 1000), "a lone master has nobody to acknowledge"
    assert not with_slaves(2, all_ack=False).acked_by_all_recently(0, 1000)


def test_where_outsiders_may_be_elected_members_do_not_stand_for_a_lease() -> None:
    """The master and a member are cut off together, and go on by each other's word while the third, which is
    no member, is elected (enableElectUncleanMaster)."""
    lease = True
    sync = sync_set({SELF, 2}, end=100, may_confirm=lambda by_all: lease)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    assert sync.replicated == 100
    lease = False
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert (sync.confirmed, sync.replicated) == (100, 100)
    lease = True
    sync.on_lease()
    assert (sync.confirmed, sync.replicated) == (200, 200)


def test_every_member_must_acknowledge_before_a_byte_is_confirmed() -> None:
    sync = with_slaves(2, 3)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert sync.confirmed == 100
    sync.on_ack(3, 150, 1)
    assert sync.confirmed == 150


def test_a_lost_member_holds_the_confirmed_offset_until_the_controller_dropped_it() -> None:
    sync = with_slaves(2)
    sync.on_append(200)
    sync.on_disconnect(2)
    assert sync.confirmed == 100
    proposal = sync.propose(NOT_CATCHUP_MS + 1)
    assert proposal is not None
    assert proposal.members == {SELF}
    assert sync.confirmed == 100
    sync.on_view(frozenset({SELF}), 2)
    assert sync.confirmed == 200


def test_a_set_below_min_in_sync_replicas_answers_nothing_and_consumers_go_on_reading() -> None:
    sync = with_slaves(2, copies_min=2)
    assert sync.replicated == 100
    sync.on_append(200)
    sync.on_disconnect(2)
    sync.on_view(frozenset({SELF}), 2)
    assert (sync.replicated, sync.confirmed) == (100, 200), "all that can be elected have it, one broker"
    sync.on_connect(2, 10)
    sync.on_ack(2, 200, 10)
    assert sync.replicated == 100, "not a member yet"
    sync.on_view(frozenset({SELF, 2}), 3)
    assert sync.replicated == 200


def test_min_in_sync_replicas_raises_the_number_of_acknowledgements_in_counting_modes() -> None:
    sync = with_slaves(2, 3, all_ack=False, ack_count=1, copies_min=2)
    sync.on_append(200)
    assert sync.replicated == 100
    sync.on_ack(3, 180, 1)
    assert (sync.replicated, sync.confirmed) == (180, 100)
    sync = with_slaves(2, 3, majority_of=3, copies_min=3)
    sync.on_append(200)
    sync.on_ack(3, 200, 1)
    assert sync.replicated == 100
    sync.on_ack(2, 150, 1)
    assert sync.replicated == 150


def test_members_not_heard_of_yet_are_waited_for_and_lost_ones_are_not() -> None:
    sync = sync_set({SELF, 2, 3}, end=100)
    sync.on_connect(3, 10)
    assert sync.desired_members(20) == {SELF, 2, 3}
    sync.on_disconnect(3)
    assert sync.desired_members(30) == {SELF, 2}
    assert sync.desired_members(NOT_CATCHUP_MS + 1) == {SELF}


def test_a_slave_that_is_sent_everything_but_acknowledges_nothing_leaves() -> None:
    sync = with_slaves(2)
    sync.on_append(200)
    for now in range(0, NOT_CATCHUP_MS + 1000, 500):
        sync.on_tick(now)
    assert sync.desired_members(NOT_CATCHUP_MS + 1) == {SELF}


def test_a_slave_always_a_little_behind_stays() -> None:
    sync = with_slaves(2)
    for now in range(0, 20000, 100):
        sync.on_append(sync.end + 10)
        sync.on_ack(2, sync.end - 10, now)
        sync.on_tick(now)
        assert sync.desired_members(now) == {SELF, 2}


def test_a_slave_joins_under_a_load_that_never_pauses() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 0, 0)
    held = 0
    for now in range(1, 500):
        before = sync.end
        sync.on_append(sync.end + 10)
        held = max(held, before)  # always one round trip behind
        sync.on_ack(2, held, now)
        if sync.propose(now) is not None:
            break
    else:
        pytest.fail("the slave was never proposed")
    assert sync.confirmed <= held


def test_a_joining_slave_that_stalls_holds_writers_only_for_a_moment() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 0, 0)
    sync.on_append(200)
    sync.on_ack(2, 100, JOIN_LAG_MS)
    sync.on_append(300)
    assert sync.confirmed == 200
    sync.on_tick(JOIN_LAG_MS + JOINING_MS + 1)
    assert sync.confirmed == 300


def test_a_learner_never_counts() -> None:
    sync = sync_set(end=100, all_ack=False, ack_count=2)
    sync.on_connect(2, 0, learner=True)
    sync.on_ack(2, 100, 0)
    assert sync.desired_members(0) == {SELF}
    assert sync.replicated == 0


def test_a_slave_outside_the_set_does_not_make_an_answer_leave() -> None:
    sync = sync_set(end=0, all_ack=False, ack_count=2)
    sync.on_connect(2, 0)
    sync.on_append(100)
    sync.on_ack(2, 100, 0)
    assert sync.replicated == 0
    proposal = sync.propose(0)
    assert proposal is not None
    sync.on_view(proposal.members, 2)
    assert sync.replicated == 100


def test_counting_mode_needs_so_many_members_but_consumers_wait_for_all() -> None:
    sync = with_slaves(2, 3, all_ack=False, ack_count=2)
    sync.on_append(200)
    assert sync.replicated == 100
    sync.on_ack(3, 180, 1)
    assert (sync.replicated, sync.confirmed) == (180, 100)


def test_a_member_that_came_back_shorter_must_leave_until_it_caught_up() -> None:
    sync = with_slaves(2)
    sync.on_disconnect(2)
    sync.on_connect(2, 10)
    sync.on_ack(2, 60, 10)
    assert sync.confirmed == 100
    assert sync.desired_members(10) == {SELF}


def test_a_real_slave_without_news_stays_and_one_that_lacks_something_leaves() -> None:
    sync = sync_set({SELF, 2, 3}, end=100)
    sync.on_connect(2, 0, answers_heartbeats=False)
    sync.on_connect(3, 0)
    for slave in (2, 3):
        sync.on_ack(slave, 100, 0)
    for now_ms in range(500, 5000, 500):
        sync.on_tick(now_ms)
    # Ours answers heartbeats, so its silence is its death; a real one has nothing to say.
    assert sync.desired_members(4500) == {SELF, 2}
    sync.on_append(200)
    for now_ms in range(4500, 4500 + NOT_CATCHUP_MS + 1, 500):
        sync.on_tick(now_ms)
        assert sync.desired_members(now_ms) == {SELF, 2}
    sync.on_tick(5000 + NOT_CATCHUP_MS)
    assert sync.desired_members(5000 + NOT_CATCHUP_MS) == {SELF}


def test_a_slave_older_than_the_epoch_does_not_join() -> None:
    sync = sync_set(end=100, confirmed=0, epoch_start=100, all_ack=False, ack_count=5)
    sync.on_connect(2, 0)
    sync.on_ack(2, 90, 0)
    assert sync.desired_members(0) == {SELF}
    sync.on_ack(2, 100, 1)
    assert sync.desired_members(1) == {SELF, 2}


def test_a_refused_proposal_does_not_hold_writers() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    assert proposal.members == {SELF, 2}
    sync.on_append(200)
    assert sync.confirmed == 100
    sync.on_refused(proposal, 1)
    assert sync.confirmed == 200
    sync.on_ack(2, 200, 2)
    assert sync.propose(2) is None, "asked again at once"
    sync.on_ack(2, 200, REFUSED_MS + 2)
    assert sync.propose(REFUSED_MS + 2) is not None


def test_a_proposal_without_an_answer_counts_until_it_cannot_be_applied_any_more() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    sync.on_unanswered(proposal)
    sync.on_disconnect(2)
    sync.on_append(200)
    sync.on_view(frozenset({SELF}), 1, 10)
    assert sync.confirmed == 100, "the Controller may still be working on it"
    sync.on_view(frozenset({SELF}), 1, UNKNOWN_HOLD_MS + 9)
    assert sync.confirmed == 100
    sync.on_view(frozenset({SELF}), 1, UNKNOWN_HOLD_MS + 10)
    assert sync.confirmed == 200


def test_time_in_which_the_controllers_stood_still_settles_no_proposal() -> None:
    # They had the request in their socket when the machine stopped, and work on it now.
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    awake_ms = 3 * UNKNOWN_HOLD_MS
    sync.on_tick(awake_ms)
    sync.on_unanswered(proposal)
    sync.on_disconnect(2)
    sync.on_append(200)
    sync.on_view(frozenset({SELF}), 1, awake_ms)
    assert sync.confirmed == 100
    sync.on_view(frozenset({SELF}), 1, awake_ms + UNKNOWN_HOLD_MS)
    assert sync.confirmed == 200


def test_without_the_time_of_the_question_only_a_newer_set_settles_a_proposal_without_an_answer() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    proposal = sync.propose(0)
    assert proposal is not None
    sync.on_unanswered(proposal)
    sync.on_disconnect(2)
    sync.on_append(200)
    sync.on_tick(100 * UNKNOWN_HOLD_MS)
    sync.on_view(frozenset({SELF}), 1, None)
    assert sync.confirmed == 100, "whoever told us may not have heard of it yet"
    sync.on_view(frozenset({SELF}), 2, None)
    assert sync.confirmed == 200


def test_a_master_that_stood_still_does_not_blame_its_slaves() -> None:
    sync = with_slaves(2)
    sync.on_tick(100)
    sync.on_tick(60_000)
    assert sync.desired_members(60_000) == {SELF, 2}


def test_a_proposal_that_was_due_when_the_master_stood_still_blames_nobody() -> None:
    # It is made before anything else when the process goes on.
    sync = with_slaves(2)
    sync.on_tick(100)
    assert sync.propose(60_000) is None


def test_a_slave_heard_right_after_the_master_stood_still_is_waited_for_no_longer_than_others() -> None:
    # Its acknowledgement lay in the socket and is read before the master looks at its clock.
    sync = with_slaves(2)
    sync.on_tick(100)
    sync.on_ack(2, 100, 60_000)
    for now_ms in range(60_000, 60_000 + NOT_CATCHUP_MS + 1, 500):
        sync.on_tick(now_ms)
        assert sync.desired_members(now_ms) == {SELF, 2}
    sync.on_tick(60_500 + NOT_CATCHUP_MS)
    assert sync.desired_members(60_500 + NOT_CATCHUP_MS) == {SELF}


def test_an_ack_beyond_the_log_or_backwards_ends_the_connection() -> None:
    sync = with_slaves(2)
    with pytest.raises(PeerError, match="beyond"):
        sync.on_ack(2, 101, 1)
    with pytest.raises(PeerError, match="after"):
        sync.on_ack(2, 99, 1)


def test_a_master_elected_again_forgets_proposals_of_its_former_epoch() -> None:
    sync = sync_set(end=100)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    assert sync.propose(0) is not None
    sync.on_elected(Leadership(2, 100, frozenset({SELF}), 5), 0)
    assert (sync.epoch, sync.set_epoch, sync.proposed) == (2, 5, frozenset())
    assert sync.slave_ends() == {2: 100}


def test_in_majority_mode_an_answer_needs_a_majority_of_all_replicas_whatever_the_set_holds() -> None:
    sync = with_slaves(2, 3, majority_of=3)
    sync.on_append(200)
    assert sync.replicated == 100, "the master alone is one of three"
    sync.on_ack(2, 200, 1)
    assert (sync.replicated, sync.confirmed) == (200, 100), "consumers wait for every member"
    sync.on_view(frozenset({SELF}), 2)
    sync.on_append(300)
    sync.on_ack(2, 300, 2)
    assert sync.replicated == 200, "the set has shrunk to the master: no answer leaves"
    assert sync.quorum == 2


def test_in_majority_mode_nobody_leaves_before_those_that_stay_have_what_was_answered() -> None:
    """3 stays and lacks what 2 has: without 2 an election could ask 3 alone of the last set."""
    sync = with_slaves(2, 3, majority_of=3)
    sync.on_append(200)
    sync.on_ack(2, 200, 1)
    assert sync.replicated == 200
    sync.on_disconnect(2)
    assert sync.desired_members(2) == {SELF, 2, 3}
    sync.on_ack(3, 200, 3)
    assert sync.desired_members(3) == {SELF, 3}
    sync.on_disconnect(3)
    assert sync.desired_members(4) == {SELF}, "the master has all of it itself"


def test_in_mode_all_members_leave_at_once() -> None:
    sync = with_slaves(2, 3)
    sync.on_append(200)
    sync.on_disconnect(2)
    assert sync.desired_members(2) == {SELF, 3}


def test_in_majority_mode_records_of_former_epochs_count_only_with_the_current_one() -> None:
    sync = sync_set({SELF, 2, 3}, end=100, epoch_start=100, majority_of=3)
    sync.on_connect(2, 0)
    sync.on_ack(2, 100, 0)
    assert sync.replicated == 0, "a first report: it need not have noted this epoch"
    sync.on_ack(2, 100, 1)
    assert sync.replicated == 100, "an answer to a frame with this epoch's label"
    sync.on_elected(Leadership(2, 100, frozenset({SELF, 2, 3}), 2), 2)
    sync.on_disconnect(2)
    sync.on_connect(3, 2)
    sync.on_ack(3, 90, 2)
    sync.on_ack(3, 95, 2)
    sync.on_append(200)
    assert sync.replicated == 100
    sync.on_ack(3, 150, 3)
    assert sync.replicated == 150


def test_in_majority_mode_replicas_that_were_not_counted_on_raise_the_majority() -> None:
    sync = with_slaves(2, 3, majority_of=3)
    assert sync.quorum == 2
    sync.on_connect(4, 1)
    sync.on_connect(5, 1, learner=True)
    assert sync.quorum == 3, "four replicas now; a learner is none"


@given(
    st.sampled_from([3, 5]),
    st.lists(st.tuples(st.sampled_from(["append", "ack", "drop", "join", "set"]), st.integers(2, 5))),
)
def test_no_answer_leaves_without_a_majority(size: int, steps: list[tuple[str, int]]) -> None:
    sync = sync_set({SELF}, majority_of=size)
    held: dict[int, int] = {}
    set_epoch = 1
    for step, who in steps:
        before = sync.replicated
        if step == "append":
            sync.on_append(sync.end + who)
        elif step == "join":
            sync.on_connect(who, 0)
        elif step == "ack" and who in sync.slave_ends():
            sync.on_ack(who, sync.end, 0)
            held[who] = sync.end
        elif step == "drop":
            sync.on_disconnect(who)
        elif step == "set":
            set_epoch += 1
            sync.on_view(frozenset(range(1, who + 1)), set_epoch)
        if sync.replicated > before:
            holders = 1 + sum(end >= sync.replicated for end in held.values())
            assert holders * 2 > size


def test_with_sync_flush_nothing_is_confirmed_that_only_the_masters_memory_holds() -> None:
    sync = sync_set({SELF}, end=100, flushed=60)
    assert (sync.confirmed, sync.replicated) == (60, 60)
    sync.on_flush(100)
    assert (sync.confirmed, sync.replicated) == (100, 100)


def test_a_master_that_stood_still_blames_nobody_and_learns_nothing_from_what_was_said_before() -> None:
    sync = with_slaves(2, 3)
    sync.on_tick(100)
    sync.on_tick(60_000)
    assert sync.desired_members(60_000) == {SELF, 2, 3}
    assert not sync.acked_by_all_recently(60_000, 1000), (
        "what they said is a minute old: another may be master by now"
    )
    sync.on_ack(2, 100, 60_000)
    sync.on_tick(60_000 + NOT_CATCHUP_MS / 4)
    sync.on_ack(3, 100, 60_000)
    assert sync.acked_by_all_recently(60_900, 1000)
    for now_ms in range(60_500, 60_000 + NOT_CATCHUP_MS + 1, 500):
        sync.on_tick(now_ms)
    assert sync.desired_members(60_000 + NOT_CATCHUP_MS + 1) == {SELF}, (
        "silent since, for as long as is excused"
    )
