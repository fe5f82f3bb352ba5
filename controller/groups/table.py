"""Which brokers belong to a group, which is its master, and which are in sync with it?

``ReplicaTable`` is the state all Controllers share. ``apply`` takes the committed commands one by one; it is
total and deterministic: it looks at no clock and at nothing but the table and the command. What a command
*assumed* (epochs, incarnations) is compared here, not before. Rules, codes and their order are those of
RocketMQ 5.x (``ReplicasInfoManager``), except:

- a broker id is never given twice, and epochs grow on, also after a group was cleaned and made anew: a broker
  that comes back with an old store must not be taken for another, and NameServers order masters by epoch;
- an election that finds nobody raises the epoch only when it takes the mastership from somebody;
- an asking broker must be registered;
- offsets are compared as whole numbers (``controller.groups.elect``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from controller.groups.commands import (
    ALTER_FAILED,
    BROKER_ID_INVALID,
    BROKER_NOT_ALIVE,
    ELECT_MASTER_FAILED,
    FENCED_MASTER_EPOCH,
    FENCED_SET_EPOCH,
    FIRST_ID,
    INVALID_CLEAN,
    INVALID_MASTER,
    INVALID_REPLICAS,
    INVALID_REQUEST,
    MASTER_NOT_AVAILABLE,
    MASTER_STILL_EXIST,
    METADATA_NOT_EXIST,
    NEED_TO_BE_REGISTERED,
    NOBODY,
    SUCCESS,
    SYSTEM_ERROR,
    AlterSyncStateSet,
    Answer,
    ApplyBrokerId,
    CleanBrokers,
    Command,
    ElectMaster,
    KeepToLeases,
    RegisterBroker,
    SetMaintenance,
    decode_command,
)
from controller.groups.elect import End
from controller.groups.group import Group, Replica
from controller.packing import Limits, Malformed, pack, unpack

log = logging.getLogger(__name__)

ANSWERS_MAX: Final = 512
"""So many request ids are remembered, so that a repeated proposal is applied once."""


_LIMITS: Final = Limits(bytes_max=0, text_max=1 << 20, items_max=1 << 20)

# A copy for the check after each command: ten times as fast as copy.deepcopy.
_ENCODE_GROUP: Final = msgspec.msgpack.Encoder().encode
_DECODE_GROUP: Final = msgspec.msgpack.Decoder(Group).decode


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


@dataclass
class ReplicaTable:
    """The groups, and the answers to recent requests. What always holds: ``check_invariants``."""

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
            command = decode_command(data)
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

    def replica_info(self, name: str, asker: int = -1) -> Answer:
        """GET_REPLICA_INFO; keelmq's brokers say who asks, and hear where that id is registered."""
        group = self.groups.get(name)
        if group is None:
            return Answer(METADATA_NOT_EXIST, f"group {name} is not known")
        ext = {"masterEpoch": str(group.epoch)}
        if group.master is not None:
            ext |= {"masterBrokerId": str(group.master), "masterAddress": group.address(group.master) or ""}
        if asker >= 0:
            ext["registeredAddress"] = group.address(asker) or ""
        return Answer(ext=ext | _ours_of(group), body=_set_body(group))

    def sync_state_data(
        self,
        names: Iterable[str],
        alive: Callable[[str, int], bool],
        ends: Callable[[str], dict[int, End]],
    ) -> Answer:
        """GET_SYNC_STATE_DATA; groups that are not known are left out. ``epoch``, ``maxOffset`` and
        ``electionPriority`` of a replica, and ``maintenance``, are keelmq's own."""
        table: dict[str, Any] = {}
        for name in names:
            group = self.groups.get(name)
            if group is None:
                continue
            known, inside = ends(name), set(group.members)
            rows = {
                broker_id: {
                    "alive": alive(name, broker_id),
                    "brokerAddress": replica.address,
                    "brokerId": broker_id,
                    "brokerName": name,
                    **({"maintenance": True} if broker_id in group.maintenance else {}),
                    **_end_of(known.get(broker_id)),
                }
                for broker_id, replica in sorted(group.replicas.items())
            }
            table[name] = {
                "inSyncReplicas": [row for i, row in rows.items() if i in inside],
                "masterAddress": group.address(group.master),
                "masterBrokerId": group.master,
                "masterEpoch": group.epoch,
                "notInSyncReplicas": [row for i, row in rows.items() if i not in inside],
                "syncStateSetEpoch": group.members_epoch,
            }
        return Answer(body={"replicasInfoTable": table})

    # commands

    def _once(self, command: Command) -> Answer:
        known = self._answers.get(command.request_id) if command.request_id else None
        if known is not None:
            return known
        answer = self._checked(command)
        if command.request_id:
            self._answers[command.request_id] = answer
            if len(self._answers) > ANSWERS_MAX:
                del self._answers[next(iter(self._answers))]
        return answer

    def _checked(self, command: Command) -> Answer:
        """Carry out ``command``, or nothing of it when that fails or would break what always holds: our own
        mistake, and the same one on every Controller. The group stays as it was, and the answer says so. It
        is part of what every Controller holds, so it says nothing that a library or a machine words."""
        name, retired = command.group, dict(self._retired)
        group = self.groups.get(name)
        was = None if group is None else _DECODE_GROUP(_ENCODE_GROUP(group))
        try:
            answer = self._carry_out(command)
            self._check_group(name, was)
        except AssertionError as broken:
            log.critical("group %s: refused %r: %s", name, command, broken)
            self._put_back(name, was, retired)
            return Answer(SYSTEM_ERROR, f"refused, it would break what always holds in {name}: {broken}")
        except Exception:
            log.critical("group %s: refused %r: a mistake of ours", name, command, exc_info=True)
            self._put_back(name, was, retired)
            return Answer(SYSTEM_ERROR, f"refused, carrying it out failed in {name}: the log says how")
        return answer

    def _put_back(self, name: str, was: Group | None, retired: dict[str, _Retired]) -> None:
        self._retired = retired
        if was is None:
            self.groups.pop(name, None)
        else:
            self.groups[name] = was

    def check_invariants(self) -> None:
        """Raise AssertionError if a promise about a group is broken. The group of a command is checked after
        it, here and in production, also against what it was before."""
        for name in self.groups:
            self._check_group(name, None)
        assert len(self._answers) <= ANSWERS_MAX, f"{len(self._answers)} answers are remembered"

    def _check_group(self, name: str, was: Group | None) -> None:
        group = self.groups.get(name)
        if group is not None:
            assert name not in self._retired, f"group {name} is both there and gone"
            group.check_invariants(was)
        elif was is not None:
            kept = self._retired.get(name)
            assert kept is not None, f"group {name} is gone with its epochs"
            assert kept.epoch >= was.epoch, f"epochs of {name} could begin anew"
            assert kept.next_id >= was.next_id, f"ids of {name} could be given again"

    def _carry_out(self, command: Command) -> Answer:
        match command:
            case AlterSyncStateSet():
                return self._alter(command)
            case ElectMaster():
                return self._elect(command)
            case RegisterBroker():
                return self._register(command)
            case ApplyBrokerId():
                return self._apply_id(command)
            case KeepToLeases():
                return self._keep_to_leases(command)
            case CleanBrokers():
                return self._clean(command)
            case SetMaintenance():
                return self._maintain(command)

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
        if group.master not in members:
            return Answer(ALTER_FAILED, f"{members} lacks the master {group.master} of {name}")
        for member in sorted(set(members) - set(group.members)):
            # Only of those that join: who stays has what is answered, whether we hear it or not. Else a
            # master could not leave out one that died as long as another one is cut off from us alone.
            if member not in command.alive and member not in command.within_grace:
                return Answer(BROKER_NOT_ALIVE, f"broker {member} of {name} is not alive")
            if group.replicas[member].learner:
                return Answer(INVALID_REPLICAS, f"broker {member} of {name} is a learner")
            now = group.replicas[member].incarnation
            # Level it was, before it forgot once more. A RocketMQ master says nothing: the epoch has to do.
            if command.incarnations.get(member, now) != now:
                text = (
                    f"broker {member} of {name} is in incarnation {now}, not {command.incarnations[member]}"
                )
                return Answer(FENCED_SET_EPOCH, text)
        group.set_members(members)
        return Answer(
            ext={"newSyncStateSetEpoch": str(group.members_epoch)}, body=_set_body(group), changed=True
        )

    def _elect(self, command: ElectMaster) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        asks = command.broker_id
        if group is None:
            return Answer(NEED_TO_BE_REGISTERED, f"group {name} is not known")
        if asks != NOBODY and asks not in group.replicas:
            return Answer(NEED_TO_BE_REGISTERED, f"broker {asks} is not registered in {name}")
        if command.master_epoch not in (-1, group.epoch):
            return Answer(
                FENCED_MASTER_EPOCH, f"epoch of {name} is {group.epoch}, not {command.master_epoch}"
            )
        restarted = command.restarted and asks == group.master
        chosen = group.choice(command)
        if restarted:
            group.starts_anew(asks)
        if chosen is None:
            return self._elect_nobody(group, command, restarted=restarted)
        if chosen == group.master and not restarted:
            return self._elected(name, group, MASTER_STILL_EXIST, f"master {chosen} of {name} is alive")
        known = [*group.peers_of_restarted(command), asks] if restarted else group.members
        clean = msgspec.structs.replace(command, unclean=False)
        unclean = not group.virgin and group.choice(clean) != chosen
        group.unclean_elections += unclean
        group.elected(chosen, known, needs_lease=command.unclean, unclean=unclean)
        return self._elected(name, group, SUCCESS, None)

    def _keep_to_leases(self, command: KeepToLeases) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        if group is None or group.master != command.master_id:
            return Answer(INVALID_MASTER, f"broker {command.master_id} is not master of {name}")
        if group.epoch != command.master_epoch:
            return Answer(
                FENCED_MASTER_EPOCH, f"epoch of {name} is {group.epoch}, not {command.master_epoch}"
            )
        changed, group.needs_lease = not group.needs_lease, True
        return Answer(changed=changed)

    def _maintain(self, command: SetMaintenance) -> Answer:
        name, group, broker_id = command.group, self.groups.get(command.group), command.broker_id
        if group is None:
            return Answer(METADATA_NOT_EXIST, f"group {name} is not known")
        if broker_id not in group.replicas:
            return Answer(BROKER_ID_INVALID, f"broker {broker_id} is not registered in {name}")
        if command.on and not set(group.voters) - {*group.maintenance, broker_id}:
            return Answer(INVALID_REQUEST, f"no other broker of {name} would be left to lead")
        changed = group.maintain(broker_id, command.on)
        return Answer(ext=_ours_of(group), changed=changed)

    def _elect_nobody(self, group: Group, command: ElectMaster, *, restarted: bool) -> Answer:
        if restarted:
            return self._without_restarted(group, command)
        text = nobody(command.group, group, command) + (held_back(group) if command.unclean else "")
        if command.broker_id != NOBODY:
            return Answer(ELECT_MASTER_FAILED, text)
        lost = group.master is not None
        if lost:
            group.depose()
        return Answer(MASTER_NOT_AVAILABLE, text, changed=lost)

    def _without_restarted(self, group: Group, command: ElectMaster) -> Answer:
        """It may lack what absent brokers have: the group waits for them."""
        asks = command.broker_id
        if command.suspect and asks not in group.suspect:
            group.suspect.append(asks)
        group.members_epoch += 1
        group.depose()
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
                **_ours_of(group),
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
        if replica.is_newer_than(command):
            return _overtaken(name, replica, command)
        if command.learner and command.broker_id in group.members:
            return _no_learner_yet(name, command.broker_id, group)
        if command.starts:
            replica.starts, replica.process, replica.nth = command.starts, command.process, command.nth
            replica.named = command.before is not None
        before = msgspec.structs.astuple(replica)
        replica.address = command.address or replica.address
        replica.ha_address = command.ha_address or replica.ha_address
        replica.majority_of, replica.learner = command.majority_of, command.learner
        replica.all_ack, replica.timeout_ms = command.all_ack, command.timeout_ms
        if command.broker_id != group.master:
            # The master may still lead this epoch, when it was elected while it was down.
            group.starts_anew(command.broker_id)
        changed = False
        if command.suspect:
            changed = self._remove_suspect_from_set(group, command)
            group.distrust(command.broker_id, old=command.old)
            # What was proposed, or is acknowledged, for what the broker had before: that is over, each time.
            replica.incarnation += 1
            group.members_epoch += 1
        if group.changes_mode(command.broker_id):
            group.depose()
        changed |= before != msgspec.structs.astuple(replica)
        return _registered(group, command, changed=changed)

    @staticmethod
    def _remove_suspect_from_set(group: Group, command: RegisterBroker) -> bool:
        """A member that may have lost its end is none until the master has seen it catch up; if no other
        member lives, it stays: somebody has to go on. The master asks for its next epoch instead.

        Suspect members do not count, nor those that are within their grace only."""
        others = [member for member in group.members if member != command.broker_id]
        if command.broker_id == group.master or len(others) == len(group.members):
            return False
        lives = any(member in command.alive and member not in group.suspect for member in others)
        if not lives:
            return False
        group.members, group.members_epoch = others, group.members_epoch + 1
        rule = group.rule
        counted = rule is None or not (rule.all_ack or rule.majority_of)
        if counted or command.broker_id in group.holders:
            group.left_unasked = [*group.left_unasked, command.broker_id]
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
                command.cluster,
                was.next_id,
                epoch=was.epoch,
                members_epoch=was.members_epoch,
                life=command.check_code,
            )
        address = command.check_code.partition(";")[0]
        group.replicas[wanted] = Replica(address, command.check_code)
        group.next_id = wanted + 1
        return Answer(ext=ext, changed=True)

    def _clean(self, command: CleanBrokers) -> Answer:
        name, group = command.group, self.groups.get(command.group)
        if group is None:
            return Answer(INVALID_CLEAN, f"group {name} is not known")
        why = None if command.living else _not_cleanable(group, command)
        if why is not None:
            return Answer(INVALID_CLEAN, why)
        group.remove(set(group.replicas if command.broker_ids is None else command.broker_ids))
        if not group.replicas:
            del self.groups[name]
            self._retired[name] = _Retired(group.next_id, group.epoch, group.members_epoch)
        return Answer(changed=True)


def _registered(group: Group, command: RegisterBroker, *, changed: bool) -> Answer:
    ext = {
        "clusterName": group.cluster,
        "brokerName": command.group,
        "masterEpoch": str(group.epoch),
        "syncStateSetEpoch": str(group.members_epoch),
    }
    master = group.master
    if master is not None and (master in command.alive or master in command.within_grace):
        ext |= {"masterBrokerId": str(master), "masterAddress": group.address(master) or ""}
    return Answer(ext=ext | _ours_of(group), body=_set_body(group), changed=changed)


def _overtaken(name: str, replica: Replica, command: RegisterBroker) -> Answer:
    text = (
        f"broker {command.broker_id} of {name} registered as start {replica.starts} of its disk, this is"
        f" start {command.starts}: it came late, or the disk was put back to an older state"
    )
    return Answer(BROKER_ID_INVALID, text, {"starts": str(replica.starts), "process": replica.process})


def _no_learner_yet(name: str, broker_id: int, group: Group) -> Answer:
    """Nobody elects a learner, and a member may have what no other broker has. A master lets it go first."""
    text = f"broker {broker_id} is in the SyncStateSet {group.members} of {name}"
    return Answer(INVALID_REQUEST, f"{text}: it may become a learner when it has left that")


def _not_cleanable(group: Group, command: CleanBrokers) -> str | None:
    """Why these brokers may not be removed while living ones must stay; None = they may."""
    name = command.group
    if command.broker_ids is None and group.master is not None:
        return f"group {name} has a master, {group.master}"
    for broker_id in command.broker_ids or ():
        if broker_id in command.alive or broker_id in command.within_grace:
            return f"broker {broker_id} of {name} is alive"
    return None


def nobody(name: str, group: Group, command: ElectMaster) -> str:
    """Why an election found nobody, for the operator who has to bring one back."""
    alive = sorted({*command.alive, command.broker_id} & set(group.replicas))
    suspects = f", suspect {group.suspect}" if group.suspect else ""
    return (
        f"no broker of {name} may become master: its SyncStateSet is {sorted(group.members)},"
        f" registered {sorted(group.replicas)}, alive {alive}{suspects}"
    )


def held_back(group: Group) -> str:
    """Why no outsider is elected though the operator allows it: "" when nothing holds it back."""
    if group.outsiders_may_lead:
        return ""
    *others, last = map(str, group.may_confirm_without_lease)
    brokers, each, their = ("broker", "it", "its")
    if others:
        brokers, each, their = "brokers", "each of them", "their"
        last = f"{', '.join(others)} and {last}"
    return (
        f"; {brokers} {last} may go on by {their} members' word, so enableElectUncleanMaster elects nobody"
        f" until {each} hears of it, is started anew or is removed (keelmq group forget)"
    )


def _set_body(group: Group) -> dict[str, Any]:
    return {"syncStateSet": list(group.members), "syncStateSetEpoch": group.members_epoch}


def _ours_of(group: Group) -> dict[str, str]:
    """For the brokers: whose log may lack its end, how often each forgot, whether the master needs a lease
    whatever its members say, and whose tables it takes over first: ``EPOCH@ID=ADDRESS,ID=ADDRESS;...``, with
    the life that its epochs are of."""
    incarnations = {
        i: replica.incarnation for i, replica in sorted(group.replicas.items()) if replica.incarnation
    }
    told = {}
    if group.suspect:
        told["doubtful"] = ";".join(map(str, sorted(group.suspect)))
    if group.needs_lease:
        told["electsOutsiders"] = "true"
    if group.table_sources:
        told["tablesAt"] = ";".join(
            f"{source.epoch}@" + ",".join(f"{i}={group.address(i)}" for i in source.brokers)
            for source in group.table_sources
        )
        if group.life:
            told["tablesLife"] = group.life
    if group.maintenance:
        told["maintenance"] = ";".join(map(str, group.maintenance))
    if incarnations:
        told["incarnations"] = ";".join(f"{i}:{times}" for i, times in incarnations.items())
    return told


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
