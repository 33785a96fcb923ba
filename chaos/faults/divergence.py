"""Replicas whose stored state is another than the log says, alike where there are several.

No checksum tells: a sound record has another value. Only replicas that compare find out.
"""

import time
from contextlib import suppress
from random import Random
from typing import ClassVar

from musterd.chaos.faults.contract import (
    FaultError,
    FaultGroup,
    Injected,
    Watched,
    counted,
    fault,
    some_of,
    until,
)
from musterd.chaos.faults.operation import stop
from musterd.chaos.faults.own_group import OwnGroup
from musterd.chaos.world import damage
from musterd.chaos.world.world import World

SETTLED_S_MAX = 30.0
REPAIRED_S_MAX = 90.0
"""Nodes record what they hold every 10 s, and compare as often."""
POLL_S = 0.2


class _Divergence(Watched):
    """An acknowledged offset is another one on some nodes: a minority, which is outvoted."""

    group = FaultGroup.DISK
    hold_s = (0.0, 1.0)
    wrong: ClassVar[int]
    """So many nodes, alike."""

    def inject(self, world: World, rng: Random) -> Injected:
        """Commit, stop, change, start; wait until those nodes have the others' state.

        Facts: `nodes`, `shard`, `from_index` and `until_index`, between which they differed,
        `outcome` (repaired, believed, running), `detail`, `at_ns`.
        """
        own = OwnGroup(world, "diverging")
        offset = rng.randrange(1 << 30)
        own.commit(offset)
        committed = max(own.applied().values())  # others commit on: a mark that does not move
        world.wait(
            lambda: _all_have(world, own, committed), SETTLED_S_MAX, "all have applied the commit"
        )
        self.hit = self._choose(world, rng)
        before = {one: _quarantines(world, one, own.shard) for one in world.running()}
        before |= dict.fromkeys(self.hit, 0)  # a new process counts from 0
        from_index = max(own.applied().values())
        for node_id in self.hit:
            stop(world, node_id)
        world.changed.update(self.hit)
        for node_id in self.hit:
            folder = world.nodes[node_id].data_dir
            if damage.change_offset(folder, own.shard, own.name, own.topic, 0) != offset:
                raise FaultError(f"node {node_id} had not stored what it had applied")
        at_ns = time.monotonic_ns()
        for node_id in self.hit:
            world.start(node_id)
        outvoted = self._await_repair(world, own, offset, before)
        stored: int | None = None
        with suppress(FaultError):  # then nothing can be read
            stored = own.offset()
        left = _quarantined(world, own.shard)
        if stored != offset or set(outvoted) - set(self.hit):
            outcome = "believed"
        elif left or set(outvoted) != set(self.hit):
            outcome = "running"
        else:
            outcome = "repaired"
        detail = f"outvoted: {outvoted}; in quarantine still: {left}; {offset} is read as {stored}"
        self.saw(outcome == "repaired", f"{outcome}: {detail}")
        self.facts |= {
            "nodes": list(self.hit),
            "shard": own.shard,
            "from_index": from_index,
            "until_index": max(own.applied().values()),
            "at_ns": at_ns,
            "outcome": outcome,
            "detail": detail,
        }
        return self.injected(
            f"an offset of shard {own.shard} was changed from {offset} to {offset + 1}"
        )

    def _choose(self, world: World, rng: Random) -> list[int]:
        """Those again that another fault has changed: a majority's records stay what they were."""
        again = sorted(world.changed)[: self.wrong]
        others = [one for one in world.running() if one not in again]
        more = self.wrong - len(again)
        return sorted([*again, *(some_of(world, others, more, rng) if more else ())])

    def _await_repair(
        self, world: World, own: OwnGroup, offset: int, before: dict[int, int]
    ) -> list[int]:
        """Until all that were changed were outvoted and serve again; returns who was outvoted."""
        outvoted: list[int] = []

        def repaired() -> bool:
            with suppress(FaultError):  # where all are in quarantine nobody takes it
                own.commit(offset, (1,))  # a shard that does not move records nothing
            outvoted[:] = [
                one for one in world.running() if _quarantines(world, one, own.shard) > before[one]
            ]
            return set(self.hit) <= set(outvoted) and not _quarantined(world, own.shard)

        until(repaired, REPAIRED_S_MAX, POLL_S)
        return outvoted


@fault
class OneDiverges(_Divergence):
    kind = "one_diverges"
    title = "one node stores another offset than was acknowledged: it is outvoted and rebuilt"
    wrong = 1


@fault
class TwoDiverge(_Divergence):
    kind = "two_diverge"
    title = "two of five nodes store the same wrong offset: they are outvoted and rebuilt"
    wrong = 2
    nodes_min = 5


def _all_have(world: World, own: OwnGroup, index: int) -> bool:
    applied = own.applied()
    return set(applied) == set(world.running()) and min(applied.values()) >= index


def _quarantined(world: World, shard: int) -> list[int]:
    """Nodes that say that they are in quarantine, or say nothing."""
    views = world.views()
    return [
        node_id
        for node_id in world.running()
        if node_id not in views
        or any(one.quarantined for one in views[node_id].shard_states if one.shard == shard)
    ]


def _quarantines(world: World, node_id: int, shard: int) -> int:
    """How often a node was outvoted since it started; 0 where it does not say yet."""
    with suppress(OSError):
        return counted(world, [node_id], f'muster_shard_quarantines_total{{shard="{shard}"}}')
    return 0
