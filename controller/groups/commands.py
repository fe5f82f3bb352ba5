"""What is asked of the replica table, and what it answers: the commands that Raft commits.

A command carries what its proposer knows (who is alive, how far logs reach, the time), so that every
Controller that applies it comes to the same answer. Fields in Raft's log keep the names they were first
written with, whatever the attribute is called today.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from controller.groups.elect import PRIORITY_LAST, End
from controller.packing import Limits, pack, unpack

SUCCESS: Final = 0
SYSTEM_ERROR: Final = 1
FENCED_MASTER_EPOCH: Final = 2000
FENCED_SET_EPOCH: Final = 2001
INVALID_MASTER: Final = 2002
INVALID_REPLICAS: Final = 2003
MASTER_NOT_AVAILABLE: Final = 2004
INVALID_REQUEST: Final = 2005
BROKER_NOT_ALIVE: Final = 2006
METADATA_NOT_EXIST: Final = 2008
INVALID_CLEAN: Final = 2009
NEED_TO_BE_REGISTERED: Final = 2010
MASTER_STILL_EXIST: Final = 2011
ELECT_MASTER_FAILED: Final = 2012
ALTER_FAILED: Final = 2013
BROKER_ID_INVALID: Final = 2014

FIRST_ID: Final = 1
NOBODY: Final = -1  # ELECT_MASTER's brokerId when the Controller itself asks


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """``request_id``: the same for each try of one request. ``alive``, ``within_grace``: what the leader has
    heard of brokers (``controller.elections.liveness``)."""

    group: str
    request_id: str = ""
    now_ms: int = 0
    alive: tuple[int, ...] = ()
    within_grace: tuple[int, ...] = msgspec.field(name="presumed", default=())


class AlterSyncStateSet(_Command, frozen=True, kw_only=True, tag="alter"):
    """``incarnations``: of the members, as the master knew them when it saw these catch up; a RocketMQ master
    says none."""

    master_id: int
    master_epoch: int
    members: tuple[int, ...]
    members_epoch: int
    incarnations: dict[int, int] = {}


class ElectMaster(_Command, frozen=True, kw_only=True, tag="elect"):
    """``designate``: ``broker_id`` shall be it, or nobody new. ``restarted``: ``broker_id`` is the master,
    come back with a log that has ``log_epoch`` as its last epoch; ``suspect``: it may have lost its end.
    ``all_ack``: by its heartbeats the master waits for every member; counts only where its registration did
    not say. ``answered``: the brokers that said for this election how far their logs are. ``master_epoch``:
    meant for this epoch and no later one; -1 = for whichever there is."""

    broker_id: int = NOBODY
    designate: bool = False
    restarted: bool = False
    log_epoch: int = PRIORITY_LAST
    suspect: bool = msgspec.field(name="doubtful", default=False)
    all_ack: bool = False
    master_epoch: int = -1
    answered: tuple[int, ...] = ()
    unclean: bool = False
    ends: dict[int, End] = {}


class RegisterBroker(_Command, frozen=True, kw_only=True, tag="register"):
    """A broker that started, or that the Controllers had forgotten.

    ``unclean``: it was not shut down in order, and has all it wrote (no rule asks for it any more).
    ``suspect``: its log may lack what it acknowledged. ``old``: besides, its disk was put back to an older
    state of itself, and so are its tables. ``learner``: it copies and counts nowhere.
    As master it waits for a majority of ``majority_of`` replicas (0 = it does not), or for every member
    (``all_ack``), and its leases follow from ``timeout_ms``. None and 0: a broker that does not say, of an
    older version or a RocketMQ broker.

    ``starts``: how often the broker was started, by its disk. ``process``: any name of this start's own;
    ``nth``: the number of this registration within it; ``before``: the other starts that its disk knows of,
    None = it does not say. What is older than the last one changes nothing."""

    cluster: str
    broker_id: int
    address: str
    ha_address: str = ""
    unclean: bool = False
    suspect: bool = msgspec.field(name="doubtful", default=False)
    old: bool = False
    majority_of: int = 0
    learner: bool = False
    all_ack: bool | None = None
    timeout_ms: int = 0
    starts: int = 0
    process: str = ""
    nth: int = 0
    before: tuple[str, ...] | None = None


class ApplyBrokerId(_Command, frozen=True, kw_only=True, tag="apply_id"):
    """``check_code``: ``address;millis``; the same one may apply again for the same id."""

    cluster: str
    broker_id: int
    check_code: str


class KeepToLeases(_Command, frozen=True, kw_only=True, tag="leases"):
    """The master of this epoch said that it acknowledges with a lease only, as it heard that a broker from
    outside of the SyncStateSet may be elected."""

    master_id: int
    master_epoch: int


class CleanBrokers(_Command, frozen=True, kw_only=True, tag="clean"):
    """``broker_ids`` None: the whole group. ``living``: also while they live."""

    broker_ids: tuple[int, ...] | None = None
    living: bool = False


class SetMaintenance(_Command, frozen=True, kw_only=True, tag="maintenance"):
    """While ``on``, ``broker_id`` is elected only where no other broker can be."""

    broker_id: int
    on: bool


Command = (
    AlterSyncStateSet
    | ElectMaster
    | RegisterBroker
    | ApplyBrokerId
    | KeepToLeases
    | CleanBrokers
    | SetMaintenance
)


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes back on the wire: ``body`` is the JSON value. ``changed``: the table is not what it was."""

    code: int = SUCCESS
    remark: str | None = None
    ext: dict[str, str] = {}
    body: Any = None
    changed: bool = False


_LIMITS: Final = Limits(bytes_max=0, text_max=1 << 20, items_max=1 << 20)
"""Of a command, an answer and the whole table: what is proposed has at most 1 MiB, and names keep to less."""


def encode_command(command: Command) -> bytes:
    return pack(command)


def decode_command(data: bytes) -> Command:
    """Raises Malformed."""
    command: Command = unpack(data, Command, _LIMITS)
    return command


def decode_answer(data: bytes) -> Answer:
    """Of ``ReplicaTable.apply_bytes``."""
    return unpack(data, Answer, _LIMITS)
