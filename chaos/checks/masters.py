"""Was there one master per epoch, did what was confirmed stay so, did Controllers answer with one voice?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chaos.checks.violation import Violation
from chaos.history import ControllerAnswer, Happened, Observed


def one_master_per_epoch(happened: Sequence[Happened], observed: Sequence[Observed]) -> Iterator[Violation]:
    """No two brokers of a group are promoted, or act as master, in one epoch; elections only raise it."""
    owners: dict[int, str] = {}
    elected: dict[tuple[str, int], int] = {}
    claims = [(e.at_ms, e.node, int(e.fields["epoch"])) for e in happened if e.name == "promoted"]
    claims += [(e.at_ms, e.node, e.epoch) for e in observed if e.role == "master"]
    told: set[tuple[int, str]] = set()
    for at_ms, node, epoch in sorted(claims):
        owner = owners.setdefault(epoch, node)
        if owner != node and (epoch, node) not in told:
            told.add((epoch, node))
            yield Violation(
                "one_master_per_epoch", f"{owner} and {node} are masters of epoch {epoch} ({at_ms:.0f} ms)"
            )
    for event in happened:
        if event.name != "master_elected" or event.fields.get("broker_id") is None:
            continue
        place = (str(event.fields["group"]), int(event.fields["epoch"]))
        broker = int(event.fields["broker_id"])
        if elected.setdefault(place, broker) != broker:
            yield Violation(
                "one_master_per_epoch",
                f"Controllers elected {elected[place]} and {broker} in epoch {place[1]} of {place[0]}",
            )


def confirmed_never_back(
    observed: Sequence[Observed], *, power_failures: bool = False
) -> Iterator[Violation]:
    """confirmOffset grows within one life of a broker, and no later master's log ends below it."""
    last: dict[tuple[str, int], Observed] = {}
    highest: Observed | None = None
    for now in observed:
        before = last.get((now.node, now.life))
        if before is not None and now.confirmed < before.confirmed:
            yield Violation(
                "confirmed_never_back",
                f"{now.node} said {before.confirmed}, and at {now.at_ms:.0f} ms {now.confirmed}",
            )
        last[now.node, now.life] = now
        if now.role != "master" or power_failures:
            continue
        if highest is not None and now.epoch > highest.epoch and now.end < highest.confirmed:
            yield Violation(
                "confirmed_never_back",
                f"{now.node} is master of epoch {now.epoch} with {now.end} bytes; {highest.node} had "
                f"confirmed {highest.confirmed} in epoch {highest.epoch}",
            )
        if highest is None or now.confirmed > highest.confirmed:
            highest = now


def controllers_agree(answers: Sequence[ControllerAnswer]) -> Iterator[Violation]:
    """Answers about a group follow one line of versions: none is older than one given before it was asked
    for, and one version has one content."""
    contents: dict[tuple[str, int, int], ControllerAnswer] = {}
    for answer in answers:
        version = (answer.group, answer.epoch, answer.set_epoch)
        first = contents.setdefault(version, answer)
        if (first.master, first.members) != (answer.master, answer.members) and None not in (
            first.master,
            answer.master,
        ):
            yield Violation(
                "controllers_agree",
                f"{answer.group} epoch {answer.epoch} set epoch {answer.set_epoch} is "
                f"{first.master} {first.members} and {answer.master} {answer.members}",
            )
    by_end = sorted(answers, key=lambda answer: answer.at_ms)
    newest: dict[str, ControllerAnswer] = {}
    at = 0
    for answer in sorted(answers, key=lambda answer: answer.begun_ms):
        while at < len(by_end) and by_end[at].at_ms < answer.begun_ms:
            done = by_end[at]
            known = newest.get(done.group)
            if known is None or (done.epoch, done.set_epoch) > (known.epoch, known.set_epoch):
                newest[done.group] = done
            at += 1
        known = newest.get(answer.group)
        if known is not None and (answer.epoch, answer.set_epoch) < (known.epoch, known.set_epoch):
            yield Violation(
                "controllers_agree",
                f"{answer.process} was told epoch {answer.epoch}/{answer.set_epoch} of {answer.group} at "
                f"{answer.at_ms:.0f} ms, after {known.process} had {known.epoch}/{known.set_epoch} "
                f"at {known.at_ms:.0f}",
            )


def set_kept(answers: Sequence[ControllerAnswer], *, until_ms: float) -> Iterator[Violation]:
    """Until then nobody leaves a SyncStateSet that was seen full in an epoch. Who left and returned between
    two answers shows in the set's epoch. An election may begin with a smaller set."""
    size = max((len(answer.members) for answer in answers), default=0)
    full: dict[tuple[str, int], ControllerAnswer] = {}
    for answer in answers:
        if answer.at_ms >= until_ms:
            return
        place = (answer.group, answer.epoch)
        before = full.get(place)
        if before is not None and answer.set_epoch > before.set_epoch:
            yield Violation(
                "set_kept",
                f"{answer.group} had {before.members}, set epoch {before.set_epoch}; without a cause it was "
                f"{answer.members}, set epoch {answer.set_epoch}, at {answer.at_ms:.0f} ms",
            )
            return
        if len(answer.members) == size:
            full.setdefault(place, answer)
