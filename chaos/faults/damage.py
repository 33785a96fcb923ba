"""Faults of what is on the disk: torn ends, flipped bits, a disk that is lost.

A node with damaged files must refuse to start, or lose nothing that it vouched for; it never
serves wrong data. It is rebuilt as an operator would: new store, `muster cluster replace-node`.
"""

import shutil
import time
from abc import abstractmethod
from pathlib import Path
from random import Random
from typing import ClassVar

from musterd.chaos.faults.contract import (
    FaultError,
    FaultGroup,
    NodeFault,
    Watched,
    counted,
    fault,
    until,
)
from musterd.chaos.world import damage, process_state
from musterd.chaos.world.damage import DamageError, Part
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError

OUTCOME_S_MAX = 60.0
"""How long a start may take until the node serves, or has refused."""
REPLACE_S_MAX = 40.0
DEEP_SHARE = 0.5
"""Of the torn tails: these go below the durable mark."""
MARKS = 4
"""So many renewals later the mark vouches for all that was written before them: the first may have
begun before, and what is in the file may wait for the next sync."""
MARKS_S_MAX = 10.0
"""An idle node renews none."""
STOPPED_S_MAX = 10.0
"""A thread that waits for its disk stops when that has answered."""
WHOLE_S_MAX = 30.0
"""Until a node that forgot something has again what the others had committed by then."""
NOTICED_S_MAX = 10.0
"""Until others have met a node that forgot something, and tell so on their page of metrics."""
POLL_S = 0.05


def _vouched(folder: Path) -> tuple[str, int] | None:
    """A write-ahead log's name and a size that the durable mark vouches for by now.

    None where the node renews no mark, as it writes nothing. Raises FaultError where it writes and
    renews none.
    """
    name, size = damage.log_size(folder)
    known, renewals = damage.mark(folder), 0
    deadline = time.monotonic() + MARKS_S_MAX
    while size and time.monotonic() < deadline:
        if (now := damage.mark(folder)) != known:
            known, renewals = now, renewals + 1
        if renewals == MARKS:
            return name, size
        time.sleep(POLL_S)
    if size and not renewals and damage.log_size(folder) != (name, size):
        raise FaultError(f"{folder.name} writes, and renewed no mark in {MARKS_S_MAX:.0f} s")
    return None


def rebuild(world: World, node_id: int) -> None:
    """Give a node that does not run a new store, and have it admitted as a learner.

    Raises ClusterError where the others do not take it within `REPLACE_S_MAX`.
    """
    if world.nodes[node_id].data_dir.exists():
        world.wipe(node_id)
    store = world.init(node_id)
    deadline = time.monotonic() + REPLACE_S_MAX
    while True:
        try:
            world.muster("cluster", "replace-node", str(node_id), f"--store-uuid={store}", "--yes")
        except ClusterError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_S)  # an election, or the old store's connection is not gone yet
        else:
            break
    world.start(node_id)


class _Damaged(NodeFault):
    """A stopped node's files are damaged, then it is started."""

    group = FaultGroup.DISK

    def start_on(self, world: World, node_id: int, done: object, how: str) -> str:
        """Facts: `file`, `outcome` (refused, serves, silent), `exit_code`, `message`."""
        world.start(node_id)
        outcome = self.outcome(world, node_id)
        self.facts |= {
            "file": str(done),
            "how": how,
            "outcome": outcome,
            "at_ns": time.monotonic_ns(),
        }
        return f"{how}: {done}; {outcome}"

    def outcome(self, world: World, node_id: int) -> str:
        deadline = time.monotonic() + OUTCOME_S_MAX
        while time.monotonic() < deadline:
            if self.ended(world, node_id, POLL_S) is not None:
                return "refused"
            view = world.describe(node_id)
            if view is not None and all(
                state.role in {"Leader", "Follower"} for state in view.shard_states
            ):
                return "serves"
        return "silent"

    def mend(self, world: World, node_id: int) -> None:
        """Rebuild the node: what was found damaged once is not trusted again."""
        world.reap(node_id)
        if world.nodes[node_id].running:
            world.kill(node_id)
        rebuild(world, node_id)


@fault
class TornTail(_Damaged):
    kind = "torn_tail"
    title = "the write-ahead log of one node is cut off: its last bytes, or below its mark"

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Kill, truncate, start.

        Facts: `vouched`, whether the durable mark vouches for what is gone: a node must refuse to
        start without it. Half of the cuts go so deep, where the node writes anything at all. A cut
        of the last bytes looks as a crash leaves it: the node may drop the record.
        """
        folder = world.nodes[node_id].data_dir
        vouched = _vouched(folder) if rng.random() < DEEP_SHARE else None
        world.kill(node_id)
        deep = vouched is not None and vouched[0] == damage.log_size(folder)[0]
        self.facts["vouched"] = deep
        done = damage.tear(folder, rng, vouched[1] if vouched is not None and deep else None)
        how = "truncated below its durable mark" if deep else "truncated"
        return self.start_on(world, node_id, done, how)


@fault
class FlippedByte(_Damaged):
    kind = "flipped_byte"
    title = "one bit of a file of one node is flipped: log, data, manifest or mark"

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        world.kill(node_id)
        parts = list(Part)
        rng.shuffle(parts)
        for part in parts:
            try:
                done = damage.flip(world.nodes[node_id].data_dir, part, rng)
            except DamageError:  # a young node has no data file yet
                continue
            self.facts["part"] = str(part)
            return self.start_on(world, node_id, done, f"a bit of the {part} flipped")
        raise FaultError(f"node {node_id} has no file to damage")


@fault
class WholeDiskLost(_Damaged):
    kind = "whole_disk_lost"
    title = "one node loses all its data, and is replaced"

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        world.kill(node_id)
        world.wipe(node_id)
        return "wiped"


class _Forgetful(_Damaged, Watched):
    """A node forgets what it had on its disk, and is not given a new one."""

    how: ClassVar[str]

    @abstractmethod
    def copy(self, world: World, node_id: int, to: Path) -> None:
        """Copy the data of a node that runs, and have it run on."""

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Copy; some commits later kill, put the copy back, start.

        Facts: `heard`, whether the others have noted for sure what is then forgotten; `losses`, how
        often they learnt of the loss.
        """
        data = world.nodes[node_id].data_dir
        copy = data.with_name(f"{data.name}.copy")
        before = _losses(world, node_id)
        try:
            self.copy(world, node_id, copy)
            served = self.outcome(world, node_id) == "serves"
            # It writes what others send: they have its hello, and noted what this disk has.
            self.facts["heard"] = _vouched(data) is not None and served
            world.kill(node_id)
            damage.put_back(copy, data)
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        done, lacks = self.start_on(world, node_id, "its directory", self.how), ""
        until(lambda: _losses(world, node_id) > before, NOTICED_S_MAX)
        losses = _losses(world, node_id) - before
        outcome = self.facts["outcome"]
        if outcome != "silent":  # since they have noticed
            outcome = self.outcome(world, node_id)
        if outcome == "serves" and (lacks := _lacks(world, node_id)):
            outcome = "behind"
        self.facts |= {"losses": losses, "outcome": outcome}
        self.saw(losses > 0, f"others noticed the loss {losses} times; then: {outcome}")
        return "; ".join(filter(None, (done, lacks)))

    def mend(self, world: World, node_id: int) -> None:
        """A new store would hide that it does not come back by itself."""
        world.start_if_down(node_id)


@fault
class OlderCopy(_Forgetful):
    kind = "older_copy"
    title = "one node is started on a copy of its data that is some seconds old"
    how = "an older copy"

    def copy(self, world: World, node_id: int, to: Path) -> None:
        world.kill(node_id)
        shutil.copytree(world.nodes[node_id].data_dir, to)
        world.start(node_id)


@fault
class LostSynced(_Forgetful):
    kind = "lost_synced"
    title = "the disk of one node loses all that was synced within some seconds before it is killed"
    how = "the synced tail is lost"

    def copy(self, world: World, node_id: int, to: Path) -> None:
        node = world.nodes[node_id]
        world.pause(node_id)  # what can be read of its files then is what a kill would leave
        try:
            if not until(lambda: process_state.stopped(node.pid), STOPPED_S_MAX):
                raise FaultError(f"node {node_id} did not stop")
            shutil.copytree(node.data_dir, to)
        finally:
            world.resume(node_id)


def _lacks(world: World, node_id: int) -> str:
    """Return what a node lacks of all that the others have committed by now; "" if nothing."""
    wanted: dict[int, int] = {}
    for other, view in world.views().items():
        for state in view.shard_states if other != node_id else ():
            wanted[state.shard] = max(wanted.get(state.shard, 0), state.commit_index)

    def lacking() -> list[int]:
        own = world.describe(node_id)
        states = () if own is None else own.shard_states
        applied = {state.shard: state.applied_index for state in states}
        return sorted(shard for shard, index in wanted.items() if applied.get(shard, 0) < index)

    if until(lambda: not lacking(), WHOLE_S_MAX):
        return ""
    return f"it lacks entries of shards {lacking()}"


def _losses(world: World, node_id: int) -> int:
    """How often the other nodes that run have learnt that the store of this one forgot."""
    others = [one for one in world.running() if one != node_id]
    return counted(world, others, f'muster_store_losses_total{{node="{node_id}"}}')
