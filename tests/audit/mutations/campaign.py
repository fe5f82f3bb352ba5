"""Many changes, one after the other; a stopped campaign goes on where it left off."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.audit.mutations import group
from tests.audit.mutations.change import Change, draw, kind_of
from tests.audit.mutations.judge import MISSED, REPORTED, Audit, Judge, in_process

SAVE_EVERY: Final = 100


class Campaign:
    """``count`` changes of a group made from ``seed``. ``result`` is what the JSON file holds."""

    def __init__(self, seed: int, path: Path | None, audit: Audit = in_process) -> None:
        self._path, self._audit = path, audit
        self.result: dict[str, Any] = {"seed": seed, "done": 0, "cpuSeconds": 0.0, "rows": [], "misses": []}
        self._counts: Counter[tuple[str, str, str, str]] = Counter()
        self.blamed: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self._take(json.loads(path.read_text()))

    def _take(self, known: dict[str, Any]) -> None:
        if known["seed"] != self.result["seed"]:
            raise ValueError(f"{self._path} is of seed {known['seed']}")
        self.result = known
        self.blamed = known.get("blamed", [])
        for row in known["rows"]:
            self._counts[row["file"], row["change"], row["outcome"], row["why"]] = row["count"]

    def run(
        self, count: int, *, cpu_s: float = float("inf"), tell: Callable[[str], object] = lambda text: None
    ) -> dict[str, Any]:
        """Go on up to change ``count``, or until ``cpu_s`` seconds of this process are spent."""
        began_s, spent_s = time.process_time(), self.result["cpuSeconds"]
        with tempfile.TemporaryDirectory(prefix="keelmq-mutations-") as folder:
            made = Path(folder) / "group"
            made.mkdir()
            group.make(made, self.result["seed"])
            judge = Judge(made, Path(folder) / "work", self._audit)
            while self.result["done"] < count and time.process_time() - began_s < cpu_s:
                self._one(judge)
                self.result["cpuSeconds"] = round(spent_s + time.process_time() - began_s, 1)
                if self.result["done"] % SAVE_EVERY == 0:
                    self._save()
                    tell(f"{self.result['done']} done, {len(self.result['misses'])} missed")
        self._save()
        return self.result

    def again(self, words: list[str], *, tell: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
        """Judge those of the changes again that ``words`` select, by the audit as it is now: one more
        ``again`` of the result. What was found before stays."""
        began_s = time.process_time()
        counts: Counter[str] = Counter()
        misses: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory(prefix="keelmq-mutations-") as folder:
            made = Path(folder) / "group"
            made.mkdir()
            group.make(made, self.result["seed"])
            judge = Judge(made, Path(folder) / "work", self._audit)
            for number in range(self.result["done"]):
                change = draw(number, self.result["seed"], judge.stores)
                if not selected(change, words):
                    continue
                outcome = judge.judge(change)
                counts[outcome.verdict] += 1
                if outcome.verdict == MISSED:
                    misses.append({**change.to_json(), "why": outcome.why})
                if counts.total() % SAVE_EVERY == 0:
                    tell(f"{counts.total()} drawn again, {len(misses)} missed")
        done = {
            "words": words,
            "counts": dict(counts),
            "misses": misses,
            "cpuSeconds": round(time.process_time() - began_s, 1),
        }
        self.result.setdefault("again", []).append(done)
        self._save()
        return self.result

    def _one(self, judge: Judge) -> None:
        change = draw(self.result["done"], self.result["seed"], judge.stores)
        outcome = judge.judge(change)
        row = (kind_of(change.file), change.kind, outcome.verdict)
        self._counts[(*row, outcome.why if outcome.verdict != MISSED else "")] += 1
        if outcome.verdict == MISSED:
            self.result["misses"].append({**change.to_json(), "why": outcome.why})
        if outcome.verdict == REPORTED and outcome.blamed:
            self.blamed.append({**change.to_json(), "why": f"{outcome.why}, also {outcome.blamed}"})
        self.result["done"] += 1

    def _save(self) -> None:
        self.result["rows"] = [
            dict(zip(("file", "change", "outcome", "why"), key, strict=True)) | {"count": n}
            for key, n in sorted(self._counts.items())
        ]
        self.result["blamed"] = self.blamed
        if self._path is not None:
            temporary = self._path.with_suffix(".tmp")
            temporary.write_text(json.dumps(self.result, indent=1) + "\n")
            temporary.replace(self._path)


def selected(change: Change, words: list[str]) -> bool:
    """Whether one of the words is its kind, its file's kind, or how its file's path begins."""
    kinds = (change.kind, kind_of(change.file))
    return any(word in kinds or ("/" in word and change.file.startswith(word)) for word in words)
