"""The promise of docs/compatibility.md: it says what the interop tests cover, how they ended, and what
becomes of each request code of the real broker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop import compatibility
from tests.interop.compatibility import NO_BEHAVIOUR, PAGE, REASONS, Row, note, outcomes, page, rows

JUNIT = """<testsuites><testsuite>
<testcase classname="tests.interop.test_tls" name="test_a[1]"/>
<testcase classname="tests.interop.test_tls" name="test_a[2]"><failure/></testcase>
<testcase classname="tests.interop.test_tls" name="test_b[1]"/>
<testcase classname="tests.interop.test_tls" name="test_b[2]"><skipped/></testcase>
<testcase classname="tests.interop.test_pop" name="test_c"/>
<testcase classname="tests.client.test_pop" name="test_d"/>
<testcase classname="tests.interop.test_wire" name="test_both[send (10)]"/>
<testcase classname="tests.interop.test_wire" name="test_both[send (310)]"><failure/></testcase>
</testsuite></testsuites>"""


def test_the_page_is_what_the_tests_say() -> None:
    found = page(rows(), compatibility.load_seen(), compatibility.answered(), compatibility.of_the_original())
    assert PAGE.read_text() == found, "python -m tests.interop.compatibility writes it anew"


def test_every_code_of_the_real_broker_is_answered_or_refused_with_a_reason() -> None:
    ours, theirs = compatibility.answered(), compatibility.of_the_original()
    assert len(theirs) > 99
    assert set(REASONS) == set(theirs) - ours


def test_what_is_noted_is_of_tests_that_there_are() -> None:
    names = {row.test for row in rows()} | set(NO_BEHAVIOUR)
    assert set(compatibility.load_seen()) <= names


def test_the_worst_case_of_a_test_is_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [Row(f"test_wire::test_both[{case}]", "x", "x", "both") for case in ("send (10)", "send (310)")]
    monkeypatch.setattr(compatibility, "rows", lambda: alone)
    file = tmp_path / "run.xml"
    file.write_text(JUNIT)
    ended = outcomes(file)
    assert ended == {
        "test_tls::test_a": "failed",
        "test_tls::test_b": "skipped",
        "test_pop::test_c": "passed",
        "test_wire::test_both[send (10)]": "passed",
        "test_wire::test_both[send (310)]": "failed",
    }
    before = {"test_tls::test_b": {"ended": "passed", "commit": "c0", "date": "2026-01-01"}}
    seen = note(before, ended, "c1", "2026-02-02")
    assert seen["test_tls::test_b"] == before["test_tls::test_b"], "a skipped one says nothing new"
    assert seen["test_tls::test_a"] == {"ended": "failed", "commit": "c1", "date": "2026-02-02"}
    table = [Row("test_tls::test_a", "TLS", "Go v2", "keelmq")]
    assert "| TLS | Go v2 | keelmq | – | failed 2026-02-02 | `test_tls::test_a` |" in page(
        table, seen, {10}, {}
    )


def test_a_test_that_does_not_say_what_it_covers_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_x.py").write_text("def test_one(): ...\n")
    monkeypatch.setattr(compatibility, "TESTS", tmp_path)
    with pytest.raises(ValueError, match="test_x::test_one does not say"):
        rows()
