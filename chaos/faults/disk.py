"""Faults of disks that lose power, refuse, fill up or take long.

What `Injected.facts` says of a fault is complete once `heal` has returned.
"""

import contextlib
import re
import subprocess
import time
from random import Random
from typing import ClassVar

from muster.v1 import errors_pb2
from musterd.chaos.faults.contract import (
    Fault,
    FaultError,
    Group,
    Injected,
    Sight,
    Watched,
    fault,
    one_of,
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
POLL_S = 0.01
STALL_BYTES_PER_S = 1
"""No sync ends before the limit is lifted."""
ENDS_S = RaftSettings().sync_end_ms / 1000
"""By then a node whose sync hangs ends, as soon as the kernel lets it."""
SLOW_WRITES_PER_S = (5, 40)
SLOW_SHARE_MIN = 0.5
"""Of the time between two writes that a sync has to take on average; one that waits takes all."""
_SYNCS = re.compile(r"^muster_wal_fsync_duration_seconds_(count|sum) (\S+)$", re.MULTILINE)
_ROOM = re.compile(r"^muster_disk_room (\S+)$", re.MULTILINE)
_UNSYNCED = re.compile(r"^muster_wal_unsynced_seconds (\S+)$", re.MULTILINE)


class DiskFault(Fault):
    """Of a disk of one node's own, or several."""

    group = Group.DISK
    needs = frozenset({"disk"})


def wait_end(world: World, node_id: int, timeout_s: float) -> int | None:
    """The exit code of a node that ends by itself within so many seconds, else None."""
    process = world.nodes[node_id].process
    if process is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    return world.reap(node_id)


def _cut_power(world: World, nodes: list[int]) -> dict[int, tuple[str, int]]:
    """Stop the nodes, then cut their disks' power: nothing that is said is not on the disk.

    A sync that is under way while the power goes may say that it succeeded (3 of 60 on Linux 6.18):
    a node that went on would acknowledge what is gone. No machine does that which loses its power.

    Returns each node's newest log and its bytes, synced or not, just before.
    """
    for node_id in nodes:
        if world.nodes[node_id].running:
            world.pause(node_id)
    logs = {one: damage.log_size(world.nodes[one].data_dir) for one in nodes}
    world.equipped(LoopDisks).cut(nodes)
    return logs


class _Dead(DiskFault):
    """A disk takes no write any more until it is mounted again."""

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

    def __init__(self) -> None:
        super().__init__()
        self._logs: dict[int, tuple[str, int]] = {}
        self._lost: dict[str, int] = {}

    def power_off(self, world: World, nodes: list[int]) -> Injected:
        self.hit = list(nodes)
        self._logs = _cut_power(world, nodes)
        for node_id in nodes:
            if world.nodes[node_id].running:  # else it has noticed already
                world.kill(node_id)
        return self.injected("what was not synced is gone")

    def remounted(self, world: World, node_id: int) -> None:
        before = self._logs.get(node_id, ("", 0))
        lost = damage.lost_since(world.nodes[node_id].data_dir, before)
        self._lost[str(node_id)] = lost
        self.facts["lost_bytes"] = self._lost
        each = ", ".join(f"node-{one}: {count}" for one, count in sorted(self._lost.items()))
        self.effect = f"bytes lost of the log: {each}"


@fault
class LostUnsynced(_PowerLoss):
    kind = "lost_unsynced"
    title = "power loss of one node: exactly what it had not synced is gone"
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        return self.power_off(world, [self.hit_one(world, rng)])


@fault
class PowerLossAll(_PowerLoss):
    kind = "power_loss_all"
    title = "power loss of all nodes at one time: exactly what was not synced is gone"
    keeps_quorum = False
    hold_s = (0.0, 1.0)
    weight = 2.0

    def inject(self, world: World, rng: Random) -> Injected:
        return self.power_off(world, world.running())


@fault
class TornWrite(_PowerLoss):
    kind = "torn_write"
    title = "power loss of one node amid a write: a part of what it had not synced is there"
    needs = frozenset({"disk", "limits"})

    def inject(self, world: World, rng: Random) -> Injected:
        node_id = one_of(world, world.running(), rng)
        data = world.nodes[node_id].data_dir
        disks = world.equipped(LoopDisks)
        _limit_writes(world, node_id, bytes_per_s=STALL_BYTES_PER_S)
        synced = damage.written(data)  # what differs from now on waits, and is unsynced
        try:
            deadline = time.monotonic() + UNSYNCED_S_MAX
            while (before := damage.written(data)) == synced and time.monotonic() < deadline:
                time.sleep(POLL_S)
            self.hit = [node_id]
            _cut_power(world, [node_id])
        finally:
            world.equipped(Limits).lift(node_id)  # or it could not even be killed
        self.power_off(world, [node_id])
        disks.remount([node_id])
        torn = damage.half_written(data, before, rng)
        if torn is None:
            raise FaultError("torn_write: nothing was unsynced")
        self.facts["torn"] = str(torn)
        return self.injected(f"torn: {torn}")


@fault
class Eio(_Dead):
    kind = "eio"
    title = "EIO on every write and sync of one node: it has to stop by itself"

    def inject(self, world: World, rng: Random) -> Injected:
        """Make it refuse, and wait `NOTICE_S` at most for the node's end.

        Facts: `node`, `refuses_ns` (from when on nothing may be acknowledged by this node that was
        asked later), `ended_ns` and `exit_code` (null while it runs), `message`.
        """
        node_id = self.hit_one(world, rng)
        world.equipped(LoopDisks).refuse([node_id])
        self.facts |= {"node": node_id, "refuses_ns": time.monotonic_ns()}
        code = wait_end(world, node_id, NOTICE_S)
        self.facts |= {
            "exit_code": code,
            "ended_ns": None if code is None else time.monotonic_ns(),
            "message": last_words(world, node_id) if code is not None else "",
        }
        return self.injected(
            "it still runs" if code is None else f"it ended by itself with code {code}"
        )


def last_words(world: World, node_id: int) -> str:
    """The last line that a node logged which says something."""
    lines = world.log_tail(node_id).splitlines()[1:]
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


@fault
class DiskFull(DiskFault, Watched):
    kind = "disk_full"
    title = "the disk of one node is full: it takes no entry, and comes back when there is room"

    def inject(self, world: World, rng: Random) -> Injected:
        """Fill it. Facts: `node`, and after heal `exit_code` (null where it ran on)."""
        node_id = self.hit_one(world, rng)
        taken = world.equipped(LoopDisks).fill(node_id)
        self.facts |= {"node": node_id, "exit_code": None}
        return self.injected(f"{taken} bytes were free")

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(LoopDisks).free(node_id)
        if (code := wait_end(world, node_id, SETTLE_S)) is not None:
            self.facts |= {"exit_code": code, "message": last_words(world, node_id)}
            self.saw(True, f"it ended by itself with code {code}")
        world.start_if_down(node_id)

    def look(self, world: World) -> Sight:
        full = world.equipped(LoopDisks).full(self.hit[0])
        return full, "no block was left" if full else "a block was left"


class _MajorityFull(DiskFault, Watched):
    """Disks of a majority fill up while everybody writes: no node may end by it."""

    keeps_quorum = False
    """What grows, or anything, is refused meanwhile, though everybody is up."""
    left: ClassVar[float]
    """Of the reserve, on each disk."""
    room: ClassVar[Room]
    """What the nodes have to say of their disks."""

    def __init__(self) -> None:
        super().__init__()
        self._ended: dict[str, int] = {}

    def inject(self, world: World, rng: Random) -> Injected:
        """Fill them. Facts: `nodes`, `at_ns`, and after heal `ended` (exit codes by node)."""
        running = world.running()
        hit = rng.sample(running, min(len(running), len(world.nodes) // 2 + 1))
        disks = world.equipped(LoopDisks)
        self.facts |= {"nodes": sorted(hit), "ended": self._ended, "at_ns": time.monotonic_ns()}
        for node_id in sorted(hit):
            self.hit.append(node_id)
            disks.fill(node_id, int(disks.reserve * self.left))
        return self.injected(f"{int(disks.reserve * self.left)} bytes are left on each")

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(LoopDisks).free(node_id)
        if (code := wait_end(world, node_id, SETTLE_S)) is not None:
            self._ended[str(node_id)] = code
            self.facts["message"] = last_words(world, node_id)
        world.start_if_down(node_id)

    def look(self, world: World) -> Sight:
        """Every node that was hit says of its disk what it has to."""
        said = {one: _room(world, one) for one in self.hit if world.nodes[one].running}
        what = ", ".join(f"node-{one}: {room}" for one, room in said.items())
        return set(said.values()) == {float(self.room)}, f"room by the nodes' own account: {what}"


def _room(world: World, node_id: int) -> float:
    """What a node says of its disk's room. Raises OSError."""
    found = _ROOM.search(world.metrics(node_id))
    if found is None:
        raise OSError(f"node {node_id} says nothing of its disk's room")
    return float(found[1])


@fault
class DisksLow(_MajorityFull):
    kind = "disks_low"
    title = "the disks of a majority are low: what grows is refused, the rest goes on, no node ends"
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
        """What grows is refused, the rest is taken."""
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


@fault
class DisksFull(_MajorityFull):
    kind = "disks_full"
    title = "the disks of a majority are full: nothing is taken, no node ends, all comes back"
    left = 0.2
    room = Room.NONE


def _stuck(world: World, nodes: list[int]) -> Sight:
    """Whether a thread of these nodes waits for its disk, as the kernel says."""
    count = process_state.stuck(world.nodes[one].pid for one in nodes if world.nodes[one].running)
    return count > 0, f"{count} threads hung in the kernel"


def _limit_writes(world: World, node_id: int, *, per_s: int = 0, bytes_per_s: int = 0) -> None:
    device = world.equipped(LoopDisks).place(node_id).device
    world.equipped(Limits).limit_writes(node_id, device, per_s=per_s, bytes_per_s=bytes_per_s)


class _Slow(DiskFault, Watched):
    needs = frozenset({"disk", "limits"})

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(Limits).lift(node_id)

    def look(self, world: World) -> Sight:
        return _stuck(world, self.hit)


@fault
class SlowDisk(_Slow):
    kind = "slow_disk"
    title = "the disk of one node does a few writes a second"

    _before: tuple[int, float] | None = None

    def inject(self, world: World, rng: Random) -> Injected:
        node_id = one_of(world, world.running(), rng)
        self._per_s = rng.randint(*SLOW_WRITES_PER_S)
        self.hit = [node_id]
        with contextlib.suppress(OSError):  # then it is looked whether a thread hangs
            self._before = _syncs(world, node_id)
        _limit_writes(world, node_id, per_s=self._per_s)
        return self.injected(f"{self._per_s} writes a second")

    def look(self, world: World) -> Sight:
        """Syncs took as long as writes that wait for each other, by the node's own account."""
        if self._before is None:
            return super().look(world)
        count, took_s = self._before
        with contextlib.suppress(OSError):  # its page is late: it waits for its disk
            count, took_s = _syncs(world, self.hit[0])
        count, took_s = count - self._before[0], took_s - self._before[1]
        if count <= 0:
            return super().look(world)
        what = f"{count} syncs of {took_s / count * 1000:.0f} ms on average"
        return took_s / count >= SLOW_SHARE_MIN / self._per_s, what


@fault
class FsyncStall(_Slow):
    """Syncs of all nodes but one hang; what they only write does not. No leader should change.

    A machine that stands still elects another one: tests/chaos/faults judges that, a run does not.
    """

    kind = "fsync_stall"
    title = "syncs of all nodes but the one that leads most hang for 2 s: no leader should change"
    keeps_quorum = False
    """Nothing can be acknowledged meanwhile, though everybody is up."""
    hold_s = (2.0, 2.0)

    def inject(self, world: World, rng: Random) -> Injected:
        """Stall them. Facts: `terms` and, after heal, `terms_after`, by shard."""
        self.facts["terms"] = _by_name(world.terms())
        for node_id in world.followers():
            self.hit.append(node_id)
            _limit_writes(world, node_id, bytes_per_s=STALL_BYTES_PER_S)
        return self.injected("no sync ends")

    def heal(self, world: World) -> None:
        stalled = bool(self.hit)
        super().heal(world)
        if stalled:
            self.facts["terms_after"] = _by_name(world.terms())


@fault
class LeaderFsyncHangs(_Slow):
    """No sync of the node that leads most ends; what it only writes does not hang.

    It has to leave its shards to others, and in the end to shut its ports and end: the kernel keeps
    the process until the limit is lifted.
    """

    kind = "leader_fsync_hangs"
    title = "no sync of the node that leads most ends for 5 to 60 s: others take over; it may end"
    hold_s = (5.0, 60.0)
    weight = 0.5

    def inject(self, world: World, rng: Random) -> Injected:
        """Let its syncs hang.

        Facts: `node`, `at_ns`, and after heal `unsynced_s` (how long its oldest write had waited,
        by its own account), `leads` (the shards that it then still led) and `exit_code` (null where
        it ran on).
        """
        node_id = world.leader()
        self.hit = [node_id]
        self.facts |= {"node": node_id, "exit_code": None, "at_ns": time.monotonic_ns()}
        self._since = time.monotonic()
        _limit_writes(world, node_id, bytes_per_s=STALL_BYTES_PER_S)
        return self.injected("no sync ends")

    def mend(self, world: World, node_id: int) -> None:
        ends = time.monotonic() - self._since >= ENDS_S
        unsynced_s = self._unsynced_s(world, node_id)
        leads = [shard for shard, leader in world.leaders().items() if leader == node_id]
        world.equipped(Limits).lift(node_id)
        code = wait_end(world, node_id, NOTICE_S if ends else 0.0)
        self.facts |= {"unsynced_s": unsynced_s, "leads": sorted(leads), "exit_code": code}
        world.start_if_down(node_id)

    def _unsynced_s(self, world: World, node_id: int) -> float:
        """As the node says; where it says nothing any more, as long as it was held."""
        with contextlib.suppress(OSError):
            if found := _UNSYNCED.search(world.metrics(node_id)):
                return float(found[1])
        return time.monotonic() - self._since


@fault
class DiskHang(DiskFault, Watched):
    kind = "disk_hang"
    title = "every write to the disk of one node hangs for a while"
    hold_s = (2.0, 5.0)

    def inject(self, world: World, rng: Random) -> Injected:
        self.hit_one(world, rng)
        world.equipped(LoopDisks).freeze(self.hit)
        return self.injected("writes hang")

    def mend(self, world: World, node_id: int) -> None:
        world.equipped(LoopDisks).thaw([node_id])

    def look(self, world: World) -> Sight:
        return _stuck(world, self.hit)


def _syncs(world: World, node_id: int) -> tuple[int, float]:
    """How many syncs of its log a node has done, and how long they took, s. Raises OSError."""
    found = dict(_SYNCS.findall(world.metrics(node_id)))
    return int(float(found.get("count", 0))), float(found.get("sum", 0.0))


def _by_name(terms: dict[int, int]) -> dict[str, int]:
    return {str(shard): term for shard, term in sorted(terms.items())}
