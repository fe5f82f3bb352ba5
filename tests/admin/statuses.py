"""What servers may say of themselves, and one that says it."""

import re
from typing import Any

BROKER: dict[str, Any] = {
    "role": "master",
    "brokerId": 2,
    "epoch": 7,
    "syncStateSet": [1, 2, 3],
    "syncStateSetEpoch": 9,
    "minOffset": 0,
    "maxOffset": 1000,
    "confirmOffset": 900,
    "flushedOffset": 800,
    "dispatchedOffset": 900,
    "putTotal": 10,
    "putFastTotal": 9,
    "sendPath": "Python (not compiled)",
    "cluster": "DefaultCluster",
    "group": "broker-a",
    "putBytesTotal": 4000,
    "sendWait": {"bounds": [0.001, 0.01], "counts": [3, 4, 5], "sum": 1.5},
    "ageWhenRead": {"bounds": [0.001, 0.01], "counts": [0, 1, 1], "sum": 0.004},
    "sizes": {"bounds": [1024, 4096], "counts": [8, 9, 10], "sum": 9000},
    "flush": {"bounds": [0.001, 0.01], "counts": [1, 2, 2], "sum": 0.005},
    "permission": 6,
    "halfMessages": 2,
    "finished": [{"topic": "orders", "bounds": [5, 60], "counts": [1, 2, 2], "sum": 9.5}],
    "timers": {
        "waiting": {"orders": 4, "(others)": 1},
        "delays": [{"topic": "orders", "bounds": [60, 600], "counts": [3, 3, 4], "sum": 7200}],
        "late": {"bounds": [0.001, 0.01], "counts": [0, 2, 3], "sum": 0.4},
        "behindMs": 250,
        "behindMessages": 6,
    },
    "heldPulls": 11,
    "heldPops": 12,
    "openCheckpoints": 13,
    "offsetPairs": 21,
    "revivedTotal": 14,
    "pops": {
        "put": [{"topic": "orders", "group": "billing", "kind": "CK", "total": 6}],
        "read": [{"topic": "orders", "group": "billing", "kind": "ACK", "queueId": 3, "total": 5}],
        "revived": [{"topic": "orders", "group": "billing", "total": 14}],
        "behind": [{"queueId": 3, "messages": 2, "behindMs": 750}],
        "offsets": 1,
    },
    "figures": {
        "topics": {"orders": 7, "(others)": 3},
        "topicBytes": {"orders": 7000, "(others)": 300},
        "reads": {"orders@billing": 5, "(others)": 1},
        "readBytes": {"orders@billing": 5000, "(others)": 100},
        "commits": {"orders": 2},
        "rollbacks": {"orders": 1},
        "timersIn": {"orders": 5},
        "timersOut": {"orders": 4},
        "dead": {"%DLQ%billing": 1},
        "queueLags": [{"group": "billing", "topic": "orders", "queueId": 3, "messages": 2}],
        "lags": [
            {
                "group": "billing",
                "topic": "orders",
                "messages": 2,
                "inflight": 1,
                "behindMs": 1500,
                "waitsMs": 900,
            },
            {
                "group": "done",
                "topic": "orders",
                "messages": 0,
                "inflight": 0,
                "behindMs": None,
                "waitsMs": None,
            },
            {
                "group": "(others)",
                "topic": "(others)",
                "messages": 9,
                "inflight": 4,
                "behindMs": None,
                "waitsMs": None,
            },
        ],
        "topicNumber": 14,
        "groupNumber": 6,
        "producers": 2,
        "consumers": 3,
        "keptMs": 60000,
        "disk": {"totalBytes": 1000, "freeBytes": 250},
    },
    "slaves": [{"id": 1, "ackOffset": 900, "lagBytes": 100}],
    "ports": {
        "clients": 3,
        "peers": 2,
        "begunBytes": 4096,
        "unreadBytes": 5,
        "refused": {
            "maxBegunFrameBytes": 0,
            "maxConnections": 1,
            "maxConnectionsPerAddress": 0,
            "maxUnreadBytes": 0,
            "maxUnreadBytesPerConnection": 0,
        },
        "slowTurns": {"total": 1, "worstMs": 21.5, "byWhat": {"GET_CONSUME_STATS": 1}, "last": []},
        "slowRequests": {"byRequest": {"SEND_MESSAGE": 3}, "last": []},
        "answered": {"PULL_MESSAGE": {"bounds": [0.001], "counts": [4, 5], "sum": 0.1}},
        "rpcs": [
            {"request": "pull_message", "answer": "success", "bounds": [1, 3], "counts": [3, 4, 5], "sum": 9}
        ],
        "audit": {"denied": {"SEND_MESSAGE_V2": 2}, "acts": {"UPDATE_AND_CREATE_TOPIC": 1}},
    },
    "tls": {
        "mode": "permissive",
        "dials": True,
        "clientAuth": "none",
        "handshakes": {"ok": 3, "failed": 1, "refused": 2},
        "notAfter": "2027-01-01T00:00:00Z",
        "notAfterMs": 1798761600000,
        "reloads": 1,
        "error": None,
    },
    "turnedAway": 4,
    "acting": False,
    "parked": 5,
    "connections": 6,
    "writable": None,
    "damaged": [{"begin": 1, "until": 2}, {"begin": 5, "until": 6}],
    "compared": {"passes": 1, "undecided": 3},
    "scrub": {"at": 0, "passes": 1, "found": 8},
    "life": {"following": None, "lease": {"supported": True, "leftMs": 900}},
    "events": [{"at_ms": 1, "event": "promoted", "epoch": 7}],
    "eventTotals": {"demoted": 0, "promoted": 600},
}

NAMESRV: dict[str, Any] = {
    "ports": BROKER["ports"],
    "brokers": {"broker-a": {"0": "h:1", "1": "h:2"}},
    "topics": 12,
    "connections": 9,
    "events": [],
    "controller": {
        "isLeader": True,
        "term": 3,
        "commitIndex": 44,
        "withoutMaster": {"bounds": [0.5, 1.0], "counts": [1, 2, 2], "sum": 1.1},
        "raft": {
            "tickAgeMs": 250,
            "tickLateMaxMs": 1500,
            "appliedIndex": 41,
            "lagEntries": 3,
            "unmovedMs": 0,
            "appendAgeMs": None,
            "peers": {
                "n1": {"matchIndex": 44, "lagEntries": 0, "answerAgeMs": 20},
                "n2": {"matchIndex": 0, "lagEntries": 44, "answerAgeMs": None},
            },
            "journalEntries": 12,
            "journalBytes": 3456,
            "compactionError": "Too many open files",
            "tls": {
                "handshakes": {"ok": 3, "failed": 1, "refused": 0},
                "notAfter": "2027-01-01T00:00:00Z",
                "notAfterMs": 1798761600000,
                "reloads": 1,
                "error": None,
                "failed": {"n2": "it says that our certificate has expired"},
            },
        },
        "groups": {
            "broker-a": {
                "master": None,
                "epoch": 5,
                "syncStateSet": [1],
                "uncleanElections": 2,
                "maintenance": [2],
                "brokers": {"1": {"address": "h:1", "alive": True}, "2": {"address": "h:2", "alive": False}},
            }
        },
    },
}


class Server:
    def __init__(self, status: dict[str, Any], health: str | None = None) -> None:
        self._status, self._health = status, health

    def status(self) -> dict[str, Any]:
        return self._status

    def health(self) -> str | None:
        return self._health


def names_in(text: bytes) -> set[str]:
    """The metrics on a page of ``/metrics``."""
    return set(re.findall(r"^# TYPE ((?:keelmq|rocketmq)_\w+) ", text.decode(), re.M))
