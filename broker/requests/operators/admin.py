"""What do operators and mqadmin ask a broker?

Runtime (28), topic and consumer progress (202, 208, 300, 303, 305, 314, 343, 345),
offset reset (222), replication (906, 907, 1007), delay offsets (45).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from broker.context import BrokerContext
from broker.requests.answers import dialect, strict
from broker.requests.consumers.offsets import need_own_group, need_pair, stored_ms
from broker.role.epochs import reported_end
from broker.timers.delivery import DEQUEUED, TimerService
from broker.upkeep.delay import DelayOffsets
from model.codes import Response
from model.errors import Refused
from model.message import RETRY_PREFIX, SCHEDULE_TOPIC, TIMER_TOPIC
from remoting import bodies
from remoting.bodies import Items, Members, queue_key
from remoting.codec import VERSION, Command
from remoting.headers import flag, need, need_int, opt_int, told_clock
from remoting.service import Connection
from runtime.turns import Slice

VERSION_TEXT: Final = "V5_5_0"
EPOCH_END: Final = 2**63 - 1
NAMED_CHARS_MAX: Final = 256 << 10
"""Of the topics one question about a group's progress names: they are taken apart in one go."""
_NO_THREADS: Final = {
    **{
        f"{of}ThreadPoolQueue{what}": 0
        for of in ("send", "pull", "litePull", "query", "ack")
        for what in ("Size", "Capacity", "HeadWaitTimeMills")
    },
    "EndTransactionQueueSize": 0,
    "EndTransactionThreadPoolQueueCapacity": 0,
}
"""What tools look for of the original's threads: requests wait in no queue here."""


class AdminProcessor:
    """Answers the administration requests."""

    def __init__(self, context: BrokerContext, delays: DelayOffsets, timers: TimerService) -> None:
        self._context = context
        self._delays = delays
        self._timers = timers
        self._config = context.config
        self._started_ms = context.env.now_ms()

    # Runtime

    async def runtime(self, connection: Connection, request: Command) -> Command:
        clock = told_clock(request.ext, self._context.env.now_ms())
        return request.reply(ext=clock, body=bodies.dumps({"table": self._runtime_table()}))

    def _runtime_table(self) -> dict[str, str]:
        context = self._context
        store, stats = context.store, context.stats
        now_ms = context.env.now_ms()
        usage = context.env.disk.usage(self._config.store_path)
        total, free = bytes_text(usage.total_bytes), bytes_text(usage.free_bytes)
        log_path = self._config.commit_log_path or f"{self._config.store_path}/commitlog"
        used = 1 - usage.free_bytes / usage.total_bytes if usage.total_bytes else 0.0
        table: dict[str, object] = {
            "brokerVersion": VERSION,
            "brokerVersionDesc": VERSION_TEXT,
            "brokerActive": "true",
            "brokerRole": context.role_state.role,
            "bootTimestamp": self._started_ms,
            "runtime": _for_how_long((now_ms - self._started_ms) // 1000),
            "putMessageTimesTotal": stats.put_total,
            "putMessageSizeTotal": stats.put_bytes_total,
            "putMessageAverageSize": stats.put_bytes_total / stats.put_total if stats.put_total else 0.0,
            **self._rates_and_times(),
            "msgPutTotalTodayNow": stats.put_total,
            "msgPutTotalTodayMorning": stats.today.put,
            "msgPutTotalYesterdayMorning": stats.yesterday.put,
            "msgGetTotalTodayNow": stats.get_total,
            "msgGetTotalTodayMorning": stats.today.got,
            "msgGetTotalYesterdayMorning": stats.yesterday.got,
            "commitLogMinOffset": store.log.min_offset,
            "commitLogMaxOffset": store.log.end,
            "confirmOffset": store.confirmed,
            "dispatchBehindBytes": max(0, store.confirmed - store.dispatched),
            "dispatchMaxBuffer": 0,
            "remainHowManyDataToFlush": bytes_text(store.log.end - store.log.flushed),
            "remainTransientStoreBufferNumbs": 0,
            "pageCacheLockTimeMills": 0,
            "earliestMessageTimeStamp": store.earliest_ms(),
            "startAcceptSendRequestTimeStamp": 0,
            "commitLogDiskRatio": f"{used:.4f}",
            f"commitLogDiskRatio_{log_path}": f"{used:.4f}",
            "commitLogDirCapacity": f"Total : {total}, Free : {free}.",
            "consumeQueueDiskRatio": f"{used:.4f}",
            **_NO_THREADS,
            "timerReadBehind": self._timers.behind_ms() // 1000,
            "timerOffsetBehind": self._timers.behind_messages(),
            "timerCongestNum": self._timers.wheel.count,
            "timerEnqueueTps": stats.counters.tps("TOPIC_PUT_NUMS", TIMER_TOPIC),
            "timerDequeueTps": stats.counters.tps(DEQUEUED, TIMER_TOPIC),
            "consumersConnected": len(context.clients.consumers),
            "producersConnected": len(context.clients.producers),
            "aliveReplicaNumInGroup": len(context.ha.members),
        }
        for level, offset in sorted(self._delays.table.items()):
            end = max(0, store.max_queue_offset(SCHEDULE_TOPIC, level - 1))
            table[f"scheduleMessageOffset_{level}"] = f"{offset},{end}"
        return {name: str(value) for name, value in table.items()}

    def _rates_and_times(self) -> dict[str, object]:
        stats, waits = self._context.stats, self._context.pending_acks.waits
        rates = stats.rates(self._context.env.monotonic_ms())
        return {
            "putTps": _by_window(rates.put),
            "getTransferredTps": _by_window(rates.got),
            "getFoundTps": _by_window(rates.found),
            "getMissTps": _by_window(rates.missed),
            "getTotalTps": _by_window([sum(both) for both in zip(rates.found, rates.missed, strict=True)]),
            "getMessageEntireTimeMax": int(stats.get_longest_ms),
            "putMessageEntireTimeMax": int(waits.longest_ms),
            "putMessageDistributeTime": waits.text(),
            "putLatency99": f"{waits.p99_ms:.2f}",
            "putLatency999": f"{waits.p999_ms:.2f}",
        }

    async def delay_offsets(self, connection: Connection, request: Command) -> Command:
        return request.reply(body=bodies.dumps_dialect(self._delays.to_json()))

    async def request_modes(self, connection: Connection, request: Command) -> Command:
        """Which topics groups are told to pull or to pop. Real slaves copy this table."""
        async with self._context.turns.take(connection) as turn:
            return request.reply(body=await strict(turn, self._context.groups.modes.shown(), depth=3))

    async def system_topics(self, connection: Connection, request: Command) -> Command:
        return request.reply(body=bodies.dumps({"topicList": sorted(self._context.topics.system)}))

    # Progress

    async def topic_stats(self, connection: Connection, request: Command) -> Command:
        name = need(request.ext, "topic")
        context = self._context
        async with context.turns.take(connection) as turn:
            topic = context.topics.get(name)
            if topic is None:
                raise Refused(f"topic[{name}] not exist", Response.TOPIC_NOT_EXIST)
            table = (
                (queue_key(name, self._config.broker_name, queue_id), self._ends(name, queue_id))
                for queue_id in range(max(topic.read_queues, topic.write_queues))
            )
            rate = context.stats.counters.tps("TOPIC_PUT_NUMS", name)
            body = await dialect(turn, {"offsetTable": Members(table), "topicPutTps": rate})
        return request.reply(body=body)

    def _ends(self, name: str, queue_id: int) -> dict[str, int]:
        context = self._context
        least = context.min_offset(name, queue_id)
        most = max(0, context.store.max_queue_offset(name, queue_id))
        last_ms = stored_ms(context, name, queue_id, most - 1) if most > least else 0
        return {"lastUpdateTimestamp": max(0, last_ms), "maxOffset": most, "minOffset": least}

    async def consume_stats(self, connection: Connection, request: Command) -> Command:
        group = need(request.ext, "consumerGroup")
        named = request.ext.get("topicList") or request.ext.get("topic") or ""
        if len(named) > NAMED_CHARS_MAX:
            text = f"the topics' names have more than {NAMED_CHARS_MAX} characters: ask about fewer at once"
            raise Refused(text, Response.SYSTEM_ERROR)
        async with self._context.turns.take(connection) as turn:
            # Each topic once, as in the original: what a name costs must not grow by saying it again.
            names = dict.fromkeys(name for name in named.split(";") if name) or self._read_by(group)
            asked: dict[str, int] = {}
            total = 0
            for name in names:
                await turn.breathe()
                topic = self._context.topics.get(name)
                if topic is None:
                    continue
                asked[name] = topic.read_queues
                total += topic.read_queues
                if total > self._config.stats_queues_max:
                    raise Refused(
                        f"these topics have more than {self._config.stats_queues_max} queues"
                        " (maxQueuesInStats): ask about them one by one",
                        Response.SYSTEM_ERROR,
                    )
            table = (
                (queue_key(name, self._config.broker_name, queue_id), self._progress(group, name, queue_id))
                for name, queues in asked.items()
                for queue_id in range(queues)
            )
            rate = 0.0
            for name in names:
                rate += self._context.stats.counters.tps("GROUP_GET_NUMS", f"{name}@{group}")
                await turn.breathe()
            body = await dialect(turn, {"consumeTps": rate, "offsetTable": Members(table)})
        return request.reply(body=body)

    def _read_by(self, group: str) -> Iterable[str]:
        """What a group reads. What one that is there does not read any more must not count as what it is
        behind."""
        online = self._context.clients.consumers.get(group)
        names = sorted(online.subscriptions) if online is not None else []
        return names or self._context.offsets.topics_of(group)

    def _progress(self, group: str, name: str, queue_id: int) -> dict[str, int]:
        context = self._context
        most = max(0, context.store.max_queue_offset(name, queue_id))
        held = context.offsets.get(group, name, queue_id)
        offset = context.topics.first_offset(name, queue_id) if held is None else held
        last_ms = stored_ms(context, name, queue_id, offset - 1) if offset > 0 else 0
        return {
            "brokerOffset": most,
            "consumerOffset": offset,
            "lastTimestamp": max(0, last_ms),
            "pullOffset": context.stats.pulled.of(group, name, queue_id, offset),
        }

    async def consumed_by(self, connection: Connection, request: Command) -> Command:
        name = need(request.ext, "topic")
        async with self._context.turns.take(connection) as turn:
            groups = set(self._context.offsets.groups_of(name))
            for group in list(self._context.clients.consumers.values()):
                if name in group.subscriptions:
                    groups.add(group.name)
                await turn.breathe()
            return request.reply(body=await strict(turn, {"groupList": sorted(groups)}))

    async def topics_of(self, connection: Connection, request: Command) -> Command:
        group = need(request.ext, "group")
        async with self._context.turns.take(connection) as turn:
            topics = self._context.offsets.topics_of(group)
            body = await strict(turn, {"brokerAddr": self._config.address, "topicList": topics})
        return request.reply(body=body)

    async def subscription_of(self, connection: Connection, request: Command) -> Command:
        group, topic = need(request.ext, "group"), need(request.ext, "topic")
        found = self._context.clients.subscription(group, topic)
        body: dict[str, Any] = {"group": group, "topic": topic}
        if found is not None:
            body["subscriptionData"] = found.to_json()
        return request.reply(body=bodies.dumps(body))

    async def time_span(self, connection: Connection, request: Command) -> Command:
        name, group = need(request.ext, "topic"), need(request.ext, "group")
        context = self._context
        async with context.turns.take(connection) as turn:
            topic = context.topics.get(name)
            if topic is None:
                raise Refused(f"topic[{name}] not exist", Response.TOPIC_NOT_EXIST)
            spans = (self._span(group, name, queue_id) for queue_id in range(topic.write_queues))
            body = await strict(turn, {"consumeTimeSpanSet": Items(spans)})
        return request.reply(body=body)

    def _span(self, group: str, name: str, queue_id: int) -> dict[str, Any]:
        context = self._context
        least = context.min_offset(name, queue_id)
        most = max(0, context.store.max_queue_offset(name, queue_id))
        held = context.offsets.get(group, name, queue_id)
        consumed_ms = stored_ms(context, name, queue_id, held - 1) if held else -1
        behind = held is not None and held < most
        return {
            "messageQueue": queue_key(name, self._config.broker_name, queue_id).to_dict(),
            "minTimeStamp": stored_ms(context, name, queue_id, least),
            "maxTimeStamp": stored_ms(context, name, queue_id, most - 1) if most > least else -1,
            "consumeTimeStamp": consumed_ms,
            "delayTime": max(0, context.env.now_ms() - consumed_ms) if behind else 0,
        }

    async def clone_offsets(self, connection: Connection, request: Command) -> Command:
        self._need_change("clone offsets")
        source, target = need(request.ext, "srcGroup"), need(request.ext, "destGroup")
        need_own_group(target)
        names = (
            [request.ext["topic"]] if request.ext.get("topic") else self._context.offsets.topics_of(source)
        )
        slice_ = Slice(self._context.env.monotonic_ms)
        for name in names:
            if not name.startswith(RETRY_PREFIX) and self._context.offsets.queues(source, name):
                need_pair(self._context, target, name)
                self._context.offsets.clone_group(source, target, name)
            await self._breathe_as_master(slice_)
        await self._context.copies.wait_for_copies("offsets")
        return request.reply()

    async def reset_offset(self, connection: Connection, request: Command) -> Command:
        """Move a group to a time, or to ``offset`` of one queue. Its consumers hear of it with their next
        pull, and until then what they commit is not noted (``broker/tables/resets``)."""
        context = self._context
        self._need_change("reset offsets")
        name, group = need(request.ext, "topic"), need(request.ext, "group")
        need_own_group(group)
        timestamp_ms = need_int(request.ext, "timestamp")
        topic = context.topics.get(name)
        if topic is None:
            raise Refused(f"topic {name} does not exist", Response.TOPIC_NOT_EXIST)
        if group not in context.groups.table:
            raise Refused(f"Group {group} does not exist", Response.SUBSCRIPTION_GROUP_NOT_EXIST)
        only = opt_int(request.ext, "queueId", -1)
        wanted = opt_int(request.ext, "offset", -1) if only >= 0 else -1
        if only >= topic.read_queues:
            raise Refused(f"queueId {only} is not one of {name}", Response.INVALID_PARAMETER)
        need_pair(context, group, name)
        moved: dict[int, int] = {}
        slice_ = Slice(context.env.monotonic_ms)
        for queue_id in [only] if only >= 0 else range(topic.read_queues):
            offset = self._reset_to(name, queue_id, timestamp_ms, wanted)
            context.offsets.reset(group, name, queue_id, offset)
            context.stats.pulled.forget(group, name, queue_id)
            moved[queue_id] = offset
            await self._breathe_as_master(slice_)
        await context.copies.wait_for_copies("offsets")
        table = ((queue_key(name, self._config.broker_name, q), offset) for q, offset in moved.items())
        body = await dialect(slice_, {"offsetTable": Members(table)})
        return request.reply(body=body)

    def _need_change(self, what: str) -> None:
        """Raises Refused where a change could not be kept: nothing is changed then."""
        if not self._context.role_state.is_master:
            raise Refused(f"this broker is not the master: {what} there", Response.SYSTEM_ERROR)
        refused = self._context.copies.refuse()
        if refused is not None:
            raise refused

    async def _breathe_as_master(self, slice_: Slice) -> None:
        """Raises Refused when others ran meanwhile, and this broker is master no more."""
        await slice_.breathe()
        if not self._context.role_state.is_master:
            text = "this broker ceased to be master in the middle: ask the new master"
            raise Refused(text, Response.SYSTEM_ERROR)

    def _reset_to(self, name: str, queue_id: int, timestamp_ms: int, wanted: int) -> int:
        """The offset ``wanted``, that of a time, or the end for a negative time. Raises Refused."""
        context = self._context
        if wanted != -1:
            least = context.min_offset(name, queue_id)
            most = context.store.max_queue_offset(name, queue_id)
            if not least <= wanted <= most + 1:
                raise Refused(
                    f"Target offset {wanted} not in consume queue range [{least}-{most}]",
                    Response.SYSTEM_ERROR,
                )
            return min(wanted, most)
        if timestamp_ms < 0:
            return context.store.max_queue_offset(name, queue_id)
        offset = context.store.offset_by_time(name, queue_id, timestamp_ms)
        return max(offset, context.topics.first_offset(name, queue_id))

    # Replication

    async def ha_status(self, connection: Connection, request: Command) -> Command:
        """HARuntimeInfo as mqadmin haStatus reads it."""
        context = self._context
        end = context.store.log.end
        body: dict[str, Any] = {
            "master": context.role_state.is_master,
            "masterCommitLogMaxOffset": end if context.role_state.is_master else 0,
            "inSyncSlaveNums": max(0, len(context.ha.members) - 1),
            "haConnectionInfo": [],
            "haClientRuntimeInfo": {
                "masterAddr": context.role_state.master_address or "",
                "transferredByteInSecond": 0,
                "maxOffset": end,
                "lastReadTimestamp": 0,
                "lastWriteTimestamp": 0,
                "masterFlushOffset": 0,
            },
        }
        if context.role_state.is_master:
            for slave in context.ha.slaves():
                acked = slave.get("ackOffset") or 0
                body["haConnectionInfo"].append(
                    {
                        "addr": slave.get("address") or str(slave["id"]),
                        "slaveAckOffset": acked,
                        "diff": end - acked,
                        "inSync": slave["id"] in context.ha.members,
                        "transferredByteInSecond": 0,
                        "transferFromWhere": acked,
                    }
                )
        return request.reply(body=bodies.dumps(body))

    async def epochs(self, connection: Connection, request: Command) -> Command:
        """The epochs of our log; each ends where the next begins, the last never.

        ``following`` (ours): whether this slave still hears its master; ``writable`` (ours): whether its disk
        takes messages. Controllers ask before an election.
        """
        if not self._config.enable_controller_mode:
            raise Refused("this request only for controllerMode", Response.SYSTEM_ERROR)
        entries = list(self._context.store.epochs.entries)
        ends = [*(entry.start for entry in entries[1:]), EPOCH_END][: len(entries)]
        return request.reply(
            ext={
                "following": flag(self._context.ha.follows),
                "writable": flag(self._context.store.why_not_writable is None),
            },
            body=bodies.dumps(
                {
                    "brokerId": 0
                    if self._context.role_state.is_master
                    else self._context.role_state.broker_id,
                    "brokerName": self._config.broker_name,
                    "clusterName": self._config.cluster_name,
                    "epochList": [
                        {"endOffset": end, "epoch": entry.epoch, "startOffset": entry.start}
                        for entry, end in zip(entries, ends, strict=True)
                    ],
                    "maxOffset": reported_end(
                        self._context.store, synced=self._config.flush_disk_type == "SYNC_FLUSH"
                    ),
                }
            ),
        )

    async def exchange_ha_info(self, connection: Connection, request: Command) -> Command:
        """A master's own addresses, for a slave that does not have them yet."""
        if not self._context.role_state.is_master or request.ext.get("masterHaAddress"):
            return request.reply()
        return request.reply(
            ext={
                "masterAddress": self._config.address,
                "masterFlushOffset": str(self._context.store.log.flushed),
                "masterHaAddress": self._config.ha_address,
            }
        )


def _by_window(rates: Iterable[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)


def _for_how_long(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    return f"[ {days} days, {hours % 24} hours, {minutes % 60} minutes, {seconds % 60} seconds ]"


def bytes_text(count: int) -> str:
    """As mqadmin and dashboards read it: ``91.1 GiB``."""
    power = min(max(count.bit_length() - 1, 0) // 10, 6)
    return f"{count / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB" if power else f"{count} B"
