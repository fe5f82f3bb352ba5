"""Does any schedule break Raft's promises? Random ones over the real ``controller.raft.node.Node``.

    seed --rates--> steps: deliver, tick, propose, read, link, cut, part, pause, hand over, kill,
                        │  power loss, damage, wipe, replace a machine
                        └──► after each step: Node.check_invariants, and what only an onlooker sees

An onlooker sees: one leader a term; one vote a term, also over restarts; what members applied are pieces of
one sequence; what was answered is applied and in the log of every later leader; a read holds all that was
answered, or read, before it was asked. Each seed draws its own rates, so some have many elections and some
have many entries.

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
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from admin.exits import DONE, FAILED, UNFINISHED, USAGE
from chaos.raft.bugs import BUGS, planted
from chaos.raft.members import Broken, Member, has_to_end, open_to
from chaos.raft.onlooker import Onlooker
from chaos.sim.disk import Machine, SimDisk
from chaos.sim.loop import Life, SimLoop
from controller.raft.calls import StateMachine
from controller.raft.codec import decode_message, decode_snapshot
from controller.raft.disk.journal import Journal
from controller.raft.disk.snapshots import Storage
from controller.raft.node import REGULAR, Diverged, Node
from controller.raft.timing import Timing
from model.errors import DiskError, PeerError, Refused
from runtime.env import read_file, write_file

TIMING: Final = Timing(
    append_s=0.05, election_min_s=0.25, election_max_s=0.5, fallback_s=0.1875, retry_s=0.025
)
SNAPSHOT: Final = "/raft/raft.snapshot"
JOURNAL: Final = "/raft/raft.journal"
NAMES: Final = "abcdefg"
QUIET_ROUNDS: Final = 400
QUIETS: Final = (0, 0, 100, 200)
CALM: Final = ("deliver", "deliver", "tick", "tick", "propose")
WAITS_S: Final = (0.0, 0.0, 0.0005, 0.003, 0.02, 0.06)
BURSTS: Final = (1, 1, 3, 10)
COMPACTIONS: Final = (8, 40, 1000)

RATES: Final = {
    "deliver": (30.0, 60.0),
    "tick": (20.0, 40.0),
    "propose": (1.0, 12.0),
    "read": (1.0, 6.0),
    "link": (3.0, 10.0),
    "cut": (0.5, 5.0),
    "part": (0.0, 1.0),
    "comes_back": (0.0, 2.0),
    "pause": (0.0, 3.0),
    "hand_over": (0.0, 2.0),
    "rivals": (0.0, 3.0),
    "overtaken": (0.0, 2.0),
    "kill": (0.2, 2.0),
    "lose_power": (0.2, 2.0),
    "start": (0.5, 4.0),
    "damage": (0.0, 0.5),
    "wipe": (0.0, 0.5),
    "replace": (0.0, 3.0),
}
"""Of a hundred steps about so many are of this kind: each seed draws between the two."""


@dataclass(slots=True)
class Change:
    """A replacement the operator has no good answer for yet: only that to the last of ``tries`` counts."""

    seat: str
    address: str
    tries: int = 0


class World:
    """``count`` members, FIFO links that lose what is under way when they break, and one clock."""

    def __init__(self, seed: int, count: int) -> None:
        self.rng = random.Random(f"raft:{seed}")
        self.seed = seed
        first = {name: f"{name}:0" for name in NAMES[:count]}
        self.seats = {name: self._member(name, name, first) for name in first}
        self.members = dict(self.seats)
        self.change: Change | None = None
        self.links: dict[tuple[str, str], dict[str, deque[bytes]]] = {}
        self.sides: dict[str, bool] = {}  # those of the other side are not reached; empty: all are
        self.ends: dict[tuple[str, str], str] = {}  # machine, seat -> the machine there is a link to
        self.quiet = 0  # so many steps nothing fails
        self.seen = Onlooker()
        self.counts: Counter[str] = Counter()
        drawn = {kind: self.rng.uniform(least, most) for kind, (least, most) in RATES.items()}
        self._kinds, self._weights = list(drawn), list(drawn.values())

    def _member(self, name: str, seat: str, configured: dict[str, str]) -> Member:
        return Member(name, seat, configured, Machine(name, self.seed, lambda: 0), Life(name, 0))

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
        member.new_roster()

        def apply(command: bytes) -> bytes:
            applied.append(command)
            return b"ok"

        def restore(state: bytes) -> None:
            applied[:] = state.split(b"\n") if state else []

        member.node = Node(
            member.seat,
            [seat for seat in self.seats if seat != member.seat],
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
        member.follow_seats()
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
        self._follow_seats(member)
        return True

    def _follow_seats(self, member: Member) -> None:
        for seat in member.follow_seats():
            if (other := self._linked(member, seat)) is not None:
                self.cut(member.name, other)

    # links

    def link(self, one: str, other: str) -> dict[str, deque[bytes]] | None:
        """What is under way on it, by receiver."""
        return self.links.get((min(one, other), max(one, other)))

    def _linked(self, member: Member, seat: str) -> str | None:
        """The machine it has a link to, of those that have or had ``seat``."""
        return self.ends.get((member.name, seat))

    def _send(self, sender: Member, seat: str, data: bytes) -> bool:
        to = self._linked(sender, seat)
        link = None if to is None else self.link(sender.name, to)
        if to is None or link is None:
            return False
        self.seen.heard(sender, to, decode_message(data))
        link[to].append(data)
        return True

    def connect(self, one: str, other: str) -> None:
        a, b = self.members[one], self.members[other]
        if a.node is None or b.node is None or not open_to(a, b):
            return
        if self.sides.get(one, True) != self.sides.get(other, True):
            return
        if self._linked(a, b.seat) is not None or self._linked(b, a.seat) is not None:
            return
        self.links[min(one, other), max(one, other)] = {one: deque(), other: deque()}
        self.ends[one, b.seat], self.ends[other, a.seat] = other, one
        a.node.up(b.seat)
        b.node.up(a.seat)

    def cut(self, one: str, other: str) -> None:
        if self.links.pop((min(one, other), max(one, other)), None) is None:
            return
        for here, there in ((one, other), (other, one)):
            del self.ends[here, self.members[there].seat]
            node = self.members[here].node
            if node is not None:
                node.down(self.members[there].seat)

    def deliver(self, sender: str, to: str) -> None:
        """The first message on its way, if it still is."""
        link, receiver, seat = self.link(sender, to), self.members[to], self.members[sender].seat
        if link is None or not link[to] or receiver.node is None:
            return
        message = decode_message(link[to].popleft())
        if not self.guarded(receiver, lambda: receiver.node and receiver.node.received(seat, message)):
            self.cut(sender, to)

    def under_way(self) -> Iterator[tuple[str, str]]:
        for (one, other), link in self.links.items():
            for to in (one, other):
                if link[to] and self.members[to].runs:
                    yield (other if to == one else one), to

    # one step

    def step(self) -> None:
        self.quiet = max(0, self.quiet - 1)
        kind = "" if self.quiet else self.rng.choices(self._kinds, self._weights)[0]
        kind = kind or self.rng.choice(CALM)
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

    def _a_leader(self) -> Member | None:
        """One that leads, or believes so."""
        leading = [member for member in self.members.values() if member.leads]
        return self.rng.choice(leading) if leading else None

    def _propose(self, _member: Member) -> None:
        if (leader := self._a_leader()) is not None:
            self._propose_to(leader)

    def _propose_to(self, leader: Member) -> None:
        assert leader.node is not None, "it leads"
        self.counts["proposed"] += 1
        command = b"c%d" % self.counts["proposed"]
        leader.node.propose(REGULAR + command, self.seen.proposed(leader, command))

    def _read(self, _member: Member) -> None:
        if (leader := self._a_leader()) is not None:
            self._read_from(leader)

    def _read_from(self, leader: Member) -> None:
        assert leader.node is not None, "it leads"
        leader.node.read(self.seen.asked(leader))

    def _link(self, member: Member) -> None:
        for other in self.members:
            self.connect(member.name, other)

    def _cut(self, member: Member) -> None:
        self.cut(member.name, self.rng.choice(list(self.members)))

    def _part(self, _member: Member) -> None:
        """Two sides do not reach each other, until they are drawn anew or all reach all again."""
        if self.sides and self.rng.random() < 0.6:
            self.sides = {}
        else:
            self._divide({name for name in self.members if self.rng.random() < 0.5})

    def _comes_back(self, member: Member) -> None:
        """What had a seat before is there again, and reaches a minority, while the others go on without."""
        self.sides = {}
        self._start(member)
        if not self._former():
            # The smaller id of two dials: only that one comes back by itself.
            followers = [m for m in self.seats.values() if not m.leads]
            self._replace(min(followers, key=lambda m: m.seat, default=member))
        former, leader = self._former(), self._a_leader()
        if not former or leader is None:
            return
        self._start(member)
        self._link(leader)
        self._exchange(leader)
        few = self._beside(leader, {m.seat for m in former})
        self._divide({m.name for m in few + former})
        if leader.leads:
            self._propose_to(leader)
            self._exchange(leader)
        for one in few:
            self._link(one)
        self.quiet = self.rng.choice(QUIETS)

    def _former(self) -> list[Member]:
        """Machines that were replaced and are not ended for good."""
        return [member for member in self.members.values() if member.replaced]

    def _beside(self, leader: Member, seats: set[str]) -> list[Member]:
        """Members, without ``leader`` and those of ``seats``, that are a minority."""
        others = [m for m in self.seats.values() if m is not leader and m.seat not in seats]
        return self.rng.sample(others, min(len(others), (len(self.seats) - 1) // 2))

    def _divide(self, few: set[str]) -> None:
        self.sides = {name: name in few for name in self.members}
        for one, other in list(self.links):
            if self.sides[one] != self.sides[other]:
                self.cut(one, other)

    def _pause(self, member: Member) -> None:
        """Its clock goes on, and it does nothing; a paused one goes on."""
        member.paused = member.node is not None and not member.paused and self.rng.random() < 0.5

    def _hand_over(self, member: Member) -> None:
        if member.node is not None and member.runs:
            member.node.transfer_leadership()

    def _rivals(self, _member: Member) -> None:
        """A leader asks two members to lead, votes for the first, is restarted, and is asked by the second:
        two candidates of one term, which pre-votes, and links that end with a member, hardly allow."""
        if (leader := self._a_leader()) is None:
            return
        asked = self._ask_to_lead(leader, 2)
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

    def _overtaken(self, _member: Member) -> None:
        """A leader hears nothing more once its successor is asked to lead, and is read from while that one
        answers commands."""
        if (leader := self._a_leader()) is None:
            return
        asked = self._ask_to_lead(leader, 1)
        if not asked:
            return
        (successor,) = asked
        self._deliver_all(leader, successor)
        for other in list(self.members):
            self.cut(leader.name, other)
        self._exchange(successor)
        if successor.leads:
            self._propose_to(successor)
            self._exchange(successor)
        if leader.leads:
            self._read_from(leader)
            self._tick(leader)

    def _ask_to_lead(self, leader: Member, count: int) -> list[Member]:
        """So many, or fewer: only members that hold all and answered lately are asked."""
        self._exchange(leader)
        asked: list[Member] = []
        for other in self.rng.sample(list(self.members.values()), len(self.members)):
            if len(asked) == count or not other.runs or self.link(leader.name, other.name) is None:
                continue
            if leader.node is not None and leader.node.transfer_leadership(other.seat):
                asked.append(other)
        return asked

    def _exchange(self, leader: Member) -> None:
        """It and the members it has links to are undisturbed for a moment."""
        for _ in range(3):
            if leader.node is None:
                return
            leader.node.speak_now()
            self._tick(leader)
            for other in list(self.members.values()):
                self._deliver_all(leader, other)
                self._deliver_all(other, leader)

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
        """Whether, with this one, fewer than half of the seats lost what they knew or will lose it."""
        suspect = {m.seat for m in self.seats.values() if m.suspect} | {member.seat}
        if self.change is not None:
            suspect.add(self.change.seat)
        return not member.replaced and len(suspect) * 2 < len(self.seats)

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
        member.journal = None
        member.suspect = True
        self.seen.forget_votes(member.name)

    def _replace(self, member: Member) -> None:
        """Give its seat to a new machine, or ask again where no answer came (docs/raft.md)."""
        if (leader := self._a_leader()) is None:
            return
        if self.change is None and member is not leader and self._minority(member):
            moves = self.rng.random() < 0.8
            self.counts["machines"] += moves
            address = f"{member.seat}:{self.counts['machines']}" if moves else member.address
            self.change = Change(member.seat, address)
        if self.change is None or leader.seat == self.change.seat:
            return
        calm = self.rng.random() < 0.5
        if calm:
            self._link(leader)
            self._exchange(leader)
        if not leader.leads or self.change is None:
            return
        assert leader.node is not None, "it leads"
        change = self.change
        change.tries += 1
        mine = change.tries

        def done(_result: Any, why: str | None) -> None:
            if why is None and mine == change.tries and change is self.change:
                self._put_in(change)

        try:
            leader.node.replace(change.seat, change.address, change.address, done)
        except Refused:
            self.counts["replace refused"] += 1
        self._follow_seats(leader)
        if calm:
            self._exchange(leader)

    def _put_in(self, change: Change) -> None:
        """The replacement is committed: a new machine with an empty directory begins; of those before it only
        the last one, at another address, may come back with its directory."""
        seat, address = change.seat, change.address
        before = self.seats[seat]
        for former in [m for m in self.members.values() if m.seat == seat]:
            gone = former is not before or former.address == address or self.rng.random() < 0.2
            if gone or has_to_end(former, self.members.values()):
                self.counts["ended as it had to"] += not gone
                self.stop(former, power=True)
                del self.members[former.name]
        before.replaced = True
        self.counts["replaced"] += 1
        configured = {other: m.address for other, m in self.seats.items()}
        if self.rng.random() < 0.5:  # it knows where the others were when the group began
            configured = {other: f"{other}:0" for other in self.seats}
        new = self._member(f"{seat}{self.counts['replaced']}", seat, {**configured, seat: address})
        new.suspect = True
        self.seats[seat] = self.members[new.name] = new
        self.change = None

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
            self.seen.look(self.members.values())
            await asyncio.sleep(self.rng.choice(WAITS_S))


def fuzz(seed: int, *, members: int = 3, steps: int = 2000) -> Counter[str]:
    """What happened on this seed's schedule. Raises Broken."""
    loop = SimLoop(seed)
    world = World(seed, members)
    try:
        loop.run_until_complete(world.run(steps))
    finally:
        loop.close()
    seen = world.seen
    world.counts.update(
        answered=len(seen.answered), elections=len(seen.leaders), **{"reads answered": seen.reads}
    )
    return world.counts


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
