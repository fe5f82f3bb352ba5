"""The results page of a campaign."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.audit.mutations.page import BEGIN, END, by_hand
from tests.audit.recall.damages import BENIGN, DAMAGES
from tests.audit.recall.together import BUNDLES, LAWFUL

__all__ = ["Row", "by_hand", "page"]

Row = dict[str, Any]


def page(rows: list[Row], notes: str = "") -> str:
    """Markdown. ``notes``: what was written by hand."""
    alone = [row for row in rows if len(row["engines"]) == 1]
    both = [row for row in rows if len(row["engines"]) > 1]
    sizes = sorted({row["replicas"] for row in rows})
    missed = sum(bool(row["wrong"]) for row in rows)
    out = [
        "# Audit: kinds of damage",
        "",
        f"{len(DAMAGES)} kinds of damage and {len(BENIGN)} lawful differences at random places of a stopped",
        "group. A run is right if each damage is named by kind, replica and place and all else follows from",
        f"it, or nothing is named where nothing is wrong. **Not right: {missed} of {len(rows)} groups.**",
        "",
        f"- `python -m tests.audit.recall`: each alone in a group, local engine: {_of(alone)}.",
        f"- `python -m tests.audit.recall --engine both`: {len(BUNDLES)} bundles of damage and {len(LAWFUL)}",
        "  of lawful differences, local engine and Spark, whose findings have to be equal row by row:",
        f"  {_of(both)}.",
        "",
        "`make test` has one seed of three replicas.",
        "",
        BEGIN,
        *([notes] if notes else []),
        END,
        "",
        "| damage | " + " | ".join(f"{n} replicas: alone, both engines, not right" for n in sizes) + " |",
        "|---|" + "---|" * len(sizes),
    ]
    runs = Counter((name, row["replicas"], len(row["engines"])) for row in rows for name in row["done"])
    wrong = Counter((name, row["replicas"]) for row in rows if row["wrong"] for name in row["done"])
    for name in [*DAMAGES, *BENIGN]:
        cells = [f"{runs[name, n, 1]}, {runs[name, n, 2]}, {wrong[name, n]}" for n in sizes]
        title = name if name in DAMAGES else f"(lawful) {name}"
        out.append(f"| {title} | " + " | ".join(cells) + " |")
    out += ["", "| bundle | damages in it |", "|---|---|"]
    out += [
        f"| {name} | {', '.join(one for one, _ in bundle.ones)} |"
        for name, bundle in (BUNDLES | LAWFUL).items()
    ]
    listed = [row for row in rows if row["wrong"]]
    if listed:
        out += ["", "| not right | replicas | seed | said |", "|---|---|---|---|"]
        out += [f"| {r['name']} | {r['replicas']} | {r['seed']} | {'; '.join(r['wrong'])} |" for r in listed]
    return "\n".join(out) + "\n"


def _of(rows: list[Row]) -> str:
    commits = ", ".join(sorted({row["commit"] or "an unknown commit" for row in rows}))
    seeds = len({row["seed"] for row in rows})
    done = sum(len(row["done"]) for row in rows)
    return f"{len(rows)} groups of {seeds} seeds, {done} kinds done, at {commits}" if rows else "none"
