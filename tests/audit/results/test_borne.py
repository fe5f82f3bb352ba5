"""The promise about what no step mends, as a message that its sender sent twice: the copy that alone has it
is as good a source as any."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from audit.results.steps.repair import steps
from tests.audit.plants import run_local
from tests.audit.results.advised import do
from tests.audit.stores import SEGMENT, LogWriter, copies, cut, look, patch


def _short_file(store: Path, at: int) -> None:
    """It was copied half-way."""
    with (store / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}").open("r+b") as file:
        file.truncate(at % SEGMENT)


def _zeros(store: Path, at: int) -> None:
    patch(store, at, bytes(600))


@pytest.mark.parametrize("hurt", [_short_file, _zeros, cut])
@pytest.mark.parametrize(
    ("kind", "replicas"), [("dup_message", 2), ("dup_message", 3), ("dup_queue_offset", 3)]
)
def test_what_a_copy_alone_has_twice_makes_it_no_worse_a_source(
    kind: str, replicas: int, hurt: Callable[[Path, int], None], tmp_path: Path
) -> None:
    writer = LogWriter(tmp_path / "origin")
    writer.fill(48)
    begin = writer.end
    if kind == "dup_queue_offset":
        writer.forget()  # a topic that was made again, which nothing tells
    again = writer.add(b"m-10" * 5, key="m10" if kind == "dup_message" else "n10", stamp=2000)
    writer.fill(48, mark="behind", stamp=2001)
    writer.confirm(epochs=[(1, 0)])
    stores = copies(writer.root, replicas)
    hurt(stores[1], begin - 200)
    if replicas == 3:
        cut(stores[2], begin - 1000)  # an older backup, put back
    report = run_local(stores, None)
    twice = [f for f in report.findings if f.kind == kind]
    assert (twice[0].replica, twice[0].phys_offset, {f.severity for f in twice}) == ("r0", again, {"warn"})
    told = steps(report.findings, report.replicas)
    mended = {step.replica for step in told if step.command or "r0 has to lead" in step.why}
    assert mended == {store.name for store in stores[1:]}
    assert not any("mend the others first" in step.why or "Keep this store" in step.why for step in told)
    assert not any(do(step) for step in told)
    if hurt is not cut:
        assert look(stores[1], begin - 200, 600) == look(writer.root, begin - 200, 600)
