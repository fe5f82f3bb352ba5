"""Which brokers belong to a group, who is its master, and who is in sync with it?

``ReplicaTable`` is the state all Controllers share. ``apply`` takes the committed commands one by one; it is
total and deterministic: it looks at no clock and at nothing but the table and the command. What a proposer
knows (who is alive, how far logs reach, the time) travels in the command; what it *assumed* (epochs) is
compared here, not before. Rules, codes and their order are those of RocketMQ 5.x (``ReplicasInfoManager``),
except:

- a broker id is never given twice, and epochs grow on, also after a group was cleaned and made anew: a broker
  that comes back with an old store must not be taken for another, and NameServers order masters by epoch;
- an election that finds nobody raises the epoch only when it takes the mastership from somebody;
- an asking broker must be registered;
- offsets are compared as whole numbers (``controller.groups.elect``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from controller.groups.elect import PRIORITY_LAST, Ballot, End, choose
from controller.packing import Limits, Malformed, pack, unpack

SUCCESS: Final = 0
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
ANSWERS_MAX: Final = 512  # request ids remembered, so that a repeated proposal is applied once


class _Command(msgspec.Struct, frozen=True, kw_only=True, tag_field="op", forbid_unknown_fields=True):
    """``request_id``: the same for each try of one request; ``alive``, ``presumed``: ``groups.liveness``."""

    group: str
    request_id: str = ""
    now_ms: int = 0
    alive: tuple[int, ...] = ()
    presumed: tuple[int, ...] = ()


class AlterSyncStateSet(_Command, frozen=True, kw_only=True, tag="alter"):
    master_id: int
    master_epoch: int
    members: tuple[int, ...]
    members_epoch: int


class ElectMaster(_Command, frozen=True, kw_only=True, tag="elect"):
    """``designate``: ``broker_id`` shall be it, or nobody new. ``restarted``: ``broker_id`` is the master,
    come back with a log that has ``log_epoch`` as its last epoch; ``doubtful``: it may have lost its end in a
    power failure; ``all_ack``: what it (or the master that is replaced) confirmed, every member of its
    SyncStateSet has; see ``Group``. ``answered``: who said for this election how far its log is.
    ``master_epoch``: it is meant for this epoch and no later one; -1 = for whichever there is."""

    broker_id: int = NOBODY
    designate: bool = False
    restarted: bool = False
    log_epoch: int = PRIORITY_LAST
    doubtful: bool = False
    all_ack: bool = False
    master_epoch: int = -1
    answered: tuple[int, ...] = ()
    unclean: bool = False
    ends: dict[int, End] = {}


class RegisterBroker(_Command, frozen=True, kw_only=True, tag="register"):
    """``unclean``: it was not shut down in order, and has all it wrote (no rule asks for it any more).
    ``doubtful``: what it acknowledged may be gone with the power. ``majority_of``: it works in majority mode,
    in a group of so many replicas; 0 = it does not. ``learner``: it copies and counts nowhere."""

    cluster: str
    broker_id: int
    address: str
    ha_address: str = ""
    unclean: bool = False
    doubtful: bool = False
    majority_of: int = 0
    learner: bool = False


class ApplyBrokerId(_Command, frozen=True, kw_only=True, tag="apply_id"):
    """``check_code``: ``address;millis``; the same one may apply again for the same id."""

    cluster: str
    broker_id: int
    check_code: str


class CleanBrokers(_Command, frozen=True, kw_only=True, tag="clean"):
    """``broker_ids`` None: the whole group. ``living``: also while they live."""

    broker_ids: tuple[int, ...] | None = None
    living: bool = False


Command = AlterSyncStateSet | ElectMaster | RegisterBroker | ApplyBrokerId | CleanBrokers


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What goes back on the wire: ``body`` is the JSON value. ``changed``: the table is not what it was."""

    code: int = SUCCESS
    remark: str | None = None
    ext: dict[str, str] = {}
    body: Any = None
    changed: bool = False


class Replica(msgspec.Struct):
    address: str
    check_code: str
    ha_address: str = ""
    majority_of: int = 0
    learner: bool = False


class Group(msgspec.Struct):
    """``members`` is the SyncStateSet. ``virgin``: no master was ever elected since the group was made.
    ``before``: the other brokers that had all that was acknowledged when ``master`` was elected, the former
    master included; they have it still as long as ``master`` has not begun its epoch.
    ``unclean_elections``: how often one became master who could only because the election might be unclean,
    each time with the loss of what others held. ``doubtful``: brokers whose machine lost its memory, until a
    master has seen them catch up. ``removed``: who led, or may have, and was removed since the last election:
    it may not know, and confirm as long as its lease lasts."""

    cluster: str
    next_id: int = FIRST_ID
    replicas: dict[int, Replica] = {}
    master: int | None = None
    epoch: int = 0
    members: list[int] = []
    members_epoch: int = 0
    virgin: bool = True
    before: list[int] = []
    unclean_elections: int = 0
    doubtful: list[int] = []
    removed: list[int] = []

    @property
    def voters(self) -> tuple[int, ...]:
        return tuple(i for i, replica in sorted(self.replicas.items()) if not replica.learner)

    @property
    def majority_of(self) -> int:
        """In majority mode: of how many replicas, registered or not, a majority has every acknowledged
        record. 0 = not in majority mode."""
        registered = max((replica.majority_of for replica in self.replicas.values()), default=0)
        return max(registered, len(self.voters)) if registered else 0

    def ballot(self, command: ElectMaster) -> Ballot:
        asks = command.broker_id
        return Ballot(
            members=self.members,
            voters=self.voters,
            alive=command.alive,
            within_grace=command.presumed,
            answered=command.answered,
            suspect=self.doubtful,
            ends=command.ends,
            master=self.master,
            preferred=asks if command.designate and asks != NOBODY else None,
            all_ack=command.all_ack,
            majority_of=self.majority_of,
            unclean=command.unclean,
        )

    def choice(self, command: ElectMaster) -> int | None:
        """The broker this election makes master, or leaves it; None = nobody may be."""
        asks, ballot = command.broker_id, self.ballot(command)
        if self.virgin and asks in self.voters:
            # The first to ask leads, unless it may have forgotten what another one still has.
            return choose(msgspec.structs.replace(ballot, members=(asks,))) if asks in self.doubtful else asks
        if command.restarted and asks == self.master:
            return self._successor_of_restarted(command)
        return choose(ballot)

    def peers_of_restarted(self, command: ElectMaster) -> list[int]:
        """The brokers that have all that was acknowledged when the master came back, besides it.

        One that was elected while its process was down has not begun its epoch: the members before it have
        it all. A suspect one proves nothing by an older epoch in its log, the newer one may be what it lost.
        """
        begun = command.log_epoch >= self.epoch or command.broker_id in self._suspects(command)
        had = self.members if begun else self.before
        return [m for m in had if m != command.broker_id and m in self.replicas]

    def _suspects(self, command: ElectMaster) -> set[int]:
        return {*self.doubtful, *((command.broker_id,) if command.doubtful else ())}

    def _successor_of_restarted(self, command: ElectMaster) -> int | None:
        """The master came back, and leads on in a new epoch at best: what slaves have of the old one may
        differ. In mode *all* another member leads rather than it; where fewer acknowledged, the furthest of
        the members and itself. A suspect one is a member like any other suspect."""
        asks, suspect = command.broker_id, self._suspects(command)
        peers = self.peers_of_restarted(command)
        sound = [peer for peer in peers if peer in command.alive and peer not in suspect]
        members = sound if sound and command.all_ack else [*peers, asks]
        ballot = msgspec.structs.replace(
            self.ballot(command),
            members=members,
            alive={*command.alive, asks},
            answered={*command.answered, asks},
            suspect=suspect,
            master=None,
            preferred=None,
        )
        return choose(ballot)

    def address(self, broker_id: int | None) -> str | None:
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address


class _Retired(msgspec.Struct, array_like=True):
    """What outlives a cleaned group."""

    next_id: int
    epoch: int
    members_epoch: int


class _Image(msgspec.Struct, array_like=True):
    version: int
    groups: dict[str, Group]
    retired: dict[str, _Retired]
    answers: dict[str, Answer]


_LIMITS: Final = Limits(bytes_max=0, text_max=1 << 20, items_max=1 << 20)
"""Of a command, an answer and the whole table: what is proposed has at most 1 MiB, and names keep to less."""


def encode_command(command: Command) -> bytes:
    return pack(command)


def decode_answer(data: bytes) -> Answer:
    """Of ``ReplicaTable.apply_bytes``."""
    return unpack(data, Answer, _LIMITS)


@dataclass(slots=True)
class ReplicaTable:
    """The groups, and the answers to recent requests.

    Holds: within one epoch a group has at most one master; epochs and SyncStateSet epochs never go back; a
    master is in its SyncStateSet; all members are registered; an id is given once.
    """

    groups: dict[str, Group] = field(default_factory=dict)
    _retired: dict[str, _Retired] = field(default_factory=dict)
    _answers: dict[str, Answer] = field(default_factory=dict)

    def apply(self, command: dict[str, Any] | Command) -> dict[str, Any]:
        """Carry out one command; the answer as plain values. Never raises for what a command says."""
        if not isinstance(command, dict):
            return _plain(self._once(command))
        try:
            checked: Command = msgspec.convert(command, Command)
        except msgspec.ValidationError as error:
            return _plain(Answer(INVALID_REQUEST, f"not a command: {error}"))
        return _plain(self._once(checked))

    def apply_bytes(self, data: bytes) -> bytes:
        """As ``apply``, for an encoded command: what Raft commits."""
        try:
            command: Command = unpack(data, Command, _LIMITS)
        except Malformed as error:
            return pack(Answer(INVALID_REQUEST, f"not a command: {error}"))
        return pack(self._once(command))

    def snapshot(self) -> bytes:
        return pack(_Image(1, self.groups, self._retired, self._answers))

    def restore(self, data: bytes) -> None:
        """Raises ValueError for bytes that are no snapshot of this version."""
        try:
            image: _Image = unpack(data, _Image, _LIMITS)
        except Malformed as error:
            raise ValueError(f"not a replica table: {error}") from None
        if image.version != 1:
            raise ValueError(f"a replica table of version {image.version}; this one reads version 1")
        self.groups, self._retired, self._answers = image.groups, image.retired, image.answers

    # reading

    def next_id(self, group: str) -> int:
        """The id a new broker of ``group`` should apply for."""
        found = self.groups.get(group)
        if found is not None:
            return found.next_id
        retired = self._retired.get(group)
        return FIRST_ID if retired is None else retired.next_id

    def replica_info(self, name: str) -> Answer:
        """GET_REPLICA_INFO."""
        group = self.groups.get(name)
        if group is None:
            return Answer(METADATA_NOT_EXIST, f"group {name} is not known")
        ext = {"masterEpoch": str(group.epoch)}
        if group.master is not None:
            ext |= {"masterBrokerId": str(group.master), "masterAddress": group.address(group.master) or ""}
        return Answer(ext=ext | _doubtful_of(group), body=_set_body(group))

    def sync_state_data(
        self,
        names: Iterable[str],
        alive: Callable[[str, int], bool],
        ends: Callable[[str], dict[int, End]],
    ) -> Answer:
        """GET_SYNC_STATE_DATA; groups that are not known are left out. ``epoch``, ``maxOffset`` and
        ``electionPriority`` of a replica are keelmq's own."""
        table: dict[str, Any] = {}
        for name in names:
            group = self.groups.get(name)
            if group is None:
                continue
            known = ends(name)
            rows = {
                broker_id: {
                    "alive": alive(name, broker_id),
                    "brokerAddress": replica.address,
                    "brokerId": broker_id,
                    "brokerName": name,
                    **_end_of(known.get(broker_id)),
                }
                for broker_id, replica in sorted(group.replicas.items())
            }
            table[name] = {
                "inSyncReplicas": [row for i, row in rows.items() if i in group.members],
                "masterAddress": group.address(group.master),
                "masterBrokerId": group.master,
                "masterEpoch": group.epoch,
                "notInSyncReplicas": [row for i, row in rows.items() if i not in group.members],
                "syncStateSetEpoch": group.members_epoch,
            }
        return Answer(body={"replicasInfoTable": table})

    # commands

    def _once(self, command: Command) -> Answer:
        known = self._answers.get(command.request_id) if command.request_id else None
        if known is not None:
            return known
        match command:
            case AlterSyncStateSet():
                answer = self._alter(command)
            case ElectMaster():
                answer = self._elect(command)
            case RegisterBroker():
                answer = self._register(command)
            case ApplyBrokerId():
                answer = self._apply_id(command)
            case CleanBrokers():
                answer = self._clean(command)
        if command.request_id:
            self._answers[command.request_id] = answer
            if len(self._answers) > ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
        return answer

    def _alter(self, command: AlterSyncStateSet) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        if group is None:
            return Answer(ALTER_FAILED, f"group {name} is not known")
        members = sorted(set(command.members))
        if members == group.members:
            return Answer(ALTER_FAILED, f"the SyncStateSet of {name} already is {members}")
        if group.master != command.master_id:
            return Answer(INVALID_MASTER, f"master of {name} is {group.master}, not {command.master_id}")
        if group.epoch != command.master_epoch:
            return Answer(
                FENCED_MASTER_EPOCH, f"epoch of {name} is {group.epoch}, not {command.master_epoch}"
            )
        if group.members_epoch != command.members_epoch:
            return Answer(
                FENCED_SET_EPOCH,
                f"SyncStateSet epoch of {name} is {group.members_epoch}, not {command.members_epoch}",
            )
        for member in members:
            if member not in group.replicas:
                return Answer(INVALID_REPLICAS, f"broker {member} is not registered in {name}")
            if member not in command.alive and member not in command.presumed:
                return Answer(BROKER_NOT_ALIVE, f"broker {member} of {name} is not alive")
        if group.master not in members:
            return Answer(ALTER_FAILED, f"{members} lacks the master {group.master} of {name}")
        # Whoever joins was level with the master's log since it registered.
        joined = set(members) - set(group.members)
        group.doubtful = [broker_id for broker_id in group.doubtful if broker_id not in joined]
        group.members, group.members_epoch = members, group.members_epoch + 1
        return Answer(
            ext={"newSyncStateSetEpoch": str(group.members_epoch)}, body=_set_body(group), changed=True
        )

    def _elect(self, command: ElectMaster) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        asks = command.broker_id
        if group is None:
            return Answer(NEED_TO_BE_REGISTERED, f"group {name} is not known")
        restarted = command.restarted and asks == group.master
        if asks != NOBODY and asks not in group.replicas:
            return Answer(NEED_TO_BE_REGISTERED, f"broker {asks} is not registered in {name}")
        if command.master_epoch not in (-1, group.epoch):
            return Answer(
                FENCED_MASTER_EPOCH, f"epoch of {name} is {group.epoch}, not {command.master_epoch}"
            )
        chosen = group.choice(command)
        if chosen is None and restarted:
            return self._without_restarted(group, command)
        if chosen is None:
            if asks != NOBODY:
                return Answer(ELECT_MASTER_FAILED, nobody(name, group, command))
            lost = group.master is not None
            if lost:
                # The set stays: only its members may hold all that was acknowledged.
                group.master, group.epoch = None, group.epoch + 1
            return Answer(MASTER_NOT_AVAILABLE, nobody(name, group, command), changed=lost)
        if chosen == group.master and not restarted:
            return self._elected(name, group, MASTER_STILL_EXIST, f"master {chosen} of {name} is alive")
        known = [*group.peers_of_restarted(command), asks] if restarted else group.members
        if not group.virgin and group.choice(msgspec.structs.replace(command, unclean=False)) != chosen:
            group.unclean_elections += 1
        group.before = [member for member in known if member != chosen]
        group.master, group.epoch, group.virgin = chosen, group.epoch + 1, False
        group.members, group.members_epoch = [chosen], group.members_epoch + 1
        group.removed = []
        if chosen in group.doubtful:
            group.doubtful.remove(chosen)  # from now on what it has is what the group has
        return self._elected(name, group, SUCCESS, None)

    def _without_restarted(self, group: Group, command: ElectMaster) -> Answer:
        """It may have lost what others have who are not there: the group waits for them."""
        asks = command.broker_id
        if command.doubtful and asks not in group.doubtful:
            group.doubtful.append(asks)
        group.members_epoch += 1
        group.master, group.epoch = None, group.epoch + 1
        text = f"broker {asks} of {command.group} may lack messages that {group.members} together have"
        return Answer(ELECT_MASTER_FAILED, text, changed=True)

    @staticmethod
    def _elected(name: str, group: Group, code: int, remark: str | None) -> Answer:
        addresses = {str(i): replica.address for i, replica in sorted(group.replicas.items())}
        return Answer(
            code,
            remark,
            {
                "masterBrokerId": str(group.master),
                "masterAddress": group.address(group.master) or "",
                "masterEpoch": str(group.epoch),
                "syncStateSetEpoch": str(group.members_epoch),
                **_doubtful_of(group),
            },
            {
                "brokerMemberGroup": {
                    "brokerAddrs": addresses,
                    "brokerName": name,
                    "cluster": group.cluster,
                },
                "syncStateSet": list(group.members),
            },
            changed=code == SUCCESS,
        )

    def _register(self, command: RegisterBroker) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        replica = None if group is None else group.replicas.get(command.broker_id)
        if group is None or replica is None:
            return Answer(NEED_TO_BE_REGISTERED, f"broker {command.broker_id} has no id in {name}")
        before = msgspec.structs.astuple(replica)
        replica.address = command.address or replica.address
        replica.ha_address = command.ha_address or replica.ha_address
        replica.majority_of, replica.learner = command.majority_of, command.learner
        left = command.doubtful and self._leaves_the_set(group, command)
        if command.doubtful and command.broker_id not in group.doubtful:
            # A set under way was proposed for what the broker had before: its base epoch is over.
            group.doubtful.append(command.broker_id)
            group.members_epoch += 1
            left = True
        ext = {
            "clusterName": group.cluster,
            "brokerName": name,
            "masterEpoch": str(group.epoch),
            "syncStateSetEpoch": str(group.members_epoch),
        }
        master = group.master
        if master is not None and (master in command.alive or master in command.presumed):
            ext |= {"masterBrokerId": str(master), "masterAddress": group.address(master) or ""}
        changed = left or before != msgspec.structs.astuple(replica)
        return Answer(ext=ext | _doubtful_of(group), body=_set_body(group), changed=changed)

    @staticmethod
    def _leaves_the_set(group: Group, command: RegisterBroker) -> bool:
        """A member that may have lost its end is none until the master has seen it catch up; if no other
        member lives, it stays: somebody has to go on. The master asks for its next epoch instead.

        Suspect members do not count, nor those that are within their grace only."""
        others = [member for member in group.members if member != command.broker_id]
        if command.broker_id == group.master or len(others) == len(group.members):
            return False
        lives = any(member in command.alive and member not in group.doubtful for member in others)
        if not lives:
            return False
        group.members, group.members_epoch = others, group.members_epoch + 1
        return True

    def _apply_id(self, command: ApplyBrokerId) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        wanted = command.broker_id
        ext = {"clusterName": command.cluster, "brokerName": name}
        replica = None if group is None else group.replicas.get(wanted)
        if replica is not None:
            if replica.check_code == command.check_code:
                return Answer(ext=ext)
            return Answer(BROKER_ID_INVALID, f"id {wanted} of {name} belongs to {replica.address}")
        free = self.next_id(name)
        if wanted != free:
            return Answer(BROKER_ID_INVALID, f"id {wanted} of {name} cannot be given; the next one is {free}")
        if group is None:
            was = self._retired.pop(name, _Retired(FIRST_ID, 0, 0))
            group = self.groups[name] = Group(
                command.cluster, was.next_id, epoch=was.epoch, members_epoch=was.members_epoch
            )
        address = command.check_code.partition(";")[0]
        group.replicas[wanted] = Replica(address, command.check_code)
        group.next_id = wanted + 1
        return Answer(ext=ext, changed=True)

    def _clean(self, command: CleanBrokers) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        if group is None:
            return Answer(INVALID_CLEAN, f"group {name} is not known")
        if not command.living:
            if command.broker_ids is None and group.master is not None:
                return Answer(INVALID_CLEAN, f"group {name} has a master, {group.master}")
            for broker_id in command.broker_ids or ():
                if broker_id in command.alive or broker_id in command.presumed:
                    return Answer(INVALID_CLEAN, f"broker {broker_id} of {name} is alive")
        gone = set(group.replicas if command.broker_ids is None else command.broker_ids)
        for broker_id in sorted(gone & set(group.replicas)):
            del group.replicas[broker_id]
        group.doubtful = [broker_id for broker_id in group.doubtful if broker_id not in gone]
        if gone & set(group.members):
            if group.master is None or group.master in gone:
                led = gone & set(group.members if group.master is None else (group.master,))
                group.removed = sorted({*group.removed, *led})
            group.members = [member for member in group.members if member not in gone]
            group.members_epoch += 1
        if group.master in gone:
            group.master, group.epoch = None, group.epoch + 1
        if not group.replicas:
            del self.groups[name]
            self._retired[name] = _Retired(group.next_id, group.epoch, group.members_epoch)
        return Answer(changed=True)


def nobody(name: str, group: Group, command: ElectMaster) -> str:
    """Why an election found nobody, for the operator who has to bring one back."""
    alive = sorted({*command.alive, command.broker_id} & set(group.replicas))
    doubt = f", in doubt {group.doubtful}" if group.doubtful else ""
    return (
        f"no broker of {name} may become master: its SyncStateSet is {sorted(group.members)},"
        f" registered {sorted(group.replicas)}, alive {alive}{doubt}"
    )


def _set_body(group: Group) -> dict[str, Any]:
    return {"syncStateSet": list(group.members), "syncStateSetEpoch": group.members_epoch}


def _doubtful_of(group: Group) -> dict[str, str]:
    """For the brokers: whose log may lack its end."""
    return {"doubtful": ";".join(map(str, sorted(group.doubtful)))} if group.doubtful else {}


def _end_of(end: End | None) -> dict[str, int]:
    if end is None:
        return {}
    return {"epoch": end.epoch, "maxOffset": end.max_offset, "electionPriority": end.priority}


def _plain(answer: Answer) -> dict[str, Any]:
    return {
        "code": answer.code,
        "remark": answer.remark,
        "ext": dict(answer.ext),
        "body": answer.body,
        "changed": answer.changed,
    }
