"""The figures of a report, added up over all inputs. A figure that nobody measured stays None."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from musterd.chaos.mutants.hunt import Caught, Hunts, Skipped, published_cold
from musterd.chaos.report.bugs import Bug
from musterd.chaos.report.inputs import Inputs, Soaked
from musterd.chaos.report.invariants import INVARIANTS, Invariant
from musterd.chaos.report.parts import Part, headline, parts_of
from musterd.chaos.run.result import (
    FaultClass,
    RunResult,
    Spread,
    fault_classes,
    known,
    most,
)
from musterd.chaos.sim.summary import Summary
from musterd.chaos.verdict import Verdict

SCHEMA = "muster.chaos.report/v1"
MESSAGES_MAX = 100
"""Violations per invariant that a report quotes; the count is that of all."""
NS_PER_H = 3_600e9
HELD, VIOLATED, EMPTY = "held", "violated", "looked at nothing"
WAITS, ABSENT = "does not apply", "not checked in this run"


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
    faults: list[FaultClass]
    simulated_faults: dict[str, int]
    not_injected: list[Failure]
    skipped: list[Failure]
    mutants: list[Caught]
    unsought: list[Skipped]
    """Mutants that the machine could not hunt, and why."""
    cold: Hunts
    """What hunts without a known seed took, on which build."""
    bugs: list[Bug]
    runs: list[tuple[str, RunResult]]
    simulations: list[tuple[str, Summary]]
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
    verdicts = [verdict for _, run in runs for verdict in run.verdicts]
    invariants = [_held(one, verdicts) for one in INVARIANTS]
    reasons = list(_reasons(inputs, invariants))
    faults = [(name, fault) for name, run in runs for fault in run.faults]
    simulated: Counter[str] = Counter()
    for _, simulation in inputs.simulations:
        simulated.update(simulation.faults)
    return Report(
        schema=SCHEMA,
        made_at=made_at,
        passed=not reasons,
        reasons=reasons,
        figures=list(_figures(inputs)),
        invariants=invariants,
        faults=fault_classes(fault for _, fault in faults),
        simulated_faults=dict(sorted(simulated.items())),
        not_injected=[Failure(f.kind, f.error, run) for run, f in faults if not f.injected],
        skipped=[Failure(s.kind, s.reason, name) for name, run in runs for s in run.skipped],
        mutants=inputs.mutants,
        unsought=[one for hunts in inputs.hunts for one in hunts.skipped],
        cold=published_cold(),
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
    for name, simulation in inputs.simulations:
        if simulation.violations:
            yield f"{name}: {simulation.violations} simulated runs violate"
        yield from (f"{name}: {problem}" for problem in simulation.problems)
    for mutant in inputs.mutants:
        if not mutant.caught:
            yield f"mutant {mutant.name} {mutant.how}"
    for soak in inputs.soaks:
        yield from (f"{soak.name}: {problem}" for problem in soak.problems)


def _held(promise: Invariant, verdicts: list[Verdict]) -> Held:
    mine = [verdict for verdict in verdicts if verdict.invariant == promise.id]
    applying = [verdict for verdict in mine if verdict.applies]
    count = sum(verdict.violations_count for verdict in mine)
    looked_at = sum(verdict.looked_at for verdict in applying)
    state = WAITS if mine or promise.waits_for else ABSENT
    if applying:
        state = HELD if looked_at else EMPTY
    if count:
        state = VIOLATED
    waits = f"waits for {promise.waits_for}" if promise.waits_for else ""
    notes = list(dict.fromkeys(verdict.note for verdict in applying or mine if verdict.note))
    messages = [broken.what for verdict in mine for broken in verdict.violations]
    return Held(
        id=promise.id,
        title=promise.title,
        meaning=promise.meaning,
        state=state,
        looked_at=looked_at,
        violations=count,
        messages=tuple(messages[:MESSAGES_MAX]),
        note="; ".join(notes) or (waits if state == WAITS else ""),
    )


def _total(values: Iterable[float | None]) -> float | None:
    """The sum; None where one is not known, and where there is none."""
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if known and len(known) == len(found) else None


RANKS = {"p50": "median", "p95": "p95", "p99": "p99", "max": "longest"}


def _figures(inputs: Inputs) -> Iterable[Figure]:
    runs, mutants = [run for _, run in inputs.runs], inputs.mutants
    yield Figure("runs", "runs on real processes", len(runs) or None)
    hours = _total((run.ended_ns - run.began_ns) / NS_PER_H for run in runs)
    yield Figure("real_hours", "time on real processes", hours, "h")
    yield from _simulated([summary for _, summary in inputs.simulations])
    for key, label, total in (
        ("operations_ok", "operations acknowledged", lambda run: run.counts.ok),
        ("operations_fail", "operations refused", lambda run: run.counts.fail),
        ("operations_unknown", "operations with unknown outcome", lambda run: run.counts.unknown),
        ("commits_lost", "acknowledged commits lost", lambda run: run.commits_lost),
        ("keys_unread", "keys not read again", lambda run: run.keys_unread),
        ("violations", "violations", lambda run: sum(v.violations_count for v in run.verdicts)),
        ("faults_injected", "faults injected", lambda run: sum(f.injected for f in run.faults)),
    ):
        yield Figure(key, label, _total(map(total, runs)))
    yield from _survived(runs)
    yield Figure("gap_calm_ms_max", _CALM, most(runs, "calm_ms"), "ms")
    yield from _rebalancing(runs)
    yield from _load(runs)
    yield from _soaked(inputs.soaks)
    builds = len({mutant.name for mutant in mutants})
    yield Figure("mutants_planted", "mutants planted", builds or None)
    yield Figure("mutants_hunted", "hunts for them, one a layer", len(mutants) or None)
    caught = _total(mutant.caught for mutant in mutants)
    yield Figure("mutants_caught", "hunts that caught one", caught)


_CALM = "no commit while nothing is broken, longest"


def _survived(runs: list[RunResult]) -> Iterable[Figure]:
    faults = [fault for run in runs for fault in run.faults if fault.injected]
    kills = [fault for fault in faults if fault.kind.startswith("kill_leader")]
    tried = {fault.kind for fault in faults if not fault.unreal}
    bad = [run for run in runs if any(verdict.violations_count for verdict in run.verdicts)]
    broken = {fault.kind for run in bad for fault in run.faults if fault.injected}
    survived = len(tried - broken) if runs else None
    yield Figure("fault_kinds_survived", "kinds of faults survived", survived)
    yield Figure("fault_kinds_tried", "kinds of faults tried", len(tried) if runs else None)
    for key, label, among, of in (
        ("gap_hit", "no commit, groups of a hit node", faults, "hit_ms"),
        ("gap_other", "no commit, other groups", faults, "other_ms"),
        ("kill_first_commit", "to the first commit", kills, "first_commit_ms"),
        ("kill_owned", "to all partitions owned", kills, "owned_ms"),
    ):
        spread = Spread.of(known(among, of))
        for rank in ("p50", "p95", "max"):
            yield Figure(f"{key}_ms_{rank}", f"{label}, {RANKS[rank]}", getattr(spread, rank), "ms")
    looked = [fault for fault in kills if fault.owned_ms is not None or fault.unowned]
    unowned = _total(fault.unowned > 0 for fault in looked)
    label = "kills after which some had no owner until the next fault"
    yield Figure("kill_unowned", label, unowned)


def _simulated(simulations: list[Summary]) -> Iterable[Figure]:
    seconds = _total(one.simulated_s for one in simulations)
    broken = _total(one.violations for one in simulations)
    faults = _total(sum(one.faults.values()) for one in simulations)
    hours = None if seconds is None else seconds / 3600
    yield Figure("seeds", "simulated runs (seeds)", _total(one.seeds for one in simulations))
    yield Figure("simulated_hours", "simulated hours", hours, "h")
    yield Figure("simulated_violations", "simulated runs with a violation", broken)
    yield Figure("simulated_faults", "simulated faults", faults)


def _rebalancing(runs: list[RunResult]) -> Iterable[Figure]:
    for key, label in (
        ("join_to_assigned_ms", "join to assigned"),
        ("leave_to_reassigned_ms", "leave to reassigned"),
    ):
        for rank in ("p50", "p99"):
            worst = most(runs, f"rebalancing.{key}.{rank}")
            yield Figure(f"{key}_{rank}", f"{label}, {RANKS[rank]}", worst, "ms")
    looked = [run.rebalancing for run in runs if run.rebalancing.rebalances]
    rounds, moved = _total(one.rebalances for one in looked), _total(one.moved for one in looked)
    yield Figure("rebalances", "rebalances", rounds)
    yield Figure("moved", "partitions moved", moved)
    least = _total(one.moved_minimum for one in looked)
    yield Figure("moved_minimum", "partitions that had to move", least)


def _load(runs: list[RunResult]) -> Iterable[Figure]:
    rate = min((run.commits_per_s for run in runs), default=None)
    yield Figure("commits_per_s", "commits acknowledged, through all faults", rate, "per s")
    for rank in ("p50", "p99"):
        label = f"latency of a commit, {RANKS[rank]}"
        yield Figure(f"commit_ms_{rank}", label, most(runs, f"commit_ms.{rank}"), "ms")
    for what in ("members", "groups", "partitions"):
        largest = max((run.largest[what] for run in runs if what in run.largest), default=None)
        yield Figure(f"largest_{what}", f"most {what} at a time", largest)


def _soaked(soaks: list[Soaked]) -> Iterable[Figure]:
    yield Figure("soak_minutes", "soak", most(soaks, "minutes"), "min")
    for kind, label in (("node", "nodes"), ("worker", "SDK processes")):
        mine = [line for soak in soaks for line in soak.lines if line.kind == kind]
        last = max((line.points[-1][1] for line in mine if line.points), default=None)
        slope = most(mine, "slope")
        yield Figure(f"rss_{kind}_mib", f"memory after the soak, {label}, most", last, "MiB")
        yield Figure(f"rss_{kind}_slope", f"rise of it, {label}, steepest", slope, "MiB/h")
