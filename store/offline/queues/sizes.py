"""How large are the files of a store's queues? Its own say, else its replicas', else who calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from model.queue_sizes import Told, opens, told_by
from runtime.env import Disk
from store.offline.directory import SegmentInfo, StoreDirectory

UNTOLD: Final = (
    "nothing tells how large the queue files are: name replicas (--from) or the size (--queue-file-bytes), or"
    " start the broker, which makes them in its own"
)


def queue_files(store: StoreDirectory) -> Sequence[Sequence[SegmentInfo]]:
    return [store.queue_files(*queue) for queue in store.queues()]


def size_of(disk: Disk, store: StoreDirectory, peers: Sequence[str] = (), configured: int = 0) -> Told:
    """What the store's own files say, else the replicas' at ``peers``, else who calls (0: nobody did).

    Replicas' brokers may have another size than this one: theirs counts only where no file here denies it."""
    own = queue_files(store)
    told = told_by(own)
    if told.sure:
        return told
    files = [file for queue in own for file in queue]
    theirs: list[Sequence[SegmentInfo]] = []
    for peer in peers:
        with StoreDirectory(disk, peer, lenient=True) as other:
            theirs += queue_files(other)
    others = told_by(theirs)
    for size in (others.size if others.sure else 0, configured):
        if size and all(opens(size, file) for file in files):
            return Told(size, True)
    return told
