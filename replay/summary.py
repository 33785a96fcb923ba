"""Summarizes a history: rebalances by cause, the worst of them, unowned time, churn.

Read from the tables that a replay wrote, whichever engine wrote them. In memory are all rounds, an
entry for each partition that was ever owned, and one for each client of each group.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from heapq import nsmallest
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.dataset as ds

SHOWN = 5
"""So many of the worst are named."""
NO_CAUSE = "unknown"
"""The cause of a round that opened before the export begins."""
EXPIRED = frozenset({"session_expired", "not_rejoined", "not_synced"})
"""How members end that did not say goodbye."""


class Round(NamedTuple):
    """A row of `rebalances`, the columns that count here; `started_ms` is since 1970."""

    group: str
    generation: int | None
    trigger: str
    cause_member_id: str | None
    started_ms: int | None
    duration_ms: int | None
    moved: int | None
    minimum_moves: int | None


@dataclass(slots=True)
class Cause:
    """All rounds that opened for one reason.

    Moves are of the rounds whose minimum is known, so that the two can be compared.
    """

    trigger: str
    rounds: int = 0
    longest_ms: int = 0
    total_ms: int = 0
    moved: int = 0
    minimum_moves: int = 0


@dataclass(slots=True)
class Unowned:
    """Times at which partitions of a group were between two owners: of all together, and one."""

    group: str
    partitions: int = 0
    total_ms: int = 0
    longest_ms: int = 0


@dataclass(slots=True)
class Churn:
    """The memberships of one client of a group.

    `expired` are those that ended without a goodbye, `rejoins` all joins after the first.
    """

    group: str
    client_id: str
    sessions: int = 0
    expired: int = 0
    rejoins: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """Every cause that there was, and the worst of the rest, worst first."""

    by_cause: Sequence[Cause] = ()
    longest: Sequence[Round] = ()
    most_moved: Sequence[Round] = ()
    unowned: Sequence[Unowned] = ()
    churn: Sequence[Churn] = ()
    rounds: Sequence[Round] = ()
    """All, in the order of the table."""

    def document(self) -> dict[str, object]:
        return {
            "rebalances_by_cause": [asdict(each) for each in self.by_cause],
            "longest_rebalances": [each._asdict() for each in self.longest],
            "most_moved": [each._asdict() for each in self.most_moved],
            "unowned": [asdict(each) for each in self.unowned],
            "churn": [asdict(each) for each in self.churn],
        }


def summarize(output: Path) -> Summary:
    """Read the tables under `output`."""
    rounds = list(_rounds(output))
    slow = (one for one in rounds if one.duration_ms)
    busy = (one for one in rounds if one.moved)
    return Summary(
        by_cause=_causes(rounds),
        longest=nsmallest(SHOWN, slow, key=lambda one: (-(one.duration_ms or 0), _place(one))),
        most_moved=nsmallest(SHOWN, busy, key=lambda one: (-(one.moved or 0), _place(one))),
        unowned=nsmallest(SHOWN, _unowned(output), key=lambda one: (-one.total_ms, one.group)),
        churn=nsmallest(SHOWN, _churn(output), key=_by_churn),
        rounds=rounds,
    )


def _place(one: Round) -> tuple[str, int]:
    """Where a round comes among those that are as bad; one that formed nothing before others."""
    return one.group, -1 if one.generation is None else one.generation


def _rows(output: Path, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
    for batch in ds.dataset(output / table).to_batches(columns=list(columns)):
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def _rounds(output: Path) -> Iterator[Round]:
    names = ("group", "generation", "trigger", "cause_member_id", "started_ts", "duration_ms")
    for row in _rows(output, "rebalances", *names, "moved", "minimum_moves"):
        group, generation, trigger, cause, started, *rest = row
        yield Round(group, generation, trigger or NO_CAUSE, cause, _ms(started), *rest)


def _ms(at: datetime | None) -> int | None:
    """Milliseconds since 1970; None stays None."""
    return None if at is None else round(at.timestamp() * 1000)


def _causes(rounds: Iterable[Round]) -> list[Cause]:
    found: dict[str, Cause] = {}
    for one in rounds:
        cause = found.setdefault(one.trigger, Cause(one.trigger))
        cause.rounds += 1
        cause.longest_ms = max(cause.longest_ms, one.duration_ms or 0)
        cause.total_ms += one.duration_ms or 0
        if one.moved is not None and one.minimum_moves is not None:
            cause.moved += one.moved
            cause.minimum_moves += one.minimum_moves
    return sorted(found.values(), key=lambda cause: (-cause.rounds, cause.trigger))


def _unowned(output: Path) -> Iterable[Unowned]:
    """A partition's spans stand in the table in their order."""
    ended: dict[tuple[str, str, int], int | None] = {}
    found: dict[str, Unowned] = {}
    names = ("group", "topic", "partition", "from_ts", "to_ts")
    for group, topic, partition, begins, ends in _rows(output, "ownership", *names):
        if topic is None:
            continue  # opaque: what is in it nobody knows
        key = (group, topic, partition)
        one = found.setdefault(group, Unowned(group))
        one.partitions += key not in ended
        before, begun = ended.get(key), _ms(begins)
        ended[key] = _ms(ends)
        if before is not None and begun is not None and begun > before:
            one.total_ms += begun - before
            one.longest_ms = max(one.longest_ms, begun - before)
    return [one for one in found.values() if one.total_ms]


def _churn(output: Path) -> Iterable[Churn]:
    found: dict[tuple[str, str], Churn] = {}
    rows = _rows(output, "member_sessions", "group", "client_id", "end", "rejoins")
    for group, client_id, end, rejoins in rows:
        one = found.setdefault((group, client_id), Churn(group, client_id))
        one.sessions += 1
        one.expired += end in EXPIRED
        one.rejoins += rejoins
    return found.values()


def _by_churn(one: Churn) -> tuple[int, int, str, str]:
    return (-one.sessions, -one.expired, one.group, one.client_id)
