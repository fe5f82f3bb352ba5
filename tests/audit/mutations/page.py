"""The results page of a campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from tests.audit.mutations.change import FILES, KINDS
from tests.audit.mutations.judge import MISSED, NO_EFFECT, REPORTED

BEGIN: Final = "<!-- by hand -->"
END: Final = "<!-- by the campaign -->"


def by_hand(page: str) -> str:
    """What a page has between its two marks, which a new one keeps."""
    return page.partition(BEGIN)[2].partition(END)[0].strip() if END in page else ""


def page(result: Mapping[str, Any], notes: str = "") -> str:
    """Markdown: counts by file and by change, what reported, why nothing changed, every miss. ``notes``: what
    was written by hand."""
    of_all = Counter({o: _sum(result, outcome=o) for o in (REPORTED, NO_EFFECT, MISSED)})
    lines = [
        "# Changed files of a stopped group",
        "",
        f"`python -m tests.audit.mutations --count {result['done']} --seed {result['seed']}`:"
        f" {result['done']:,} changes, {result['cpuSeconds']:.0f} CPU seconds.",
        f"Reported {of_all[REPORTED]:,}, without effect on any reader {of_all[NO_EFFECT]:,}, missed"
        f" {of_all[MISSED]:,}.",
        *_again(result),
        "",
        BEGIN,
        *([notes] if notes else []),
        END,
        "",
        *_table(result, "file", list(FILES)),
        "",
        *_table(result, "change", list(KINDS)),
        "",
        "| file | first finding that names it | changes |",
        "|---|---|---|",
        *_why(result, REPORTED),
        "",
        "| file | without effect: where | changes |",
        "|---|---|---|",
        *_why(result, NO_EFFECT),
    ]
    if result["misses"]:
        lines += ["", "| missed | file | change | bytes | audit |", "|---|---|---|---|---|"]
        lines += [
            f"| {m['number']} | {m['replica']}/{m['file']} | {m['kind']} | {m['size']} at {m['at']} |"
            f" {m['why']} |"
            for m in result["misses"]
        ]
    return "\n".join(lines) + "\n"


def _again(result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for again in result.get("again", []):
        counts = Counter(again["counts"])
        missed = ", ".join(str(miss["number"]) for miss in again["misses"])
        lines += [
            "",
            f"Drawn again (`--again {' '.join(again['words'])}`), by the audit of this page's commit:"
            f" {counts.total():,} changes, {again['cpuSeconds']:.0f} CPU seconds. Reported"
            f" {counts[REPORTED]:,}, without effect {counts[NO_EFFECT]:,}, missed"
            f" {counts[MISSED]:,}{': ' + missed if missed else ''}.",
        ]
    return lines


def _sum(result: Mapping[str, Any], **like: str) -> int:
    return sum(
        row["count"] for row in result["rows"] if all(row[name] == value for name, value in like.items())
    )


def _table(result: Mapping[str, Any], column: str, order: list[str]) -> list[str]:
    lines = [f"| {column} | changes | reported | without effect | missed |", "|---|---|---|---|---|"]
    for name in order:
        counts = [_sum(result, **{column: name, "outcome": o}) for o in (REPORTED, NO_EFFECT, MISSED)]
        if sum(counts):
            lines.append(f"| {name} | {sum(counts):,} | {' | '.join(f'{n:,}' for n in counts)} |")
    return lines


def _why(result: Mapping[str, Any], outcome: str) -> list[str]:
    counts: Counter[tuple[str, str]] = Counter()
    for row in result["rows"]:
        if row["outcome"] == outcome:
            counts[row["file"], row["why"]] += row["count"]
    return [f"| {file} | {why} | {n:,} |" for (file, why), n in counts.most_common()]
