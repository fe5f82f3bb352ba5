"""A history and logs in which every promise was kept, to be spoiled by tests."""

from chaos.checks import Evidence
from chaos.checks.replicas import ReplicaLog
from chaos.history import ControllerAnswer, Happened, History, HistoryEvent, Invoke, Observed, Ok, Read
from client.message import Queue

QUEUES = [Queue("t", "broker-a", number) for number in range(2)]
SENDS = 20


def good_events() -> list[HistoryEvent]:
    """Two producers, two queues, twenty sends, an election in the middle, everything read back twice."""
    events: list[HistoryEvent] = [
        Happened(0.0, "n0", "master_elected", {"group": "broker-a", "broker_id": 1, "epoch": 1}),
        Happened(1.0, "broker-1", "promoted", {"epoch": 1}),
        Observed(2.0, "broker-1", 1, "master", 1, 0, 0),
        Observed(2.0, "broker-2", 1, "slave", 1, 0, 0),
        ControllerAnswer(3.0, 2.5, "probe", "broker-a", 1, 1, 1, (1, 2)),
    ]
    places: list[tuple[str, Queue, int, int]] = []
    at = 10.0
    for number in range(SENDS):
        process = f"p{number % 2}"
        queue = QUEUES[number // 2 % 2]
        key, crc, offset = f"k{number}", 1000 + number, sum(q == queue for _, q, _, _ in places)
        events.append(Invoke(at, process, key, queue, crc))
        events.append(Ok(at + 2, process, key, queue, offset, 100 * number, "127.0.2.1:10911"))
        places.append((key, queue, offset, crc))
        at += 5
        if number == SENDS // 2:
            events += [
                Observed(at, "broker-1", 1, "master", 1, 900, 950),
                Happened(at, "n0", "master_elected", {"group": "broker-a", "broker_id": 2, "epoch": 2}),
                Happened(at + 1, "broker-2", "promoted", {"epoch": 2}),
                Observed(at + 2, "broker-2", 1, "master", 2, 900, 1000),
                ControllerAnswer(at + 3, at + 2, "probe", "broker-a", 2, 2, 2, (2,)),
            ]
    for key, queue, offset, crc in places[: SENDS // 2]:
        events.append(Read(at, "consumer", key, queue, offset, crc))
    events.append(Observed(at + 1, "broker-2", 1, "master", 2, 2000, 2000))
    for source in ("consumer", "log of broker-2"):
        for queue in QUEUES:
            events += [Read(at + 5, source, k, q, o, c, final=True) for k, q, o, c in places if q == queue]
    return events


def good_logs() -> list[ReplicaLog]:
    data = bytes(range(256)) * 8
    epochs = ((1, 0), (2, 1000))
    return [
        ReplicaLog("broker-1", 0, data, len(data), epochs),
        ReplicaLog("broker-2", 0, data, len(data), epochs),
        ReplicaLog("broker-3", 512, data[512:], len(data), epochs[1:]),
    ]


def good_evidence() -> Evidence:
    logs = good_logs()
    return Evidence(
        History(good_events()),
        logs,
        [log.name for log in logs],
        sources=("consumer", "log of broker-2"),
    )
