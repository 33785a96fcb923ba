"""A single-replica log that applies on demand, and a shard on it."""

from collections import deque
from dataclasses import replace

from musterd.coordinator.machine.commands import (
    Assignment,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    SyncGroup,
)
from musterd.coordinator.node.assembly import Assembly
from musterd.coordinator.runtime.retention import RETENTION
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turn import Joins, Turn
from musterd.raft.contract import (
    Applied,
    NodeId,
    NotLeader,
    Overloaded,
    Role,
    Room,
    ShardId,
    Unknown,
)


class FakeBatch:
    """Puts at once."""

    def __init__(self, view):
        self.view = view

    def put(self, key, value):
        self.view.state[key] = value

    def put_all(self, pairs):
        self.view.state.update(pairs)

    def delete(self, key):
        self.view.state.pop(key, None)

    def delete_prefix(self, prefix):
        for key in [key for key in self.view.state if key.startswith(prefix)]:
            del self.view.state[key]

    def put_meta(self, key, value):
        self.view.meta[key] = value

    def delete_meta(self, key):
        self.view.meta.pop(key, None)


class FakeView:
    """The stored state of a shard."""

    def __init__(self):
        self.state, self.meta, self.applied_index = {}, {}, 0

    def get(self, key):
        return self.state.get(key)

    def scan(self, prefix=b""):
        return iter(sorted((k, v) for k, v in self.state.items() if k.startswith(prefix)))

    def scan_meta(self, prefix=b""):
        return iter(sorted((k, v) for k, v in self.meta.items() if k.startswith(prefix)))


class FakeLog:
    """A log of one replica.

    `run` commits and applies what was proposed; reads are confirmed by `run` too.
    """

    def __init__(self, shard=0, view=None):
        self.shard = ShardId(shard)
        self.role, self.term, self.leader = Role.FOLLOWER, 0, None
        self.applied_index = self.commit_index = 0
        self.ready = self.loading = False
        self.trusted = ()  # what `rebuild` was told
        self.copy_of = None
        self.differing, self.set_aside = {}, None
        self.quorum_heard = self.current = True
        self.room = Room.ENOUGH
        self.view = view or FakeView()
        self.waiting, self.reads, self.entries = deque(), [], []
        self.machine = None
        self.overloaded = False
        self.handed_to = None  # leadership is being transferred to this node

    def propose(self, entry, done):
        if self.overloaded:
            done(Overloaded("the log"))
        elif self.handed_to is not None:
            done(NotLeader(self.handed_to))
        elif self.role is not Role.LEADER:
            done(NotLeader(self.leader))
        else:
            self.waiting.append((entry, done))

    def read_index(self, done):
        self.reads.append(done)

    @property
    def distrusted(self):
        return bool(self.trusted)

    def rebuild(self, trusted):
        self.trusted, self.loading = tuple(trusted), True

    def confirm_copy(self):
        self.copy_of = None

    def note_differing(self, notes):
        self.differing = notes

    def drop_set_aside(self):
        self.set_aside = None

    def loaded(self, view):
        """A leader's whole state has come."""
        self.trusted = ()
        for _ in self.machine.reload(view):
            pass
        self.loading = False

    def transfer_leadership(self, to=None):
        return False

    def lead(self):
        self.role, self.term, self.leader = Role.LEADER, self.term + 1, NodeId(0)
        self.applied_index += 1  # the no-op
        self.ready = True
        self.machine.role_changed(Role.LEADER, self.term)

    def follow(self, leader=None):
        self.role, self.ready = Role.FOLLOWER, False
        self.term += 1
        self.leader = leader
        waiting, self.waiting = self.waiting, deque()
        reads, self.reads = self.reads, []
        for _, done in waiting:
            done(Unknown())
        for done in reads:
            done(False)
        self.machine.role_changed(Role.FOLLOWER, self.term)

    def run(self, entries=None):
        """Apply what was proposed (`entries`: at most so many), then confirm reads."""
        count = len(self.waiting) if entries is None else entries
        for _ in range(count):
            entry, done = self.waiting.popleft()
            self.applied_index += 1
            self.commit_index = self.view.applied_index = self.applied_index
            self.entries.append(entry)
            result = self.machine.apply(self.applied_index, self.term, entry, FakeBatch(self.view))
            done(Applied(self.applied_index, self.term, result))
        reads, self.reads = self.reads, []
        for done in reads:
            done(True)


class Rig:
    """One shard on one log, with a clock that the test turns."""

    def __init__(
        self, view=None, call_limits=None, retention=RETENTION, limits=None, make_shard=Shard
    ):
        self.wakes = 0
        self.wall_ms = 1_700_000_000_000
        self.call_limits = call_limits
        self.assembly = Assembly(
            NodeId(0),
            "",
            1,
            wall_ms=lambda: self.wall_ms,
            wake=self._wake,
            peers=dict,
            retention=retention,
            limits=limits,
            make_shard=lambda number, context: make_shard(number, self._context(context)),
        )
        self.shard = self.assembly.shards[0]
        self.log = FakeLog(view=view)
        self.log.machine = self.shard
        self.shard.attach(self.log)
        self.clock_ms, self.loop_round = 5_000_000, 0
        self.answers = {}
        if view is not None:
            for _ in self.shard.reload(view):
                pass
        self.turn()

    @property
    def proposer(self):
        return self.shard.leadership.proposer

    @property
    def waiters(self):
        return self.shard.leadership.waiters

    def _context(self, context):
        """A test may replace the registry, and whom deletions and the end of a leadership reach."""
        self.call_limits = self.call_limits or context.call_limits
        self.registry, self.offsets_dropped = context.registry, context.offsets_dropped
        self.registry_distrusted = context.registry_distrusted
        self.shard_moved = context.shard_moved
        return replace(
            context,
            call_limits=self.call_limits,
            registry=lambda: self.registry(),  # noqa: PLW0108
            registry_distrusted=lambda: self.registry_distrusted(),  # noqa: PLW0108
            offsets_dropped=lambda *one: self.offsets_dropped(*one),  # noqa: PLW0108
            shard_moved=lambda shard: self.shard_moved(shard),  # noqa: PLW0108
        )

    def _wake(self):
        self.wakes += 1

    def turn(self, ms=10, lag_ms=0, *, joins=Joins.FEW):
        """One turn, `ms` later; what it proposes is applied at once."""
        self.clock_ms += ms
        self.loop_round += 1
        self.call_limits.disconnects.turn(self.clock_ms)
        self.shard.turn(Turn(self.clock_ms, lag_ms, self.loop_round, joins))
        self.log.run()

    def drain(self):
        """As many turns as it takes to propose all that was asked."""
        while self.proposer.waiting:
            self.turn(ms=1)

    def run(self, ms):
        """Turns of 10 ms."""
        end_ms = self.clock_ms + ms
        while self.clock_ms < end_ms:
            self.turn()

    def ask(self, name, command, size=1_000):
        """Submit; the answer appears in `answers[name]`."""

        def respond(answer):
            assert name not in self.answers, "answered once"
            self.answers[name] = answer

        return self.shard.submit(command, size, respond)


def join(
    member,
    group="g",
    session_ms=10_000,
    rebalance_ms=60_000,
    metadata=b"m",
    member_id="",
    *,
    instance="",
    drawn="",
):
    """A Join of `<member>-<nonce>`; with `drawn` one without a nonce."""
    return JoinGroup(
        group_id=group,
        member_id=member_id,
        client_id=member,
        client_host="127.0.0.1",
        join_nonce="" if drawn else nonce(member),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocol_type="consumer",
        protocols=(Protocol("range", metadata),),
        subscribed_topics=("t",),
        reason="",
        group_instance_id=instance,
        drawn_nonce=drawn,
    )


def nonce(member):
    """32 hex digits that are the member's own."""
    return member.encode().hex().rjust(32, "0")[-32:]


def id_of(member):
    """The member id a first join gets."""
    return f"{member}-{nonce(member)}"


def sync(member, generation, assignments=(), group="g"):
    """A Sync; `assignments` maps member names to bytes."""
    return SyncGroup(
        group_id=group,
        member_id=id_of(member),
        generation=generation,
        protocol_type="consumer",
        protocol_name="range",
        assignments=tuple(Assignment(id_of(m), a) for m, a in dict(assignments).items()),
    )


def leave(member, group="g"):
    """A Leave of one member."""
    return LeaveGroup(group_id=group, members=(LeavingMember(id_of(member), "done"),))


def commit(member, generation, offset, seq=0, group="g", partition=0):
    """A commit of one partition of topic t."""
    return OffsetCommit(
        group_id=group,
        member_id=id_of(member) if member else "",
        generation=generation,
        commit_seq=seq,
        partitions=(PartitionCommit("t", partition, offset, "", None),),
    )
