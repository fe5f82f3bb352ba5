"""What do operators ask of the parts of RocketMQ that a keelmq broker has no need of?

CHECK_ROCKSDB_CQ_WRITE_PROGRESS (354), EXPORT_ROCKSDB_CONFIG_TO_JSON (355), cold data control (2001, 2002,
2003), SET_COMMITLOG_READ_MODE (2004), SWITCH_TIMER_ENGINE (5001), POP_ROLLBACK (200056). Codes and words are
those of the original with its default configuration, in which these parts are off, too.
"""

from __future__ import annotations

import logging
from typing import Final

from broker.context import BrokerContext
from broker.requests.answers import strict
from model.codes import Response
from model.errors import ConfigError, Refused
from model.settings import properties_of
from model.topic import LONG_GROUP_CHARS_MAX
from remoting import bodies
from remoting.codec import Command
from remoting.headers import LONG_MAX, need
from remoting.service import Connection

log = logging.getLogger(__name__)

IN_PROGRESS: Final = 2
"""``CheckStatus`` of the original, which says only in its log how a check ended."""
EXPORTED: Final = frozenset({"topics", "subscriptiongroups", "consumeroffsets"})
KINDS_CHARS_MAX: Final = 1024
GROUP_BYTES_A_MINUTE: Final = 3 << 20
ALL_BYTES_A_MINUTE: Final = 100 << 20
"""The original's defaults of ``cgColdReadThreshold`` and ``globalColdReadThreshold``."""
THRESHOLDS_MAX: Final = 1000
"""Of groups: each name costs memory."""
NORMAL, RANDOM = "0", "1"
"""``MADV_NORMAL`` and ``MADV_RANDOM``."""
WHEEL, TIMELINE = "F", "R"
"""The engines of timers: files and a wheel, or RocksDB."""


class SparedProcessor:
    """Answers 354, 355, 2001, 2002, 2003, 2004, 5001 and 200056."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._config = context.config
        self._thresholds: dict[str, int] = {}

    async def check_queues(self, connection: Connection, request: Command) -> Command:
        """Whether queues in RocksDB hold what those in files do: nothing has to be looked at."""
        log.info("no queues are in RocksDB, no need to check them")
        return request.reply(body=bodies.dumps({"checkStatus": IN_PROGRESS}))

    async def export_tables(self, connection: Connection, request: Command) -> Command:
        """Write tables that are in RocksDB as JSON: they are."""
        kinds = need(request.ext, "configType")
        if len(kinds) > KINDS_CHARS_MAX:
            raise Refused(f"configType has more than {KINDS_CHARS_MAX} characters", Response.SYSTEM_ERROR)
        for kind in kinds.split(";"):
            if kind and kind.strip().lower() not in EXPORTED:
                raise Refused(f"Unknown config type: {kind[:40]}", Response.SYSTEM_ERROR)
        return request.reply(remark="export done.")

    async def set_thresholds(self, connection: Connection, request: Command) -> Command:
        """``group=bytes``, a line each: kept until the broker ends, and shown. They hold back no read."""
        try:
            changes = properties_of(request.body)
        except ConfigError:
            raise Refused("string2Properties error", Response.SYSTEM_ERROR) from None
        left_out = 0
        for group, text in changes.items():
            sign = text.removeprefix("-")
            known = group in self._thresholds or len(self._thresholds) < THRESHOLDS_MAX
            number = int(text) if sign.isascii() and sign.isdigit() and len(sign) < 20 else None
            if number is None or abs(number) > LONG_MAX or len(group) > LONG_GROUP_CHARS_MAX or not known:
                left_out += 1
            else:
                self._thresholds[group] = number
        if left_out:
            log.error("%d thresholds of cold reads are no numbers, or too many: left out", left_out)
        return request.reply()

    async def remove_threshold(self, connection: Connection, request: Command) -> Command:
        """The body is the group's name."""
        self._thresholds.pop(bytes(request.body[: 4 * LONG_GROUP_CHARS_MAX]).decode(errors="replace"), None)
        return request.reply()

    async def thresholds(self, connection: Connection, request: Command) -> Command:
        """What is told of cold reads: none, as the original counts none with its default configuration."""
        shown = {
            "runtimeTable": {},
            "configTable": self._thresholds,
            "cgColdReadThreshold": GROUP_BYTES_A_MINUTE,
            "globalColdReadThreshold": ALL_BYTES_A_MINUTE,
            "globalAcc": 0,
        }  # in the original's order: mqadmin prints them as they come
        async with self._context.turns.take(connection) as turn:
            return request.reply(body=await strict(turn, shown))

    async def set_read_mode(self, connection: Connection, request: Command) -> Command:
        """How far the kernel reads ahead in the log. The one mode there is can be asked for."""
        if not request.ext:
            raise Refused("set commitlog readahead mode param error", Response.SYSTEM_ERROR)
        mode = request.ext.get("READ_AHEAD_MODE", "")
        sign = mode.removeprefix("-")
        if not (sign.isascii() and sign.isdigit() and len(sign) < 10):
            raise Refused("set commitlog readahead mode failed", Response.SYSTEM_ERROR)
        if mode == RANDOM:
            raise Refused(
                "set commitlog readahead mode param value error: keelmq leaves it to the kernel (mode 0)",
                Response.INVALID_PARAMETER,
            )
        if int(mode) != int(NORMAL):
            raise Refused("set commitlog readahead mode param value error", Response.INVALID_PARAMETER)
        return request.reply(remark="set commitlog readahead mode success, mode: 0")

    async def switch_timers(self, connection: Connection, request: Command) -> Command:
        """Go on with the engine there is, which takes up timer messages again if it was stopped."""
        config = self._config
        if not config.timer_wheel_enable:
            raise Refused("broker timerWheelEnable is false", Response.INVALID_PARAMETER)
        if not request.ext:
            raise Refused("param error, extFields is null", Response.INVALID_PARAMETER)
        engine = request.ext.get("E_T")
        if engine == TIMELINE:
            raise Refused(
                "timerRocksDBEnable must be configured true when broker start", Response.INVALID_PARAMETER
            )
        if engine != WHEEL:
            raise Refused("param error", Response.INVALID_PARAMETER)
        config.timer_stop_enqueue = False
        log.warning("%s asked for the timers' files: timerStopEnqueue=false", connection.remote)
        return request.reply(remark="switch timer engine success")

    async def roll_back_pops(self, connection: Connection, request: Command) -> Command:
        """Write what was popped from RocksDB into the revive topic: it has always been there."""
        return request.reply()
