"""Faults of disks that lose power, refuse, fill up or take long.

What `Injected.facts` says of a fault is complete once `heal` has returned.
"""

import contextlib
import time
from random import Random
from typing import ClassVar

from muster.v1 import errors_pb2
from musterd.chaos.faults.contract import (
    Fault,
    FaultError,
    FaultGroup,
    Injected,
    NodeFault,
    Sight,
    Watched,
    Whom,
    chosen_nodes,
    fault,
    metric,
    until,
)
from musterd.chaos.faults.own_group import OwnGroup
from musterd.chaos.world import damage, process_state
from musterd.chaos.world.equipment.disk import LoopDisks
from musterd.chaos.world.equipment.limits import Limits
from musterd.chaos.world.world import World
from musterd.raft.contract import Room
from musterd.raft.settings import RaftSettings

NOTICE_S = 20.0
"""How long a node has to find that its disk refuses, when it is written to all the time."""
SETTLE_S = 1.0
"""A node that is about to end has ended by then."""
UNSYNCED_S_MAX = 5.0
STALL_BYTES_PER_S = 1
"""No sync ends before the limit is lifted."""
ENDS_S = RaftSettings().sync_end_ms / 1000
"""By then a node whose sync hangs ends, as soon as the kernel lets it."""
SLOW_WRITES_PER_S = (5, 40)
SLOW_SHARE_MIN = 0.5
"""Of the time between two writes that a sync has to take on average; one that waits takes all."""
ROOM = "muster_disk_room"


class _Dead(Fault):
    """A disk takes no write any more until it is mounted again."""

    group = FaultGroup.DISK
    needs = frozenset({"disk"})

    def mend(self, world: World, node_id: int) -> None:
        disks = world.equipped(LoopDisks)
        world.reap(node_id)
        if disks.dead(node_id):
            if world.nodes[node_id].running:
                world.kill(node_id)
            disks.remount([node_id])
            self.remounted(world, node_id)
        world.start_if_down(node_id)

    def remounted(self, world: World, node_id: int) -> None:
        """Called with what is on the disk, before its node starts."""


class _PowerLoss(_Dead):
    """Disks lose their power and the nodes are killed; the machine is back at heal.

    Nothing may have been unsynced at that moment, so no loss is no sign that nothing was broken.
    Facts, after heal: `lost_bytes` of the log, by node.
    """

    whom: ClassVar[Whom] = Whom.ANY

    def __init__(self) -> None:
        super().__init__()
        self._logs: dict[int, tuple[str, int]] = {}
        self._lost: dict[str, int] = {}

    def inject(self, world: World, rng: Random) -> Injected:
        self.hit = chosen_nodes(world, self.whom, rng)
        self.cut(world)
        for node_id in self.hit:
            world.kill(node_id)
        return self.injected("what was not synced is gone")

    def cut(self, world: World) -> None:
        """Stop the nodes, then cut their disks' power: nothing that is said is not on the disk.

        A sync that is under way while the power goes may say that it succeeded (3 of 60 on Linux
        6.18): a node that went on would acknowledge what is gone. No machine does that which loses
        its power.
        """
        for node_id in self.hit:
            world.pause(node_id)
        self._logs = {one: damage.log_size(world.nodes[one].data_dir) for one in self.hit}
        world.equipped(LoopDisks).cut(self.hit)

    def remounted(self, world: World, node_id: int) -> None:
        before = self._logs.get(node_id, ("", 0))
        self._lost[str(node_id)] = damage.lost_since(world.nodes[node_id].data_dir, before)
        self.facts["lost_bytes"] = self._lost
        each = ", ".join(f"node-{one}: {count}" for one, count in sorted(self._lost.items()))
        self.effect = f"bytes lost of the log: {each}"


@fault
class LostUnsynced(_PowerLoss):
    kind = "lost_unsynced"
    title = "power loss of one node: exactly what it had not synced is gone"
    weight = 2.0


@fault
class PowerLossAll(_PowerLoss):
    kind = "power_loss_all"
    title = "power loss of all nodes at one time: exactly what was not synced is gone"
    whom = Whom.ALL
    keeps_quorum = False
    hold_s = (0.0, 1.0)
    weight = 2.0


@fault
class TornWrite(_PowerLoss):
    kind = "torn_write"
    title = "power loss of one node amid a write: a part of what it had not synced is there"
    needs = frozenset({"disk", "limits"})

    def inject(self, world: World, rng: Random) -> Injected:
        [node_id] = chosen_nodes(world, self.whom, rng)
        data = world.nodes[node_id].data_dir
        _limit_writes(world, node_id, bytes_per_s=STALL_BYTES_PER_S)
        synced = damage.written(data)  # what differs from now on waits, and is unsynced
        try:
            until(lambda: damage.written(data) != synced, UNSYNCED_S_MAX)
            before = damage.written(data)
            self.hit = [node_id]
            self.cut(world)
        finally:
            world.equipped(Limits).lift(node_id)  # or it could not even be killed
        world.kill(node_id)
        world.equipped(LoopDisks).remount([node_id])
        torn = damage.half_written(data, before, rng)
        if torn is None:
            raise FaultError("torn_write: nothing was unsynced")
        self.facts["torn"] = str(torn)
        return self.injected(f"torn: {torn}")


@fault
class Eio(_Dead, NodeFault):
    kind = "eio"
    title = "EIO on every write and sync of one node: it has to stop by itself"

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        """Make it refuse, and wait `NOTICE_S` at most for the node's end.

        Facts: `at_ns` (from when on nothing may be acknowledged by this node that was asked later)
        and `exit_code` (null while it runs), `message`.
        """
        world.equipped(LoopDisks).refuse([node_id])
        self.facts["at_ns"] = time.monotonic_ns()
        code = self.ended(world, node_id, NOTICE_S)
        return "it still runs" if code is None else f"it ended by itself with code {code}"


class _Full(NodeFault, Watched):
    """Disks fill up. Facts after heal: `ended`, exit codes of nodes that ended, by node."""

    group = FaultGroup.DISK
    needs = frozenset({"disk"})
    left: ClassVar[float] = 0.0
    """Of the reserve, on each disk."""
    room: ClassVar[Room] = Room.NONE
    """What the nodes have to say of their disks."""

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        self.facts["ended"] = {}
        disks = world.equipped(LoopDisks)
        left = int(disks.reserve * self.left)
        disks.fill(node_id, left)
        return f"{left} bytes are left on each"

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(LoopDisks).free(node_id)
        if (code := self.ended(world, node_id, SETTLE_S)) is not None:
            self.facts["ended"][str(node_id)] = code
        world.start_if_down(node_id)

    def look(self, world: World) -> Sight:
        """Every node that was hit says of its disk what it has to; one that ended found out."""
        said = {
            one: metric(world.metrics(one), ROOM) for one in self.hit if world.nodes[one].running
        }
        what = ", ".join(f"node-{one}: {room}" for one, room in said.items())
        return set(said.values()) <= {float(self.room)}, f"room by the nodes' own account: {what}"


@fault
class DiskFull(_Full):
    kind = "disk_full"
    title = "the disk of one node is full: it takes no entry, and comes back when there is room"


@fault
class DisksFull(_Full):
    kind = "disks_full"
    title = "the disks of a majority are full: nothing is taken, no node ends, all comes back"
    whom = Whom.MAJORITY
    keeps_quorum = False
    left = 0.2


@fault
class DisksLow(_Full):
    kind = "disks_low"
    title = "the disks of a majority are low: what grows is refused, the rest goes on, no node ends"
    whom = Whom.MAJORITY
    keeps_quorum = False
    """What grows is refused meanwhile, though everybody is up."""
    left = 0.6
    room = Room.LOW

    _own: OwnGroup | None = None
    _wrong = ""

    def inject(self, world: World, rng: Random) -> Injected:
        """Fill them, beside a group that has one offset.

        Facts, after heal: `there`, `new`, `deleted`: the error codes of a commit of that offset,
        of one of a new offset and of the group's deletion; empty where nobody answered.
        """
        self._own = OwnGroup(world, f"low-{rng.getrandbits(32):08x}")
        self._own.commit(1)
        return super().inject(world, rng)

    def look(self, world: World) -> Sight:
        """Check that growth is refused and everything else is taken."""
        low, what = super().look(world)
        if self._own is None or not low:
            return low, what
        there, new, deleted = self._own.told(2, 0), self._own.told(1, 1), self._own.delete()
        self.facts |= {"there": sorted(there), "new": sorted(new), "deleted": sorted(deleted)}
        taken, refused = {int(errors_pb2.NONE)}, {int(errors_pb2.KAFKA_STORAGE_ERROR)}
        said = f"an offset that is there {there}, a new one {new}, a deletion {deleted}"
        if (there | deleted) - taken or new - refused:
            self._wrong = f"with low disks the error codes were, of {said}"
        return bool(there and new and deleted), f"{what}; error codes of {said}"

    def heal(self, world: World) -> None:
        """Make room. Raises FaultError where growth was taken, or anything else was not."""
        self._wrong = ""
        super().heal(world)
        if self._wrong:
            raise FaultError(self._wrong)


class _Slow(NodeFault, Watched):
    """Syncs take long, or do not end: what is only written does not wait."""

    group = FaultGroup.DISK
    needs = frozenset({"disk", "limits"})

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        _limit_writes(world, node_id, bytes_per_s=STALL_BYTES_PER_S)
        return "no sync ends"

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(Limits).lift(node_id)

    def look(self, world: World) -> Sight:
        """Whether a thread of these nodes waits for its disk, as the kernel says."""
        pids = [world.nodes[one].pid for one in self.hit if world.nodes[one].running]
        count = process_state.stuck(pids)
        return count > 0, f"{count} threads hung in the kernel"


@fault
class DiskHang(_Slow):
    kind = "disk_hang"
    title = "every write to the disk of one node hangs for a while, not its syncs alone"
    needs = frozenset({"disk"})
    hold_s = (2.0, 5.0)

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        world.equipped(LoopDisks).freeze(node_id)
        return "no write ends"

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(LoopDisks).thaw(node_id)
        # One whose syncs hung for too long ends by itself, like any other.
        world.start_if_down(node_id)


@fault
class SlowDisk(_Slow):
    kind = "slow_disk"
    title = "the disk of one node does a few writes a second"

    _before: tuple[float, float] | None = None

    def harm(self, world: World, node_id: int, rng: Random) -> str:
        self._per_s = rng.randint(*SLOW_WRITES_PER_S)
        with contextlib.suppress(OSError):  # then it is looked whether a thread hangs
            self._before = syncs(world, node_id)
        _limit_writes(world, node_id, per_s=self._per_s)
        return f"{self._per_s} writes a second"

    def look(self, world: World) -> Sight:
        """Syncs took as long as writes that wait for each other, by the node's own account."""
        if self._before is None:
            return super().look(world)
        count, took_s = self._before
        with contextlib.suppress(OSError):  # its page is late: it waits for its disk
            count, took_s = syncs(world, self.hit[0])
        count, took_s = count - self._before[0], took_s - self._before[1]
        if count <= 0:
            return super().look(world)
        what = f"{count:.0f} syncs of {took_s / count * 1000:.0f} ms on average"
        return took_s / count >= SLOW_SHARE_MIN / self._per_s, what


@fault
class FsyncStall(_Slow):
    """No leader should change.

    A machine that stands still elects another one: tests/chaos/faults judges that, a run does not.
    """

    kind = "fsync_stall"
    title = "syncs of all nodes but the one that leads most hang for 2 s: no leader should change"
    whom = Whom.FOLLOWERS
    keeps_quorum = False
    """Nothing can be acknowledged meanwhile, though everybody is up."""
    hold_s = (2.0, 2.0)


@fault
class LeaderFsyncHangs(_Slow):
    """It has to leave its shards to others, and in the end to shut its ports and end.

    The kernel keeps the process until the limit is lifted. Facts after heal: `unsynced_s` (how long
    its oldest write had waited, by its own account), `leads` (the shards that it then still led)
    and `exit_code` (null where it ran on).
    """

    kind = "leader_fsync_hangs"
    title = "no sync of the node that leads most ends for 5 to 60 s: others take over; it may end"
    whom = Whom.LEADER
    hold_s = (5.0, 60.0)
    weight = 0.5

    def mend(self, world: World, node_id: int) -> None:
        held_s = unsynced_s = (time.monotonic_ns() - self.facts["at_ns"]) / 1e9
        with contextlib.suppress(OSError):  # it says nothing any more
            unsynced_s = metric(world.metrics(node_id), "muster_wal_unsynced_seconds")
        leads = [shard for shard, leader in world.leaders().items() if leader == node_id]
        self.facts |= {"unsynced_s": unsynced_s, "leads": sorted(leads)}
        super().mend(world, node_id)
        self.ended(world, node_id, NOTICE_S if held_s >= ENDS_S else 0.0)
        world.start_if_down(node_id)


def syncs(world: World, node_id: int) -> tuple[float, float]:
    """How many syncs of its log a node has done, and how long they took, s. Raises OSError."""
    page, name = world.metrics(node_id), "muster_wal_fsync_duration_seconds"
    return metric(page, f"{name}_count"), metric(page, f"{name}_sum")


def _limit_writes(world: World, node_id: int, *, per_s: int = 0, bytes_per_s: int = 0) -> None:
    device = world.equipped(LoopDisks).place(node_id).device
    world.equipped(Limits).limit_writes(node_id, device, per_s=per_s, bytes_per_s=bytes_per_s)
