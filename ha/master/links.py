"""The connections of a master's slaves: which of them are known, and what is each of them sent when?"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from ha.master.connected_set import ConnectedSet
from ha.master.log_reader import Budget, LogReader
from ha.master.replicas import Replicas
from ha.master.slave_link import Classic, Resources, SlaveLink, WithEpochs
from ha.wire.proof import Credentials
from ha.wire.silence import excused_ms, patience_ms
from model.config import BrokerConfig
from model.errors import PeerError
from model.ids import BrokerId, PhysicalOffset
from runtime.env import Buffer, Env

if TYPE_CHECKING:
    from store.message_store import MessageStore

log = logging.getLogger(__name__)

CONFIRM_PUSH_S: Final = 0.01
"""A newer confirmOffset waits at most this long for a data frame to carry it: a look each half of that sends
what waited at the look before. Under load a frame has carried it by then, and no empty one goes out."""
STRANGERS_MAX: Final = 64
"""Connections on the HA port that have not finished their handshake; one more is turned away."""
TELL_MS: Final = 10_000
"""Links turned away for want of a proof share a line in the log for this long."""
MEND_WAIT_MS: Final = 30_000
"""So long a slave is kept from what is damaged here and another slave might mend: it takes tenths of a second
to ask that one, and it may have the same damage, or not know the question."""
LOOKED_MS: Final = 1000
"""Who waits looks again sooner than this."""
NAMELESS_FROM: Final = 1 << 32
"""Numbers of classic slaves without a proof, beside those of slaves that have proven their ids."""


class TurnedAway:
    """Links that did not prove themselves, or did not come to say which broker they are of."""

    def __init__(self) -> None:
        self.total = 0
        """Since the start."""
        self.told_ms = -1.0  # when the log was last told of them; -1 = never
        self._untold = 0

    def note(self, address: str, why: str, now_ms: float) -> None:
        """Say so in the log, once each ``TELL_MS``: a port scan must not fill it."""
        self.total += 1
        if self.told_ms >= 0 and now_ms - self.told_ms < TELL_MS:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last such line)" if self._untold else ""
        log.warning("HA connection of %s turned away: %s%s", address, why, more)
        self.told_ms, self._untold = now_ms, 0


class MendWaits:
    """Slaves that wait until what is damaged here is mended. One that waited in vain waits nowhere more."""

    def __init__(self) -> None:
        self._of: dict[SlaveLink, tuple[float, float, PhysicalOffset]] = {}  # waited ms, looked at, where

    def may(self, link: SlaveLink, offset: PhysicalOffset, now_ms: float) -> bool:
        """Whether ``link`` is to wait, on, at ``offset``."""
        waited_ms, looked_ms, at = self._of.get(link, (0.0, now_ms, offset))
        if waited_ms >= MEND_WAIT_MS:
            return False
        if at != offset:
            waited_ms, looked_ms = 0.0, now_ms  # the former place was mended
        waited_ms += min(now_ms - looked_ms, LOOKED_MS)
        self._of[link] = waited_ms, now_ms, offset
        if waited_ms < MEND_WAIT_MS:
            return True
        log.warning(
            "slave %d at %s: nobody mends the log at %d here; it is sent as it is",
            link.broker_id,
            link.address,
            offset,
        )
        return False

    def at(self, link: SlaveLink, now_ms: float) -> PhysicalOffset | None:
        """Where ``link`` waits now."""
        waited_ms, looked_ms, offset = self._of.get(link, (0.0, 0.0, None))
        waits = waited_ms < MEND_WAIT_MS and now_ms - looked_ms < LOOKED_MS
        return offset if waits else None

    def on_end(self, link: SlaveLink) -> None:
        self._of.pop(link, None)


class Incarnations:
    """How often each slave forgot what it had, because it lost power or its disk. The numbers only grow."""

    def __init__(self) -> None:
        self._told: dict[BrokerId, int] = {}  # as the Controllers last said
        self._linked: dict[BrokerId, int] = {}  # the same, when its link began

    def on_told(self, forgot: Mapping[BrokerId, int]) -> None:
        for broker_id, times in forgot.items():
            self._told[broker_id] = max(times, self._told.get(broker_id, 0))

    def on_link(self, broker_id: BrokerId) -> None:
        self._linked[broker_id] = self._told.get(broker_id, 0)

    def is_former(self, broker_id: BrokerId) -> bool:
        """Whether the link of this slave began before it forgot."""
        return self._linked.get(broker_id, 0) < self._told.get(broker_id, 0)

    def of_links(self, broker_ids: Iterable[BrokerId]) -> dict[BrokerId, int]:
        return {broker_id: self._linked[broker_id] for broker_id in broker_ids}


class Ticking:
    """When the links are looked at, and whether that rests. Out: ``wake``, set when a rest is over."""

    def __init__(self, clock_ms: Callable[[], float]) -> None:
        self.wake = asyncio.Event()
        self.resting = False
        self._clock_ms = clock_ms
        self._ticked_ms = clock_ms()

    def begin(self) -> None:
        """The first period begins."""
        self._ticked_ms = self._clock_ms()

    def rouse(self) -> None:
        """There is something to look at."""
        if self.resting:
            self.resting = False
            self._ticked_ms = self._clock_ms()  # a rest is no standstill of this process
            self.wake.set()

    def late_ms(self, now_ms: float, period_ms: float) -> float:
        """How late this look is."""
        late_ms = now_ms - self._ticked_ms - period_ms
        self._ticked_ms = now_ms
        return late_ms


class SlaveLinks:
    """The links of one broker while it is master (``ha.master.slave_link.Host``)."""

    def __init__(
        self,
        env: Env,
        store: MessageStore,
        config: BrokerConfig,
        on_change: Callable[[bool], None],
    ) -> None:
        """``on_change``: hear that a slave acknowledged something, or left; whether there may be something to
        propose by it. Raises ConfigError: ``haSecretFile``."""
        self.replicas: Replicas | None = None
        """None while this broker is not master."""
        self.turned_away = TurnedAway()
        self.on_connected: list[Callable[[BrokerId, bool], None]] = []
        """Hear each new link of a slave: its id, and whether it is a keelmq broker."""
        self.by_id: dict[BrokerId, SlaveLink] = {}
        self.strangers: dict[SlaveLink, None] = {}  # ordered, unlike a set
        self.credentials = Credentials.of(env, config)
        self._incarnations = Incarnations()
        self._mend_waits = MendWaits()
        self._config = config
        self._on_change = on_change
        proving = self.credentials.secret is not None
        self._numbers = NAMELESS_FROM if proving else 0  # of classic slaves, in the order they connected
        self.ticking = Ticking(env.monotonic_ms)
        self._pump_soon = False
        self._confirm_timer: asyncio.TimerHandle | None = None
        self._resources = Resources(
            env,
            store,
            self,
            Budget(0, env.monotonic_ms),
            LogReader(store),
            self.credentials,
            config.ha_batch_bytes,
            config.segment_bytes,
        )
        self.reconfigure()

    def reconfigure(self) -> None:
        """``haFlowControlEnable`` or ``maxHaTransferByteInSecond`` may have changed."""
        config = self._config
        self._resources.budget.limit(config.ha_bytes_per_s_max if config.ha_flow_control else 0)

    def accept(self) -> SlaveLink:
        """A connection came in."""
        if isinstance(self.replicas, ConnectedSet):
            self._numbers += 1
            link = Classic(BrokerId(self._numbers), from_last_file=self._config.sync_from_last_file).open(
                self._resources
            )
        else:
            link = SlaveLink(self._resources, WithEpochs())
        if len(self.strangers) >= STRANGERS_MAX:
            # The oldest one has had the most time to say which broker it is; one that has proven it is none.
            # It goes at once: of a crowd, many are accepted in one turn, and connections end in a later one.
            silent = (stranger for stranger in self.strangers if stranger.proven is None)
            oldest = next(silent, None) or next(iter(self.strangers))
            del self.strangers[oldest]
            oldest.close("too many connections without a handshake")
        self.strangers[link] = None
        self.ticking.rouse()
        return link

    @property
    def may_rest(self) -> bool:
        """Whether there is neither a link nor a set to look at: a slave's, nearly always."""
        return self.replicas is None and not self.by_id and not self.strangers

    def close(self) -> None:
        """End all of them: this broker is master no more."""
        self.replicas = None
        for link in [*self.by_id.values(), *self.strangers]:
            link.close()
        self.by_id.clear()
        self.strangers.clear()
        if self._confirm_timer is not None:
            self._confirm_timer.cancel()
            self._confirm_timer = None

    def status(self, end: PhysicalOffset) -> list[dict[str, Any]]:
        """One entry a connected slave; ``end``: of our log. ``waitsForRepairAt``: it is sent nothing beyond
        until what is damaged here is mended; None: it is not kept."""
        now_ms = self._resources.env.monotonic_ms()
        return [
            {
                "id": broker_id,
                "address": link.address,
                "ackOffset": link.end if link.end >= 0 else None,
                "lagBytes": end - link.end if link.end >= 0 else None,
                "learner": link.slave.learner,
                "waitsForRepairAt": self._mend_waits.at(link, now_ms),
            }
            for broker_id, link in sorted(self.by_id.items())
        ]

    # What the links tell (ha.master.slave_link.Host)

    def expects(self, link: SlaveLink) -> bool:
        """See ``slave_link.Host``."""
        return link in self.strangers

    def follows(self, link: SlaveLink) -> bool:
        """See ``slave_link.Host``."""
        return self.by_id.get(link.broker_id) is link

    def elsewhere(self, offset: PhysicalOffset, link: SlaveLink) -> bool:
        """See ``slave_link.Host``."""
        if not any(other.end > offset for other in self.by_id.values() if other is not link):
            return False
        return self._mend_waits.may(link, offset, self._resources.env.monotonic_ms())

    def on_greeting(self, link: SlaveLink) -> None:
        """``link`` said which broker it is: it takes the place of a former connection of the same one.

        Even of one that works. A broker ends its link before it makes another, so the first is a leftover
        whose end has not reached this master, or two brokers use one id. If the first one stayed while it
        answers, a liar that came first would keep the true broker out for ever. This way the true one, which
        tries again, comes back. What the former link acknowledged is forgotten (``on_connect``): nothing is
        confirmed until the new one has reported. A link without a proof never replaces one with a proof.
        """
        assert self.replicas is not None
        former = self.by_id.get(link.broker_id)
        if former is not None and former.proven is not None and link.proven is None:
            raise PeerError(f"broker {link.broker_id} is connected and has proven itself, this link has not")
        self.strangers.pop(link, None)
        if former is not None:
            former.close("the same broker connected again")
            del self.by_id[link.broker_id]
        self.by_id[link.broker_id] = link
        self._incarnations.on_link(link.broker_id)
        for hook in self.on_connected:
            hook(link.broker_id, link.slave.answers_heartbeats)
        self.replicas.on_connect(
            link.broker_id,
            self._resources.env.monotonic_ms(),
            learner=link.slave.learner,
            answers_heartbeats=link.slave.answers_heartbeats,
        )
        log.info("slave %d at %s follows this master", link.broker_id, link.address)

    def on_turned_away(self, link: SlaveLink, why: str) -> None:
        """See ``slave_link.Host``."""
        self.turned_away.note(link.address, why, self._resources.env.monotonic_ms())

    def on_ack(self, link: SlaveLink) -> None:
        """``link`` reported how far its slave is."""
        broker_id, replicas = link.slave.broker_id, self.replicas
        if replicas is None or self.by_id.get(broker_id) is not link:
            return
        may_propose = replicas.on_ack(broker_id, link.end, link.last_read_ms)
        # Of several slaves one is the last to acknowledge: only then there is anything to tell.
        if may_propose or (replicas.confirmed, replicas.replicated) != replicas.evidence.told:
            self._on_change(may_propose)

    def on_end(self, link: SlaveLink) -> None:
        """``link`` is gone: its slave leaves the SyncStateSet at once, not when a timer notices."""
        self.strangers.pop(link, None)
        self._mend_waits.on_end(link)
        if self.by_id.get(link.broker_id) is not link:
            return
        del self.by_id[link.broker_id]
        log.info(
            "the HA link of slave %d at %s ended, acknowledged %d", link.broker_id, link.address, link.end
        )
        if self.replicas is not None:
            self.replicas.on_disconnect(link.broker_id)
            self._on_change(True)

    # Incarnations

    def on_incarnations(self, forgot: Mapping[BrokerId, int]) -> None:
        """How often each broker of the group forgot what it had, by the Controllers: it lost power, or its
        disk. What a slave acknowledged before that counts no more, and may still lie in our socket: a link
        that began before is ended, and the slave connects again."""
        self._incarnations.on_told(forgot)
        for broker_id, link in list(self.by_id.items()):
            if self._incarnations.is_former(broker_id):
                link.close("the broker registered since as one that may have forgotten its log's end")
                self.on_end(link)  # now: nothing that it said counts in this turn either

    def incarnations_of(self, broker_ids: Iterable[BrokerId]) -> dict[BrokerId, int]:
        """Of those that are linked, when their links began: what their acknowledgements are about."""
        return self._incarnations.of_links(broker_id for broker_id in broker_ids if broker_id in self.by_id)

    # What they are sent

    def on_append(self, data: Buffer) -> None:
        """The log grew, by ``data`` at its end if that is at hand. Everything appended in this turn of the
        loop goes out together."""
        if not self.by_id:
            return
        self._resources.reader.appended(data)
        if not self._pump_soon:
            self._pump_soon = True
            asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_soon = False
        self._resources.reader.turn(list(self.by_id.values()))

    def on_confirm(self) -> None:
        """More is confirmed: slaves hear of it soon."""
        if self._confirm_timer is None and self.by_id and self.replicas is not None:
            later = asyncio.get_running_loop().call_later
            self._confirm_timer = later(CONFIRM_PUSH_S / 2, self._push_confirmed, self.replicas.confirmed)

    def _push_confirmed(self, due: PhysicalOffset) -> None:
        """``due``: what was confirmed when the timer began to run."""
        self._confirm_timer = None
        if self.replicas is None:
            return
        newer = False
        for link in list(self.by_id.values()):
            if 0 <= link.told.confirmed < due:
                link.heartbeat()
            newer = newer or 0 <= link.told.confirmed < self.replicas.confirmed
        if newer:
            self.on_confirm()

    def on_elected_again(self) -> None:
        """The epoch is a newer one: in majority mode slaves connect again (``SyncSet.on_elected``)."""
        for link in [*self.by_id.values()]:
            if self._config.majority_ack:
                link.close()
            else:
                link.heartbeat()  # carries the new epoch

    def on_tick(self, now_ms: float, period_ms: float) -> None:
        """Heartbeats, and the end of links that are silent. Called each ``period_ms``, or late."""
        late_ms = self.ticking.late_ms(now_ms, period_ms)
        for link in [*self.by_id.values(), *self.strangers]:
            silence_ms = patience_ms(self._config, rocketmq_peer=not link.slave.answers_heartbeats)
            link.last_read_ms = excused_ms(link.last_read_ms, late_ms, silence_ms, now_ms)
            if now_ms - link.last_read_ms > silence_ms:
                link.close(f"silent for {silence_ms} ms")
            elif now_ms - link.last_write_ms >= self._config.ha_heartbeat_ms:
                link.heartbeat()
