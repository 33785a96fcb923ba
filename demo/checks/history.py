"""Checks the replicas, their exported history and the machine after a run."""

from collections.abc import Iterator
from dataclasses import asdict

from musterd.demo.checks.base import Check, Figure, first, members_of
from musterd.demo.events import Took
from musterd.demo.evidence import Evidence

NOBODYS = "topics_changed"
"""The trigger that is no member's doing."""


def check_rebalances(evidence: Evidence) -> Check:
    """Every round of the history has its cause, and the planned ones are among them."""
    name = "every rebalance has its cause"
    history = evidence.history
    if history is None or not history.rounds:
        return Check(name, False, "the history has no rebalances")
    members = members_of(evidence)
    lines = []
    bad = []
    for one in history.rounds:
        who = members.get(one.cause_member or "", one.cause_member or "nobody")
        moved = "no" if one.moved is None else one.moved  # a group that is empty has no assignment
        line = (
            f"generation {one.generation or '-'}: {one.trigger} by {who} "
            f"({one.reason or 'no reason given'}), {one.members_before} -> {one.members_after} "
            f"members, {moved} partitions moved, {one.duration_ms} ms, {one.outcome}"
        )
        lines.append(line)
        if not one.trigger or not (one.cause_member or one.trigger == NOBODYS):
            bad.append(f"without a cause: {line}")
    bad += _unexplained(evidence, {(r.trigger, r.cause_member) for r in history.rounds})
    seen = {event.generation for _, event in evidence.events if isinstance(event, Took)}
    strange = seen - {r.generation for r in history.rounds}
    if strange:
        bad.append(f"generations {sorted(strange)} are not in the history")
    detail = first(bad) or f"{len(history.rounds)} rounds, generations {_span(seen)} seen"
    figures: dict[str, Figure] = {
        "rounds": len(history.rounds),
        "each": [
            {**asdict(one), "cause": members.get(one.cause_member or "")} for one in history.rounds
        ],
    }
    return Check(name, not bad, detail, figures, tuple(lines))


def _span(numbers: set[int]) -> str:
    return f"{min(numbers)} to {max(numbers)}" if numbers else "none"


def _unexplained(evidence: Evidence, causes: set[tuple[str | None, str | None]]) -> Iterator[str]:
    killed, added = evidence.worker_kill, evidence.worker_added
    if killed is not None and ("session_expiry", killed.member) not in causes:
        yield f"no rebalance because {killed.name} was silent"
    if added is not None:
        names = {member for member, name in members_of(evidence).items() if name == added.name}
        if not any(("member_joined", member) in causes for member in names):
            yield f"no rebalance because {added.name} joined"


def check_history(evidence: Evidence) -> Check:
    """The replayed history is there, is sound, and has the digests that the replicas recorded."""
    history = evidence.history
    if history is None:
        return Check("history: digests match", False, "there is no history")
    name = f"history ({history.engine.capitalize()}): digests match"
    bad = list(history.failed)
    if history.exit_code != 0 or not history.sound:
        bad.append(f"muster replay ended with {history.exit_code}: {history.message}")
    elif history.digests_up_to is None or history.last_commit is None:
        bad.append("no checkpoint of the group's shard was compared")
    elif history.digests_up_to < history.last_commit:
        bad.append(
            f"compared up to entry {history.digests_up_to}, "
            f"the last commit is {history.last_commit}"
        )
    if history.sound and history.committed != evidence.final:
        bad.append("the history's last commits are not the committed offsets at the end")
    tables = ", ".join(f"{count:,} {table}" for table, count in history.counts.items())
    detail = first(bad) or (
        f"{tables}; digest equal up to entry {history.digests_up_to}, {history.seconds:.0f} s"
    )
    figures: dict[str, Figure] = {
        "engine": history.engine,
        "digests_up_to": history.digests_up_to,
        "last_commit": history.last_commit,
        "seconds": round(history.seconds, 1),
        **history.counts,
    }
    return Check(name, not bad, detail, figures)


def check_replicas(evidence: Evidence) -> Check:
    """`muster cluster verify`: all nodes hold the same state, the restarted one too."""
    name = "all replicas have the same state"
    if evidence.verify is None:
        return Check(name, False, "they were not compared")
    code, message = evidence.verify
    return Check(name, code == 0, message, {"exit_code": code})


def check_processes(evidence: Evidence) -> Check:
    """Every worker ended as it should, and no process is left."""
    killed = evidence.worker_kill.name if evidence.worker_kill is not None else None
    bad = [
        f"{name} ended with {status}"
        for name, status in evidence.exits.items()
        if status != 0 and name != killed
    ]
    if evidence.leftovers is None:
        bad.append("it was not looked for processes")
    else:
        bad += [f"still running: {each}" for each in evidence.leftovers]
    detail = first(bad) or f"{len(evidence.exits)} workers ended, nothing is left"
    return Check("no process is left behind", not bad, detail, {"left": len(bad)})
