"""Checks that owners alone worked on their partitions, and that takeovers lost nothing."""

from collections import Counter
from collections.abc import Iterator

from musterd.demo.checks.base import Check, Figure, Series, first, members_of
from musterd.demo.events import Reading
from musterd.demo.evidence import Evidence
from musterd.demo.ledger import CLAIM, NOBODY, WRITE, Note


def check_workers(evidence: Evidence) -> Check:
    """Every worker, the killed and the added one too, counted lines."""
    members = members_of(evidence)
    lines: Counter[str] = Counter()
    for note in evidence.notes:
        if note.kind == WRITE and note.granted:
            lines[members.get(note.member, f"stranger {note.member}")] += note.lines
    workers = [f"worker-{number}" for number in range(1, evidence.workers + 2)]
    strangers = sorted(set(lines) - set(workers))
    idle = [name for name in workers if not lines[name]]
    passed = not idle and not strangers
    detail = ", ".join(f"{name} {lines[name]:,}" for name in [*workers, *strangers])
    return Check("every worker counted lines", passed, detail, dict(lines))


def check_takeovers(evidence: Evidence) -> Check:
    """Who takes over resumes where the last owner had written, and reads a batch twice at most."""
    takeovers = list(_takeovers(evidence))
    bad = [
        f"partition {note.partition} was resumed at {note.offset}, {twice} lines read twice"
        for note, twice in takeovers
        if note.offset <= 0 or twice > evidence.batch[note.partition]
    ]
    members = members_of(evidence)
    offsets = [note.offset for note, _ in takeovers]
    twice = [count for _, count in takeovers]
    detail = first(bad) or (
        f"{len(takeovers)} takeovers, resumed at {min(offsets, default=0):,} to "
        f"{max(offsets, default=0):,}, {sum(twice)} lines read twice"
    )
    figures: dict[str, Figure] = {
        "takeovers": len(takeovers),
        "resumed_at_min": min(offsets, default=None),
        "lines_read_twice": sum(twice),
        "each": [
            {
                "token": note.token,
                "partition": note.partition,
                "from": members.get(note.former_member),
                "to": members.get(note.member),
                "resumed_at": note.offset,
                "lines_read_twice": count,
            }
            for note, count in takeovers
        ],
    }
    passed = not bad and bool(takeovers)
    return Check(
        "takeovers resume where the last owner stopped",
        passed,
        detail,
        figures,
        _in_groups(evidence, takeovers),
    )


def _takeovers(evidence: Evidence) -> Iterator[tuple[Note, int]]:
    """Claims by another member than the row's, after work began, and lines read twice for them."""
    reading = Series()
    for _, event in evidence.events:
        if isinstance(event, Reading):
            reading.add(event.at_ns, {event.partition: event.end})
    began_ns = evidence.began_ns
    if began_ns is None:
        return
    for note in evidence.notes:
        if (
            note.kind == CLAIM
            and note.granted
            and note.at_ns > began_ns
            and note.former_member not in (NOBODY, note.member)
        ):
            read = reading.up_to(note.partition, note.at_ns)
            yield note, max(0, read - note.offset)


def _in_groups(evidence: Evidence, takeovers: list[tuple[Note, int]]) -> tuple[str, ...]:
    """A line per fencing token and pair of workers, with each partition in it."""
    members = members_of(evidence)
    groups: dict[str, list[tuple[int, str]]] = {}
    for note, twice in takeovers:
        pair = f"{members.get(note.former_member)} -> {members.get(note.member)}"
        again = f" ({twice} lines read twice)" if twice else ""
        place = f"{note.partition} at {note.offset:,}{again}"
        groups.setdefault(f"token {note.token}, {pair}", []).append((note.partition, place))
    return tuple(
        f"{pair}: partition {', '.join(place for _, place in sorted(places))}"
        for pair, places in sorted(groups.items())
    )


def check_owners(evidence: Evidence) -> Check:
    """Only who owned a partition by the replicated log reached for it, and nobody after losing it.

    The ledger's journal against the assignments in the history: claims, writes and refusals.
    """
    name = "nobody works on a partition that is not theirs"
    if evidence.history is None or not evidence.history.owners:
        return Check(name, False, "the history does not say who owned what")
    newest: dict[tuple[str, int], int] = {}
    bad = []
    refused = 0
    for note in evidence.notes:
        refused += not note.granted
        # In rounds the tokens of a member's assignments rise, else those of each partition.
        line = note.member, note.partition if evidence.by_partition else 0
        what = f"{note.member} reached for partition {note.partition} (token {note.token}, "
        if (note.partition, note.token, note.member) not in evidence.history.owners:
            bad.append(f"{what}a {note.kind}), which it did not own")
        elif note.token < newest.get(line, 0):
            bad.append(f"{what}a {note.kind}) after it had begun with {newest[line]}")
        if note.kind == CLAIM and note.granted:
            newest[line] = max(newest.get(line, 0), note.token)
    detail = first(bad) or f"{len(evidence.notes)} claims and writes, {refused} refused"
    figures: dict[str, Figure] = {
        "claims_and_writes": len(evidence.notes),
        "refused": refused,
        "violations": len(bad),
    }
    return Check(name, not bad, detail, figures)
