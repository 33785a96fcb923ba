"""One simulated node: the shipped driver and all below it, over a store that can lose power."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from muster.v1 import admin_pb2 as pb_admin
from muster.v1 import peer_pb2 as pb
from musterd.chaos.history import NodeState
from musterd.chaos.sim.actors.members import Members
from musterd.chaos.sim.checks.admission_checks import Admissions
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.server import SimServer
from musterd.chaos.sim.engine.wal import cut, encode, has_entry, recover
from musterd.chaos.sim.engine.world import Node, World
from musterd.chaos.sim.faults.full_disks import GrowthDetector
from musterd.chaos.sim.faults.hung_disks import (
    POLL_S,
    Unsynced,
    may_not_lead,
    may_not_vote,
    takes_part,
)
from musterd.chaos.sim.faults.levels import Levels
from musterd.coordinator.node import assembly
from musterd.coordinator.node.assembly import Integrity
from musterd.coordinator.runtime.shard import Shard
from musterd.levels import LAST_UNNAMED, LEVEL
from musterd.raft import codec
from musterd.raft.contract import NodeId, Role, Room, ShardId
from musterd.raft.driver import Driver
from musterd.raft.identity import Identity, load_identity, write_identity
from musterd.raft.journal import Journal
from musterd.raft.lives import PeerLife
from musterd.raft.log_format import Entry
from musterd.raft.peer_levels import LevelError
from musterd.raft.peers import decode_admission
from musterd.raft.replica.replica import Replica
from musterd.raft.settings import RaftSettings
from musterd.storage import keys
from musterd.storage.clock import steady_s
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Family, Store

UNHEARD_STARTS = 4
"""An older copy was started fewer times than this before anybody hears of it."""
KILLED_SHARE = 0.3
"""Of the looks after which a state is in quarantine: the process is killed."""
CODE_S = 5e-5
"""What one look at the clock costs, so that no loop sees time stand still."""


class PowerCutError(BaseException):
    """The node dies between two sends; no handler of the shipped code may catch it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind
        """Which fault it was."""


class Host(World, Protocol):
    """The simulation as its nodes see it."""

    admissions: list[Admissions]
    members: Members
    levels: Levels | None
    """None where nobody sees to levels."""

    @property
    def nodes(self) -> Sequence["SimNode"]: ...

    def hang_up(self, src: int, dst: int, fault: str) -> None:
        """`dst` closes its connection to `src` over what `fault` made of a frame."""

    def make_server(self, node: "SimNode") -> SimServer: ...

    def run_on(self, node: "SimNode", run: Callable[[], None]) -> None: ...


class WatchedJournal(Journal):
    """A log that shows the checkers every change, as it happens."""

    def __init__(
        self,
        store: Store,
        shard: ShardId,
        settings: RaftSettings,
        node: int,
        checker: ShardChecker,
        admissions: Admissions,
        look: Callable[[bytes], None] | None = None,
    ) -> None:
        """`look` is shown each entry before it is in the log."""
        super().__init__(store, shard, settings)
        self._look = look
        self._node, self._checker, self._admissions = node, checker, admissions

    def add(self, command: bytes, idx: int, term: int) -> None:
        if self._look is not None:
            self._look(command)
        before = (self.last_index, self.last_term)
        self._checker.appended(self._node, (idx, term), command, before)
        self._admissions.appended(self._node, idx, term, command)
        super().add(command, idx, term)

    def truncate_from(self, index: int) -> None:
        self._checker.cut(self._node, self._from_index(index), "truncated")
        super().truncate_from(index)

    def reset(self, entry: Entry) -> None:
        command, index, term = entry
        self._checker.cut(self._node, self._from_index(index + 1), "snapshot")
        self._checker.appended(self._node, (index, term), command, None)
        super().reset(entry)

    def _from_index(self, start: int) -> list[tuple[int, int]]:
        first = max(start, self.first_index)
        return [(i, self.term_at(i)) for i in range(first, self.last_index + 1)]


class SimNode:
    """A node over several lives; `store` is its disk, `driver` its process (None: down)."""

    def __init__(
        self, world: Host, number: int, nodes: int, shards: int, crash_after_vote: float = 0.0
    ) -> None:
        self.world, self.number = world, number
        self._members, self._shards = tuple(range(nodes)), shards
        self.level = LAST_UNNAMED if world.scenario.levels else LEVEL
        self.incarnation = 0
        self.driver: Driver | None = None
        self.server: SimServer | None = None
        self.crash_after_sends: int | None = None
        self.crash_after_vote = crash_after_vote
        self.sync_stalled_until_s = self.sync_hangs_until_s = 0.0
        self._unsynced = Unsynced()
        self._growth = GrowthDetector()
        self._hung = ""
        """What it did when no sync of its disk ended for too long."""
        self.paused_until_s = 0.0
        self.busy_until_s = 0.0
        """Its loop is at work until then (actors/clients.py)."""
        self.awake_s = 0.0
        """By then what a pause has put off was done, though the pause was healed before."""
        self.heard_s: dict[int, float] = {}
        """By peer, when this process last took a frame of it in, on this process's clock."""
        self.told_s: dict[int, float] = {}
        """By peer, when that one last took a frame of this process in, on this process's clock."""
        self.wrong_after: dict[int, int] = {}
        self._slept_s = 0.0
        self._rate, self._offset = 1.0, 1.0 + world.rng.random() * 100
        self._turn_scheduled = self._syncing = self._starting = False
        self._timer_due_s = 0.0
        self._sync_fails = self.sync_failed = False
        self.store = self.lost = MemoryStore(self._written)
        self.store_uuid = b""
        self._lost_above = 0
        """Its disk is an older copy, and counts anew as of a later life than this; 0: it is not."""
        self.wipe()

    # -- life

    def wipe(self) -> None:
        """Start over on an empty disk, as `muster init` does."""
        self.lost = self.store
        self._lost_above = 0
        self.store_uuid = self.world.rng.randbytes(16)
        self.store = MemoryStore(self._written)
        identity = Identity("sim", self.number, self.store_uuid, self._shards, self._members)
        write_identity(self.store, identity)
        self.store.write()
        self.store.sync()

    def put_back(self, copy: MemoryStore) -> None:
        """The disk of a node that is down is an older one from now on.

        It was started up to three times before, and ended before it reached anybody.
        """
        for _ in range(self.store.life % UNHEARD_STARTS):
            copy = copy.crash()
        self.lost, self.store = self.store, copy
        self._lost_above = max(self.lost.life, self._lost_above)

    def would_miss(self, node: Node, copy: MemoryStore) -> bool:
        """Whether this node's disk says that a copy of the disk of `node` lacks something."""
        value = self.store._durable[Family.META].values.get(keys.peer_life_key(node.number))
        if value is None or keys.IDENTITY not in copy._durable[Family.META].values:
            return False
        known = PeerLife.decode(value)
        return known.store_uuid == node.store_uuid == load_identity(copy).store_uuid and (
            known.life >= copy.life or known.epoch > copy.starts[-1].epoch
        )

    def begin_again(self) -> None:
        self.store = MemoryStore(self._written)
        self.wipe()

    def start(self) -> None:
        """Open the store and run. Nobody is connected yet."""
        self.incarnation += 1
        self.heard_s.clear()
        self.told_s.clear()
        self.wrong_after.clear()
        self._unsynced.restart()
        self._growth = GrowthDetector()
        self._hung = ""
        self.busy_until_s = 0.0
        self._starting = True
        self.crash_after_sends = None
        self._turn_scheduled = self._syncing = self._sync_fails = False
        life = self.incarnation
        self._app = self.world.members.open(self)
        self.driver, self.assembly = self._app.driver, self._app.assembly
        self.driver.on_wake(lambda: self._want_turn(life))
        for shard, replica in self.driver.replicas.items():
            if len(self._members) == 1:
                journal = replica.journal
                self.world.checkers[shard].restarted_alone(journal.last_index, replica.term)
        self.driver.start()
        self._starting = False
        if self.world.levels is not None and not self.world.levels.started(self):
            self.world.schedule(0.0, self._end, self.incarnation, False)
        if self.world.scenario.compare_s:
            self._integrity = Integrity(self.driver, self.assembly)
            self._compare_later(life)
        for shard, replica in self.driver.replicas.items():
            known = self.store.get(Family.META, keys.distrusted_key(shard))
            if known and not replica.distrusted:
                self.world.checkers[shard].violated("H-quarantine-forgotten", node=self.number)
        self.server = self.world.make_server(self)
        self._timer_due_s = self.monotonic_s()
        self.world.schedule(0.0, self.run_later, self.incarnation, self._timer)

    def stop(self, *, power_cut: bool) -> None:
        """Die. A power cut loses a suffix of what is not synced; a kill keeps what was written."""
        self.driver = None
        if self.server is not None:
            self.server.loop.kill()
            self.server = None
        self.store.fail_writes = self._sync_fails = self.sync_failed = False
        survivors = len(self.store._unsynced)
        if power_cut:
            survivors = self._cut_power()
        self.store = self.store.crash(survivors)

    def _cut_power(self) -> int:
        """Cut what was not synced anywhere; return how many epochs are whole."""
        store = self.store
        written = [*store._unsynced]
        found = recover(cut(encode(written), self.world.rng))
        assert list(found.epochs) == written[: len(found.epochs)]
        if found.torn:
            self.world.count("torn_tail")
        if len(found.epochs) < len(written):
            self.world.count("lost_unsynced")
        return len(found.epochs)

    def make_journal(self, store: Store, shard: ShardId, settings: RaftSettings) -> Journal:
        """The log of one of its shards, with the checkers looking on."""
        checkers = self.world.checkers[shard], self.world.admissions[shard]
        levels = self.world.levels
        look = None if levels is None else partial(levels.look, checkers[0], self)
        return WatchedJournal(store, shard, settings, self.number, *checkers, look)

    # -- what others ask

    @property
    def running(self) -> Driver:
        assert self.driver is not None, f"node {self.number} is down"
        return self.driver

    @property
    def alive(self) -> bool:
        return self.driver is not None

    @property
    def leads(self) -> bool:
        return self.driver is not None and bool(self.driver.led())

    @property
    def is_being_admitted(self) -> bool:
        """Whether a shard's log has begun to admit this node's store, and has not come further."""
        if self.driver is None:
            return False
        book, shards = self.driver.book, range(self._shards)
        return any(book.is_learner(one) and book.is_announced(one, self.number) for one in shards)

    def leads_shard(self, shard: int) -> bool:
        return self.driver is not None and self.driver.replicas[ShardId(shard)].leads

    def shard(self, number: int) -> Shard:
        """Of the process that runs, or did last."""
        return self.assembly.shards[number]

    def replica(self, shard: int) -> Replica:
        return self.running.replicas[ShardId(shard)]

    def is_durable(self, shard: int, index: int, term: int) -> bool:
        """Whether a power cut now would leave the entry here, in the log or below its start.

        What a wiped disk held counts until the new one is admitted: nobody else may stand in for
        it before every other voter has acknowledged, so it cannot be outvoted.
        """
        if has_entry(self.store, shard, index, term):
            return True
        return not self.is_admitted(shard) and has_entry(self.lost, shard, index, term)

    def is_admitted(self, shard: int) -> bool:
        """Whether this node's disk says that it is a voter: never replaced, or admitted."""
        meta = self.store._durable[Family.META].values
        if meta.get(keys.replaced_key(self.number)) is None and not self.was_wiped:
            return True
        found = meta.get(keys.admitted_key(shard, self.number))
        if found is None:
            return False
        admission = decode_admission(found)
        if self._lost_above and admission.life <= self._lost_above:
            return False
        return admission.effective and admission.store_uuid == self.store_uuid

    def is_witness(self, shard: int) -> bool:
        """Whether this node's disk says that its state is its own: a voter's, and no mere copy."""
        meta = self.store._durable[Family.META].values
        marks = (keys.copy_key(shard), keys.distrusted_key(shard))
        return self.is_admitted(shard) and not any(mark in meta for mark in marks)

    def journal_term(self, shard: int) -> int:
        """The term that this node is in, or was in when it went down."""
        if self.driver is not None:
            return self.replica(shard).term
        return Journal(self.store, ShardId(shard), self.world.settings).getCurrentTerm()

    @property
    def is_introduced(self) -> bool:
        """Whether this node's disk says that it may count at all."""
        meta = self.store._durable[Family.META].values
        return keys.INTRODUCED in meta or keys.replaced_key(self.number) in meta

    @property
    def was_wiped(self) -> bool:
        return bool(self.lost.written_epoch)

    # -- time

    def clock(self) -> float:
        """The one that the shipped composition gives the driver."""
        return self.steady_s() if assembly.CLOCK is steady_s else self.monotonic_s()

    def steady_s(self) -> float:
        """CLOCK_BOOTTIME: it goes on while the machine sleeps."""
        self.world.micro += CODE_S
        return self._offset + (self.world.now + self.world.micro) * self._rate

    def monotonic_s(self) -> float:
        """CLOCK_MONOTONIC, by which the loop's timers go: it stands still meanwhile."""
        return self.steady_s() - self._slept_s

    def suspend(self, seconds: float) -> None:
        """The machine sleeps. What was due by its end is done at once when it wakes."""
        self.paused_until_s = self.world.now + seconds
        self._slept_s += seconds * self._rate

    @property
    def time_s(self) -> float:
        """The time on its clock, for observers: to read it costs nothing."""
        return self._offset + self.world.now * self._rate

    @property
    def room(self) -> Room:
        return Room.ENOUGH if self.driver is None else self.driver.room

    def set_room(self, room: Room) -> None:
        """Set the room on its disk from now on, until it is started anew."""
        if self.driver is not None:
            life, driver = self.incarnation, self.driver
            self.run_later(life, lambda: driver.set_room(room))

    def look_at_room(self) -> None:
        """Whoever follows and took an entry that its disk had no room for is a finding."""
        for shard, replica in self.running.replicas.items():
            follows = replica.role is not Role.LEADER
            term, last_index = replica.term, replica.last_index
            if self._growth.look(shard, term, last_index, follows=follows, room=self.room):
                checker = self.world.checkers[shard]
                checker.violated("A-took-entry-without-room", node=self.number)

    def set_clock_rate(self, rate: float) -> None:
        """Run faster or slower from now on, without a jump."""
        now = self.time_s
        self._rate, self._offset = rate, now - self.world.now * rate

    def work(self, seconds: float) -> None:
        """Hold up the loop for so long, after what it has been asked to do before."""
        self.busy_until_s = max(self.busy_until_s, self.world.now) + seconds

    # -- the loop that owns the driver

    def run_pass(self, life: int, run: Callable[[], None]) -> None:
        """A pass of the frontend's loop: it moves no replica, so there is nothing to check."""
        held_until_s = max(self.paused_until_s, self.busy_until_s)
        if self.alive and life == self.incarnation and self.world.now >= held_until_s:
            run()
        else:
            self.run_later(life, run)

    def run_later(self, life: int, run: Callable[[], None]) -> None:
        """Run shipped code now, or when a pause of the process ends; never in a later life."""
        if not self.alive or life != self.incarnation:
            return
        if self.world.now < self.busy_until_s and self.paused_until_s <= self.busy_until_s:
            wait = self.busy_until_s - self.world.now
            self.world.schedule(wait, self.run_later, life, run)
            return
        if self.world.now < self.paused_until_s:
            wait = self.paused_until_s - self.world.now
            self.awake_s = max(self.awake_s, self.paused_until_s)
            self.world.schedule(wait, self.run_later, life, run)
            return
        self.world.run_on(self, run)

    def _want_turn(self, life: int) -> None:
        if self.alive and life == self.incarnation and not self._turn_scheduled:
            self._turn_scheduled = True
            # Frames that come meanwhile share the turn, as they do on a busy loop.
            delay_s = self.world.rng.random() * 0.002
            self.world.schedule(delay_s, self.run_later, life, self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        self.running.turn()

    def _timer(self) -> None:
        late_s = self.monotonic_s() - self._timer_due_s
        self._app.timer(max(late_s, 0.0))
        wait = self.running.timer() / self._rate
        self._look_after_disk()
        self._timer_due_s = self.monotonic_s() + wait * self._rate
        wait += self.world.rng.random() * 0.01
        self.world.schedule(wait, self.run_later, self.incarnation, self._timer)

    # -- checkpoints

    def _compare_later(self, life: int) -> None:
        delay_s = self.world.scenario.compare_s * (0.5 + self.world.rng.random())
        self.world.schedule(delay_s, self.run_later, life, self._compare)

    def _compare(self) -> None:
        """As a node does it; those that it is connected to have answered at once."""
        for other in self.world.nodes:
            if other is not self:
                reached = other.alive and self.world.net.is_up(self.number, other.number)
                said = other.checkpoints() if reached else None
                self._integrity.peers.answered(NodeId(other.number), said)
        self._integrity.quarantine.judge()
        for shard in self.assembly.shards:
            shard.checkpoint_soon()
        self._compare_later(self.incarnation)
        outvoted = any(shard.quarantined for shard in self.assembly.shards)
        if outvoted and self.world.chaotic and self.world.rng.random() < KILLED_SHARE:
            self.world.count("killed_in_quarantine")
            self.world.schedule(0.0, self._end, self.incarnation, False)

    def checkpoints(self) -> pb_admin.CheckpointsResponse:
        """Return the checkpoints as it tells them to the others."""
        return pb_admin.CheckpointsResponse(
            checkpoints=self._integrity.verifier.own_checkpoints(()), store_uuid=self.store_uuid
        )

    def sees_conflict(self, shard: int) -> bool:
        """Whether its alert is on: replicas differ, and no majority agrees."""
        return shard in self._integrity.quarantine.conflicts

    # -- disk: one sync at a time, covering what was written when it began

    def _written(self, epoch: int) -> None:
        if not self.alive and not self._starting:
            return  # no process has written it
        if self.store.hard_epoch == epoch:
            self._unsynced.written(epoch, self.world.now)
        if not self._syncing:
            self._syncing = True
            self._begin_sync()

    def _begin_sync(self) -> None:
        rng = self.world.rng
        delay = 0.0003 + rng.expovariate(1 / (0.004 if rng.random() < 0.9 else 0.1))
        delay = max(delay, self.sync_stalled_until_s - self.world.now)
        target, life = self.store.written_epoch, self.incarnation
        self.world.schedule(delay, self._end_sync, self.store, target, life)

    def _end_sync(self, store: MemoryStore, epoch: int, life: int) -> None:
        if store is not self.store or life != self.incarnation:
            return
        if self.world.now < self.sync_hangs_until_s:
            self.world.schedule(POLL_S, self._end_sync, store, epoch, life)
            return
        self.run_later(life, lambda: self._synced(epoch))

    def _synced(self, epoch: int) -> None:
        if self._sync_fails:
            self._sync_failed()
            return
        self._syncing = False
        self._unsynced.synced(epoch)
        if self.store.written_epoch > epoch:
            self._syncing = True
            self._begin_sync()
        self.store.sync(epoch)

    @property
    def _unsynced_s(self) -> float:
        return self._unsynced.age_s(self.world.now, self.awake_s)

    def _look_after_disk(self) -> None:
        """End as the node does where a sync does not; who leads although one hangs is a finding.

        The kernel keeps the process, and its disk, until the sync ends.
        """
        hung_s, before = self._unsynced_s, self._hung
        if len(self._members) > 1 and may_not_lead(hung_s, self.world.settings):
            self._hung = "leading" if self.leads else "left"
            if self._hung != before:
                log = self.world.members.log
                told, now = f"no sync ended for {hung_s:.1f} s", log.now_ns()
                log.record(NodeState(self.number, "sync_hangs", now, now, self._hung, told))
        if self.running.disk_is_lost:
            self.world.count("ended_with_hung_disk")
            down_s = max(self.sync_hangs_until_s - self.world.now, 0.0) + 0.1
            self.world.schedule(0.0, self._end, self.incarnation, False, down_s)

    def fail_sync(self) -> None:
        self._sync_fails = True

    def fill_disk(self) -> None:
        """Writes fail from now on, and the node with the first."""
        self.store.fail_writes = True

    def spare_disk(self) -> None:
        """No fault that has not happened yet happens any more."""
        if not self.sync_failed:
            self._sync_fails = self.store.fail_writes = False

    def _sync_failed(self) -> None:
        """Nothing is synced or written any more, and the process ends a few passes later.

        As storage/rocks.py and coordinator/node/serve.py do it: an fsync is never tried again.
        """
        self.world.count("eio")
        self.store.fail_writes = self.sync_failed = True
        life = self.incarnation
        self.world.schedule(0.002 * self.world.rng.random(), self._end, life)

    def _end(self, life: int, power_cut: bool = True, down_s: float | None = None) -> None:
        """The process ends at once: nothing is handed over."""
        if self.alive and life == self.incarnation:
            self.world.crash(self.number, power_cut=power_cut, down_s=down_s)

    # -- network

    def send(self, node: int, frame: bytes, bulk: bool) -> bool:
        """`Link`: hand a frame to the network, or die before it."""
        if self.crash_after_sends is not None:
            if self.crash_after_sends == 0:
                raise PowerCutError("crash_after_send")
            self.crash_after_sends -= 1
        has_vote = self._note_votes(node, frame)
        self.world.net.send(self.number, node, frame, bulk=bulk)
        if has_vote and self.world.rng.random() < self.crash_after_vote:
            raise PowerCutError("crash_after_vote")
        return True

    def _note_votes(self, node: int, frame: bytes) -> bool:
        has_vote = False
        for shard, message in codec.decode_frame(frame)[1]:
            if message["type"] == "response_vote":
                self.world.checkers[shard].voted(self.number, message["term"], node)
                has_vote = True
            elif message["type"] == "request_vote":
                self.world.checkers[shard].voted(self.number, message["term"], self.number)
            elif takes_part(message) and may_not_vote(self._unsynced_s, self.world.settings):
                self.world.checkers[shard].violated("A-pre-vote-with-hung-disk", node=self.number)
        return has_vote

    def hang_up(self, node: int) -> None:
        """`Link`: the peer's store was replaced."""
        self.world.schedule(0.0, self.world.net.disconnect, self.number, node)
        self.world.schedule(0.05, self.world.net.connect, self.number, node)

    def greets(self, peer: "SimNode") -> bool:
        """Whether this node accepts the hello of `peer`, as it travels."""
        hello = codec.decode_hello(codec.encode_hello(peer.running.hello(pb.LANE_CONTROL)))
        levels = self.world.levels
        if levels is None:
            return self.running.accept_hello(hello) is None
        try:
            welcome = self.running.accept_hello(hello) is None
        except LevelError:  # it ends by itself
            welcome = False
        if not welcome and peer.level < self.running.levels.own.active:
            levels.turned_away(peer)
        return welcome

    def receive(self, src: int, frame: bytes) -> None:
        fault = self.world.net.damaged_by(frame)
        if self.world.trace is not None and fault is None:
            for shard, message in codec.decode_frame(frame)[1]:
                self.world.trace(
                    f"{self.world.now:.4f} {src}->{self.number} {shard} {_brief(message)}"
                )
        if fault is None:
            self.run_later(self.incarnation, lambda: self._deliver(src, frame))
        else:
            self.run_later(self.incarnation, lambda: self._deliver_garbage(src, frame, fault))

    def _deliver(self, src: int, frame: bytes) -> None:
        self.heard_s[src] = self.steady_s()
        self.world.nodes[src].told_s[self.number] = self.world.nodes[src].time_s
        self.running.receive(src, frame)

    def _deliver_garbage(self, src: int, frame: bytes, fault: str) -> None:
        """Nothing of it may be taken: the connection is closed, as transport.py does it."""
        try:
            self.running.receive(src, frame)
        except codec.CodecError:
            self.world.schedule(0.0, self.world.hang_up, src, self.number, fault)
        else:
            self.world.checkers[0].violated("S-garbage-taken", node=self.number, peer=src)

    def connected(self, peer: int) -> None:
        self.world.run_on(self, lambda: self.running.connected(peer))

    def disconnected(self, peer: int) -> None:
        self.world.run_on(self, lambda: self.running.disconnected(peer, control=True))

    # -- requests

    def transfer_leadership(self, to: int | None = None) -> None:
        for shard in self.running.led():
            self.running.replicas[shard].transfer_leadership(None if to is None else NodeId(to))

    def drain(self) -> None:
        """Tell clients and hand leadership over, as a process does on SIGTERM."""

        def drain() -> None:
            if self.server is not None:
                self.server.drain()
            self.running.drain()

        self.run_later(self.incarnation, drain)

    def stall_writes(self, count: int) -> None:
        """Let the database ask to wait, the next `count` times."""
        self.store.stall_writes = count


def _brief(message: codec.Message) -> str:
    shown = {k: v for k, v in message.items() if k not in {"type", "pairs"}}
    if message.get("entries"):
        shown["entries"] = [(index, term) for _, index, term in message["entries"]]
    return f"{message['type']} {shown}"
