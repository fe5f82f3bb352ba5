"""The promise after a failover: what the old master alone has is a warning unless it was promised."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from audit.engines.local import LocalEngine
from audit.tables import Engine
from tests.audit.plants import run_with
from tests.audit.stores import (
    LogWriter,
    body_crc,
    copies,
    patch,
    record,
    write_checkpoint,
    write_epochs,
)

KEPT = 20
LATER = 6
OWN = [(f"own{n}", b"of nobody else" * (3 + n)) for n in range(2)]


class Failover:
    """Three replicas with 20 messages. ``r0`` led, and has two of its own where the others went on in epoch
    2. All of theirs are acknowledged and confirmed."""

    def __init__(self, root: Path) -> None:
        log = LogWriter(root / "origin")
        log.fill(KEPT)
        self.begin = log.end
        log.confirm(epochs=[(1, 0)])
        self.stores = copies(log.root)
        log.fill(LATER, mark="new", stamp=9000)
        for store in self.stores[1:]:
            for file in (log.root / "commitlog").iterdir():
                (store / "commitlog" / file.name).write_bytes(file.read_bytes())
            write_checkpoint(store, log.end)
            write_epochs(store, [(1, 0), (2, self.begin)])
        at = self.begin
        for n, (key, body) in enumerate(OWN):
            raw = record(at, KEPT // 2 + n, body, key=key, stamp=5000)
            patch(self.stores[0], at, raw)
            at += len(raw)
        (self.stores[0] / "abort").touch()
        self.rows = [dict(row) for row in log.rows]
        self.ledger = root / "acked.jsonl"

    def acknowledge(self, n: int) -> None:
        key, body = OWN[n]
        told = {"topic": "T", "queue_id": 0, "queue_offset": KEPT // 2 + n, "body_crc": body_crc(body)}
        self.rows.append({"uniq_key": key, **told})

    def sent_again(self) -> None:
        """Its sender heard nothing of the first one, and sent it to the next master."""
        key, body = OWN[0]
        self.acknowledge(0)
        for store in self.stores[1:]:
            end = max(int(path.name) for path in (store / "commitlog").iterdir())
            raw = (store / "commitlog" / f"{end:020d}").read_bytes()
            at = end + len(raw.rstrip(b"\0"))
            place = KEPT // 2 + LATER // 2
            patch(store, at, record(at, place, body, key=key, stamp=9900))
        self.rows[-1]["queue_offset"] = place

    def told(self, engine: Engine, *, ledger: bool = True) -> tuple[str, str]:
        """Severity of the suffix, and the verdict."""
        self.ledger.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        report = run_with(engine, self.stores, self.ledger if ledger else None)
        (found,) = [f for f in report.findings if f.kind == "divergent_suffix"]
        assert (found.replica, found.phys_offset, found.ambiguous) == ("r0", self.begin, False)
        return found.severity, report.verdict


@pytest.fixture
def group(tmp_path: Path) -> Failover:
    return Failover(tmp_path)


@pytest.mark.parametrize("ledger", [True, False])
def test_what_nobody_was_promised_is_a_warning(group: Failover, ledger: bool) -> None:
    """The new master's messages are acknowledged and confirmed: that is no fault of the old one."""
    assert group.told(LocalEngine(), ledger=ledger) == ("warn", "warnings")


def test_what_was_acknowledged_there_alone_is_lost(group: Failover) -> None:
    group.acknowledge(1)
    assert group.told(LocalEngine()) == ("error", "diverged")
    assert group.told(LocalEngine(), ledger=False) == ("warn", "warnings")


def test_what_was_sent_again_is_not_lost(group: Failover) -> None:
    group.sent_again()
    assert group.told(LocalEngine()) == ("warn", "warnings")


@pytest.mark.parametrize(("ahead", "severity"), [(0, "warn"), (1, "error")])
def test_what_the_old_master_confirmed_itself_was_promised(
    ahead: int, severity: str, group: Failover
) -> None:
    write_checkpoint(group.stores[0], group.begin + ahead)
    assert group.told(LocalEngine(), ledger=False)[0] == severity


@pytest.mark.parametrize(("epochs", "severity"), [([(1, 0)], "error"), (None, "warn")])
def test_without_a_confirm_offset_an_election_explains_another_end(
    epochs: list[tuple[int, int]] | None, severity: str, group: Failover
) -> None:
    (group.stores[0] / "checkpoint").unlink()
    for store in group.stores[1:] if epochs else ():
        write_epochs(store, epochs or [])
    assert group.told(LocalEngine(), ledger=False)[0] == severity


def test_the_epoch_of_a_finding_is_the_groups(group: Failover) -> None:
    """The old master's own file does not know the election."""
    report = run_with(LocalEngine(), group.stores, None)
    (found,) = [f for f in report.findings if f.kind == "divergent_suffix"]
    assert found.epoch == 2


@pytest.mark.spark
@pytest.mark.parametrize("lost", [True, pytest.param(False, marks=pytest.mark.more)])
def test_both_engines_tell_what_was_promised(engine: Engine, group: Failover, lost: bool) -> None:
    """Of what was sent again nothing is lost. What was not is an error beside it, also by Spark."""
    group.sent_again()
    if lost:
        group.acknowledge(1)
    assert group.told(LocalEngine()) == (("error", "diverged") if lost else ("warn", "warnings"))
    spark, local = (run_with(by, group.stores, group.ledger) for by in (engine, LocalEngine()))
    assert (spark.verdict, spark.findings) == (local.verdict, local.findings)
