"""Does any schedule break Raft's promises? Random ones over the real ``controller.raft.node.Node``.

    seed --rates--> steps: deliver, tick, propose, link, cut, pause, hand over, kill, power loss, damage, wipe
                        └──► after each step: Node.check_invariants, and what only an onlooker sees

An onlooker sees: one leader a term; one vote a term, also over restarts; what members applied are pieces of
one sequence; what was answered is applied and in the log of every later leader. Each seed draws its own
rates, so some have many elections and some have many entries.

    python -m chaos.raft.fuzz --seeds 200 --members 5 [--steps 4000] [--bug no_sync]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

from admin.exits import DONE, FAILED, UNFINISHED, USAGE
from chaos.raft.bugs import BUGS
from chaos.sim.disk import Machine, SimDisk
from chaos.sim.loop import Life, SimLoop
from controller.raft.calls import StateMachine
from controller.raft.codec import RequestVote, Vote, decode_message, decode_snapshot
from controller.raft.disk.journal import Journal
from controller.raft.disk.snapshots import Storage
from controller.raft.node import REGULAR, Diverged, Node
from controller.raft.timing import Timing
from model.errors import DiskError, PeerError
from runtime.env import read_file, write_file

TIMING: Final = Timing(
    append_s=0.05, election_min_s=0.25, election_max_s=0.5, fallback_s=0.1875, retry_s=0.025
)
SNAPSHOT: Final = "/raft/raft.snapshot"
JOURNAL: Final = "/raft/raft.journal"
NAMES: Final = "abcdefg"
QUIET_ROUNDS: Final = 400
WAITS_S: Final = (0.0, 0.0, 0.0005, 0.003, 0.02, 0.06)
BURSTS: Final = (1, 1, 3, 10)
COMPACTIONS: Final = (8, 40, 1000)

RATES: Final = {
    "deliver": (30.0, 60.0),
    "tick": (20.0, 40.0),
    "propose": (1.0, 12.0),
    "link": (3.0, 10.0),
    "cut": (0.5, 5.0),
    "pause": (0.0, 3.0),
    "hand_over": (0.0, 2.0),
    "rivals": (0.0, 3.0),
    "kill": (0.2, 2.0),
    "lose_power": (0.2, 2.0),
    "start": (0.5, 4.0),
    "damage": (0.0, 0.5),
    "wipe": (0.0, 0.3),
}
"""Of a hundred steps about so many are of this kind: each seed draws between the two."""


class Broken(Exception):
    """A promise does not hold any more."""


@dataclass(slots=True)
class Member:
    """One Raft member over its lives."""

    name: str
    machine: Machine
    life: Life
    node: Node | None = None
    journal: Journal | None = None
    applied: list[bytes] = field(default_factory=list)
    paused: bool = False
    suspect: bool = False  # wiped or damaged, and not admitted since

    @property
    def runs(self) -> bool:
        return self.node is not None and not self.paused


class Onlooker:
    """Sees all members at once, and raises Broken."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self.longest: list[bytes] = []
        self.answered: list[bytes] = []

    def heard(self, sender: Member, to: str, message: object) -> None:
        """``sender`` says this."""
        assert sender.journal is not None, "it runs"
        if isinstance(message, RequestVote) and sender.journal.admitted:
            self._voted(sender.name, message.term, sender.name)
        elif isinstance(message, Vote) and message.granted and message.admitted:
            self._voted(sender.name, message.term, to)

    def _voted(self, voter: str, term: int, candidate: str) -> None:
        given = self.votes.setdefault((voter, term), candidate)
        if given != candidate:
            raise Broken(f"{voter} votes for {given} and for {candidate} in term {term}")

    def forget_votes(self, voter: str) -> None:
        """It lost its directory: what counts is that it has no vote until it is admitted."""
        self.votes = {key: vote for key, vote in self.votes.items() if key[0] != voter}

    def look(self, members: list[Member]) -> None:
        for member in members:
            self._look_at(member)
        known = set(self.longest)
        for command in self.answered[-5:]:
            if command not in known:
                raise Broken(f"{command!r} was answered, and nobody applied it")
        self._leader_completeness(members)

    def _look_at(self, member: Member) -> None:
        node, applied = member.node, member.applied
        if node is None:
            return
        if node.leads() and self.leaders.setdefault(node.term, member.name) != member.name:
            raise Broken(f"term {node.term} is led by {self.leaders[node.term]} and {member.name}")
        both = min(len(applied), len(self.longest))
        if applied[:both] != self.longest[:both]:
            raise Broken(f"{member.name} applied another sequence: {applied[max(0, both - 3) : both]!r}")
        if len(applied) > len(self.longest):
            self.longest = list(applied)

    def _leader_completeness(self, members: list[Member]) -> None:
        newest = max(self.leaders, default=0)
        for member in members:
            node, journal = member.node, member.journal
            if node is None or journal is None or not node.leads() or node.term != newest:
                continue
            held = {*member.applied, *(command[1:] for command, _, _ in journal[:])}
            lacks = [command for command in self.answered if command not in held]
            if lacks:
                raise Broken(f"{member.name} leads term {newest} and lacks the answered {lacks[:3]!r}")


class World:
    """``count`` members, FIFO links that lose what is under way when they break, and one clock."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(f"raft:{seed}")
        self.seed = seed
        self.members = {name: self._member(name) for name in NAMES[:count]}
        self.links: dict[tuple[str, str], dict[str, deque[bytes]]] = {}
        self.seen = Onlooker()
        self.counts: Counter[str] = Counter()
        drawn = {kind: self.rng.uniform(least, most) for kind, (least, most) in RATES.items()}
        self._kinds, self._weights = list(drawn), list(drawn.values())

    def _member(self, name: str) -> Member:
        return Member(name, Machine(name, self.seed, lambda: 0), Life(name, 0))

    # members

    def start(self, member: Member) -> None:
        member.life = Life(member.name, 0)
        member.life.alive = True
        disk = SimDisk(member.machine, member.life)
        disk.makedirs("/raft")
        applied = member.applied = []
        snapshot = decode_snapshot(read_file(disk, SNAPSHOT)) if disk.exists(SNAPSHOT) else None
        try:
            journal = member.journal = Journal(disk, JOURNAL, member.name)
        except DiskError as error:
            raise Broken(f"{member.name} cannot start: {error}") from None

        def apply(command: bytes) -> bytes:
            applied.append(command)
            return b"ok"

        def restore(state: bytes) -> None:
            applied[:] = state.split(b"\n") if state else []

        member.node = Node(
            member.name,
            [name for name in self.members if name != member.name],
            timing=TIMING,
            storage=Storage(
                journal,
                snapshot,
                lambda data: write_file(disk, SNAPSHOT, data),
                self.rng.choice(COMPACTIONS),
            ),
            machine=StateMachine(apply, lambda: b"\n".join(applied), restore),
            chance=random.Random(self.rng.random()),
            send=partial(self._send, member),
        )
        journal.sync()

    def stop(self, member: Member, *, power: bool) -> None:
        if member.node is None:
            return
        member.node = None
        member.life.alive = member.paused = False
        for other in self.members:
            self.cut(member.name, other)
        member.machine.process_died(member.life)
        if power:
            member.machine.lose_power()

    def guarded(self, member: Member, step: Callable[[], Any]) -> bool:
        """Whether ``step`` of this member was in order; False: its peer broke the rules."""
        try:
            step()
        except PeerError:
            return False
        except (DiskError, Diverged, AssertionError) as error:
            raise Broken(f"{member.name}: {type(error).__name__}: {error}") from error
        return True

    # links

    def link(self, one: str, other: str) -> dict[str, deque[bytes]] | None:
        """What is under way on it, by receiver."""
        return self.links.get((min(one, other), max(one, other)))

    def _send(self, sender: Member, to: str, data: bytes) -> bool:
        link = self.link(sender.name, to)
        if link is None:
            return False
        self.seen.heard(sender, to, decode_message(data))
        link[to].append(data)
        return True

    def connect(self, one: str, other: str) -> None:
        a, b = self.members[one], self.members[other]
        if one == other or a.node is None or b.node is None or self.link(one, other) is not None:
            return
        self.links[min(one, other), max(one, other)] = {one: deque(), other: deque()}
        a.node.up(other)
        b.node.up(one)

    def cut(self, one: str, other: str) -> None:
        if self.links.pop((min(one, other), max(one, other)), None) is None:
            return
        for here, there in ((one, other), (other, one)):
            node = self.members[here].node
            if node is not None:
                node.down(there)

    def deliver(self, sender: str, to: str) -> None:
        """The first message on its way, if it still is."""
        link, receiver = self.link(sender, to), self.members[to]
        if link is None or not link[to] or receiver.node is None:
            return
        message = decode_message(link[to].popleft())
        if not self.guarded(receiver, lambda: receiver.node and receiver.node.received(sender, message)):
            self.cut(sender, to)

    def under_way(self) -> Iterator[tuple[str, str]]:
        for (one, other), link in self.links.items():
            for to in (one, other):
                if link[to] and self.members[to].runs:
                    yield (other if to == one else one), to

    # one step

    def step(self) -> None:
        kind = self.rng.choices(self._kinds, self._weights)[0]
        self.counts[kind] += 1
        getattr(self, f"_{kind}")(self.rng.choice(list(self.members.values())))
        for member in self.members.values():
            member.suspect = member.suspect and not (
                member.node is not None and member.journal is not None and member.journal.admitted
            )

    def _deliver(self, _member: Member) -> None:
        if ready := list(self.under_way()):
            sender, to = self.rng.choice(ready)
            for _ in range(self.rng.choice(BURSTS)):
                self.deliver(sender, to)

    def _tick(self, member: Member) -> None:
        if member.node is not None and member.runs:
            self.guarded(member, member.node.tick)

    def _propose(self, _member: Member) -> None:
        leading = [m for m in self.members.values() if m.runs and m.node is not None and m.node.leads()]
        if not leading:
            return
        node = self.rng.choice(leading).node
        assert node is not None, "it leads"
        self.counts["proposed"] += 1
        command = b"c%d" % self.counts["proposed"]

        def done(_result: Any, why: str | None) -> None:
            if why is None:
                self.seen.answered.append(command)

        node.propose(REGULAR + command, done)

    def _link(self, member: Member) -> None:
        for other in self.members:
            self.connect(member.name, other)

    def _cut(self, member: Member) -> None:
        self.cut(member.name, self.rng.choice(list(self.members)))

    def _pause(self, member: Member) -> None:
        """Its clock goes on, and it does nothing; a paused one goes on."""
        member.paused = member.node is not None and not member.paused and self.rng.random() < 0.5

    def _hand_over(self, member: Member) -> None:
        if member.node is not None and member.runs:
            member.node.transfer_leadership()

    def _rivals(self, _member: Member) -> None:
        """A leader asks two members to lead, votes for the first, is restarted, and is asked by the second:
        two candidates of one term, which pre-votes, and links that end with a member, hardly allow."""
        leading = [m for m in self.members.values() if m.runs and m.node is not None and m.node.leads()]
        if not leading:
            return
        leader = self.rng.choice(leading)
        assert leader.node is not None, "it leads"
        for _ in range(3):  # only members that hold all and answered lately are asked
            leader.node.speak_now()
            self._tick(leader)
            for other in self.members.values():
                self._deliver_all(leader, other)
                self._deliver_all(other, leader)
        asked: list[Member] = []
        for other in self.rng.sample(list(self.members.values()), len(self.members)):
            if len(asked) < 2 and other.runs and leader.node.transfer_leadership(other.name):
                asked.append(other)
        if len(asked) < 2:
            return
        first, second = asked
        for other in asked:
            self._deliver_all(leader, other)
        self._tick(first)
        self._deliver_all(first, leader)
        self.stop(leader, power=self.rng.random() < 0.5)
        self.start(leader)
        self.connect(leader.name, second.name)
        self._tick(second)
        self._deliver_all(second, leader)

    def _deliver_all(self, sender: Member, to: Member) -> None:
        """What is under way to ``to`` now, if it still is."""
        link = self.link(sender.name, to.name)
        for _ in range(0 if link is None else len(link[to.name])):
            self.deliver(sender.name, to.name)

    def _kill(self, member: Member) -> None:
        self.stop(member, power=False)

    def _lose_power(self, member: Member) -> None:
        self.stop(member, power=True)

    def _start(self, _member: Member) -> None:
        for member in self.members.values():
            if member.node is None:
                self.start(member)

    def _minority(self, member: Member) -> bool:
        suspect = {m.name for m in self.members.values() if m.suspect} | {member.name}
        return len(suspect) * 2 < len(self.members)

    def _damage(self, member: Member) -> None:
        """One bit of the last batch of its journal is another one, after its power was lost."""
        if not self._minority(member):
            return
        self.stop(member, power=True)
        if JOURNAL not in member.machine.paths("/raft/"):
            return
        data = bytearray(member.machine.content(JOURNAL))
        last = data.rfind(b"KRB1")
        if data.count(b"KRB1") < 2:
            return  # the first batch came into being by a rename: damage there is refused
        data[self.rng.randrange(last, len(data))] ^= 1 << self.rng.randrange(8)
        life = Life(member.name, 0)
        life.alive = True
        write_file(SimDisk(member.machine, life), JOURNAL, bytes(data))
        member.suspect = True

    def _wipe(self, member: Member) -> None:
        """A new, empty machine under the same name."""
        if not self._minority(member):
            return
        self.stop(member, power=True)
        member.machine = Machine(member.name, self.rng.randrange(1 << 32), lambda: 0)
        member.suspect = True
        self.seen.forget_votes(member.name)

    # the whole

    async def begin(self) -> None:
        """A group begins when all its members are there, and each is admitted."""
        for member in self.members.values():
            self.start(member)
        for one in self.members:
            for other in self.members:
                self.connect(one, other)
        for _ in range(QUIET_ROUNDS):
            for member in self.members.values():
                if member.node is not None and self.rng.random() < 0.5:
                    self.guarded(member, member.node.tick)
            for sender, to in list(self.under_way()):
                self.deliver(sender, to)
            await asyncio.sleep(0.02)
            if all(m.journal is not None and m.journal.admitted for m in self.members.values()):
                return
        raise Broken("a healthy group elected nobody, or did not admit all")

    async def run(self, steps: int) -> None:
        await self.begin()
        for _ in range(steps):
            self.step()
            self.seen.look(list(self.members.values()))
            await asyncio.sleep(self.rng.choice(WAITS_S))


def fuzz(seed: int, *, members: int = 3, steps: int = 2000) -> Counter[str]:
    """What happened on this seed's schedule. Raises Broken."""
    loop = SimLoop(seed)
    world = World(seed, members)
    try:
        loop.run_until_complete(world.run(steps))
    finally:
        loop.close()
    world.counts.update(answered=len(world.seen.answered), elections=len(world.seen.leaders))
    return world.counts


@contextmanager
def planted(bug: str | None) -> Iterator[None]:
    if bug is None:
        yield
        return
    owner, name, replacement = BUGS[bug]
    original = getattr(owner, name)
    setattr(owner, name, replacement(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


class _Parser(argparse.ArgumentParser):
    """Wrong usage ends with 64 like all of keelmq: 2 is a broken promise."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message}\n")


def _count(least: int, most: int = 1 << 62) -> Callable[[str], int]:
    def count(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            wanted = f"at least {least}" if most > 1 << 60 else f"from {least} to {most}"
            raise argparse.ArgumentTypeError(f"{value} is not {wanted}")
        return value

    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: no promise was broken. 2: one was; a line repeats it. 3: a planted bug was not found."""
    parser = _Parser(
        prog="chaos.raft.fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=_count(1), default=100)
    parser.add_argument("--first", type=_count(0), default=0)
    parser.add_argument("--members", type=_count(1, len(NAMES)), default=3)
    parser.add_argument("--steps", type=_count(1), default=4000)
    parser.add_argument("--bug", choices=sorted(BUGS))
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    total: Counter[str] = Counter()
    broken = 0
    options = f"--members {given.members} --steps {given.steps}" + (
        f" --bug {given.bug}" if given.bug else ""
    )
    with planted(given.bug):
        for seed in range(given.first, given.first + given.seeds):
            try:
                total += fuzz(seed, members=given.members, steps=given.steps)
            except Broken as error:
                broken += 1
                print(f"seed {seed}: {error}")
                print(f"    python -m chaos.raft.fuzz --first {seed} --seeds 1 {options}")
    print(f"{given.seeds} seeds, {broken} broken; {dict(sorted(total.items()))}")
    if given.bug and not broken:
        print(f"the planted bug {given.bug} was NOT found")
        return UNFINISHED
    return FAILED if broken else DONE


if __name__ == "__main__":
    sys.exit(main())
