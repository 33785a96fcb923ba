"""What a report says: every figure of every input, added up. What nobody measured stays None."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from musterd.chaos.mutants import cold
from musterd.chaos.mutants.cold import Cold
from musterd.chaos.report.bugs import Bug
from musterd.chaos.report.inputs import Inputs, Mutant, Simulated, Soaked
from musterd.chaos.report.invariants import INVARIANTS
from musterd.chaos.report.parts import Part, headline, parts_of
from musterd.chaos.run.result import FaultRun, Judgement, RunResult, Spread

SCHEMA = "muster.chaos.report/v1"
MESSAGES_MAX = 100
"""Violations per invariant that a report quotes; the count is that of all."""
NS_PER_S = 1e9
HELD, VIOLATED, EMPTY, WAITS, ABSENT = (
    "held",
    "violated",
    "looked at nothing",
    "does not apply",
    "not checked in this run",
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. `value` None: not measured in this run."""

    key: str
    label: str
    value: float | None
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """One invariant over all runs."""

    id: str
    title: str
    meaning: str
    state: str
    looked_at: int
    violations: int
    messages: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True)
class FaultRow:
    """All faults of one kind, over all runs. Spreads in ms."""

    kind: str
    injected: int
    hit_ms: Spread
    other_ms: Spread
    first_commit_ms: Spread
    owned_ms: Spread
    """Of those after which all was owned again."""
    unowned: int
    """Those after which something had no owner until the next one."""
    unowned_ms: float | None
    """The longest time for which that was looked at."""
    p99_before_ms: float | None
    p99_during_ms: float | None
    quorum: bool
    verified: bool
    """False: that one of them broke something said a command of the user's alone."""
    unseen: int
    """So many of them had no visible effect."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A fault that was planned and not injected, or a kind that cannot be had here."""

    kind: str
    reason: str
    run: str


@dataclass(slots=True)
class Report:
    """Everything that the page shows."""

    schema: str
    made_at: str
    passed: bool
    reasons: list[str]
    """Why it did not pass, a line each."""
    figures: list[Figure]
    invariants: list[Held]
    faults: list[FaultRow]
    simulated_faults: dict[str, int]
    not_injected: list[Failure]
    skipped: list[Failure]
    mutants: list[Mutant]
    unsought: list[str]
    """Mutants that the machine could not hunt, and why."""
    cold: Cold
    """What hunts without a known seed took, on which build."""
    bugs: list[Bug]
    runs: list[tuple[str, RunResult]]
    simulations: list[Simulated]
    soaks: list[Soaked]
    limits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What stands beside the runs' figures: those that are missing, and why."""
    headline: str = ""
    """What it says in a line, and what it covers."""
    parts: list[Part] = field(default_factory=list)
    """On which build each was measured."""


def build(inputs: Inputs, bugs: list[Bug], made_at: str) -> Report:
    """Add up. `made_at`: ISO 8601, UTC."""
    runs, parts = inputs.runs, parts_of(inputs)
    invariants = [_held(one.id, [r.verdicts for _, r in runs]) for one in INVARIANTS]
    reasons = list(_reasons(inputs, invariants))
    faults = [(name, fault) for name, run in runs for fault in run.faults]
    simulated: Counter[str] = Counter()
    for simulation in inputs.simulations:
        simulated.update(simulation.faults)
    return Report(
        schema=SCHEMA,
        made_at=made_at,
        passed=not reasons,
        reasons=reasons,
        figures=list(_figures(inputs)),
        invariants=invariants,
        faults=_rows(fault for _, fault in faults if fault.injected),
        simulated_faults=dict(sorted(simulated.items())),
        not_injected=[Failure(f.kind, f.error, run) for run, f in faults if not f.injected],
        skipped=[Failure(s.kind, s.reason, name) for name, run in runs for s in run.skipped],
        mutants=inputs.mutants,
        unsought=inputs.unsought,
        cold=cold.read(),
        bugs=bugs,
        runs=runs,
        simulations=inputs.simulations,
        soaks=inputs.soaks,
        limits=list(dict.fromkeys(line for _, run in runs for line in run.limits)),
        notes=[f"{name}: {note}" for name, run in runs for note in run.notes],
        headline=headline(inputs, parts, len(reasons)),
        parts=parts,
    )


def _reasons(inputs: Inputs, invariants: list[Held]) -> Iterable[str]:
    for one in invariants:
        if one.violations:
            count = f"{one.violations} violation{'s' if one.violations > 1 else ''}"
            yield f"{one.id} ({one.title}): {count}"
    for name, run in inputs.runs:
        yield from (f"{name}: {reason}" for reason in run.reasons)
        if not run.passed and not run.reasons:
            yield f"{name}: did not pass ({run.ended})"
    for simulation in inputs.simulations:
        if simulation.violations:
            yield f"{simulation.name}: {simulation.violations} simulated runs violate"
        yield from (f"{simulation.name}: {problem}" for problem in simulation.problems)
    for mutant in inputs.mutants:
        if not mutant.caught:
            yield f"mutant {mutant.name} survived: {mutant.how}"
    for soak in inputs.soaks:
        yield from (f"{soak.name}: {problem}" for problem in soak.problems)


def _held(invariant: str, verdicts: list[list[Judgement]]) -> Held:
    promise = next(one for one in INVARIANTS if one.id == invariant)
    mine = [verdict for run in verdicts for verdict in run if verdict.invariant == invariant]
    applying = [verdict for verdict in mine if verdict.applies]
    count = sum(verdict.violations_count for verdict in mine)
    looked_at = sum(verdict.looked_at for verdict in applying)
    if count:
        state = VIOLATED
    elif applying:
        state = HELD if looked_at else EMPTY
    elif mine or promise.waits_for:
        state = WAITS
    else:
        state = ABSENT
    waits = f"waits for {promise.waits_for}" if promise.waits_for else ""
    notes = list(dict.fromkeys(verdict.note for verdict in applying or mine if verdict.note))
    messages = [broken.what for verdict in mine for broken in verdict.violations]
    return Held(
        id=invariant,
        title=promise.title,
        meaning=promise.meaning,
        state=state,
        looked_at=looked_at,
        violations=count,
        messages=tuple(messages[:MESSAGES_MAX]),
        note="; ".join(notes) or (waits if state == WAITS else ""),
    )


def _rows(faults: Iterable[FaultRun]) -> list[FaultRow]:
    kinds: dict[str, list[FaultRun]] = {}
    for fault in faults:
        kinds.setdefault(fault.kind, []).append(fault)
    return [_row(kind, kinds[kind]) for kind in sorted(kinds)]


def _row(kind: str, faults: list[FaultRun]) -> FaultRow:
    def spread(of: Callable[[FaultRun], float | None]) -> Spread:
        return Spread.of([value for fault in faults if (value := of(fault)) is not None])

    return FaultRow(
        kind=kind,
        injected=len(faults),
        hit_ms=spread(_hit),
        other_ms=spread(_other),
        first_commit_ms=spread(_first_commit),
        owned_ms=spread(_owned),
        unowned=sum(fault.unowned > 0 for fault in faults),
        unowned_ms=spread(lambda fault: fault.unowned_ms).max,
        p99_before_ms=spread(lambda fault: fault.latency_before.p99).max,
        p99_during_ms=spread(lambda fault: fault.latency_during.p99).max,
        quorum=all(fault.quorum for fault in faults),
        verified=all(fault.verified for fault in faults),
        unseen=sum(bool(fault.unreal) for fault in faults),
    )


def _figures(inputs: Inputs) -> Iterable[Figure]:
    runs = [run for _, run in inputs.runs]
    faults = [fault for run in runs for fault in run.faults if fault.injected]
    kills = [fault for fault in faults if fault.kind.startswith("kill_leader")]
    yield Figure("runs", "runs on real processes", len(runs) if runs else None)
    hours = sum((run.ended_ns - run.began_ns) / NS_PER_S for run in runs) / 3600
    yield Figure("real_hours", "hours on real processes", hours if runs else None, "h")
    yield from _simulated(inputs.simulations)
    for word in ("ok", "fail", "unknown"):
        total = sum(getattr(run.counts, word) for run in runs) if runs else None
        yield Figure(f"operations_{word}", f"operations {_SPOKEN[word]}", total)
    lost = [run.commits_lost for run in runs]
    known = [count for count in lost if count is not None]
    whole = bool(known) and len(known) == len(lost)
    yield Figure("commits_lost", "acknowledged commits lost", sum(known) if whole else None)
    unread = [run.keys_unread for run in runs if run.keys_unread is not None]
    whole = bool(unread) and len(unread) == len(runs)
    yield Figure("keys_unread", "keys not read again", sum(unread) if whole else None)
    violations = sum(v.violations_count for run in runs for v in run.verdicts)
    yield Figure("violations", "violations", violations if runs else None)
    yield Figure("faults_injected", "faults injected", len(faults) if runs else None)
    tried = {fault.kind for fault in faults if not fault.unreal}
    broken = {
        fault.kind
        for run in runs
        for fault in run.faults
        if fault.injected and any(verdict.violations_count for verdict in run.verdicts)
    }
    survived = len(tried - broken) if runs else None
    yield Figure("fault_kinds_survived", "kinds of faults survived", survived)
    yield Figure("fault_kinds_tried", "kinds of faults tried", len(tried) if runs else None)
    for key, label, among, of in (
        ("gap_hit", "no commit, groups of a hit node", faults, _hit),
        ("gap_other", "no commit, other groups", faults, _other),
        ("kill_first_commit", "to the first commit", kills, _first_commit),
        ("kill_owned", "to all partitions owned", kills, _owned),
    ):
        yield from _spread(key, label, [v for f in among if (v := of(f)) is not None])
    looked = [fault for fault in kills if fault.owned_ms is not None or fault.unowned]
    unowned = sum(fault.unowned > 0 for fault in looked)
    label = "kills after which some had no owner until the next fault"
    yield Figure("kill_unowned", label, unowned if looked else None)
    yield Figure("gap_calm_ms_max", "no commit while nothing is broken, longest", _calm(runs), "ms")
    yield from _rebalancing(runs)
    yield from _load(runs)
    yield from _soaked(inputs.soaks)
    planted = inputs.mutants
    caught = sum(mutant.caught for mutant in planted)
    builds = len({mutant.name for mutant in planted})
    yield Figure("mutants_planted", "mutants planted", builds if planted else None)
    hunts = len(planted) if planted else None
    yield Figure("mutants_hunted", "hunts for them, one a layer", hunts)
    yield Figure("mutants_caught", "hunts that caught one", caught if planted else None)


_SPOKEN = {"ok": "acknowledged", "fail": "refused", "unknown": "with unknown outcome"}


def _calm(runs: list[RunResult]) -> float | None:
    return _most(runs, lambda run: run.calm_ms)


def _hit(fault: FaultRun) -> float | None:
    return fault.hit_ms


def _other(fault: FaultRun) -> float | None:
    return fault.other_ms


def _first_commit(fault: FaultRun) -> float | None:
    return fault.first_commit_ms


def _owned(fault: FaultRun) -> float | None:
    return fault.owned_ms


def _simulated(simulations: list[Simulated]) -> Iterable[Figure]:
    seeds = sum(one.seeds for one in simulations)
    seconds = [one.simulated_s for one in simulations if one.simulated_s is not None]
    whole = bool(seconds) and len(seconds) == len(simulations)
    broken = sum(one.violations for one in simulations)
    told = bool(simulations)
    yield Figure("seeds", "simulated runs (seeds)", seeds if told else None)
    yield Figure("simulated_hours", "simulated hours", sum(seconds) / 3600 if whole else None, "h")
    yield Figure(
        "simulated_violations", "simulated runs with a violation", broken if told else None
    )
    faults = sum(sum(one.faults.values()) for one in simulations)
    yield Figure("simulated_faults", "simulated faults", faults if told else None)


def _spread(key: str, label: str, values: list[float]) -> Iterable[Figure]:
    spread = Spread.of(values)
    for name, figure in (("p50", spread.p50), ("p95", spread.p95), ("max", spread.max)):
        yield Figure(f"{key}_ms_{name}", f"{label}, {_RANK[name]}", figure, "ms")


_RANK = {"p50": "median", "p95": "p95", "p99": "p99", "max": "longest"}


def _most(runs: list[RunResult], of: Callable[[RunResult], float | None]) -> float | None:
    """The highest of the runs; of times the worst: percentiles of several runs cannot be added."""
    values = [value for run in runs if (value := of(run)) is not None]
    return max(values, default=None)


def _rebalancing(runs: list[RunResult]) -> Iterable[Figure]:
    for key, label, of in (
        ("join_to_assigned", "join to assigned", lambda r: r.rebalancing.join_to_assigned_ms),
        (
            "leave_to_reassigned",
            "leave to reassigned",
            lambda r: r.rebalancing.leave_to_reassigned_ms,
        ),
    ):
        for rank in ("p50", "p99"):
            worst = _most(runs, lambda run, of=of, rank=rank: getattr(of(run), rank))  # type: ignore[misc]
            yield Figure(f"{key}_ms_{rank}", f"{label}, {_RANK[rank]}", worst, "ms")
    looked = [run for run in runs if run.rebalancing.rebalances]
    rounds = sum(run.rebalancing.rebalances for run in looked)
    moved = sum(run.rebalancing.moved for run in looked)
    least = sum(run.rebalancing.moved_minimum for run in looked)
    yield Figure("rebalances", "rebalances", rounds if looked else None)
    yield Figure("moved", "partitions moved", moved if looked else None)
    yield Figure("moved_minimum", "partitions that had to move", least if looked else None)


def _load(runs: list[RunResult]) -> Iterable[Figure]:
    rate = min((run.commits_per_s for run in runs), default=None)
    yield Figure("commits_per_s", "commits acknowledged, through all faults", rate, "1/s")
    for rank in ("p50", "p99"):
        value = _most(runs, lambda run, rank=rank: getattr(run.commit_ms, rank))  # type: ignore[misc]
        yield Figure(f"commit_ms_{rank}", f"latency of a commit, {_RANK[rank]}", value, "ms")
    for what in ("members", "groups", "partitions"):
        most = _most(runs, lambda run, what=what: run.largest.get(what))  # type: ignore[misc]
        yield Figure(f"largest_{what}", f"most {what} at a time", most)


def _soaked(soaks: list[Soaked]) -> Iterable[Figure]:
    longest = max((soak.minutes for soak in soaks), default=None)
    yield Figure("soak_minutes", "soak", longest, "min")
    for kind, label in (("node", "nodes"), ("worker", "SDK processes")):
        mine = [line for soak in soaks for line in soak.lines if line.kind == kind]
        last = max((line.points[-1][1] for line in mine if line.points), default=None)
        slope = max((line.slope for line in mine if line.slope is not None), default=None)
        yield Figure(f"rss_{kind}_mib", f"memory after the soak, {label}, most", last, "MiB")
        yield Figure(f"rss_{kind}_slope", f"rise of it, {label}, steepest", slope, "MiB/h")
