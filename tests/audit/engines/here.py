"""Spark's engine without Spark: its datasets as lists, in this process. What Spark does not promise is drawn:
how tasks are cut into partitions, and in which order a shuffle's rows come; a task that ran is run again."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from audit.engines.on_spark.cluster import Cluster
from audit.engines.spark import SparkEngine


class Context:
    """Of ``SparkContext``, what the engine asks for."""

    _jsc = object()

    def __init__(self, seed: int, settings: dict[str, str]) -> None:
        self.chance = random.Random(seed)
        self.settings = settings
        self.kept = 0
        self.master = "local[2]"

    def parallelize(self, things: Sequence[Any], slices: int) -> Rows:
        count = self.chance.randint(1, max(1, len(things)))
        cuts = sorted(self.chance.randint(0, len(things)) for _ in range(count - 1))
        edges = [0, *cuts, len(things)]
        parts = [list(things[a:b]) for a, b in pairwise(edges)]
        return Rows(self, lambda: parts, len(parts))

    def runJob(self, rows: Rows, of: Callable[[Iterable[Any]], Iterable[Any]], parts: list[int]) -> list[Any]:
        return [one for part in parts for one in of(iter(rows.parts()[part]))]

    def getConf(self) -> dict[str, str]:
        return self.settings

    def setJobDescription(self, what: str) -> None:
        pass


class Rows:
    """Of ``RDD``."""

    def __init__(self, context: Context, make: Callable[[], list[list[Any]]], count: int) -> None:
        self.context = self.ctx = context
        self._make, self._count = make, count
        self._there: list[list[Any]] | None = None
        self.partitioner: tuple[int, Any] | None = None

    def parts(self) -> list[list[Any]]:
        # What goes to a worker is pickled.
        return pickle.loads(pickle.dumps(self._there if self._there is not None else self._make()))  # type: ignore[no-any-return]

    def persist(self, level: Any) -> Rows:
        if self._there is None:
            self._there = self._make()
            self.context.kept += 1
        return self

    def unpersist(self) -> None:
        if self._there is not None:
            self.context.kept -= 1
        self._there = None

    def getNumPartitions(self) -> int:
        return self._count

    def mapPartitionsWithIndex(
        self, of: Callable[[int, Iterator[Any]], Iterable[Any]], preservesPartitioning: bool = False
    ) -> Rows:
        sent = pickle.loads(pickle.dumps(of))

        def make() -> list[list[Any]]:
            parts = self.parts()
            again = self.context.chance.randrange(len(parts))
            list(sent(again, iter(parts[again])))  # a task that failed behind its last row
            return [list(sent(n, iter(part))) for n, part in enumerate(parts)]

        made = Rows(self.context, make, self._count)
        made.partitioner = self.partitioner if preservesPartitioning else None
        return made

    def mapPartitions(self, of: Callable[[Iterator[Any]], Iterable[Any]]) -> Rows:
        return self.mapPartitionsWithIndex(_Each(of))

    def flatMap(self, of: Callable[[Any], Iterable[Any]]) -> Rows:
        return self.mapPartitionsWithIndex(_Flat(of))

    def filter(self, of: Callable[[Any], bool]) -> Rows:
        return Rows(self.context, lambda: [list(filter(of, part)) for part in self.parts()], self._count)

    def partitionBy(self, count: int, of: Callable[[Any], int]) -> Rows:
        if self.partitioner == (count, of):
            return self  # as Spark does: the rows stay where they are

        def make() -> list[list[Any]]:
            found: list[list[Any]] = [[] for _ in range(count)]
            for key, value in chain.from_iterable(self.parts()):
                found[of(key) % count].append((key, value))
            for part in found:
                self.context.chance.shuffle(part)
            return found

        made = Rows(self.context, make, count)
        made.partitioner = (count, of)
        return made

    def union(self, other: Rows) -> Rows:
        together = self.partitioner is not None and self.partitioner == other.partitioner

        def make() -> list[list[Any]]:
            if together:
                return [a + b for a, b in zip(self.parts(), other.parts(), strict=True)]
            return self.parts() + other.parts()

        made = Rows(self.context, make, self._count if together else self._count + other._count)
        made.partitioner = self.partitioner if together else None
        return made

    def sortBy(self, of: Callable[[Any], Any]) -> Rows:
        return Rows(self.context, lambda: [sorted(chain.from_iterable(self.parts()), key=of)], 1)

    def collect(self) -> list[Any]:
        return list(chain.from_iterable(self.parts()))

    def take(self, most: int) -> list[Any]:
        return self.collect()[:most]

    def toLocalIterator(self) -> Iterator[Any]:
        return iter(self.collect())


class _Each:
    def __init__(self, of: Callable[[Iterator[Any]], Iterable[Any]]) -> None:
        self._of = of

    def __call__(self, part: int, rows: Iterator[Any]) -> Iterable[Any]:
        return self._of(rows)


class _Flat:
    def __init__(self, of: Callable[[Any], Iterable[Any]]) -> None:
        self._of = of

    def __call__(self, part: int, rows: Iterator[Any]) -> Iterable[Any]:
        return chain.from_iterable(map(self._of, rows))


class Here(SparkEngine):
    """``SparkEngine`` over these; ``partitions``: of a shuffle, at most."""

    def __init__(self, seed: int, partitions: int = 3) -> None:
        self.context = Context(seed, {"spark.sql.shuffle.partitions": str(partitions)})
        self._java = self._folder = None
        self._cluster = Cluster(self.context)  # type: ignore[arg-type]
