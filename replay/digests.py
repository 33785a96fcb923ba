"""Digests of shards, put together from the groups' shares and compared to the recorded ones.

A shard's digest is the sum modulo 2^128 over its state records, so a group's share at a place in
the log depends on that group's events alone, and shares add up in any order. Where the sum is not
the recorded digest, it is off by a difference; a stretch of the log is named where that difference
*changes*, so that one break does not hide the next.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from musterd.coordinator.machine.records.digest import DIGEST_MODULUS
from musterd.replay.checks import CHECKPOINT, finding
from musterd.replay.plan import Mark, ShardPlan
from musterd.replay.tables import FAILED, MARKED, OK, DigestDelta, Integrity

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
    """The sum of the shares for each (shard, mark)."""
    sums: dict[tuple[int, int], int] = {}
    for shard, mark, *limbs in deltas:
        key = (shard, mark)
        sums[key] = (sums.get(key, 0) + from_limbs(limbs)) % MODULUS
    return sums


@dataclass(frozen=True, slots=True)
class Broken:
    """A stretch of a shard's log, (after, up_to], whose shares do not give the recorded digest."""

    after: int
    up_to: int


@dataclass(frozen=True, slots=True)
class Reached:
    """The digest of a whole shard that the fold gives at a checkpoint, right or wrong."""

    shard: int
    index: int
    digest: int


@dataclass(slots=True)
class Judgement:
    """The result of comparing one shard; `equal` counts checkpoints."""

    findings: list[Integrity] = field(default_factory=list)
    broken: list[Broken] = field(default_factory=list)
    reached: list[Reached] = field(default_factory=list)
    equal: int = 0


def judge(plan: ShardPlan, sums: Mapping[tuple[int, int], int]) -> Judgement:
    """One `ok` row per run with its checkpoints, one `failed` row per stretch that does not fit.

    Where a group's rows are not believed (copies that differ), the shard's digest cannot be known
    from there on, and the remaining marks of the run are `marked` as not compared.
    """
    judgement = Judgement()
    for number in range(len(plan.runs)):
        checker = _Run(plan, number)
        for ordinal, mark in enumerate(plan.marks):
            if mark.run == number:
                checker.see(mark, sums.get((plan.shard, ordinal), 0))
        judgement.findings += checker.findings()
        judgement.broken += checker.broken
        judgement.reached += checker.reached
        judgement.equal += sum(1 for mark in checker.equal if mark.what == CHECKPOINT)
    return judgement


class _Run:
    """One run's marks in order.

    `_error` is by how much the fold is off; what counts is where that changes.
    """

    def __init__(self, plan: ShardPlan, number: int) -> None:
        self._shard = plan.shard
        self._stop = min(plan.stops.values(), default=None)
        self._run = plan.runs[number]
        self._folded = self._run.digest
        self._error = 0
        self._after = self._run.first - 1
        self._skipped: list[Mark] = []
        self._still_off: list[Mark] = []
        self._bad: list[Mark] = []
        self.equal: list[Mark] = []
        self.broken: list[Broken] = []
        self.reached: list[Reached] = []

    def see(self, mark: Mark, share: int) -> None:
        self._folded = (self._folded + share) % MODULUS
        if mark.digest is None:
            return
        if mark.what == CHECKPOINT:
            whole = (self._folded + mark.beside) % MODULUS
            self.reached.append(Reached(self._shard, mark.index, whole))
        error = (self._folded - mark.digest) % MODULUS
        if self._stop is not None and (mark.index, mark.sub) > self._stop:
            self._skipped.append(mark)
        elif error == 0:
            self.equal.append(mark)
        elif error == self._error:
            self._still_off.append(mark)
        else:
            self._bad.append(mark)
            self.broken.append(Broken(self._after, mark.index))
        self._error, self._after = error, mark.index

    def findings(self) -> Iterator[Integrity]:
        for mark, stretch in zip(self._bad, self.broken, strict=True):
            detail = (
                f"the fold does not give the digest recorded at the {mark.what} of entry "
                f"{mark.index}: something after entry {stretch.after} differs"
            )
            yield finding(
                "digest", FAILED, self._shard, None, detail, first=stretch.after, last=mark.index
            )
        if self._still_off:
            detail = f"{len(self._still_off)} marks off by the same difference as the one before"
            yield self._row(MARKED, detail, self._still_off)
        if self._skipped:
            detail = f"{len(self._skipped)} marks not compared: rows before them are not believed"
            yield self._row(MARKED, detail, self._skipped)
        if self.equal:
            checkpoints = sum(1 for mark in self.equal if mark.what == CHECKPOINT)
            bases = len(self.equal) - checkpoints
            detail = f"equal at {checkpoints} checkpoints and {bases} bases"
            yield self._row(OK, detail, self.equal)
        elif not self._bad and not self._skipped:
            detail = "no checkpoint in this run: nothing to compare the fold with"
            first, last = self._run.first, self._run.last
            yield finding("digest", MARKED, self._shard, None, detail, first=first, last=last)

    def _row(self, result: str, detail: str, marks: list[Mark]) -> Integrity:
        first, last = marks[0].index, marks[-1].index
        return finding("digest", result, self._shard, None, detail, first=first, last=last)
