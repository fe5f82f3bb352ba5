"""What of PySyncObj is used, under which names, and how is it kept from touching anything else?

Used are its role, leader, term and vote, its deadlines, match and next indexes, the commit rule and the order
of application. ``LibraryNode`` gives them plain names; no other file knows the library's own. They are
private, so exactly one version fits: it is asserted here, and pinned in pyproject.toml.

The library reads its clock, its random source and its helpers from the names of its module. ``library`` is a
second copy of that module with such names replaced, so nothing changes for others who import pysyncobj, and
any number of nodes live in one process, also under a loop with virtual time.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import operator
import zlib
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, Final

from pysyncobj.node import Node as _LibraryPeer
from pysyncobj.transport import Transport as _LibraryTransport

from controller.raft.codec import SNAPSHOT_CHUNK_BYTES, Message, encode_message
from controller.raft.disk.journal import Journal

VERSION: Final = "0.3.17"
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2


def need_version(found: str) -> None:
    """Raises ImportError for any other PySyncObj than the one whose private names are used here."""
    if found != VERSION:
        raise ImportError(
            f"keelmq needs exactly pysyncobj {VERSION}, this is {found}: it uses private names of that "
            f"version (controller/raft/library.py). Install it: pip install pysyncobj=={VERSION}"
        )


need_version(importlib.metadata.version("pysyncobj"))


class SnapshotSender:
    """Stands where the library keeps its files: gives each lagging follower the snapshot in pieces."""

    def __init__(self) -> None:
        self.data: bytes | None = None
        self._at: dict[Any, int] = {}

    def store(self, data: bytes) -> None:
        self.data = data
        self._at.clear()

    def getTransmissionData(self, peer: Any) -> tuple[bytes, bool, bool] | None:
        if self.data is None:
            return None
        at = self._at.pop(peer, 0)
        piece = self.data[at : at + SNAPSHOT_CHUNK_BYTES]
        end = at + len(piece)
        last = end >= len(self.data)
        if not last:
            self._at[peer] = end
        return piece, at == 0, last

    def cancelTransmisstion(self, peer: Any) -> None:
        self._at.pop(peer, None)


def _private_library() -> ModuleType:
    spec = importlib.util.find_spec("pysyncobj.syncobj")
    assert spec is not None, "pysyncobj is a dependency"
    assert spec.loader is not None, "pysyncobj is plain Python"
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names: dict[str, Any] = {
        "monotonicTime": lambda: asyncio.get_running_loop().time(),
        "createJournal": lambda journal: journal,
        "createPoller": lambda _kind: SimpleNamespace(poll=lambda _timeout: None),
        "Serializer": lambda *_: SnapshotSender(),
        "PIPE_NOTIFIER_ENABLED": False,
        "globalDnsResolver": lambda: SimpleNamespace(
            setTimeouts=lambda *_: None, setPreferredAddrFamily=lambda _: None
        ),
        # None of these may be reached; without them an oversight is an error, not an unsafe act.
        "pickle": None,
        "random": SimpleNamespace(random=lambda: 0.0),
        "time": None,
        "os": None,
    }
    for name, value in names.items():
        assert hasattr(module, name), f"this pysyncobj has no {name}"
        setattr(module, name, value)
    return module


library: Any = _private_library()


class Peer(_LibraryPeer):  # type: ignore[misc]
    """A member by its id. The hash is the same in every process, hence so is the order of sets of peers."""

    def __init__(self, id: str, **kwargs: Any) -> None:
        super().__init__(id, **kwargs)
        self._hash = zlib.crc32(self.id.encode())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self.id == other.id


class Outbox(_LibraryTransport):  # type: ignore[misc]
    """The library's way out: what is said is first on the disk."""

    def __init__(
        self,
        journal: Journal,
        send: Callable[[str, bytes], bool],
        clock_ms: Callable[[], float],
        round_now: Callable[[], int],
    ) -> None:
        super().__init__(None, None, [])
        self._journal = journal
        self._clock_ms = clock_ms
        self._send = send
        self._round_now = round_now
        self.transfer = False

    def send(self, peer: Peer, message: Message | dict[str, Any]) -> bool:
        if isinstance(message, dict) and message["type"] == "append_entries":
            # Before the sync, which may take long: too early is the safe side.
            message["sent_us"] = int(self._clock_ms() * 1000)
            message["round"] = self._round_now()
        self._journal.sync()
        if self.transfer and isinstance(message, dict) and message["type"] == "request_vote":
            message["transfer"] = True
        return self._send(peer.id, encode_message(message))


def _kept(name: str) -> Any:
    """A field the library keeps under a private name."""
    private = f"_SyncObj__{name}"
    return property(operator.attrgetter(private), lambda node, value: setattr(node, private, value))


class LibraryNode(library.SyncObj):  # type: ignore[misc]
    """PySyncObj with plain names, and the places where it asks its owner.

    Raft's transitions are here: ``become_follower``, ``stand`` (the next tick makes it a candidate of the
    next term, which votes for itself and asks the others) and ``become_leader``.
    """

    role: int = _kept("raftState")
    leader_peer: Peer | None = _kept("raftLeader")
    voted_for: str | None = _kept("votedForNodeId")
    election_deadline: float = _kept("raftElectionDeadline")  # a follower's or candidate's patience ends
    append_due: float = _kept("newAppendEntriesTime")  # a leader speaks again
    counted_answer_at: dict[Peer, float] = _kept("lastResponseTime")  # each peer's last answer that counts
    match_index: dict[Peer, int] = _kept("raftMatchIndex")
    next_index: dict[Peer, int] = _kept("raftNextIndex")
    commit_index: int = _kept("raftCommitIndex")
    last_applied: int = _kept("raftLastApplied")
    leader_commit: int | None = _kept("leaderCommitIndex")  # by the leader's last word
    noop_index: int = _kept("noopIDx")  # of the entry this member began to lead with; only a leader has one
    linked: set[Peer] = _kept("connectedNodes")
    waiting: dict[int, list[tuple[int, Callable[[Any, int], None]]]] = _kept("commandsWaitingCommit")
    snapshots: SnapshotSender = _kept("serializer")

    # The library's constructor looks at every attribute, before it has set these.
    _SyncObj__newAppendEntriesTime = 0.0
    _SyncObj__commandsWaitingCommit: Any = None

    @property
    def term(self) -> int:
        return int(self.raftCurrentTerm)

    def leads(self) -> bool:
        return self.role == LEADER

    # transitions

    def set_term(self, term: int, vote: str | None) -> None:
        """Durable when this returns."""
        assert term >= self.term, f"the term goes back from {self.term} to {term}"
        self._SyncObj__setCurrentTerm(term, vote)

    def become_follower(self, leader: Peer | None) -> None:
        self._SyncObj__setState(FOLLOWER)
        self.leader_peer = leader

    def stand(self) -> None:
        self.election_deadline = -1.0

    def become_leader(self) -> None:
        """Of this term: knows nothing of the others' logs yet, and begins with an entry of its own term."""
        assert self.role == CANDIDATE, "only a candidate is elected"
        super()._SyncObj__onBecomeLeader()

    # what the owner calls

    def speak_now(self) -> None:
        """A leader's next tick sends to all members, whenever it was due."""
        self.append_due = -1.0

    def commit_to(self, index: int) -> None:
        assert index >= self.commit_index, f"commit goes back from {self.commit_index} to {index}"
        self.commit_index = index

    def skip_to(self, index: int) -> None:
        """A snapshot holds all up to ``index``. What waits for entries in it is never told: whether it is in
        there is unknown, and callers have deadlines."""
        self.last_applied = index
        self.commit_index = max(index, self.commit_index)
        for passed in [at for at in self.waiting if at <= index]:
            del self.waiting[passed]

    def library_tick(self) -> None:
        """Due elections, commits, applications and messages."""
        self._onTick(0.0)

    def link_up(self, peer: Peer) -> None:
        self._SyncObj__onNodeConnected(peer)

    def link_down(self, peer: Peer) -> None:
        self._SyncObj__onNodeDisconnected(peer)

    # what the library asks, and what the owner says

    def on_role(self, role: int) -> None:
        """The role is ``role`` from now on."""
        raise NotImplementedError

    def on_elected(self) -> None:
        """A majority voted for this member: call ``become_leader``."""
        raise NotImplementedError

    def patience_s(self) -> float:
        """How long from now to the next election."""
        raise NotImplementedError

    def apply_command(self, command: bytes) -> Any:
        """Apply a committed entry. Must not raise."""
        raise NotImplementedError

    def take_queued(self) -> None:
        """Append what was proposed since the last tick."""
        raise NotImplementedError

    def compact(self) -> None:
        """Shorten the log, if it is time."""
        raise NotImplementedError

    # The library's methods that are replaced, each with the reason.

    def _SyncObj__setState(self, state: int) -> None:
        # It has no word for a transfer of leadership that ends with the role.
        self.role = state
        self.on_role(state)

    def _SyncObj__onBecomeLeader(self) -> None:
        # A group of one elects itself within the tick; it must be admitted first, as in any election.
        self.on_elected()

    def _SyncObj__generateRaftTimeout(self) -> float:
        # Its chance is not seeded, and a candidate would wait as long as a follower.
        return self.patience_s()

    def _SyncObj__doApplyCommand(self, command: bytes) -> Any:
        # It unpickles the command, and an error in it stops every member for good.
        return self.apply_command(command)

    def _checkCommandsToApply(self) -> None:
        # It sends commands on to the leader, pickled; and queues them where nobody leads.
        self.take_queued()

    def _SyncObj__tryLogCompaction(self) -> None:
        # It forks, and does not sync what it writes.
        self.compact()
