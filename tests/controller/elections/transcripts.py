"""Runs a transcript of elections and says what the decider did.

A transcript (``transcripts/*.txt``) is blocks of commands, a line ``----``, and what came out, line by line,
each with its time in ms. ``KEELMQ_REWRITE=1 pytest tests/controller/elections/test_transcripts.py`` writes
what comes out now; read the difference before it is committed. The commands are the methods ``do_...`` below;
``#`` begins a comment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller.elections import signals
from controller.elections.preview import ElectionRequest
from controller.groups.commands import (
    Answer,
)
from model.errors import Refused, Unknown
from tests.fakes.controller.decider import G, Lab

MARK = "----"
BEAT_MS = 500.0


def _ids(values: object) -> str:
    return " ".join(map(str, values)) or "nobody"  # type: ignore[call-overload]


class Transcript:
    def __init__(self) -> None:
        self.lab = Lab()
        self.says: dict[int, dict[str, Any]] = {}  # in the last heartbeat
        self.out: list[str] = []

    # running

    def run(self, text: str) -> str:
        """``text`` with what comes out now in the place of what came out when it was written."""
        blocks = []
        for block in text.strip("\n").split("\n\n"):
            commands, mark, _ = block.partition(f"{MARK}\n")
            if not mark and not block.rstrip().endswith(MARK):
                blocks.append(block)  # a comment of its own
                continue
            commands = commands.removesuffix(MARK)
            self.out = []
            for line in commands.splitlines():
                if line.strip() and not line.startswith("#"):
                    self.do(line)
            self.out.append(self._until())
            blocks.append(f"{commands}{MARK}\n" + "\n".join(self.out))
        return "\n\n".join(blocks) + "\n"

    def do(self, line: str) -> None:
        verb, *words = line.split()
        getattr(self, f"do_{verb.replace('-', '_')}")(*words)

    def _say(self, actions: list[signals.Action]) -> None:
        for action in actions:
            text = self._text(action)
            if text:
                self.out.append(f"{self.lab.now_ms:7.0f}  {text}")

    def _until(self) -> str:
        left_ms = self.lab.wake_ms - self.lab.now_ms
        return f"{self.lab.now_ms:7.0f}  " + ("look now" if left_ms <= 0 else f"look in {left_ms:.0f} ms")

    def _text(self, action: signals.Action) -> str:
        match action:
            case signals.WakeAt():
                return ""
            case signals.Settle():
                return "settle the table"
            case signals.Ask():
                return f"ask {_ids(action.broker_ids)}, for {action.longest_s * 1000:.0f} ms at most"
            case signals.StopAsking():
                return "stop asking"
            case signals.AskStepDown():
                return f"ask master {action.master} of epoch {action.epoch} to step down for {action.target}"
            case signals.Propose():
                command = action.command
                chosen = self.lab.group(action.command.group).choice(command)
                return f"propose: alive {_ids(command.alive)}, answered {_ids(command.answered)} => {chosen}"
            case signals.Announce():
                group = self.lab.group(action.group)
                return f"announce: master {group.master} of epoch {group.epoch}"
            case signals.Reply():
                return f"reply {action.ticket}: {self._result(action.result)}"
            case signals.Report():
                return f"{action.level}: {action.text}"

    @staticmethod
    def _result(result: object) -> str:
        if isinstance(result, Answer):
            return f"code {result.code}, master {result.ext.get('masterBrokerId', 'none')}"
        return f"{type(result).__name__}: {result}"

    # commands

    def do_group(self, *ids: str) -> None:
        """``group 1 2 3 [majority]``: a new group of these brokers."""
        self.lab.make_group([int(i) for i in ids if i.isdigit()], majority="majority" in ids)

    def do_master(self, broker_id: str, *members: str) -> None:
        """``master 1 1 2 3``: broker 1 was elected, and these are its SyncStateSet."""
        self.lab.make_master(int(broker_id), [int(i) for i in members])

    def do_set(self, *members: str) -> None:
        self.lab.alter([int(i) for i in members])

    def do_unclean(self, value: str) -> None:
        self.lab.config.elect_unclean_master = value == "true"

    def do_beat(self, *words: str) -> None:
        """``beat 1 2 [leases] [all] [end=1/100] [timeout=3000]``: heartbeats of these brokers."""
        says: dict[str, Any] = {}
        for word in words:
            key, _, value = word.partition("=")
            if key == "end":
                epoch, _, offset = value.partition("/")
                says |= {"epoch": int(epoch), "max_offset": int(offset)}
            elif key == "timeout":
                says["timeout_ms"] = int(value)
            elif key in ("leases", "all"):
                says["leases" if key == "leases" else "all_ack"] = True
        for broker_id in (int(word) for word in words if word.isdigit()):
            self.says[broker_id] = says
            self._say(self.lab.beat(broker_id, **says))

    def do_lease(self, broker_id: str, epoch: str) -> None:
        left_ms = self.lab.grant(int(broker_id), int(epoch))
        self.out.append(f"{self.lab.now_ms:7.0f}  lease of {broker_id}: {left_ms} ms")

    def do_close(self, *ids: str) -> None:
        """The connections of these brokers end."""
        for broker_id in ids:
            self._say(self.lab.close(int(broker_id)))

    def do_lead(self, term: str) -> None:
        self._say(self.lab.lead(int(term)))

    def do_follow(self, term: str) -> None:
        self._say(self.lab.follow(int(term)))

    def do_settled(self) -> None:
        self._say(self.lab.settle())

    def do_not_settled(self) -> None:
        self._say(self.lab.settle(Unknown("no majority")))

    def do_says(self, broker_id: str, end: str, *words: str) -> None:
        """``says 2 1/100 [following]``: a candidate answers; ``says 2 nothing``: it does not."""
        epoch, _, offset = end.partition("/")
        told = None if end == "nothing" else (int(epoch), int(offset))
        self._say(self.lab.answer(int(broker_id), told, following="following" in words))

    def do_commit(self) -> None:
        assert G in self.lab.proposals, "nothing is proposed"
        self._say(self.lab.commit())

    def do_fail(self, why: str, *words: str) -> None:
        """``fail unknown [applied]``, ``fail refused``: the proposal has no answer, or a no."""
        command = self.lab.proposals.pop(G)
        if "applied" in words:
            self.lab.apply(command)
        error = Unknown("no majority") if why == "unknown" else Refused("not now")
        self._say(self.lab.feed(signals.NotCommitted(G, error, why == "deposed")))

    def do_request(self, broker_id: str, *words: str) -> None:
        """``request 2 [designate] [restarted] [log_epoch=1] [epoch=1] [handed_over_by=1]``."""
        numbers = {key: int(value) for key, _, value in (word.partition("=") for word in words) if value}
        request = ElectionRequest(
            broker_id=int(broker_id),
            designate="designate" in words,
            restarted="restarted" in words,
            suspect="doubtful" in words,
            log_epoch=numbers.get("log_epoch", ElectionRequest().log_epoch),
            master_epoch=numbers.get("epoch", -1),
            handed_over_by=numbers.get("handed_over_by", -1),
        )
        self._say(self.lab.request(request))

    def do_stepped_down(self, how: str) -> None:
        """``stepped-down yes|no|cannot``."""
        error = Refused("its slaves are behind") if how == "cannot" else None
        self._say(self.lab.step_down(done=how == "yes", error=error))

    def do_stood_still(self, for_ms: str) -> None:
        self.lab.now_ms += float(for_ms)
        self._say(self.lab.feed(signals.StoodStill(float(for_ms))))

    def do_until(self, until_ms: str, *beating: str) -> None:
        """``until 9000 1 2``: time goes on, the state comes again whenever it wanted to, and these brokers
        send heartbeats as their last one."""
        end_ms, lab, brokers = float(until_ms), self.lab, [int(i) for i in beating]
        beat_ms = lab.now_ms + BEAT_MS
        while (at_ms := min(max(lab.wake_ms, lab.now_ms + 1), beat_ms)) <= end_ms:
            lab.now_ms = at_ms
            if at_ms == beat_ms:
                beat_ms += BEAT_MS
                for broker_id in brokers:
                    self._say(lab.beat(broker_id, **self.says[broker_id]))
            self._say(lab.feed(signals.Tick()))
        lab.now_ms = end_ms


def rewritten(path: Path) -> str:
    return Transcript().run(path.read_text())
