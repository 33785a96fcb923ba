"""What a reader has to know of a run's figures beside them; nothing of it fails the run."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from musterd.chaos.run.probes import hit_nodes
from musterd.chaos.run.result import FaultRun


def notes_of(faults: Sequence[FaultRun]) -> list[str]:
    """Figures that are not there, and partitions that nobody owned; a line each."""
    done = [one for one in faults if one.injected]
    return [*_without_figure(done), *_unowned(done)]


def _without_figure(faults: Sequence[FaultRun]) -> Iterator[str]:
    by_kind: dict[str, list[FaultRun]] = defaultdict(list)
    for one in faults:
        if hit_nodes(one.targets):
            by_kind[one.kind].append(one)
    for kind, some in sorted(by_kind.items()):
        if all(one.hit_ms is None for one in some):
            nodes = sorted(set[int]().union(*(hit_nodes(one.targets) for one in some)))
            named = ", ".join(f"node-{one}" for one in nodes)
            yield (
                f"{kind}: no figure for groups of a hit node: when it began, no probe's group was "
                f"led by one ({named}; injected {len(some)} times)"
            )


def _unowned(faults: Sequence[FaultRun]) -> Iterator[str]:
    for one in faults:
        if one.unowned and one.unowned_ms is not None:
            never = f", {one.never_owned} of them for good" if one.never_owned else ""
            yield (
                f"{one.kind} at {one.planned_s:.0f} s: {one.unowned} partitions lost their owner "
                f"and had none {one.unowned_ms / 1000:.1f} s after it began{never}"
            )
