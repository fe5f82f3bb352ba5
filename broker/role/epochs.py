"""Which epoch does each byte of the log belong to, before a new one is led?"""

from __future__ import annotations

from ha.slave.own_log import classic_from
from model.ids import NO_EPOCH, Epoch, PhysicalOffset
from store.files.epoch_file import EpochEntry
from store.message_store import MessageStore


def recorded_epoch(store: MessageStore) -> Epoch:
    """The last epoch that the log knows; 0 = none."""
    last = store.epochs.last
    return last.epoch if last is not None else NO_EPOCH


def reported_end(store: MessageStore, *, synced: bool) -> PhysicalOffset:
    """The end of the log that an election may count on. ``synced``: nothing is acknowledged before its sync.
    Then what a loss of power can still take is not of it: no restart would be suspect for that."""
    return min(store.log.end, store.log.flushed) if synced else store.log.end


def note_epoch(store: MessageStore, epoch: Epoch) -> None:
    """Give every byte of the log an epoch, and what comes behind it ``epoch``, which is led from now on.

    What was written before there were Controllers, or in a time without them, belongs to the first epoch
    after it: a replica that has other bytes there is cut where that time began. Where no new epoch was given,
    this one begins there instead: a replica that has it from before finds it nowhere.

    A RocketMQ broker's first epoch starts where its log ended when Controllers came. What lies before gets a
    number below all they give: a replica without it could not be sent it.
    """
    epochs, begin = store.epochs, store.log.min_offset
    since, last = classic_from(store), epochs.last
    new = last is None or epoch > last.epoch
    if since is not None and not new:
        epochs.replace([*epochs.entries[:-1], EpochEntry(epoch, since)])
        epochs.labelled()
    entries = epochs.entries
    if entries and entries[0].start > begin and entries[0].epoch > 0:
        epochs.replace([EpochEntry(NO_EPOCH, begin), *entries])
    if new:
        # The last step: that it is noted says that it was led.
        epochs.append(epoch, store.log.end if since is None else since)
