"""The promise of the campaign of kills: what a kind lost or did wrong is a fault of the run."""

from __future__ import annotations

import pytest

from bench.kinds import KINDS, faults, markdown, row_of

GOOD = {"acked": 5, "failed": 2, "lost": 0, "again": 1, "wrong": 0, "early": 0}


def test_a_line_of_the_clients_is_a_row() -> None:
    said = " ".join(f"{name}={number}" for name, number in GOOD.items())
    assert row_of(f"kind pop {said}\n") == ("pop", GOOD)
    for line in (f"sort pop {said}", f"kind jazz {said}", "kind pop acked"):
        with pytest.raises(ValueError, match=r"not a kind|unpack"):
            row_of(line)


def test_what_is_lost_or_wrong_or_missing_is_a_fault() -> None:
    rows = {kind: dict(GOOD) for kind in KINDS}
    assert faults(rows) == []
    rows["trace"]["lost"] = 3  # the client gives up what it cannot tell
    assert faults(rows) == []
    rows["trace"]["wrong"] = 1
    rows["sql"]["lost"] = 2
    rows["timer"]["early"] = 1
    rows["delay"]["acked"] = 0
    del rows["pop"]
    said = faults(rows)
    assert sorted(said) == [
        *("delay: nothing was sent", "pop: nothing was sent"),
        *("sql: 2 lost", "timer: 1 early", "trace: 1 wrong"),
    ]
    table = markdown({"kills": 20, "kinds": rows})
    assert "| sql | 20 | 5 | 2 | 1 | 2 | 0 | 0 |" in table
