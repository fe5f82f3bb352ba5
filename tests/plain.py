"""Plain numbers as the types of ``model.ids``: a test says {1, 2}, not which kind of number each is."""

from collections.abc import Iterable

from ha.epochs import EpochStart
from model.ids import BrokerId, Epoch, PhysicalOffset


def broker_ids(numbers: Iterable[int]) -> frozenset[BrokerId]:
    return frozenset(BrokerId(number) for number in numbers)


def epoch_starts(entries: Iterable[tuple[int, int]]) -> tuple[EpochStart, ...]:
    return tuple((Epoch(epoch), PhysicalOffset(start)) for epoch, start in entries)


def offsets(numbers: Iterable[int]) -> list[PhysicalOffset]:
    return [PhysicalOffset(number) for number in numbers]
