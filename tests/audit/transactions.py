"""Logs with a transactional message: its half, what became of it, and the op record that says so."""

from __future__ import annotations

import struct
from pathlib import Path

from model.message import TRANSACTION_COMMIT, TRANSACTION_ENDED_AS, TRANSACTION_PREPARED
from tests.audit.plants import ledger_at
from tests.audit.stores import LogWriter, copies, cut, look, patch

FLAG_AT = 36
BODY = b"a message of a transaction"


class Transaction:
    """Three replicas and their ledger. ``says``: what the op record tells besides (keelmq's), None: there is
    none. ``moved``: the half was written anew meanwhile. ``half``, ``sent``: places in the log, bytes; -1: it
    was not sent."""

    def __init__(
        self, root: Path, says: str | None, *, sent: bool = True, moved: bool = False, count: int = 3
    ) -> None:
        writer = LogWriter(root / "origin")
        writer.fill(10)
        self.half = self._half(writer)
        if moved:
            self._half(writer)
            _op(writer, 0, "")
        writer.fill(5, mark="n")
        self.sent = writer.add(BODY, key="half") if sent else -1
        if sent:
            _flag(writer, self.sent, TRANSACTION_COMMIT)
        self.op = writer.end
        if says is not None:
            _op(writer, 1 if moved else 0, says)
        writer.fill(10, mark="o")
        writer.confirm(epochs=[(1, 0)])
        self.writer = writer
        self.stores = copies(writer.root, count)
        acked = [row for row in writer.rows if row["phys_offset"] == self.half or row["topic"] == "T"]
        acked = [row | {"topic": "T"} for row in acked if row["phys_offset"] != self.sent]
        self.ledger = ledger_at(root, acked)

    def _half(self, writer: LogWriter) -> int:
        at = writer.add(BODY, key="half", topic="RMQ_SYS_TRANS_HALF_TOPIC")
        _flag(writer, at, TRANSACTION_PREPARED)
        return at

    def lose(self, *replicas: int) -> None:
        """What was sent is gone there."""
        (size,) = struct.unpack(">i", look(self.writer.root, self.sent, 4))
        for at in replicas:
            patch(self.stores[at], self.sent, bytes(size))

    def end_before_it_was_sent(self, replica: int) -> None:
        cut(self.stores[replica], self.sent)


def _flag(writer: LogWriter, at: int, flag: int) -> None:
    patch(writer.root, at + FLAG_AT, struct.pack(">i", flag))


def _op(writer: LogWriter, place: int, says: str) -> None:
    own = f"{TRANSACTION_ENDED_AS}\x01{says}\x02" if says else ""
    writer.add(b"%d," % place, topic="RMQ_SYS_TRANS_OP_HALF_TOPIC", tags="d", more=own)
