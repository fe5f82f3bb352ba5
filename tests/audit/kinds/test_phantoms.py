"""The promise of an audit that is given a history: what nobody sent, or was refused, is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.engines.local import LocalEngine
from audit.ledgers.ledger import Ledger
from audit.run import Report
from audit.tables import Engine
from chaos.history import Fail, History, Invoke, Ok, Unknown
from client.message import Queue
from tests.audit.plants import run_with
from tests.audit.stores import LogWriter, body_crc, copies, patch

MESSAGES = 12
REFUSED, OTHER, UNANSWERED, INVENTED = 3, 5, 7, 9


def group(root: Path, *, wrong: bool) -> tuple[list[Path], Path]:
    """Three replicas and the history of their messages, one of which has no answer and came with its body.
    ``wrong``: one was refused, one has no answer and came with another body, and one was never sent."""
    writer = LogWriter(root / "origin")
    history = History()
    for n in range(MESSAGES):
        body = b"m-%d" % n * 5
        writer.add(body, key=f"m{n}", queue_id=0, stamp=1000 + n)
        queue, at = Queue("T", "b", 0), float(n)
        told = body_crc(b"another" if wrong and n == OTHER else body)
        if not (wrong and n == INVENTED):
            history.add(Invoke(at, "p", f"m{n}", queue, told))
        if n in (OTHER, UNANSWERED):
            history.add(Unknown(at, "p", f"m{n}", "no answer"))
        elif wrong and n == REFUSED:
            history.add(Fail(at, "p", f"m{n}", "no"))
        elif not (wrong and n == INVENTED):
            history.add(Ok(at, "p", f"m{n}", queue, n, int(str(writer.rows[n]["phys_offset"]))))
    writer.add(b"of another topic", key="other", topic="U")
    writer.confirm(epochs=[(1, 0)])
    writer.write_queues()
    path = root / "history.jsonl"
    with path.open("w") as file:
        history.write(file)
    return copies(writer.root), path


def check(engine: Engine, root: Path) -> Report:
    report = run_with(engine, *group(root, wrong=True))
    told = {(f.kind, f.severity, f.uniq_key, f.found) for f in report.findings}
    assert told == {
        ("phantom", "error", f"m{REFUSED}", "its send was refused"),
        ("phantom", "error", f"m{OTHER}", "another body than was sent"),
        ("phantom", "error", f"m{INVENTED}", "never sent"),
    }
    assert report.verdict == "diverged"
    return report


def test_what_nobody_sent_is_named(tmp_path: Path) -> None:
    check(LocalEngine(), tmp_path)


def test_what_was_sent_and_what_no_history_speaks_of_is_in_order(tmp_path: Path) -> None:
    report = run_with(LocalEngine(), *group(tmp_path, wrong=False))
    assert (report.verdict, report.findings) == ("clean", [])
    assert report.ledger_lines == MESSAGES - 2


def test_damage_that_changed_a_key_is_the_cause(tmp_path: Path) -> None:
    stores, history = group(tmp_path, wrong=False)
    raw = (stores[0] / "commitlog" / f"{0:020d}").read_bytes()
    patch(stores[0], raw.index(b"UNIQ_KEY\x01m4") + len(b"UNIQ_KEY\x01m"), b"x")
    report = run_with(LocalEngine(), stores, history)
    roots = [(f.kind, f.replica) for f in report.findings if not f.caused_by]
    assert roots == [("bytes_differ", "r0")]


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("here", [True, False])
def test_both_engines_name_what_nobody_sent(
    here: bool, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cluster no row of the history goes through the driver."""
    expected = check(LocalEngine(), tmp_path / "b").findings
    if not here:
        monkeypatch.setattr("audit.engines.on_spark.cluster.Cluster.reads_here", False)
        monkeypatch.setattr(Ledger, "table", None)
    assert check(engine, tmp_path / "a").findings == expected
