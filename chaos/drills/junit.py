"""Results of drills as JUnit XML, which every CI server shows: a test case for each run, with its checks.

Broken promises are a failure, a run that came to no end an error, one whose faults could not be carried out
or that says nothing of losses, is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from xml.etree import ElementTree

from chaos.drills import verdict
from chaos.drills.measure import PROMISES, why_unjudged


def junit(results: Iterable[Mapping[str, Any]]) -> str:
    """The document. Raises KeyError, TypeError, ValueError for what is no result of a drill."""
    suite = ElementTree.Element("testsuite", name="keelmq drill")
    counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{result.get('target', 'keelmq')}.{result['scenario']}",
            name=_name(result),
            time=f"{sum((result.get('spent_s') or {}).values()):.1f}",
        )
        counts["tests"] += 1
        for kind, plural, text in _troubles(result):
            counts[plural] += 1
            ElementTree.SubElement(case, kind, message=_clean(text.partition("\n")[0])).text = _clean(text)
        told = {
            name.removesuffix("_total"): value for name, value in result.items() if name.endswith("_total")
        }
        lines = [f"{name}: {word}" for name, word in (result.get("checks") or {}).items()]
        lines += [f"{name}: {value}" for name, value in sorted(told.items())]
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines)
    for name, count in counts.items():
        suite.set(name, str(count))
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _name(result: Mapping[str, Any]) -> str:
    seed = result.get("seed", result.get("plan", {}).get("seed"))
    return f"seed {seed}" if seed is not None else "drill"


def _troubles(result: Mapping[str, Any]) -> Iterable[tuple[str, str, str]]:
    """At most one of them: (its element, what counts it, its text)."""
    if broken := list(dict.fromkeys(_broken(result))):
        yield "failure", "failures", "\n".join(broken)
    elif ends := verdict.ends(result):
        yield "error", "errors", "\n".join(ends)
    elif refused := [
        f"{one['fault']}: {one['reason']}" for one in (result.get("faults") or {}).get("refused", ())
    ]:
        yield "skipped", "skipped", "\n".join(refused)
    elif why := why_unjudged(result):
        yield "skipped", "skipped", why
    elif never := result.get("untried"):
        yield "skipped", "skipped", f"never struck: {', '.join(never)}"


def _broken(result: Mapping[str, Any]) -> Iterable[str]:
    """Each violation that is told, of the run or of one of its drills, then every count that should be 0."""
    said = verdict.said(result)
    yield from (f"{name}: {text}" for name, texts in said.items() for text in texts)
    for name, count in verdict.broken(result).items():
        if name in PROMISES or name not in said:
            yield f"{name}: {count}"


def _clean(text: str) -> str:
    """XML has no place for control characters."""
    return "".join(sign if sign.isprintable() or sign in "\n\t" else "?" for sign in text)
