"""A master's SyncSet without a network, and a model of the Controller and the slaves around it."""

from collections.abc import Callable, Iterable

from hypothesis import strategies as st

from ha.master.ack_policy import AckPolicy, Wait
from ha.master.membership import UNKNOWN_HOLD_MS, Proposal
from ha.master.sync_set import Leadership, LogEnds, SyncSet
from model.ids import BrokerId, Epoch, PhysicalOffset
from tests.plain import broker_ids

SELF = BrokerId(1)
NOT_CATCHUP_MS = 3000


class PlainSyncSet(SyncSet):
    """A SyncSet that takes plain numbers."""

    def on_append(self, end: int) -> None:
        super().on_append(PhysicalOffset(end))

    def on_flush(self, flushed: int) -> None:
        super().on_flush(PhysicalOffset(flushed))

    def on_connect(
        self, broker_id: int, now_ms: float, *, learner: bool = False, answers_heartbeats: bool = True
    ) -> None:
        super().on_connect(
            BrokerId(broker_id), now_ms, learner=learner, answers_heartbeats=answers_heartbeats
        )

    def on_ack(self, broker_id: int, end: int, now_ms: float) -> bool:
        return super().on_ack(BrokerId(broker_id), PhysicalOffset(end), now_ms)

    def on_eligible(self, broker_id: int, now_ms: float) -> None:
        super().on_eligible(BrokerId(broker_id), now_ms)

    def on_disconnect(self, broker_id: int) -> None:
        super().on_disconnect(BrokerId(broker_id))

    def on_view(self, members: frozenset[int], set_epoch: int, asked_ms: float | None = None) -> bool:
        return super().on_view(broker_ids(members), set_epoch, asked_ms)


def leadership(epoch: int, epoch_start: int, members: Iterable[int], set_epoch: int) -> Leadership:
    return Leadership(Epoch(epoch), PhysicalOffset(epoch_start), broker_ids(members), set_epoch)


def log_ends(end: int, confirmed: int, flushed: int) -> LogEnds:
    return LogEnds(PhysicalOffset(end), PhysicalOffset(confirmed), PhysicalOffset(flushed))


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
) -> PlainSyncSet:
    wait = Wait.MAJORITY if majority_of else Wait.ALL if all_ack else Wait.COUNT
    policy = AckPolicy(
        wait, acks_min=ack_count, replicas=majority_of, copies_min=copies_min, synced=flushed is not None
    )
    return PlainSyncSet(
        SELF,
        leadership(1, epoch_start, members or {SELF}, 1),
        log_ends(end, confirmed, flushed or 0),
        policy,
        not_catchup_ms=NOT_CATCHUP_MS,
        now_ms=0.0,
        may_confirm=may_confirm or (lambda all_must: all_must or holds_lease()),
    )


def with_slaves(
    *slaves: int, all_ack: bool = True, ack_count: int = 1, majority_of: int = 0, copies_min: int = 1
) -> PlainSyncSet:
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
        sync.on_checked()
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
