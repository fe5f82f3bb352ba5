"""What an exploration found, as a page."""

from __future__ import annotations

from typing import Any


def bound(row: dict[str, Any]) -> str:
    """How much of a row's space was seen."""
    if row["violation"] is not None:
        return f"BROKEN in {len(row['violation']['trace'])} steps"
    return "complete" if row["complete"] else f"all states up to {row['depth'] - 1} steps deep"


def markdown(found: dict[str, Any]) -> str:
    """The page of docs/results: one line a row, and the steps to each broken promise."""
    lines = [
        f"# The explorer, set {found['set']}: {found['date']}",
        "",
        f"Commit {found['commit']}. A row ends after {found['seconds']} s of CPU, {found['states']:,} states"
        f" or {found['memory_mib']} MiB. States that differ by brokers' ids only count once.",
        "Budget: how often each thing may happen; what is not named may not, or as often as it can.",
        "",
        "| row | brokers, mode | budget | states | transitions | CPU s | seen |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        cells = (
            row["work"],
            _mode(row["setting"]),
            _budget(row["setting"]["budget"]),
            f"{row['states']:,}",
            f"{row['transitions']:,}",
            f"{row['cpu_s']:.0f}",
            bound(row),
        )
        lines.append(f"| {' | '.join(cells)} |")
    for row in found["rows"]:
        if row["violation"] is not None:
            lines += ["", f"## {row['work']}", "", row["violation"]["text"], ""]
            lines += [f"- {line}" for line in (group(row["setting"]), *row["violation"]["begins"])] + [""]
            lines += [f"{number}. {step}" for number, step in enumerate(row["violation"]["trace"], 1)]
    return "\n".join(lines) + "\n"


def of_row(setting: dict[str, Any]) -> str:
    """What a row explores, in a line."""
    return f"{_mode(setting)}; {_budget(setting['budget'])}"


def group(setting: dict[str, Any]) -> str:
    """The same for whoever sees this row alone."""
    return f"group (brokers, mode; budget): {of_row(setting)}"


def _mode(setting: dict[str, Any]) -> str:
    named = {"count": f"count {setting['acks']}"}.get(setting["wait"], setting["wait"])
    then = setting["then"]
    texts = [f"{setting['brokers']}, {named}"]
    if then is not None:
        texts.append(f"then {then['wait']}")
    if setting["copies_min"] > 1:
        texts.append(f"{setting['copies_min']} copies at least")
    if setting["unclean"]:
        texts.append("unclean")
    if setting["start"] != "full":
        texts.append(f"begins: {setting['start']}")
    return ", ".join(texts)


def _budget(budget: dict[str, int]) -> str:
    return ", ".join(f"{name} {times}" for name, times in budget.items() if times and name != "starts")
