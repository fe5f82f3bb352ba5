"""Which messages does a consumer get, and when does a pull with nothing to give wait?

PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361), on masters and slaves alike. Only what is confirmed has been
dispatched to the queues, so nothing a failover could take back is ever served. A pull that finds nothing and
may wait is held until a record it wants is dispatched, its time is over, or the role of this broker changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from broker.context import BrokerContext
from broker.requests.consumers.asking import Asking
from broker.requests.consumers.choosing import is_stalled, look, need_filter
from broker.requests.consumers.held import Held, HeldPulls, Queue
from broker.requests.consumers.offsets import note_offset
from broker.requests.consumers.standing import Standing, standing_of
from broker.requests.consumers.told import FOUND, REMARKS, Told, code_of
from broker.requests.consumers.waking import Searches, Waking, failed
from broker.state.clients import SQL92, TAG, Subscription, too_long
from broker.state.effort import NoRoom
from model.codes import Response
from model.errors import Refused
from model.message import LMQ_PREFIX
from model.topic import PERM_READ, SubscriptionGroupConfig, TopicConfig, is_system_group
from remoting.codec import Command
from remoting.headers import PullHeader
from remoting.service import Connection
from runtime.sizes import text_bytes
from runtime.tasks import Tasks
from runtime.turns import Slice, Unhurried
from store.files.consume_queue import is_queue_name
from store.files.record import store_timestamp_of
from store.flow.dispatching.arrivals import Arrival, Listening
from store.flow.reading import GetStatus, Got

CHECK_S: Final = 1.0  # how often the held pulls' deadlines are looked at
RECHECK_MS: Final = 5000  # a held pull is tried again after this, whatever was or was not heard
SHORT_POLLING_MS: Final = 1000
"""How long a pull is held without longPollingEnable (the original's shortPollingTimeMills): its consumer
comes again the moment it is answered."""
BYTES_MAX: Final = 4 * 1024 * 1024
PASSED_MAX: Final = 32
NOT_DUE_AT_ONCE: Final = 32
"""So many held pulls are gone past between two looks at the clock."""


def _replied(request: Command, told: Told | None) -> Command | None:
    return None if told is None else told.reply(request)


class PullProcessor:
    """Answers 11 and 361."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._config = context.config
        self._held = HeldPulls()
        self._asking = Asking(context)
        self._passed: dict[tuple[str, int, int, str], Got] = {}
        """What was looked at to its queue's end, and not chosen: many pulls may wait with one expression."""
        self._tasks = Tasks("held pulls")
        self._waking = Waking(self._tasks, context.env.monotonic_ms, self._steps)
        self._searches = Searches(self._tasks, context.effort, self._search)
        self._listening = Listening(context.store.on_arrive, self._arrived)
        context.offsets.on_reset.append(self._was_reset)

    @property
    def held(self) -> int:
        return self._held.count

    async def pull(self, connection: Connection, request: Command) -> Command | None:
        """The messages, or None while the pull is held. Raises Refused."""
        header = PullHeader.parse(request.ext)
        try:
            return await self._answered(connection, request, header)
        except Refused as refused:
            if refused.code != Response.SUBSCRIPTION_NOT_LATEST:
                raise
        await self._asking.renew(connection, header.group, header.topic)
        return await self._answered(connection, request, header)

    async def _answered(self, connection: Connection, request: Command, header: PullHeader) -> Command | None:
        """``tell``, in as many turns of the loop as an expression needs."""
        with suppress(NoRoom):
            return _replied(request, self.tell(connection, request, header))
        effort = self._context.effort
        read: Subscription | None = None
        async with effort.turn(connection):
            while not connection.closed:
                try:
                    return _replied(request, self.tell(connection, request, header, in_turn=True, read=read))
                except NoRoom as later:
                    read = later.subscription if header.has_subscription else None
                await effort.next_turn()
        return None

    def tell(
        self,
        connection: Connection,
        request: Command,
        header: PullHeader,
        *,
        in_turn: bool = False,
        read: Subscription | None = None,
    ) -> Told | None:
        """``pull``, of a header that was read; neither that nor the request is kept. Raises Refused, at once
        when the subscription is not the latest: the consumer can be asked for it then. Raises NoRoom, and
        then nothing was done, when its expression is to be looked at in a later turn; ``in_turn``: it waited
        for this one. ``read``: what it subscribes to, if that is known."""
        self._context.trust.need_seen(connection, request, header.topic)
        topic, group = self._allowed(header)
        subscription, got = self._found(header, group, read, in_turn=in_turn)
        return self._given(connection, request, header, (subscription, topic, group), got)

    def tell_again(self, connection: Connection, request: Command, header: PullHeader) -> Told | None:
        """``tell`` of a header that comes again and again with other numbers, and whose topic anybody may
        see (``Trust.need_seen``): it keeps what the rules found."""
        standing, context = header.standing, self._context
        found = standing.found(context, header) if isinstance(standing, Standing) else None
        if found is None or not isinstance(standing, Standing):
            header.standing = None
            told = self.tell(connection, request, header)
            if told is not None and told.code is Response.SUCCESS:
                header.standing = self._standing(header)
            return told
        offset, first, resets = header.queue_offset, standing.first, context.offsets.resets
        if offset < first:
            return self.tell(connection, request, header)
        began_ms = context.env.monotonic_ms()
        got = context.store.reader.get(
            header.topic, header.queue_id, offset, *standing.most[1:], found[0].codes or None
        )
        now_ms = context.env.monotonic_ms()
        context.stats.took(now_ms - began_ms)
        _, topic, group = found
        if got.status is not GetStatus.FOUND or resets.count:
            return self._given(connection, request, header, found, got)
        if standing.commits and header.commit_offset >= 0 and context.role_state.keeps_offsets:
            note_offset(context, header.group, header.topic, header.queue_id, header.commit_offset)
        body, least = self._read(header, got, now_ms), max(got.min_offset, first)
        flags = topic.sys_flag, group.group_sys_flag
        return Told(Response.SUCCESS, FOUND, got.next_offset, least, got.max_offset, *flags, body)

    def _standing(self, header: PullHeader) -> Standing | None:
        """What holds for its next pull, too; None: each is to be looked at as if it were the first. Raises
        Refused."""
        if header.has_subscription:
            return None
        topic, group = self._allowed(header)
        subscription = self._subscription(header, group)
        return standing_of(self._context, header, (topic, group, subscription), self._most(header))

    def _given(
        self,
        connection: Connection,
        request: Command,
        header: PullHeader,
        found: tuple[Subscription, TopicConfig, SubscriptionGroupConfig],
        got: Got,
    ) -> Told | None:
        """The answer of what there is, or None while the pull is held."""
        subscription, topic, group = found
        got = self._reset(connection, header, hears=not request.is_oneway) or got
        commits = header.commits and header.commit_offset >= 0 and not is_system_group(header.group)
        commits = commits and got.status is not GetStatus.OFFSET_RESET
        if commits and self._context.role_state.keeps_offsets:
            note_offset(self._context, header.group, header.topic, header.queue_id, header.commit_offset)
        if got.status is not GetStatus.FOUND:
            self._context.stats.missed_total += 1
            held = self._waiting(connection, request, header, subscription, topic, group)
            if self._waits(got, held) and not request.is_oneway and self._has_room(held):
                held.passed = self._context.trust.passed(connection, request)
                self._held.add(held)
                self._listening.begin()
                return None
        return self._told(connection, header, topic, group, got)

    def _found(
        self, header: PullHeader, group: SubscriptionGroupConfig, read: Subscription | None, *, in_turn: bool
    ) -> tuple[Subscription, Got]:
        """What is subscribed to, and what there is of it. Raises Refused, and NoRoom: nothing dear begins
        while others wait, but for what waited (``in_turn``)."""
        effort, stats = self._context.effort, self._context.stats
        monotonic_ms = self._context.env.monotonic_ms
        begins = header.has_subscription and header.expression_type == SQL92
        if begins and not in_turn and effort.is_busy:
            raise NoRoom
        subscription = read or self._subscription(header, group)
        chooses = subscription.chooses is not None
        if chooses and not begins and not in_turn and effort.is_busy:
            raise NoRoom
        began_ms = monotonic_ms()
        got = self._get(header, subscription)
        stats.took(monotonic_ms() - began_ms)
        if chooses and is_stalled(got, header.queue_offset):
            raise NoRoom(subscription)
        return subscription, got

    def _waiting(
        self,
        connection: Connection,
        request: Command,
        header: PullHeader,
        subscription: Subscription,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
    ) -> Held:
        now_ms = self._context.env.monotonic_ms()
        config = self._config
        wait_ms = min(header.suspend_timeout_ms, config.suspend_ms_max)
        if header.has_subscription:
            subscription.tags = []  # their codes are what is looked at
        return Held(
            connection,
            request.bare(),
            header.kept(group.name, topic.name),
            subscription,
            topic,
            group,
            header.queue_offset,
            now_ms + (wait_ms if config.long_polling_enable else SHORT_POLLING_MS),
            now_ms + RECHECK_MS,
        )

    def _has_room(self, held: Held) -> bool:
        config = self._config
        return (
            self._held.count < config.held_pulls_max
            and self._held.by_connection[held.connection] < config.held_pulls_per_connection
            and self._held.bytes + held.subscription.bytes <= config.held_pull_bytes_max
        )

    def _allowed(self, header: PullHeader) -> tuple[TopicConfig, SubscriptionGroupConfig]:
        """The topic and the group, if the one may be read by the other. Raises Refused."""
        group = self._context.groups.find(header.group)
        if not self._config.broker_permission & PERM_READ:
            raise Refused(
                f"the broker[{self._config.broker_ip1}] pulling message is forbidden", Response.NO_PERMISSION
            )
        if group is None:
            raise Refused(
                f"subscription group [{header.group}] does not exist", Response.SUBSCRIPTION_GROUP_NOT_EXIST
            )
        if not group.consume_enable:
            raise Refused(f"subscription group no permission, {header.group}", Response.NO_PERMISSION)
        return self._topic(header), group

    def _topic(self, header: PullHeader) -> TopicConfig:
        topic = self._context.topics.get(header.topic)
        is_light = topic is None and self._context.config.lmq_enable and header.topic.startswith(LMQ_PREFIX)
        if is_light and is_queue_name(header.topic, 0):
            topic = TopicConfig(header.topic, 1, 1)  # light queues are made by the messages that name them
        if topic is None:
            raise Refused(f"topic[{header.topic}] not exist, apply first please!", Response.TOPIC_NOT_EXIST)
        if not topic.perm & PERM_READ:
            raise Refused(f"the topic[{header.topic}] pulling message is forbidden", Response.NO_PERMISSION)
        if not 0 <= header.queue_id < topic.read_queues:
            raise Refused(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}]"
                f" topicConfig.readQueueNums:[{topic.read_queues}] consumer:[{header.group}]",
                Response.INVALID_PARAMETER,
            )
        return topic

    def _subscription(self, header: PullHeader, group: SubscriptionGroupConfig) -> Subscription:
        if header.has_subscription:
            if text_bytes(header.subscription) > self._config.subscription_bytes_max:
                raise too_long(self._config.subscription_bytes_max)
            self._context.effort.read(header.subscription, header.expression_type or TAG)
            try:
                found = Subscription.of(
                    header.topic, header.subscription, header.expression_type, header.sub_version
                )
            except ValueError as error:
                raise Refused(
                    f"parse the consumer's subscription failed: {error}", Response.SUBSCRIPTION_PARSE_FAILED
                ) from None
        else:
            consumers = self._context.clients.consumers.get(header.group)
            if consumers is None:
                raise Refused(
                    f"the consumer's group info not exist, group: {header.group}",
                    Response.SUBSCRIPTION_NOT_EXIST,
                )
            if not group.consume_broadcast_enable and consumers.message_model == "BROADCASTING":
                raise Refused(
                    f"the consumer group[{header.group}] can not consume by broadcast way",
                    Response.NO_PERMISSION,
                )
            if not self._context.groups.may_read(header.group, header.topic):
                raise Refused(
                    f"the consumer group[{header.group}] is forbidden for topic[{header.topic}]",
                    Response.NO_PERMISSION,
                )
            held = consumers.subscriptions.get(header.topic)
            if held is None:
                raise Refused(
                    f"the consumer's subscription not exist, group: {header.group}, topic:{header.topic}",
                    Response.SUBSCRIPTION_NOT_EXIST,
                )
            if held.version < header.sub_version:
                raise Refused("the consumer's subscription not latest", Response.SUBSCRIPTION_NOT_LATEST)
            found = held
        need_filter(self._config, found)
        return found

    def _get(self, header: PullHeader, subscription: Subscription, *, put_off: bool = False) -> Got:
        """What there is. ``put_off``: its expression is asked about nothing, as if this turn had no room."""
        first = self._context.topics.first_offset(header.topic, header.queue_id)
        if header.queue_offset < first:
            end = self._context.store.max_queue_offset(header.topic, header.queue_id)
            return Got(GetStatus.OFFSET_TOO_SMALL, first, first, end, [], 0)
        topic, queue_id, get = header.topic, header.queue_id, self._context.store.get
        count_max, bytes_max = self._most(header)
        if subscription.chooses is None:
            return get(topic, queue_id, header.queue_offset, count_max, bytes_max, subscription.codes or None)
        key = (topic, queue_id, header.queue_offset, subscription.expression)
        passed = self._passed.get(key)
        if passed is not None and passed.max_offset == self._context.store.max_queue_offset(topic, queue_id):
            return passed
        if put_off and (end := self._context.store.max_queue_offset(topic, queue_id)) > header.queue_offset:
            least = self._context.min_offset(topic, queue_id)
            return Got(GetStatus.NO_MATCHED, header.queue_offset, least, end, [], 0)
        got = look(
            lambda offset, count: get(topic, queue_id, offset, count, bytes_max, None),
            subscription.chooses,
            header.queue_offset,
            count_max,
            bytes_max,
            self._context.effort,
        )
        if got.status is GetStatus.NO_MATCHED and got.next_offset == got.max_offset:
            if len(self._passed) >= PASSED_MAX:
                self._passed.clear()
            self._passed[key] = got
        return got

    def _most(self, header: PullHeader) -> tuple[int, int]:
        """Messages and bytes of one answer."""
        bytes_max = self._config.transfer_bytes_in_memory
        if header.bytes_max is not None:
            bytes_max = min(bytes_max, max(1, header.bytes_max))
        return max(1, min(header.count_max, self._config.transfer_count_in_memory)), min(bytes_max, BYTES_MAX)

    def _reset(self, connection: Connection, header: PullHeader, *, hears: bool) -> Got | None:
        """Where its group is to go on by an operator's word, where a pull is to be told now. ``hears``: it
        gets an answer."""
        context = self._context
        resets = context.offsets.resets
        if not (resets.count and hears and context.role_state.is_master):
            return None
        now_ms, pair = context.env.monotonic_ms(), (header.topic, header.group)
        place = (header.group, header.topic, header.queue_id)
        offset = context.offsets.reset_stands(*place, now_ms)
        if offset is None:
            return None
        if header.queue_offset == offset:
            if not header.commits or header.commit_offset == offset:
                context.offsets.end_reset(*place)
                return None
            if resets.is_told(pair, header.queue_id):
                resets.on_heard(pair, header.queue_id)
        if not resets.is_to_tell(pair, header.queue_id, connection, now_ms):
            return None
        end = context.queue_end(header.topic, header.queue_id)
        least = context.min_offset(header.topic, header.queue_id)
        return Got(GetStatus.OFFSET_RESET, offset, least, end, [], 0)

    def _waits(self, got: Got, held: Held) -> bool:
        if got.status is GetStatus.OFFSET_RESET:
            return False
        code = code_of(got, held.header)
        context = self._context
        # Nobody else can be asked either: told to come again, the consumer would come at once, without end.
        moved = code == Response.PULL_OFFSET_MOVED
        lost = moved and not context.role_state.is_master and not context.ha.follows
        return (
            (code == Response.PULL_NOT_FOUND or lost or (moved and self._comes(held.header, got)))
            and held.header.suspend
            and held.deadline_ms > self._context.env.monotonic_ms()
        )

    def _comes(self, header: PullHeader, got: Got) -> bool:
        """Whether the master's log has the records before this offset, though they may not be read yet. The
        former master may have confirmed them, and its consumers have read them."""
        if not self._context.role_state.is_master or header.queue_offset <= got.max_offset:
            return False
        return header.queue_offset <= self._context.store.next_offset(header.topic, header.queue_id)

    def _told(
        self,
        connection: Connection,
        header: PullHeader,
        topic: TopicConfig,
        group: SubscriptionGroupConfig,
        got: Got,
    ) -> Told:
        code = code_of(got, header)
        next_offset = got.next_offset
        if got.status is GetStatus.OFFSET_RESET:
            pair, now_ms = (header.topic, header.group), self._context.env.monotonic_ms()
            self._context.offsets.resets.on_told(pair, header.queue_id, connection, now_ms)
        body, remark = b"", FOUND
        if code is Response.SUCCESS:
            body = self._read(header, got, self._context.env.monotonic_ms())
        else:
            remark = REMARKS[got.status]
        if (
            code is Response.PULL_OFFSET_MOVED
            and got.status is not GetStatus.OFFSET_RESET
            and (not self._context.role_state.is_master or self._comes(header, got))
        ):
            # A slave may merely be behind, and so may a master that was just elected: its consumer must not
            # be moved by what is not there yet.
            code = Response.PULL_RETRY_IMMEDIATELY
            next_offset = header.queue_offset
        first = self._context.topics.first_offset(header.topic, header.queue_id)
        least = max(got.min_offset, first)
        return Told(
            code, remark, next_offset, least, got.max_offset, topic.sys_flag, group.group_sys_flag, body
        )

    def _read(self, header: PullHeader, got: Got, now_ms: float) -> bytes:
        """Count what is handed out; the records."""
        context, chunks = self._context, got.chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        place = header.group, header.topic, header.queue_id
        context.gave(place, got.next_offset, got.count, len(body), store_timestamp_of(body), now_ms)
        return body

    # Waiting

    def _answer_held(self, held: Held, got: Got) -> Command:
        told = self._told(held.connection, held.header, held.topic, held.group, got)
        return told.reply(held.request)

    def _arrived(self, arrived: Sequence[Arrival]) -> None:
        """Records were dispatched."""
        if not self._held.count:
            self._listening.end()
            return
        for topic, queue_id, _, tags_code in arrived:
            queue = (topic, queue_id)
            if not self._waking.is_noted(queue) and self._held.wanted(queue, tags_code):
                self._waking.note(queue)

    def _was_reset(self, group: str, topic: str, queue_id: int | None) -> None:
        """A group is to go on elsewhere in a queue."""
        if queue_id is not None and self._held.waits_for((topic, queue_id)):
            self._waking.note((topic, queue_id))

    def _steps(self, queue: Queue) -> Iterator[None]:
        """Look again at the pulls of a queue."""
        for held in self._held.of(queue):
            while self._look_again(held):
                yield
            yield

    def _look_again(self, held: Held) -> bool:
        """Whether it is to be looked at once more, at once."""
        try:
            return self._tried(held)
        except NoRoom:
            self._searches.note(held)
            return False

    def _search(self, held: Held) -> Iterator[None]:
        """``_look_again`` in a turn of the searches, until the message it is at was looked at to its end."""
        while True:
            try:
                if self._tried(held, in_turn=True):
                    self._searches.note(held)  # behind the others
                return
            except NoRoom:
                yield

    def _tried(self, held: Held, *, in_turn: bool = False) -> bool:
        """Answer a pull that waits, if it need not wait any more. Whether it waits on behind what it passed
        over. Raises NoRoom, and then nothing was done, when its expression is to be looked at in a later
        turn; one whose time is over has none. Other errors are its own, and its answer."""
        if not self._held.has(held):
            return False
        if held.connection.closed:
            self._let_go(held)
            return False
        now_ms = self._context.env.monotonic_ms()
        is_late = held.deadline_ms <= now_ms
        put_off = held.subscription.chooses is not None and not in_turn and self._context.effort.is_busy
        if put_off and not is_late:
            raise NoRoom
        try:
            got = self._look(held, put_off=put_off)
            stalled = held.subscription.chooses is not None and is_stalled(got, held.header.queue_offset)
            if stalled and not is_late:
                raise NoRoom
            if self._passes(got, held):
                return True
            if self._waits(got, held):
                held.check_ms = now_ms + RECHECK_MS
                return False
            answer = self._answer_held(held, got)
        except NoRoom:
            raise
        except Exception as error:  # noqa: BLE001 - see ``failed``
            answer = _failed(held, error)
        self._let_go(held)
        held.connection.send(answer)
        return False

    def _let_go(self, held: Held) -> None:
        self._held.remove(held)
        self._searches.forget(held)

    def _passes(self, got: Got, held: Held) -> bool:
        """Whether only messages came that the consumer's expression does not take: the pull waits on behind
        them, as the original's is not even woken."""
        passes = (
            held.subscription.chooses is not None
            and got.status is GetStatus.NO_MATCHED
            and got.next_offset > held.header.queue_offset
            and held.deadline_ms > self._context.env.monotonic_ms()
        )
        if passes:
            held.header.queue_offset = held.offset = got.next_offset
        return passes

    def _look(self, held: Held, *, put_off: bool = False) -> Got:
        """What a held pull finds. Raises what says that it must not or cannot be read. ``put_off``: see
        ``_get``."""
        # What the consumer wants and may read can have changed: a message it has come to want since must not
        # be passed over.
        self._context.trust.need_still(held.passed)
        held.topic, held.group = self._allowed(held.header)
        if not held.header.has_subscription:
            subscription = self._subscription(held.header, held.group)
            if subscription is not held.subscription:
                self._held.resubscribe(held, subscription)
        got = self._get(held.header, held.subscription, put_off=put_off)
        return self._reset(held.connection, held.header, hears=True) or got

    async def check(self) -> None:
        """Answer what has waited long enough; called every ``CHECK_S``."""
        now_ms = self._context.env.monotonic_ms()
        slice_ = Unhurried(self._context.env.monotonic_ms)
        for queue in self._held.queues():
            for number, held in enumerate(self._held.of(queue)):
                if held.deadline_ms <= now_ms or held.check_ms <= now_ms or held.connection.closed:
                    while self._look_again(held):
                        await slice_.breathe()
                elif number % NOT_DUE_AT_ONCE:
                    continue
                await slice_.breathe()

    def release_all(self) -> asyncio.Task[None]:
        """The role changed or the broker stops: every held pull is answered "again, at once"; the task ends
        when all are. None of them waits any more when this returns."""
        self._waking.clear()
        self._searches.clear()
        self._passed.clear()  # the next role's queues may end at the same offset, with other messages
        return self._tasks.spawn(self._release_each(self._held.take_all()), name="release")

    async def _release_each(self, waiting: list[Held]) -> None:
        slice_ = Slice(self._context.env.monotonic_ms)
        for held in waiting:
            if not held.connection.closed:
                self._release(held)
            await slice_.breathe()

    def _release(self, held: Held) -> None:
        try:
            answer = self._answer_held(held, self._look(held))
        except Exception as error:  # noqa: BLE001 - see ``failed``
            answer = _failed(held, error)
        if answer.code == Response.PULL_NOT_FOUND:
            answer.code = int(Response.PULL_RETRY_IMMEDIATELY)
        held.connection.send(answer)


def _failed(held: Held, error: Exception) -> Command:
    return failed(held.request, f"a held pull of {held.header.topic}/{held.header.queue_id}", error)
