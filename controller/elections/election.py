"""Does every group have a living master, and if not, what is next? (``underway.py`` is one election.)

A decider: ``step(event, now_ms)`` takes what happened and returns what to do (``signals.py``);
``controller.elections.coordinator`` carries it out. Chance, for back-offs alone, is the ``Random`` it is made
with. Events start an election at once: the end of a master's session, its silence, a broker that came back to
a group without master, a new Raft leader. Beside these every group is looked at again and again.

An election: ask the candidates how far their logs are; wait for the former master's lease; propose; the
replica table decides when the command is committed. Only the Raft leader begins one, once its table holds
what former leaders committed. Where nobody may be elected it looks again, later each time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from controller.elections.asking import AskedFor, Inquiry
from controller.elections.lease import Leases
from controller.elections.liveness import Broker, Heartbeat, Liveness
from controller.elections.preview import OWN, ElectionPreview, ElectionRequest
from controller.elections.signals import (
    Action,
    Announce,
    Answered,
    Ask,
    AskStepDown,
    BrokerBack,
    Committed,
    Event,
    Fields,
    LeadershipChanged,
    NotCommitted,
    NotSettled,
    OfGroup,
    Propose,
    Reply,
    Report,
    Requested,
    SessionsEnded,
    Settle,
    Settled,
    SteppedDown,
    StoodStill,
    StopAsking,
    Tick,
    WakeAt,
)
from controller.elections.step_downs import StepDowns, why_not_for
from controller.elections.underway import NEVER, Backoffs, Election, Mandate, Phase, Reported, Scan, failed
from controller.groups.commands import (
    ELECT_MASTER_FAILED,
    FENCED_MASTER_EPOCH,
    SUCCESS,
    Answer,
    ElectMaster,
)
from controller.groups.table import ReplicaTable
from model.config import ControllerConfig
from model.errors import MqError, Refused, Unknown
from runtime.report.histogram import Histogram

if TYPE_CHECKING:
    import random

RETRY_MS: Final = 50
BACK_MS: Final = 300.0  # a master whose connection ended, but that its slaves still hear, may come back
BACK_STEP_MS: Final = 20
ANNOUNCEMENTS_MAX: Final = 50  # masters a new leader announces in one step: between two it must be heard
STEP_MS: Final = 5


class ElectionDecider:
    """The elections of all groups, as far as this Controller sees to them.

    In: ``step``; and, for heartbeats, ``grant``. ``live`` is filled by the caller before it tells the event.
    Holds: at most one proposal of a group is in flight; none of its own is made while the master is presumed
    alive, none at all while a lease matters; there is always a time to look at every group again. A mistake
    of ours in one group ends that group's election alone.
    """

    def __init__(
        self, config: ControllerConfig, table: ReplicaTable, live: Liveness, chance: random.Random
    ) -> None:
        self._config = config
        self._table = table
        self._live = live
        self.leases = Leases()
        self.mandate = Mandate()
        self.elections: dict[str, Election] = {}
        self.preview = ElectionPreview(config, table, live, self.leases)
        self._reported = Reported()
        self._step_downs = StepDowns()
        self._backoffs, self._asked_for = Backoffs(chance), AskedFor()
        self._inquiries, self._now_ms = 0, 0.0  # of this step
        self._scan = Scan()
        self._out: list[Action] = []

    def step(self, event: Event, now_ms: float) -> list[Action]:
        """Take one event in; what has to be done now, and when to come again. ``now_ms``: monotonic."""
        self._now_ms = now_ms
        self._out = []
        self._take(event)
        for name, election in list(self.elections.items()):
            self._alone(name, partial(election.check, name))
        self.mandate.check()
        self._out.append(WakeAt(self._wake_ms()))
        return self._out

    def _take(self, event: Event) -> None:
        match event:
            case Tick():
                self._on_tick()
            case LeadershipChanged():
                self._on_leadership(event)
            case Settled():
                if event.number == self.mandate.number and self.mandate.is_raft_leader:
                    self.mandate.caught_up, self.mandate.settle_ms = True, NEVER
                    self._look_now()
            case NotSettled():
                self._on_not_settled(event)
            case StoodStill():
                self._report(f"this Controller stood still for {event.for_ms:.0f} ms")
                self._live.lead(self._now_ms)
            case SessionsEnded():
                self._on_sessions_ended(event.brokers)
            case _:
                self._alone(event.group, partial(self._take_of_group, event), event)

    def _take_of_group(self, event: OfGroup) -> None:
        match event:
            case BrokerBack():
                self._clear_backoff(event.group)
                self._elect_if_needed(event.group)
            case Answered():
                self._on_answered(event)
            case SteppedDown():
                self._on_stepped_down(event)
            case Committed():
                self._on_committed(event)
            case NotCommitted():
                self._on_not_committed(event)
            case Requested():
                self._on_requested(event)

    def _alone(self, name: str, act: Callable[[], None], event: OfGroup | None = None) -> None:
        """Where a mistake of ours fails this, the group's election ends, and it waits; other groups go on."""
        before, was = len(self._out), self.elections.get(name)
        proposing = was is not None and was.phase is Phase.PROPOSING
        try:
            act()
        except Exception as mistake:  # noqa: BLE001
            tickets = {of.ticket for of in (was, self.elections.pop(name, None)) if of is not None}
            self._out[before:] = failed(name, mistake, self._out[before:], tickets, event)
            if proposing and not isinstance(event, Committed):
                self._unsettle()  # it may still be committed
            self._look_again_by(self._backoffs.add(name, self._now_ms))

    def abandon(self, now_ms: float) -> list[Action]:
        """A step failed by a mistake of ours, and not in one group alone: forget what is under way, requests
        included, and begin as a new leader does. What was proposed may be committed: the table is settled."""
        self._now_ms, self._out = now_ms, [StopAsking(name) for name in sorted(self.elections)]
        self.elections.clear()
        self._backoffs.clear()
        self._scan.left.clear()
        self._unsettle()
        self._scan.look_ms = now_ms + self._config.scan_not_active_ms
        self._out.append(WakeAt(self._wake_ms()))
        return self._out

    # leading the Controllers

    def _on_leadership(self, event: LeadershipChanged) -> None:
        mandate = self.mandate
        if event.term != mandate.term:
            mandate.caught_up = False
        mandate.is_raft_leader, mandate.term = event.leads, event.term
        if mandate.is_raft_leader and mandate.led_term != mandate.term:
            mandate.led_term = mandate.term
            self._live.lead(self._now_ms)
            self.leases.lead(self._now_ms)
            self._backoffs.clear()
            self._reported.announced.clear()
            self._reported.outages.forget()
            self._unsettle()
        if not mandate.is_raft_leader:
            mandate.caught_up, mandate.settle_ms = False, NEVER
            mandate.number += 1
            mandate.led_term = 0

    def _unsettle(self) -> None:
        """Nothing is decided, and no lease granted, before the table holds what may have been committed."""
        self.mandate.caught_up, self.mandate.settle_ms = False, NEVER
        self.mandate.number += 1
        if self.mandate.is_raft_leader:
            self._out.append(Settle(self.mandate.number))

    def _on_not_settled(self, event: NotSettled) -> None:
        if event.number == self.mandate.number and self.mandate.is_raft_leader and not self.mandate.caught_up:
            self._report(f"this Controller leads, but: {event.error}")
            self.mandate.settle_ms = self._now_ms + RETRY_MS

    # looking

    def _look_now(self) -> None:
        self._scan.look_ms = self._now_ms

    def _look_again_by(self, at_ms: float) -> None:
        """Look at every group again at that time, if not before."""
        self._scan.look_ms = min(self._scan.look_ms, at_ms)

    def _wake_ms(self) -> float:
        """When to come again: the next look, the next end of a session, what elections wait for."""
        expiry_ms = self._live.next_expiry_ms()
        return min(
            self._scan.look_ms,
            self._now_ms + (STEP_MS if self._reported.announcements else 0) if self._scan.left else NEVER,
            self._now_ms + self._config.scan_not_active_ms,
            NEVER if expiry_ms is None else expiry_ms + 1,
            self.mandate.settle_ms,
            *(election.due_ms for election in self.elections.values()),
        )

    def _on_tick(self) -> None:
        self._reported.announcements = 0
        if self._now_ms >= self.mandate.settle_ms:
            self._unsettle()
        self._on_sessions_ended(tuple(self._live.expired(self._now_ms)))
        for name, election in sorted(self.elections.items()):
            if self._now_ms >= election.due_ms:
                self._alone(name, partial(self._go_on, name, election))
        if self._now_ms >= self._scan.look_ms and not self._scan.left:  # one that began ends first
            self._scan.look_ms = self._now_ms + self._config.scan_inactive_master_ms
            self._scan.begin(self._table.groups)
        for name in self._scan.next_groups():
            self._alone(name, partial(self._elect_if_needed, name))

    def _on_sessions_ended(self, brokers: tuple[Broker, ...]) -> None:
        lost = []
        for name, broker_id in brokers:
            group = self._table.groups.get(name)
            if group is not None and group.master == broker_id:
                self._clear_backoff(name)
                lost.append(name)
        for name in self._scan.bounded(lost):
            self._alone(name, partial(self._elect_if_needed, name))

    def _clear_backoff(self, name: str) -> None:
        """Something happened in the group that may let somebody be elected: do not wait any longer."""
        self._backoffs.forget(name)
        if name in self.elections:
            self.elections[name].changed_meanwhile = True

    def _elect_if_needed(self, name: str) -> None:
        """Start an election if the group needs one and this Controller may."""
        group = self._table.groups.get(name)
        if group is None or not self.mandate.decides or name in self.elections:
            return
        if group.master is not None:
            self._announce_once(name, group.master, group.epoch)
            if self._live.is_presumed_alive(name, group.master, self._now_ms):
                if not self._live.is_alive(name, group.master, self._now_ms):
                    self._look_again_by(self._live.presumed_until_ms(name, group.master) + 1)
                return
            self._note_lost(name, group.master, group.epoch)
        elif self.preview.would_be_elected(name, group, self._now_ms) is None:
            return
        if self._now_ms < self._backoffs.until_ms(name):
            self._look_again_by(self._backoffs.until_ms(name))
            return
        left_ms = self._lease_left_ms(self.preview.command(name, OWN, None, self._now_ms), self._now_ms)
        if left_ms > 0:
            self._look_again_by(self._now_ms + left_ms)
            return
        self.elections[name] = election = Election()
        self._begin(name, election)

    def _lease_left_ms(self, command: ElectMaster, at_ms: float) -> float:
        """For how long from ``at_ms`` on the former master's lease holds an own election up. Candidates'
        answers lack what it confirmed after they were asked, so it counts from then (decision 5)."""
        return self.preview.lease_left_ms(command.group, self.preview.chosen(command), at_ms)

    # telling

    @property
    def without_master(self) -> Histogram:
        """How long groups were without a master, in seconds."""
        return self._reported.outages.lasted

    def _report(self, text: str, level: str = "warning") -> None:
        self._out.append(Report(text, level))

    def _announce_once(self, name: str, master: int, epoch: int) -> None:
        """Tell the brokers of a group of each master this leader finds: also of one that a former leader had
        elected, or an election of unknown outcome."""
        known = self._reported.announced.get(name) == (master, epoch)
        if not known and self._reported.announcements >= ANNOUNCEMENTS_MAX:
            self._scan.left.append(name)
        elif not known:
            self._reported.announcements += 1
            self._announce(name)

    def _announce(self, name: str) -> None:
        group = self._table.groups.get(name)
        if group is not None and group.master is not None:
            self._reported.announced[name] = (group.master, group.epoch)
            self._out.append(Announce(name))

    def _note_lost(self, name: str, master: int, epoch: int) -> None:
        if self._reported.on_lost(name, (master, epoch), self._now_ms):
            fields: Fields = {"group": name, "broker_id": master}
            self._out.append(Report(f"master {master} of {name} is lost", event="master_lost", fields=fields))

    def _elected(self, name: str, answer: Answer) -> None:
        broker_id, epoch = int(answer.ext["masterBrokerId"]), int(answer.ext["masterEpoch"])
        self._reported.outages.on_elected(name, self._now_ms)
        text = f"broker {broker_id} is master of {name} in epoch {epoch}"
        fields: Fields = {"group": name, "broker_id": broker_id, "epoch": epoch}
        self._out.append(Report(text, "info", event="master_elected", fields=fields))
        self._announce(name)

    # leases

    def grant(
        self, name: str, broker_id: int, epoch: int, beat: Heartbeat, followed_ms: float | None, now_ms: float
    ) -> int:
        """The lease for the master of ``epoch``, in ms from the sending of its heartbeat; 0 = none.
        ``followed_ms``: ``Raft.followed_ms``."""
        group = self._table.groups.get(name)
        if group is None or (group.master, group.epoch) != (broker_id, epoch):
            return 0
        # An election under way may depose it, and its outcome may be unknown until that is settled.
        if not self.mandate.decides or name in self.elections:
            return 0
        # A later leader of the Controllers waits for as long as the master registered, and no longer.
        registered_ms = group.rule.timeout_ms if group.rule is not None else 0
        timeout_ms = min(beat.timeout_ms, registered_ms or beat.timeout_ms)
        return self.leases.grant((name, broker_id), timeout_ms, followed_ms=followed_ms, now_ms=now_ms)

    # an election, step by step

    def _go_on(self, name: str, election: Election) -> None:
        """The time an election waited for has come."""
        election.due_ms = NEVER
        match election.phase:
            case Phase.ASKING:
                self._look_at_answers(name, election)
            case Phase.AWAITING_RETURN | Phase.AWAITING_LEASE_END:
                self._ask(name, election)
            case Phase.RETRYING if self.mandate.is_raft_leader:
                self._begin(name, election)
            case _:
                self._call_off(name, election)

    def _begin(self, name: str, election: Election) -> None:
        election.since_ms, election.back_until_ms = self._now_ms, self._now_ms + BACK_MS
        self._ask(name, election)

    def _ask(self, name: str, election: Election) -> None:
        request, group = election.request, self._table.groups.get(name)
        election.phase, election.asked_ms = Phase.ASKING, self._now_ms
        asked = [] if group is None else self.preview.to_ask(name, group, request, self._now_ms)
        longest_s = self.preview.longest_wait_s(name, asked, ours=election.ticket is None)
        self._inquiries += 1
        election.inquiry = Inquiry(self._inquiries, asked, longest_s, self._now_ms)
        if asked:
            self._out.append(Ask(name, self._inquiries, tuple(asked), longest_s))
        self._look_at_answers(name, election)

    def _on_answered(self, event: Answered) -> None:
        election = self.elections.get(event.group)
        inquiry = None if election is None else election.inquiry
        if election is None or inquiry is None or inquiry.number != event.inquiry:
            return  # too late
        if event.end is not None:
            self._live.told_end(event.group, event.broker_id, *event.end)
        told = event.end is not None
        inquiry.on_answer(event.broker_id, told_end=told, following=event.following, reached=event.reached)
        election.full = election.full | {event.broker_id} if event.full else election.full
        self._look_at_answers(event.group, election)

    def _look_at_answers(self, name: str, election: Election) -> None:
        """Wait on for the candidates, or take what they said."""
        inquiry = election.inquiry
        assert inquiry is not None, "asking"
        if not inquiry.is_over(self._now_ms, lambda: self._is_decided(name, election, inquiry)):
            election.due_ms = inquiry.look_ms(self._now_ms)
            return
        if inquiry.pending:
            self._out.append(StopAsking(name))
        election.answered, election.heard = frozenset(inquiry.answered), frozenset(inquiry.heard)
        election.inquiry, election.due_ms = None, NEVER
        if election.ticket is None:
            self._on_asked_for_ours(name, election, following=bool(inquiry.following))
        else:
            self._on_asked_for_request(name, election, election.ticket)

    def _is_decided(self, name: str, election: Election, inquiry: Inquiry) -> bool:
        group = self._table.groups.get(name)
        if group is None:
            return True
        if election.all_of_them:
            return inquiry.answered >= inquiry.asked - {group.master}
        command = self._command(name, election, frozenset(inquiry.answered))
        return self.preview.is_decided(group, command, inquiry.asked, inquiry.answered)

    def _command(self, name: str, election: Election, answered: frozenset[int] | None) -> ElectMaster:
        return self.preview.command(name, election.request, answered, self._now_ms, election.full)

    def _propose(self, election: Election, command: ElectMaster) -> None:
        own, name, chosen = election.ticket is None, command.group, self.preview.chosen(command)
        assert not (own and self._master_may_live(name)), f"the master of {name} may be alive"
        suspect = election.request.suspect_id
        left_ms = self.preview.lease_left_ms(name, chosen, election.asked_ms, suspect)
        assert left_ms <= 0, f"the lease of the former master of {name} matters for {left_ms:.0f} ms"
        election.phase = Phase.PROPOSING
        self._out.append(Propose(command))

    def _on_asked_for_ours(self, name: str, election: Election, *, following: bool) -> None:
        """Propose, unless the master may come back: its connection ended, and a candidate still hears it, or
        nobody could replace it. (A dying process ends all its connections at once; after a standstill of the
        machine all brokers drop theirs.)"""
        group = self._table.groups.get(name)
        command = self._command(name, election, election.answered)
        if group is not None and group.master is not None:
            may_be_back = following or self.preview.chosen(command) is None
            closed = self._live.connection_closed(name, group.master)
            if may_be_back and closed and self._now_ms < election.back_until_ms:
                election.phase, election.due_ms = Phase.AWAITING_RETURN, self._now_ms + BACK_STEP_MS
                return
        left_ms = self._lease_left_ms(command, election.asked_ms)
        may = group is not None and self.mandate.is_raft_leader and not self._master_may_live(name)
        if left_ms > 0 or not may:
            self._call_off(name, election)
        elif self.preview.is_in_vain(command):
            self._backoffs.add(name, self._now_ms)
            self._call_off(name, election)
        elif self.preview.why_not_yet(command, election.heard, election.since_ms, self._now_ms):
            election.phase, election.due_ms = Phase.AWAITING_RETURN, self._now_ms + RETRY_MS
        else:
            self._propose(election, command)

    def _master_may_live(self, name: str) -> bool:
        """The master is heard, or must not be taken for dead yet."""
        group = self._table.groups.get(name)
        master = None if group is None else group.master
        return master is not None and self._live.is_presumed_alive(name, master, self._now_ms)

    def _on_requested(self, event: Requested) -> None:
        """A broker or an operator asks for an election."""
        name, request, group = event.group, event.request, self._table.groups.get(event.group)
        if group is not None and request.master_epoch not in (-1, group.epoch):
            # It was long on its way: here too, so that it neither ends a lease nor drains a master.
            text = f"epoch of {name} is {group.epoch}, not {request.master_epoch}"
            self._out.append(Reply(event.ticket, Refused(text, FENCED_MASTER_EPOCH)))
            return
        handed_over = group is not None and request.hands_over(group)
        if group is not None and group.master is not None and (handed_over or request.asks_anew(group)):
            # The master says that it no longer leads in this epoch, so its lease holds nothing up any more.
            self.leases.release((name, group.master))
            self.preview.note_unable(name, request, self._now_ms)
        why_not = self._why_not_now(name, request)
        if why_not is not None:
            self._out.append(Reply(event.ticket, Refused(why_not, ELECT_MASTER_FAILED)))
            return
        since_ms = self._asked_for.since_ms(name, 0 if group is None else group.epoch, self._now_ms)
        election = Election(request, event.ticket, since_ms=since_ms, handed_over=handed_over)
        self.elections[name] = election
        master = None if handed_over or group is None else request.to_drain(group)
        if master is None or group is None:
            self._ask_for_request(name, election)
        else:
            election.phase, target, term = Phase.STEPPING_DOWN, request.broker_id, self.mandate.term
            self._out.append(AskStepDown(name, master, group.epoch, target, term))

    def _why_not_now(self, name: str, request: ElectionRequest) -> str | None:
        if name in self.elections:
            return f"an election of {name} is under way"
        why = self.preview.why_not_designated(name, request)
        return why if why or not request.steps_down else self._step_downs.why_not_now(name, self._now_ms)

    def _on_stepped_down(self, event: SteppedDown) -> None:
        election = self.elections.get(event.group)
        if election is None or election.phase is not Phase.STEPPING_DOWN:
            return
        if event.error is not None:
            self._refuse(event.group, election, event.error)
            return
        if event.handed_over:
            election.handed_over = True
            self.leases.release((event.group, event.master))
        self._ask_for_request(event.group, election)

    def _ask_for_request(self, name: str, election: Election) -> None:
        command, request = self._command(name, election, None), election.request
        may_lack = election.compares and self.preview.may_lack(command)
        election.all_of_them = may_lack or request.steps_down or request.cannot_begin
        self._ask(name, election)

    def _on_asked_for_request(self, name: str, election: Election, ticket: int) -> None:
        command = self._command(name, election, election.answered)
        chosen = self.preview.chosen(command)
        left_ms = self.preview.lease_left_ms(name, chosen, election.asked_ms, election.request.suspect_id)
        why = self.preview.lacks(command) if election.compares else None
        if left_ms > 0 and election.request.steps_down:
            # No new one is granted meanwhile. That it holds none is not believed: its word may be old.
            election.phase, election.due_ms = Phase.AWAITING_LEASE_END, self._now_ms + left_ms
            return
        if left_ms > 0:
            why = f"the lease of the former master of {name} holds for {left_ms:.0f} ms"
        elif why is None and self.preview.is_in_vain(command):
            why = self.preview.why_nobody(command)
        if why is None and election.request.steps_down:
            why = self._why_no_step_down(name, election, chosen)
        if why is None and not election.handed_over:
            why = self.preview.why_not_yet(command, election.heard, election.since_ms, self._now_ms)
        if why is not None:
            self._refuse(name, election, Refused(why, ELECT_MASTER_FAILED))
            return
        if election.request.steps_down:
            # A try that fails counts, too: masters must not change faster than one may ask again.
            self._step_downs.note(name, self._now_ms)
            self._report(f"master of {name} is to step down: it cannot serve")
        self._propose(election, command)

    def _why_no_step_down(self, name: str, election: Election, chosen: int | None) -> str | None:
        group = self._table.groups.get(name)
        if group is None or chosen in (None, group.master):
            return f"no other broker of {name} may become master"
        return why_not_for(group, election.request, chosen, election.answered or (), election.full)

    def _refuse(self, name: str, election: Election, error: MqError) -> None:
        assert election.ticket is not None, "asked for"
        self._out.append(Reply(election.ticket, error))
        del self.elections[name]
        if election.changed_meanwhile:
            self._look_now()

    def _on_committed(self, event: Committed) -> None:
        election = self.elections.get(event.group)
        if election is None or election.phase is not Phase.PROPOSING:
            self._look_now()  # of an election that was abandoned
            return
        self._finish(event.group, election, event.answer)

    def _on_not_committed(self, event: NotCommitted) -> None:
        if isinstance(event.error, Unknown):
            # It may still be applied: no lease before that is settled.
            self._unsettle()
        name, election = event.group, self.elections.get(event.group)
        if election is None or election.phase is not Phase.PROPOSING:
            return
        if election.ticket is not None:
            self._refuse(name, election, event.error)
            return
        if event.deposed:
            self._call_off(name, election)
            return
        self._report(f"election of {name}: {event.error}")
        election.attempt += 1
        if election.attempt < max(self._config.elect_retry_max, 1):
            election.phase, election.due_ms = Phase.RETRYING, self._now_ms + RETRY_MS
        else:
            self._backoffs.add(name, self._now_ms)
            self._call_off(name, election)

    def _call_off(self, name: str, election: Election) -> None:
        """No own election is held after all."""
        assert election.ticket is None, "a request is refused"
        del self.elections[name]
        if election.changed_meanwhile:
            self._backoffs.forget(name)
        self._look_now()

    def _finish(self, name: str, election: Election, answer: Answer) -> None:
        del self.elections[name]
        if answer.code == SUCCESS:
            self._elected(name, answer)
        if election.ticket is not None:
            self._out.append(Reply(election.ticket, answer))
        elif election.changed_meanwhile or answer.changed:
            self._backoffs.forget(name)
        else:
            self._backoffs.add(name, self._now_ms)
        if election.ticket is None and answer.changed and answer.code != SUCCESS:
            self._report(f"{name} has no master: {answer.remark}", "error")
        # What happened while the election was under way: the new master may be lost already.
        self._look_now()

    def check_invariants(self) -> None:
        """Raise if a promise of this state is broken."""
        self.mandate.check()
        for name, election in self.elections.items():
            election.check(name)
        longest_ms = max(self._config.scan_inactive_master_ms, self._config.scan_not_active_ms)
        self._scan.check(self._now_ms + longest_ms)
        self._backoffs.check(self._now_ms)
        self._reported.check(self._table.groups)
