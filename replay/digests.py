"""Digests of shards, put together from the groups' shares and compared to what the live replicas recorded.

A shard's digest is the sum modulo 2^128 over its state records, so a group's share at a place in the log depends on
that group's events alone, and shares add up in any order. Between two neighbouring marks the shares of that stretch
must equal the difference of the two recorded digests; so a break is named with the entries between which it happened
and does not hide the next one.
"""

from collections.abc import Iterable, Iterator, Mapping

from coordinator.machine.digest import DIGEST_MODULUS
from replay.checks import finding
from replay.plan import Mark, ShardPlan
from replay.tables import FAILED, MARKED, OK, DigestDelta, Integrity

MODULUS = DIGEST_MODULUS
LIMBS = 4
LIMB_BITS = 32
_LIMB = (1 << LIMB_BITS) - 1


def to_delta(shard: int, mark: int, change: int) -> DigestDelta:
    """A share as the fold yields it."""
    value = change % MODULUS
    return DigestDelta(shard, mark, *(value >> LIMB_BITS * i & _LIMB for i in range(LIMBS)))


def from_limbs(limbs: Iterable[int]) -> int:
    """The share, or the sum of shares, behind four limbs (lowest first)."""
    return sum(limb << LIMB_BITS * i for i, limb in enumerate(limbs)) % MODULUS


def add_up(deltas: Iterable[DigestDelta]) -> dict[tuple[int, int], int]:
    """Sums per (shard, mark)."""
    sums: dict[tuple[int, int], int] = {}
    for shard, mark, *limbs in deltas:
        key = (shard, mark)
        sums[key] = (sums.get(key, 0) + from_limbs(limbs)) % MODULUS
    return sums


class Broken:
    """A stretch of a shard, (after, up_to], whose shares do not give the recorded digest."""

    __slots__ = ("after", "mark", "shard", "up_to")

    def __init__(self, shard: int, mark: int, after: int, up_to: int) -> None:
        self.shard = shard
        self.mark = mark
        self.after = after
        self.up_to = up_to


def judge(
    plan: ShardPlan, sums: Mapping[tuple[int, int], int]
) -> tuple[list[Integrity], list[Broken]]:
    """One `ok` row per run with its number of checkpoints, one `failed` row per stretch that does not fit.

    Where a group's rows are not believed (copies that differ), the shard's digest cannot be known from there on, and
    the remaining marks of the run are `marked` as not compared.
    """
    findings: list[Integrity] = []
    broken: list[Broken] = []
    for number, run in enumerate(plan.runs):
        checker = _Run(plan, number)
        for ordinal, mark in enumerate(plan.marks):
            if mark.run == number:
                checker.see(mark, ordinal, sums.get((plan.shard, ordinal), 0))
        findings += checker.findings()
        broken += checker.broken
    return findings, broken


class _Run:
    def __init__(self, plan: ShardPlan, number: int) -> None:
        self._shard = plan.shard
        self._stop = min(plan.stops.values(), default=None)
        self._run = plan.runs[number]
        self._folded = self._run.digest
        self._after = self._run.first - 1
        self._good: list[Mark] = []
        self._skipped: list[Mark] = []
        self._bad: list[tuple[Mark, int, int]] = []
        self.broken: list[Broken] = []

    def see(self, mark: Mark, ordinal: int, share: int) -> None:
        self._folded = (self._folded + share) % MODULUS
        if mark.digest is None:
            return
        if self._stop is not None and (mark.index, mark.sub) > self._stop:
            self._skipped.append(mark)
        elif self._folded == mark.digest:
            self._good.append(mark)
        else:
            self._bad.append((mark, self._after, self._folded))
            self.broken.append(Broken(self._shard, ordinal, self._after, mark.index))
        self._folded = mark.digest  # what follows is judged on its own
        self._after = mark.index

    def findings(self) -> Iterator[Integrity]:
        for mark, after, folded in self._bad:
            detail = (
                f"the fold does not give the digest recorded at the {mark.what} of entry {mark.index}: "
                f"something between entries {after} and {mark.index} differs"
            )
            yield finding("digest", FAILED, self._shard, None, detail, first=after, last=mark.index)
        if self._skipped:
            detail = f"{len(self._skipped)} marks not compared: some rows before them are not believed"
            yield self._row(MARKED, detail, self._skipped)
        checkpoints = sum(1 for mark in self._good if mark.what == "checkpoint")
        if self._good:
            detail = f"equal at {checkpoints} checkpoints and {len(self._good) - checkpoints} bases"
            yield self._row(OK, detail, self._good)
        elif not self._bad and not self._skipped:
            detail = "no checkpoint in this run: nothing to compare the fold with"
            first, last = self._run.first, self._run.last
            yield finding("digest", MARKED, self._shard, None, detail, first=first, last=last)

    def _row(self, result: str, detail: str, marks: list[Mark]) -> Integrity:
        first, last = marks[0].index, marks[-1].index
        return finding("digest", result, self._shard, None, detail, first=first, last=last)
