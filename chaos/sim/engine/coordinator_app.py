"""The shipped coordinator shard on a simulated node, and what must hold of its groups."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from musterd.chaos.sim.checks.applied import Applied, Watch
from musterd.chaos.sim.checks.group_history import GroupHistory
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.rpc import endpoint
from musterd.coordinator.machine.events import MemberReplaced
from musterd.coordinator.machine.shard_state import CommandResult, Entry
from musterd.coordinator.node.assembly import Assembly
from musterd.coordinator.runtime.growth import StateLimits
from musterd.coordinator.runtime.persist import scrub
from musterd.coordinator.runtime.retention import Retention
from musterd.coordinator.runtime.shard import Shard
from musterd.coordinator.runtime.turn import Joins
from musterd.raft.contract import Examination, NodeId, Role, ShardId, StateBatch, StateView
from musterd.raft.driver import Driver
from musterd.raft.state import ShardView

DIGEST_BYTES = 16
EPOCH_MS = 1_700_000_000_000


@dataclass(slots=True)
class GroupsChecker:
    """What members are promised, over all groups of one shard (docs/chaos.md, What is promised)."""

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


class WatchedShard:
    """A `Shard` with the checker looking on."""

    def __init__(
        self,
        inner: Shard,
        checker: GroupsChecker,
        who: tuple[int, int],
        starting: Callable[[], bool],
    ) -> None:
        self.inner, self._checker, self._who, self._starting = inner, checker, who, starting
        self._waiting: set[str] = set()
        inner.observers.append(self._observe)

    def apply(self, index: int, term: int, entry: bytes, batch: StateBatch) -> object:
        result = self.inner.apply(index, term, entry, batch)
        self._checker.shard.applied(*self._who, index, entry, self.digest)
        return result

    def reload(self, view: StateView) -> Iterator[None]:
        yield from self.inner.reload(view)
        snapshot = not self._starting()
        self._checker.shard.reloaded(
            self._who[0], view.applied_index, self.digest, snapshot=snapshot
        )

    def count_waiting(self) -> None:
        """Count the first rounds that have begun to wait for more Joins."""
        sessions = self.inner.sessions
        waiting = set() if sessions is None else set(sessions._held)
        self._checker.shard.counts.waited_for += len(waiting - self._waiting)
        self._waiting = waiting

    def examine(self) -> Examination:
        return self.inner.examine()

    def role_changed(self, role: Role, term: int) -> None:
        self.inner.role_changed(role, term)

    @property
    def digest(self) -> bytes:
        return self.inner.state.digest.to_bytes(DIGEST_BYTES, "big")

    def _observe(
        self, _shard: ShardId, index: int, entry: Entry, results: tuple[CommandResult, ...]
    ) -> None:
        one = Applied(self._who[0], self.inner, index, entry, results)
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
        who: tuple[int, int],
        checkers: list[GroupsChecker],
        now: Callable[[], float],
        wake: Callable[[], None],
        starting: Callable[[], bool],
        retention: Retention,
        limits: StateLimits | None = None,
        joins: Callable[[], Joins] | None = None,
    ) -> None:
        self._driver: Driver | None = None
        self.assembly = Assembly(
            NodeId(who[0]),
            endpoint(who[0]),
            len(checkers),
            wall_ms=lambda: EPOCH_MS + int(now() * 1_000),
            wake=wake,
            peers=self._endpoints,
            retention=retention,
            limits=limits,
            joins=joins or (lambda: Joins.FEW),
        )
        self.shards, self.core = self.assembly.shards, self.assembly.core
        self.turns = self.assembly.turns
        self._watched = [
            WatchedShard(shard, checker, who, starting)
            for shard, checker in zip(self.shards, checkers, strict=True)
        ]

    def _endpoints(self) -> Mapping[int, str]:
        """Where clients reach the peers, as these have said."""
        return {} if self._driver is None else self._driver.book.endpoints

    def machine(self, shard: int) -> WatchedShard:
        return self._watched[shard]

    def attach(self, driver: Driver) -> None:
        self._driver = driver
        self.assembly.attach(driver)

    def timer(self, late_s: float) -> None:
        self.turns.timer_fired(late_s)
        for watched in self._watched:
            watched.count_waiting()

    def spoil(self, shard: int) -> None:
        self.shards[shard].state.groups.clear()
        self.shards[shard].state.digest ^= 1

    def final(self, shard: int) -> tuple[list[int], bytes]:
        return [], self._watched[shard].digest

    def stored_digest(self, shard: int) -> bytes:
        """The digest anew, from the keys that are written."""
        assert self._driver is not None
        replica = self._driver.replicas[ShardId(shard)]
        self._driver.store.write()
        view = ShardView(
            self._driver.store, ShardId(shard), replica._snapshots.local_id, replica.applied_index
        )
        *_, last = scrub(view)
        return last.total.to_bytes(DIGEST_BYTES, "big")
