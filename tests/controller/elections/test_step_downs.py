"""The promise of a master that lives and asks to be replaced: another leads if it can serve, has everything,
and nothing lets the two hand the group to each other for ever."""

from __future__ import annotations

import pytest

from controller.elections import signals
from controller.elections.preview import ElectionRequest
from controller.elections.step_downs import PAUSE_MAX_MS, PAUSE_MS, QUIET, StepDowns
from controller.groups.commands import Answer, ElectMaster
from controller.groups.elect import End
from model.errors import MqError, Refused
from tests.fakes.controller.decider import G, Lab

REQUEST = ElectionRequest(broker_id=1, steps_down=True, needed=2, master_epoch=1)


def led(*, majority: bool, all_ack: bool = False) -> Lab:
    lab = Lab()
    lab.make_group([1, 2, 3], majority=majority)
    lab.make_master(1, [1, 2, 3])
    for broker_id in (1, 2, 3):
        lab.beat(broker_id, epoch=1, max_offset=100, leases=True, all_ack=all_ack)
    lab.lead(1)
    lab.settle()
    for _ in range(10):  # leases of former leaders are over then
        lab.run_until(lab.now_ms + 1000)
        for broker_id in (1, 2, 3):
            lab.beat(broker_id, epoch=1, max_offset=100, leases=True, all_ack=all_ack)
    return lab


def reply(lab: Lab) -> Answer | MqError:
    return lab.replies[max(lab.replies)]


def refusal(lab: Lab) -> str:
    said = reply(lab)
    assert isinstance(said, Refused)
    assert lab.group().master == 1, "it stays"
    return str(said)


@pytest.mark.parametrize("majority", [True, False])
def test_another_leads_although_the_master_lives_and_has_the_longest_log(majority: bool) -> None:
    lab = led(majority=majority)
    lab.beat(1, epoch=1, max_offset=900, leases=True)
    lab.request(REQUEST)
    assert lab.asks[G].broker_ids == (2, 3), "what the master has beyond the others, nobody was answered for"
    lab.answer(2, (1, 100))
    lab.answer(3, (1, 120))
    lab.commit()
    assert isinstance(reply(lab), Answer)
    assert lab.group().master == 3


def test_its_lease_is_waited_for_and_no_new_one_is_granted() -> None:
    """Its word may be an old one, that came late: it may have been granted a lease since."""
    lab = led(majority=True)
    left_ms = lab.grant(1, 1)
    assert left_ms > 0
    began_ms = lab.now_ms
    lab.request(REQUEST)
    for _ in range(2):
        lab.answer(2, (1, 100))
        lab.answer(3, (1, 100))
        assert lab.grant(1, 1) == 0
        assert G not in lab.proposals or lab.now_ms >= began_ms + left_ms
        lab.run_until(began_ms + left_ms * 1.03)
    lab.answer(2, (1, 100))
    lab.answer(3, (1, 100))
    lab.commit()
    assert lab.group().master == 2


def test_where_every_member_acknowledges_no_lease_is_waited_for() -> None:
    lab = led(majority=False, all_ack=True)
    lab.grant(1, 1)
    lab.request(REQUEST)
    lab.answer(2, (1, 100))
    lab.answer(3, (1, 100))
    assert G in lab.proposals


@pytest.mark.parametrize("majority", [True, False])
def test_with_too_few_others_it_stays(majority: bool) -> None:
    lab = led(majority=majority)
    lab.close(3)
    lab.request(REQUEST)
    lab.answer(2, (1, 100))
    lab.run_until(lab.now_ms + 3000)
    assert refusal(lab)


def test_a_broker_whose_disk_is_full_takes_nothing_over() -> None:
    lab = led(majority=False)
    lab.request(ElectionRequest(broker_id=1, steps_down=True))
    for broker_id in (2, 3):
        ask = lab.asks[G]
        lab.feed(signals.Answered(G, ask.inquiry, broker_id, (1, 100), full=True))
    assert "takes no messages" in refusal(lab)


@pytest.mark.parametrize("all_ack", [True, False])
def test_one_that_cannot_begin_leads_after_another_of_an_equal_log(all_ack: bool) -> None:
    lab = led(majority=False, all_ack=all_ack)
    lab.apply(ElectMaster(group=G, broker_id=2, designate=True, alive=(1, 2, 3), all_ack=all_ack))
    assert (lab.group().master, lab.group().epoch) == (2, 2)
    lab.request(ElectionRequest(broker_id=2, restarted=True, cannot_begin=True, log_epoch=1, master_epoch=2))
    for broker_id, end in ((1, 90), (2, 100), (3, 100)):
        lab.answer(broker_id, (1, end))
    lab.commit()
    assert (lab.group().master, lab.group().epoch) == (3, 3)


def elected(broker_id: int, *, majority: bool) -> Lab:
    """It is to lead epoch 2, and its log is the longest."""
    lab = led(majority=majority, all_ack=not majority)
    all_three, ends = (1, 2, 3), {broker_id: End(1, 120)}
    lab.apply(
        ElectMaster(
            group=G,
            broker_id=broker_id,
            designate=True,
            alive=all_three,
            answered=all_three,
            ends=ends,
            all_ack=not majority,
        )
    )
    assert (lab.group().master, lab.group().epoch) == (broker_id, 2)
    return lab


def cannot_begin(lab: Lab, ends: dict[int, tuple[int, int]], full: tuple[int, ...] = ()) -> int | None:
    """The master says so; who leads then."""
    group = lab.group()
    assert group.master is not None
    lab.request(
        ElectionRequest(
            broker_id=group.master,
            restarted=True,
            cannot_begin=True,
            log_epoch=group.epoch - 1,
            master_epoch=group.epoch,
        )
    )
    for broker_id, end in ends.items():
        if G in lab.asks:
            number = lab.asks[G].inquiry
            lab.feed(signals.Answered(G, number, broker_id, end, full=broker_id in full))
    if G not in lab.proposals:
        lab.run_until(lab.now_ms + 1000)
    lab.commit()
    return lab.group().master


@pytest.mark.parametrize("end", [(1, 100), (1, 120), (2, 100)], ids=["equal", "longer", "noted"])
def test_two_that_cannot_begin_do_not_keep_a_third_from_leading(end: tuple[int, int]) -> None:
    lab = elected(2, majority=False)
    assert cannot_begin(lab, {1: (1, 100), 2: end, 3: (1, 100)}) == 1
    assert cannot_begin(lab, {1: (1, 100), 2: end, 3: (1, 100)}) == 3
    lab.alter([1, 2, 3])
    lab.request(ElectionRequest(broker_id=3, steps_down=True, master_epoch=4))
    lab.answer(1, (1, 100))
    lab.answer(2, (1, 120))
    lab.commit()
    assert lab.group().master == 2
    assert cannot_begin(lab, {1: (1, 100), 2: (1, 120), 3: (1, 100)}) == 1, "somebody served since"


@pytest.mark.parametrize("end", [(1, 100), (1, 120), (2, 100)], ids=["equal", "longer", "noted"])
def test_by_a_majority_of_the_others_one_that_cannot_begin_is_replaced(end: tuple[int, int]) -> None:
    lab = elected(2, majority=True)
    assert cannot_begin(lab, {1: (1, 90), 2: end, 3: (1, 100)}) == 3
    # Of 1 and 2 one cannot begin either; and 1 lacks what 2 may have confirmed with 3.
    assert cannot_begin(lab, {1: (1, 90), 2: end, 3: (1, 100)}) == 2


def test_one_that_is_slow_to_answer_is_waited_for_before_one_that_cannot_begin_leads_on() -> None:
    """Without broker 3 no majority is without the one that asks."""
    lab = elected(2, majority=True)
    request = ElectionRequest(broker_id=2, restarted=True, cannot_begin=True, log_epoch=1, master_epoch=2)
    lab.request(request)
    lab.answer(1, (1, 90))
    lab.answer(2, (1, 120))
    lab.run_until(lab.now_ms + 300)
    assert G not in lab.proposals
    lab.answer(3, (1, 100))
    lab.commit()
    assert lab.group().master == 3


def test_where_the_noted_epoch_was_nobodys_it_makes_no_log_longer() -> None:
    lab = elected(2, majority=True)
    assert cannot_begin(lab, {1: (1, 100), 2: (2, 100), 3: (1, 100)}) == 1
    assert cannot_begin(lab, {1: (3, 100), 2: (2, 100), 3: (1, 100)}) == 3


def test_without_a_majority_of_others_it_tries_on() -> None:
    lab = elected(2, majority=True)
    lab.close(3)
    assert cannot_begin(lab, {1: (1, 100), 2: (1, 120)}) == 2
    assert lab.group().epoch == 3


def test_no_full_disk_follows_one_that_cannot_begin_where_another_has_room() -> None:
    lab = elected(2, majority=False)
    # A full disk is why 2 cannot begin.
    assert cannot_begin(lab, {1: (1, 150), 2: (1, 100), 3: (1, 100)}, full=(1, 2)) == 3


@pytest.mark.parametrize(
    ("all_ack", "mine", "chosen"), [(True, 100, 3), (True, 120, 3), (False, 100, 3), (False, 120, 2)]
)
def test_who_takes_no_messages_leads_after_another_that_has_all_that_counts(
    all_ack: bool, mine: int, chosen: int
) -> None:
    lab = led(majority=False, all_ack=all_ack)
    lab.close(1)
    ask = lab.asks[G]
    lab.feed(signals.Answered(G, ask.inquiry, 2, (1, mine), full=True))
    lab.answer(3, (1, 100))
    lab.commit()
    assert lab.group().master == chosen


def test_where_no_disk_takes_messages_one_leads_all_the_same() -> None:
    lab = led(majority=False, all_ack=True)
    lab.close(1)
    for broker_id in (2, 3):
        lab.feed(signals.Answered(G, lab.asks[G].inquiry, broker_id, (1, 100), full=True))
    lab.commit()
    assert lab.group().master == 2


def test_a_member_that_is_silent_may_have_more_where_not_every_one_acknowledged() -> None:
    lab = led(majority=False)
    lab.request(ElectionRequest(broker_id=1, steps_down=True))
    lab.answer(2, (1, 100))
    lab.answer(3, None)
    assert "broker 3 does not say how far its log is" in refusal(lab)


def test_a_restarted_master_is_not_refused_for_ever_by_a_member_that_beats_and_says_nothing() -> None:
    """Each request is shorter than the time after which the member's heartbeat has to do."""
    lab = led(majority=False)
    request = ElectionRequest(broker_id=1, restarted=True, log_epoch=1, suspect=True, master_epoch=1)
    refused = 0
    while G not in lab.proposals:
        assert refused < 20, "it is elected some time"
        lab.request(request)
        lab.answer(1, (1, 90))
        lab.answer(2, (1, 100))
        until_ms = lab.now_ms + 1200
        while lab.now_ms < until_ms and lab.open:
            lab.run_until(lab.now_ms + 300)
            for broker_id in (2, 3):
                lab.beat(broker_id, epoch=1, max_offset=100, ha_address="h")
        refused += G not in lab.proposals
    assert refused, "not before its heartbeat was known for a whole timeout"


def test_in_another_epoch_it_is_nobodys_word() -> None:
    lab = led(majority=True)
    lab.request(ElectionRequest(broker_id=1, steps_down=True, master_epoch=7))
    assert "epoch" in refusal(lab)


def test_a_second_one_soon_after_is_refused() -> None:
    lab = led(majority=True)
    lab.request(REQUEST)
    lab.answer(2, (1, 100))
    lab.answer(3, (1, 100))
    lab.commit()
    assert lab.group().master == 2
    lab.request(ElectionRequest(broker_id=2, steps_down=True, needed=2, master_epoch=2))
    said = reply(lab)
    assert isinstance(said, Refused)
    assert "stepped down lately" in str(said)
    assert lab.group().master == 2


def test_the_pause_between_two_grows_while_they_go_on_and_begins_anew_after_a_quiet_time() -> None:
    pauses, now_ms = StepDowns(), 0.0
    seen = []
    for _ in range(8):
        pauses.note(G, now_ms)
        began_ms = now_ms
        while pauses.why_not_now(G, now_ms) is not None:
            now_ms += 500
        seen.append(now_ms - began_ms)
    assert seen == [min(PAUSE_MS * 2**n, PAUSE_MAX_MS) for n in range(8)]
    now_ms += QUIET * PAUSE_MAX_MS
    pauses.note(G, now_ms)
    assert pauses.why_not_now(G, now_ms + PAUSE_MS - 1) is not None
    assert pauses.why_not_now(G, now_ms + PAUSE_MS) is None


def test_masters_that_ask_again_by_doubling_times_are_given_no_short_pause() -> None:
    """A refused one asks after 1, 2, 4 ... s (broker/role/replacement): so up to twice the pause passes."""
    pauses, now_ms = StepDowns(), 0.0
    for n in range(6):
        pauses.note(G, now_ms)
        now_ms += 2 * PAUSE_MS * 2**n
        assert pauses.why_not_now(G, now_ms - PAUSE_MS * 2**n - 1) is not None
