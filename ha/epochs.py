"""Which epoch does a byte of the log belong to, and where do two logs with epochs leave each other?

An epoch is (number, start offset); it ends where the next one starts, the last one at the log's end. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from model.ids import Epoch, PhysicalOffset

EpochStart = tuple[Epoch, PhysicalOffset]
"""Number of an epoch, and the offset (bytes) it starts at."""


def consistent_point(
    master: Sequence[EpochStart],
    slave: Sequence[EpochStart],
    master_end: PhysicalOffset,
    slave_end: PhysicalOffset,
) -> PhysicalOffset | None:
    """Up to where two logs hold the same bytes, or None when no common epoch is known.

    Epochs are oldest first. The newest epoch that both logs know under the same number and start decides. An
    empty slave has nothing to compare: 0.
    """
    if slave_end == 0:
        return slave_end
    ends = [start for _, start in master[1:]] + [master_end]
    master_ends = {entry: min(end, master_end) for entry, end in zip(master, ends, strict=False)}
    epoch_end = slave_end
    for entry in reversed(slave):
        if entry in master_ends:
            return min(master_ends[entry], epoch_end)
        # An epoch noted before its first byte arrived may start beyond the end a crash left.
        epoch_end = min(epoch_end, entry[1])
    return None


def skipped_epochs(
    epochs: Sequence[EpochStart], offset: PhysicalOffset, known: EpochStart | None, next_epoch: EpochStart
) -> list[EpochStart]:
    """The epochs from ``offset`` on, between the one a slave knows and that of its next frame.

    An epoch so short that its only frame is its tail batch is named by no frame: a slave of a RocketMQ master
    never learns of it and later finds no consistent point.
    """
    found = []
    for at, entry in enumerate(epochs):
        ended = at + 1 < len(epochs) and epochs[at + 1][1] <= offset
        older = entry[0] < next_epoch[0] and entry[1] < next_epoch[1]
        newer = known is None or (entry[0] > known[0] and entry[1] > known[1])
        if older and newer and not ended:
            found.append(entry)
    return found


def frame_epoch(
    epochs: Sequence[EpochStart], offset: PhysicalOffset, size_max: int
) -> tuple[int, EpochStart]:
    """How many of ``size_max`` bytes at ``offset`` fit in one frame, and the epoch the frame names.

    A frame never crosses an epoch's end; one that reaches it names the next epoch, as a RocketMQ master's
    does, so that the slave notes the epoch before its first byte. Raises ValueError when no epoch holds
    ``offset``.
    """
    for at in range(len(epochs) - 1, -1, -1):
        if epochs[at][1] <= offset:
            if at + 1 < len(epochs) and offset + size_max >= epochs[at + 1][1]:
                return epochs[at + 1][1] - offset, epochs[at + 1]
            return size_max, epochs[at]
    raise ValueError(f"no epoch holds offset {offset}; the first of {len(epochs)} begins later")
