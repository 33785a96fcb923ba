"""The shipped coordinator shard on a simulated node, and what must hold of its groups."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from musterd.chaos.sim.checks.applied import Applied, Watch
from musterd.chaos.sim.checks.call_ledger import AccountedShard
from musterd.chaos.sim.checks.group_history import GroupHistory
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.rpc import endpoint
from musterd.chaos.sim.engine.world import Node
from musterd.chaos.sim.faults.differing_states import wrong_entry
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import MemberReplaced
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.node.assembly import open_node
from musterd.coordinator.runtime.answers import Loading, NotHere
from musterd.coordinator.runtime.coordinator_state import CoordinatorState
from musterd.coordinator.runtime.node_context import NodeContext
from musterd.coordinator.runtime.persist import scrub
from musterd.coordinator.runtime.retention import Retention
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turn import Joins
from musterd.raft.contract import ShardId, StateBatch, StateView
from musterd.raft.replica.replica import Replica
from musterd.raft.state import ShardView

DIGEST_BYTES = 16
EPOCH_MS = 1_700_000_000_000


@dataclass(slots=True)
class GroupsChecker:
    """Checks the promises to members, over all groups of one shard (docs/chaos.md)."""

    shard: ShardChecker
    history: GroupHistory
    firsts: list[Watch] = field(default_factory=list)
    """Each is told of every entry by the first node that applies it."""
    watches: list[Watch] = field(default_factory=list)
    """Each is told of every entry by every node."""
    _seen: int = 0

    def applied(self, one: Applied) -> None:
        """A node has applied an entry."""
        if one.index > self._seen:
            self._seen = one.index
            for watch in self.firsts:
                watch(one)
        for watch in self.watches:
            watch(one)


class WatchedShard(AccountedShard):
    """A node's shard with the checkers looking on."""

    def __init__(
        self,
        number: ShardId,
        context: NodeContext,
        checker: GroupsChecker,
        node: Node,
    ) -> None:
        world = node.world
        super().__init__(
            number,
            context,
            node,
            checker.shard,
            lambda: world.scenario.herds and joins_at(world.now, node.number).hold_first_rounds,
        )
        self._checker, self._node = checker, node
        self._who = (node.number, node.incarnation)
        self._waiting: set[str] = set()
        self.subscribe(self._tell)

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        wrong_after = self._node.wrong_after.get(self.number)
        goes_wrong = wrong_after is not None and index > wrong_after
        applied = self._wrong(index, entry) if goes_wrong else entry
        result = super().apply(index, term, applied, batch)
        self._checker.shard.applied(*self._who, index, entry, digest(self))
        self._checker.history.has(self._who[0], index, digest(self))
        return result

    def _wrong(self, index: int, entry: bytes) -> bytes:
        """As a follower: what a leader has under way it does not read again."""
        wrong = wrong_entry(entry)
        if wrong != entry:
            del self._node.wrong_after[self.number]
            if self.leadership is None:
                self._node.world.count("states_differ")
                self._checker.shard.differs(self._node.number, index)
                return wrong
        return entry

    def reload(self, view: StateView) -> Iterator[None]:
        world, starting = self._node.world, not self.replica._snapshots.installed
        if starting and world.scenario.slow_load_s:
            until_s = world.now + world.rng.random() * world.scenario.slow_load_s
            while world.now < until_s:
                self._count_slow_load()
                yield
        yield from super().reload(view)
        mine = (self._who[0], view.applied_index, digest(self))
        self._checker.shard.reloaded(*mine, snapshot=not starting)
        self._checker.history.has(*mine, life=self._who[1] if starting else 0)

    @property
    def replica(self) -> Replica:
        """What of the log the contract does not show."""
        log = self.log
        assert isinstance(log, Replica)
        return log

    def _count_slow_load(self) -> None:
        """Count what a replica does that has no state yet."""
        world, replica = self._node.world, self.replica
        world.count("loads_slowly")
        if replica.leads:
            world.count("leads_unloaded")
        if replica.commit_index > replica.applied_index:
            world.count("takes_entries_unloaded")

    def heartbeat(
        self,
        key: MemberKey,
        generation: int,
        instance_id: str = "",
        coordinator_state: CoordinatorState | None = None,
    ) -> Error | NotHere | Loading:
        status = super().heartbeat(key, generation, instance_id, coordinator_state)
        if isinstance(status, Error) and self._who[1] == self._node.incarnation:
            self._checker.history.answered(self._node, key.group_id, key.member_id, status)
        return status

    def count_waiting(self) -> None:
        """Count the first rounds that have begun to wait for more Joins."""
        waiting = set() if self.sessions is None else set(self.sessions._held)
        self._checker.shard.counts.waited_for += len(waiting - self._waiting)
        self._waiting = waiting

    def _tell(
        self, _shard: ShardId, index: int, entry: Entry, results: tuple[CommandResult, ...]
    ) -> None:
        one = Applied(self._who[0], self, index, entry, results)
        events = one.events
        self._checker.shard.happened(one.node, index, tuple(events))
        self._checker.applied(one)
        for event in events:
            self._checker.shard.counts.replaced += isinstance(event, MemberReplaced)


def joins_at(now_s: float, node: int) -> Joins:
    """How they come to a node: many for 1.6 s of each 4, then a herd, which is over; else few."""
    phase_s = (now_s + 1.3 * node) % 4.0
    if phase_s < 1.6:
        return Joins.MANY
    if phase_s < 1.8:
        return Joins.HERD
    return Joins.HERD_OVER if phase_s < 2.2 else Joins.FEW


class GroupsApp:
    """A node's process: what ships, on the simulator's clock, with the checkers looking on."""

    def __init__(
        self,
        node: Node,
        checkers: list[GroupsChecker],
        retention: Retention,
    ) -> None:
        world = node.world
        self._watched: list[WatchedShard] = []

        def watched(number: ShardId, context: NodeContext) -> WatchedShard:
            shard = WatchedShard(number, context, checkers[number], node)
            self._watched.append(shard)
            return shard

        self.driver, self.assembly = open_node(
            node.store,
            node,
            endpoint(node.number),
            Random(world.rng.getrandbits(64)),
            retention=retention,
            limits=world.scenario.state_limits,
            clock=node.clock,
            wall_ms=lambda: EPOCH_MS + int(world.now * 1_000),
            settings=world.settings,
            joins=lambda: joins_at(world.now, node.number) if world.scenario.herds else Joins.FEW,
            make_shard=watched,
            make_journal=node.make_journal,
            levels=world.scenario.is_levelled,
            level=node.level,
        )

    def timer(self, late_s: float) -> None:
        """The node's timer came, so many seconds late."""
        self.assembly.turns.timer_fired(late_s)
        for watched in self._watched:
            watched.count_waiting()


def digest(shard: Shard) -> bytes:
    """Of the state in memory."""
    return shard.state.digest.to_bytes(DIGEST_BYTES, "big")


def stored_digest(node: Node, shard: int) -> bytes:
    """The digest anew, from the keys that are written."""
    replica = node.replica(shard)
    node.store.write()
    view = ShardView(node.store, ShardId(shard), replica._snapshots.local_id, replica.applied_index)
    *_, last = scrub(view)
    return last.total.to_bytes(DIGEST_BYTES, "big")
