"""Keys of a broker about timer messages: those that come at a time of their own."""

from dataclasses import dataclass

from model.config.server import PERIOD_MIN_MS
from model.config.store import StoreConfig
from model.settings import key


@dataclass(kw_only=True)
class TimerConfig(StoreConfig):
    """Keys about TIMER_DELAY_MS, TIMER_DELAY_SEC and TIMER_DELIVER_MS, and about recalls."""

    timer_wheel_enable: bool = key(
        "timerWheelEnable", True, "messages may come at a time of their own; false = they are refused"
    )
    timer_precision_ms: int = key(
        "timerPrecisionMs",
        1000,
        "a timer message comes at most so late, ms: 100, 200, 500 or 1000, else the next below",
        least=1,
    )
    timer_delay_max_s: int = key(
        "timerMaxDelaySec", 259200, "longest delay of a timer message, seconds", least=1
    )
    timer_roll_window_slots: int = key(
        "timerRollWindowSlot",
        172800,
        "a message that waits for more than so many times timerPrecisionMs is written anew in between;"
        " that has to be less than fileReservedTime",
        least=0,
    )
    timer_per_slot_max: int = key(
        "timerCongestNumEachSlot",
        2147483647,
        "with more messages for the same moment, some are refused; with twice as many, all",
        least=1,
    )
    timer_stop_enqueue: bool = key("timerStopEnqueue", False, "take up no further timer messages")
    timer_stop_dequeue: bool = key("timerStopDequeue", False, "deliver no timer messages")
    timer_flush_interval_ms: int = key(
        "timerFlushIntervalMs",
        1000,
        "write how far timer messages are at most so long after a change, ms",
        least=PERIOD_MIN_MS,
    )
    recall_message_enable: bool = key(
        "recallMessageEnable", False, "a client may take back a timer message before its time"
    )
    recall_names_topic: bool = key(
        "appendTopicForTimerDeleteKey",
        False,
        "a recall names the topic beside the message's id, as RocketMQ 5.3 expects; both are understood",
    )
    recall_when_not_writable: bool = key(
        "allowRecallWhenBrokerNotWriteable", True, "also where brokerPermission forbids sends"
    )
