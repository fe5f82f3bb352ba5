"""May this master still believe that it is the only one?

The Controllers' leader answers a master's heartbeat with a number of milliseconds, counted from the moment
the heartbeat was *sent*. A RocketMQ Controller answers without one: then there are no leases, and
RocketMQ's rules hold. It asks the clock it was made with at each question, so it is no decider of values.
"""

from __future__ import annotations

from collections.abc import Callable

from model.ids import NO_EPOCH, Epoch


class Lease:
    """What the Controllers granted for one epoch.

    In: ``begin``, ``answered``, ``require``. Out: ``holds``, ``required``. Holds: never longer than granted,
    also across a pause of this process, because each question looks at the clock.
    """

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self.epoch = NO_EPOCH
        self.supported: bool | None = None  # None: no Controller answered yet
        self.required = False
        """Whether a broker from outside of the SyncStateSet may be elected: a lease is needed then."""
        self._clock_ms = clock_ms
        self._until_ms = float("-inf")
        self._given_up_ms = float("-inf")
        self._given_up_term = -1

    def begin(self, epoch: Epoch, *, required: bool = False) -> None:
        """Master of ``epoch`` from now on: leases of another epoch say nothing any more. ``required``: so the
        Controllers said with the news."""
        if epoch != self.epoch:
            self.epoch, self._until_ms, self.required = epoch, float("-inf"), False
        self.required = self.required or required

    def require(self, epoch: Epoch) -> None:
        """In this epoch the word of all members is not enough any more. It stays so until the epoch ends:
        whoever elects next goes by it."""
        if epoch == self.epoch:
            self.required = True

    def answered(self, epoch: Epoch, asked_ms: float, lease_ms: int | None, term: int | None = None) -> bool:
        """The leader's answer to a heartbeat sent at ``asked_ms``; whether leases turned out not to exist.
        ``term``: in which it leads, None = not said."""
        if lease_ms is None:
            first, self.supported = self.supported is not False, False
            return first
        self.supported = True
        former = term is not None and term < self._given_up_term
        if epoch == self.epoch and asked_ms > self._given_up_ms and not former:
            self._until_ms = max(self._until_ms, asked_ms + lease_ms)
        return False

    def give_up(self, term: int = -1) -> None:
        """Hold none from now on, not even one whose answer is on its way: another may be elected at once, by
        the leader of ``term``, of which a former one need not know."""
        self._until_ms, self._given_up_ms = float("-inf"), self._clock_ms()
        self._given_up_term = max(self._given_up_term, term)

    @property
    def left_ms(self) -> float:
        """Infinite without leases."""
        if self.supported is False:
            return float("inf")
        return max(self._until_ms - self._clock_ms(), 0.0)

    def holds(self) -> bool:
        return self.supported is False or self._clock_ms() < self._until_ms
