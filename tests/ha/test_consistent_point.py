"""The promise of ha.epochs: a slave cut at the consistent point holds what it shares with its master."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ha.epochs import EpochStart, consistent_point, frame_epoch, skipped_epochs
from model.ids import Epoch, PhysicalOffset
from tests.plain import epoch_starts


@dataclass
class Replica:
    """A log of which each byte remembers who wrote it when."""

    log: list[tuple[int, int]] = field(default_factory=list)  # (epoch, serial)
    epochs: list[EpochStart] = field(default_factory=list)

    def promote(self, epoch: int) -> None:
        end = len(self.log)
        self.epochs = [entry for entry in self.epochs if entry[1] < end]
        self.epochs.append((Epoch(epoch), PhysicalOffset(end)))

    def follow(self, master: "Replica", count: int) -> None:
        """Cut and append as ha.slave.master_link does."""
        ends = PhysicalOffset(len(master.log)), PhysicalOffset(len(self.log))
        point = consistent_point(master.epochs, self.epochs, *ends)
        common = 0
        while common < min(len(self.log), len(master.log)) and self.log[common] == master.log[common]:
            common += 1
        # None: nothing in common, and a log is never thrown away whole without an operator's word.
        assert (point or 0) == common
        point = point or PhysicalOffset(0)
        del self.log[point:]
        self.epochs = [entry for entry in self.epochs if entry[1] < point]
        for _ in range(count):
            at = PhysicalOffset(len(self.log))
            if at >= len(master.log):
                break
            size, entry = frame_epoch(master.epochs, at, len(master.log) - at)
            last = self.epochs[-1] if self.epochs else None
            if last is None or entry[0] > last[0]:
                for new in [*skipped_epochs(master.epochs, at, last, entry), entry]:
                    self.epochs = [e for e in self.epochs if e[1] < new[1]]
                    self.epochs.append(new)
            self.log += master.log[at : at + min(size, 3)]


STEPS = st.lists(
    st.tuples(st.sampled_from(["elect", "write", "follow", "crash"]), st.integers(0, 2), st.integers(1, 9)),
    max_size=60,
)


@given(steps=STEPS)
@settings(max_examples=400)
def test_logs_of_any_history_agree_up_to_the_consistent_point(steps: list[tuple[str, int, int]]) -> None:
    replicas = [Replica() for _ in range(3)]
    master, epoch, serial = replicas[0], 1, 0
    master.promote(epoch)
    for what, who, amount in steps:
        replica = replicas[who]
        if what == "elect":
            epoch += 1
            master = replica
            master.promote(epoch)
        elif what == "write":
            for _ in range(amount):
                serial += 1
                master.log.append((epoch, serial))
        elif what == "follow" and replica is not master:
            replica.follow(master, amount)
        elif what == "crash" and replica is not master:
            del replica.log[max(0, len(replica.log) - amount) :]  # the epoch file is synced, the log was not


Starts = list[tuple[int, int]]


def agree_until(master: Starts, slave: Starts, master_end: int, slave_end: int) -> int | None:
    ends = PhysicalOffset(master_end), PhysicalOffset(slave_end)
    return consistent_point(epoch_starts(master), epoch_starts(slave), *ends)


def skipped(
    epochs: Starts, offset: int, known: tuple[int, int] | None, next_epoch: tuple[int, int]
) -> list[EpochStart]:
    before = None if known is None else epoch_starts([known])[0]
    return skipped_epochs(epoch_starts(epochs), PhysicalOffset(offset), before, *epoch_starts([next_epoch]))


def frame(epochs: Starts, offset: int, size_max: int) -> tuple[int, EpochStart]:
    return frame_epoch(epoch_starts(epochs), PhysicalOffset(offset), size_max)


def test_a_divergent_suffix_is_cut_where_the_epoch_ended() -> None:
    assert agree_until([(1, 0), (2, 100)], [(1, 0)], 300, 150) == 100


def test_a_shorter_slave_keeps_all_it_has() -> None:
    assert agree_until([(1, 0), (2, 100)], [(1, 0), (2, 100)], 300, 250) == 250


def test_an_epoch_of_the_same_number_but_another_start_is_another_epoch() -> None:
    assert agree_until([(1, 0), (3, 100)], [(1, 0), (3, 120)], 300, 150) == 100


def test_two_elections_without_a_write_do_not_keep_a_slave_out() -> None:
    assert agree_until([(1, 0), (3, 100)], [(1, 0), (2, 100)], 100, 100) == 100


def test_logs_without_a_common_epoch_have_no_agree_until() -> None:
    assert agree_until([(5, 0)], [(1, 0)], 300, 150) is None
    assert agree_until([], [(1, 0)], 300, 150) is None
    assert agree_until([(1, 0)], [], 300, 150) is None


def test_an_empty_slave_agrees_with_everyone() -> None:
    assert agree_until([(5, 100)], [], 300, 0) == 0


def test_the_batch_that_reaches_an_epochs_end_carries_the_next_epochs_label() -> None:
    # Observed of the real master: epochs 1@0, 3@93790.
    epochs = [(1, 0), (3, 93790)]
    sizes = []
    at = 0
    while at < 120000:
        size, (epoch, start) = frame(epochs, at, min(32768, 120000 - at))
        sizes.append((at, size, epoch, start))
        at += size
    assert sizes == [
        (0, 32768, 1, 0),
        (32768, 32768, 1, 0),
        (65536, 28254, 3, 93790),
        (93790, 26210, 3, 93790),
    ]


def test_an_epoch_of_one_frame_is_told_all_the_same() -> None:
    epochs = [(1, 0), (2, 10), (3, 20), (4, 30)]
    assert skipped(epochs, 0, None, (2, 10)) == [(1, 0)]
    assert skipped(epochs, 0, (1, 0), (2, 10)) == []
    assert skipped(epochs, 12, None, (3, 20)) == [(2, 10)], "epochs that ended before the first byte are not"
    assert skipped(epochs, 0, (1, 0), (4, 30)) == [(2, 10), (3, 20)]


def test_a_heartbeat_carries_the_epoch_of_the_next_byte() -> None:
    assert frame([(1, 0), (3, 90)], 89, 0) == (0, (1, 0))
    assert frame([(1, 0), (3, 90)], 90, 0) == (0, (3, 90))


def test_an_offset_before_the_first_epoch_has_no_label() -> None:
    with pytest.raises(ValueError, match="no epoch"):
        frame([(3, 90)], 89, 10)


@pytest.mark.parametrize(("size_max", "size", "epoch"), [(99, 99, (1, 0)), (100, 100, (2, 100))])
def test_a_frame_that_ends_where_its_epoch_ends_names_the_next(
    size_max: int, size: int, epoch: tuple[int, int]
) -> None:
    assert frame([(1, 0), (2, 100)], 0, size_max) == (size, epoch)
