"""What is said of a step, and when it is done. Who tells steps apart asks their phase, never their words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from audit.rows.intervals import Interval


class Phase(IntEnum):
    """Steps are done in this order."""

    STOPPED = 0  # while brokers are stopped
    STARTS = 1  # it starts one
    WAITS = 2  # for the steps above it, and another audit


@dataclass(frozen=True, slots=True)
class Advice:
    phase: Phase
    text: str

    def and_also(self, more: str) -> Advice:
        return Advice(self.phase, f"{self.text} {more}")

    def of(self, spans: Sequence[Interval]) -> Advice:
        """Of stretches apart."""
        begin, until = spans[0]
        more = f", and {len(spans) - 1} more" if len(spans) > 1 else ""
        return Advice(self.phase, f"Of [{begin}, {until}){more}: {self.text}")


LOST: Final = Advice(
    Phase.STOPPED,
    "No store that was audited holds these messages. Audit again with the stores of dead replicas and of "
    "backups (keelmq backup restore); else their senders have to send them again.",
)
IN_A_STRAY: Final = Advice(
    Phase.STOPPED,
    "A file in commitlog holds records of their places under another name, or at other places: that one's "
    "step comes first.",
)
NOWHERE: Final = {
    "short_tail": Advice(
        Phase.STOPPED,
        "No replica goes on where this log has to: look in a backup (keelmq backup restore).",
    ),
    "epoch_mismatch": Advice(
        Phase.STOPPED,
        "Its log contradicts this file, and no other has to be right: look in a backup.",
    ),
}
"""What is wrong by the store itself; that others are right nobody says."""
NO_SOURCE: Final = Advice(
    Phase.WAITS,
    "No other copy is right wherever this needs it: mend the others first, and audit again. Until then keep "
    "this one, which may be right where they are not.",
)
NOT_HERE: Final = Advice(
    Phase.STOPPED,
    "No command reads or mends a store of another machine, or one that is compressed: put plain copies of "
    "all stores here, and audit those.",
)
FROM_OTHERS: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this takes the right bytes of the others, and makes queues and index.",
)
FROM_ONE: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this takes the bytes of a copy that is right there: a repair cannot tell which "
    "one is. Behind the last step that writes bytes of this store, keelmq store repair, with this store "
    "alone, makes queues and index.",
)
BYTES_ALONE: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this takes the bytes of a copy that is right there. No repair of this store "
    "yet: an entry of its queues, or of its index, contradicts a record.",
)
FILE_BACK: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this brings the file back; keelmq store verify checks it.",
)
EPOCHS_FIRST: Final = Advice(
    Phase.WAITS,
    "Its epoch file tells nothing, so nobody knows whose bytes are its own: that file's step comes first. "
    "Audit again then.",
)
EPOCHS_BACK: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this takes the other of the epoch file's two copies, which tells what another "
    "replica's does.",
)
ROOM: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this makes the file as long as a segment, of zeros where no copy is right: the "
    "next steps fill in the rest.",
)
FILLER: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this makes the file as long as a segment: what it lacks was filler, behind the "
    "segment's last record.",
)
UNREADABLE_BESIDE: Final = Advice(
    Phase.STOPPED,
    "No other that may lead can start as it is: mend this store. With its broker stopped, move the file away "
    "that cannot be read (where a disk fails, copy the rest of the store to another one). keelmq store "
    "repair, with this store alone, makes queues and index again; any other file comes back from its .bak or "
    "a backup.",
)
MORE: Final = Advice(
    Phase.WAITS,
    "There are more of these: do what stands above, and audit again.",
)
OF_LOG: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this makes queues and index of the log.",
)
QUEUE_SIZE: Final = (
    "No file of a queue is left here or at the stores it names: give it their size, too, with "
    "--queue-file-bytes (the broker's mappedFileSizeConsumeQueue), else it ends with exit code 2; or start "
    "the broker, which makes them."
)
LEAVES: Final = "What its files know of behind its log's end stays, with exit code 2: a start cuts it."
KEEP: Final = Advice(
    Phase.WAITS,
    "Keep this store: no other copy is right in all that it holds, or another one is to be made anew before. "
    "Mend the others, audit again, and make it anew then.",
)
ALONE: Final = Advice(
    Phase.STOPPED,
    "Copy what can be read of this store to another disk first: no other copy was audited. What is gone then "
    "may be in a backup (keelmq backup restore).",
)
UNDECIDED: Final = Advice(
    Phase.STOPPED,
    "Which copy is right is open: give all replicas, or a ledger; then decide, as no command can.",
)
RECORD_OR_ENTRY: Final = Advice(
    Phase.STOPPED,
    "A record there tells another queue, place in it, tag, key or size than the entry that was made of it, "
    "and no replica of which both agree has it so, or only fewer than have it otherwise: which of them was "
    "changed is open. Give all replicas, or a ledger, or look in a backup (keelmq backup restore). A repair "
    "would go by the record.",
)
FOLLOW: Final = Advice(
    Phase.STARTS,
    "Start its broker in the group: it follows the master from where both agree, or says why not.",
)
CUT: Final = "What it alone has is cut then; keelmq store export, with --from, writes it before."
SUFFIX: Final = Advice(
    Phase.STOPPED,
    "Do not start its broker in the group: that cuts what it has from here on. Copy the store to another "
    "disk first; then keelmq store export, with --from and --bodies, writes these messages, to be sent again "
    "(exit code 1: some of it cannot be read). Once they are, start its broker.",
)
MISPLACED: Final = Advice(
    Phase.STOPPED,
    "Copy the store to another disk first, and keep the copy: a record of it stands elsewhere than it says, "
    "and may be the only copy of a message. Send again from there what is lost, if its senders cannot: once "
    "this is done an audit may take it for too old. Then put this file back from a replica that is right in "
    "it (cp), and keelmq store repair, with --from each of the others, makes queues and index.",
)
MADE_BEHIND: Final = Advice(
    Phase.WAITS,
    "Do what stands above, and audit again: the rest is mended once each file of commitlog has its own name.",
)
IN_ANOTHER_SUFFIX: Final = Advice(
    Phase.WAITS,
    "Another replica has it, where a rejoin cuts its log: that one's step comes first; then send the "
    "message again.",
)
TRACES: Final = Advice(
    Phase.STOPPED,
    "No repair yet: no log goes on where one has to, and queues and index may be the only trace of what is "
    "lost there. Look in a backup first (keelmq backup restore), or copy this store to another disk.",
)
BEHIND: Final = Advice(
    Phase.STARTS,
    "It names what its log lacks: no repair makes that, and it may be the only trace of what is lost. Look "
    "in a backup first (keelmq backup restore), or copy this store to another disk. Then start its broker: "
    "keelmq cuts such entries off consumequeue, RocketMQ writes its queue's next message over them.",
)
ASIDE: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, move this file out of commitlog, and keep it (file_corrupt names it). If no "
    "replica has the segment that its records name, it is that segment: put it back under that name "
    "(unpacked, if it is compressed; keep also what stands there). Audit again before this store is "
    "repaired: that tells what fills the place where it stood.",
)
PUT_BACK: Final = Advice(
    Phase.STOPPED,
    "Its records go on behind where any replica's log has them. With its broker stopped, put this file back "
    "under the name that they tell (file_corrupt tells it; move what stands there to another disk, and keep "
    "it). Audit again before anything is started or repaired.",
)
PUT_BACK_FIRST: Final = Advice(
    Phase.WAITS,
    "A file in commitlog under another name goes on behind where any replica's log has its records: that "
    "one's step comes first, as a start, or another store that leads, would give them up. Audit again then.",
)


def file_away(file: str) -> Advice:
    """``file``: of a queue, below the store."""
    return Advice(
        Phase.STOPPED,
        f"With its broker stopped, move the file {file} out of the store, and keep it: no broker of this "
        "store made it, as the names of such files are multiples of their size, and none starts with it. "
        "A repair leaves it.",
    )


def folder_away(folder: str) -> Advice:
    """``folder``: below the store."""
    return Advice(
        Phase.STOPPED,
        f"With its broker stopped, move the folder {folder} out of the store, and keep it: its entries are "
        "of another queue, which has no folder. Then the repair of this store makes that queue anew; before, "
        "it would end with exit code 2 each time.",
    )


TOO_LONG: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, copy this file to another disk, and keep it: what stands in it behind the "
    "segment's end is in no log. Then cut it to a segment's size (truncate), and audit again.",
)
ZEROS_BEHIND: Final = Advice(
    Phase.STOPPED,
    "With its broker stopped, this cuts off zeros that stand behind the segment's end.",
)
OTHERWISE: Final = Advice(
    Phase.STOPPED,
    "No command mends this: find out what wrote it (docs/operations.md, When something is wrong).",
)
NO_GOOD_COPY: Final = Advice(
    Phase.STOPPED, "No replica holds a good copy: look in a backup (keelmq backup restore)."
)
_FROM_BACKUP: Final = Advice(
    Phase.STOPPED, "Put the file back from its .bak or a backup while its broker is stopped."
)
BY_HAND: Final = {
    "file_corrupt": _FROM_BACKUP,
    "file_missing": _FROM_BACKUP,
    "files_unseen": Advice(
        Phase.STOPPED, "Move what is no segment out of commitlog, keep it, and audit again."
    ),
    "same_file": Advice(
        Phase.STOPPED, "Give stores that are copies of their own: one file counts as one copy."
    ),
    "epoch_file_corrupt": Advice(
        Phase.STARTS, "Start its broker while a master is there: it copies the master's epoch file."
    ),
    "dup_message": Advice(Phase.STOPPED, "Nothing to mend: a sender tried again. Consumers have to bear it."),
    "consumer_offset_beyond": Advice(
        Phase.STOPPED, "keelmq consumer reset GROUP TOPIC sets the group back to what is there."
    ),
    "crc_mismatch": NO_GOOD_COPY,
    "unreadable_region": NO_GOOD_COPY,
    "phys_offset_mismatch": NO_GOOD_COPY,
}


def anew(begin: str, leader: str) -> Advice:
    """``begin``: how the sentence begins."""
    return Advice(
        Phase.STARTS, f"{begin} the broker with an empty store while {leader} leads: it copies the master's."
    )


def leader_first(leader: str) -> Advice:
    """Of a store that is to be made anew as soon as one may lead."""
    return Advice(
        Phase.WAITS,
        f"Keep this store: {leader} is right in all that it holds, but cannot lead as it is. Do the steps of "
        f"{leader} first, audit again, and make this one anew then.",
    )


def segment_first(source: str) -> Advice:
    """Of a store with a segment that cannot be read, and with others that nobody else has right."""
    return Advice(
        Phase.STOPPED,
        f"No other copy is right in all that this store holds, but {source} is in this file. With its broker "
        "stopped, move the file out of commitlog, and keep it (where a disk fails, copy the rest of the "
        "store to another one). Audit again: that tells what puts it back.",
    )
