"""The interfaces of a simulation and of a node, so that no part has to name the whole."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Protocol

import grpc

from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.loop import ProcessLoop
from musterd.chaos.sim.engine.network import Network
from musterd.chaos.sim.faults.schedule import Draws
from musterd.chaos.sim.scenario import Scenario
from musterd.coordinator.node.assembly import Assembly
from musterd.coordinator.runtime.shard import Shard
from musterd.raft.contract import Room, ShardId
from musterd.raft.driver import Driver, Link
from musterd.raft.journal import Journal
from musterd.raft.replica.replica import Replica
from musterd.raft.settings import RaftSettings
from musterd.storage.memory import MemoryStore
from musterd.storage.store import Store

Respond = Callable[[grpc.StatusCode, str, bytes], None]
Ended = Callable[[grpc.StatusCode, str], None]


class ClientProcess(Protocol):
    """A process of a client's."""

    loop: ProcessLoop
    paused_until_s: float

    @property
    def alive(self) -> bool: ...


class Clients(Protocol):
    """The connections of all clients, as a node's fault resets them."""

    def reset_all(self, node: int | None = None) -> int: ...


class ServedStream(Protocol):
    """A node's end of a stream of a client's."""

    task: asyncio.Task[None]

    def feed(self, frame: bytes) -> None:
        """Hand over a frame of the client's."""

    def half_close(self) -> None:
        """Say that the client has no more frames."""


class ClientPort(Protocol):
    """A node's servicers, called with bytes."""

    def dispatch(
        self, path: str, request: bytes, peer: str, timeout_s: float, respond: Respond
    ) -> asyncio.Task[None]: ...

    def open_stream(
        self, peer: str, send: Callable[[bytes], None], ended: Ended
    ) -> ServedStream: ...

    def drain(self) -> None:
        """Tell clients that the node is about to end."""


class Node(Link, Protocol):
    """A simulated node, over all its lives."""

    incarnation: int
    assembly: Assembly
    """Of the process that runs, or did last."""
    crash_after_sends: int | None
    sync_stalled_until_s: float
    """Nothing written is on the disk before this time."""
    sync_hangs_until_s: float
    """The same, of a sync that is under way, too."""
    paused_until_s: float
    awake_s: float
    wrong_after: dict[int, int]
    """By shard, behind which index its state is to differ (differing_states.py)."""
    store: MemoryStore
    """Its disk."""
    store_uuid: bytes
    level: int
    """The highest level that its build knows."""

    @property
    def alive(self) -> bool: ...
    @property
    def leads(self) -> bool: ...
    @property
    def is_being_admitted(self) -> bool:
        """Whether a log has begun to admit its store, and has not come further."""

    @property
    def room(self) -> Room: ...

    def set_room(self, room: Room) -> None: ...
    def set_clock_rate(self, rate: float) -> None: ...
    def transfer_leadership(self, to: int | None = None) -> None: ...
    def drain(self) -> None: ...
    def stall_writes(self, count: int) -> None: ...
    def fail_sync(self) -> None: ...
    def fill_disk(self) -> None: ...
    @property
    def number(self) -> int: ...
    @property
    def world(self) -> "World": ...
    @property
    def server(self) -> ClientPort | None: ...
    @property
    def is_introduced(self) -> bool: ...
    @property
    def running(self) -> Driver: ...

    @property
    def heard_s(self) -> Mapping[int, float]:
        """By peer, when this process last took a frame of it in, on this process's clock."""

    @property
    def told_s(self) -> Mapping[int, float]:
        """By peer, when that one last took a frame of this process in, on this process's clock."""

    def clock(self) -> float: ...
    def shard(self, number: int) -> Shard: ...
    def replica(self, shard: int) -> Replica: ...
    def make_journal(self, store: Store, shard: ShardId, settings: RaftSettings) -> Journal: ...
    def leads_shard(self, shard: int) -> bool: ...
    def is_admitted(self, shard: int) -> bool: ...
    def is_witness(self, shard: int) -> bool: ...
    def sees_conflict(self, shard: int) -> bool: ...
    def is_durable(self, shard: int, index: int, term: int) -> bool: ...
    def journal_term(self, shard: int) -> int: ...
    def steady_s(self) -> float: ...
    def monotonic_s(self) -> float: ...
    def suspend(self, seconds: float) -> None: ...
    def work(self, seconds: float) -> None: ...
    def run_pass(self, life: int, run: Callable[[], None]) -> None: ...
    def run_later(self, life: int, run: Callable[[], None]) -> None: ...
    def wipe(self) -> None: ...
    def begin_again(self) -> None: ...
    def would_miss(self, node: "Node", copy: MemoryStore) -> bool: ...
    def put_back(self, copy: MemoryStore) -> None: ...


class World(Protocol):
    """A simulation, as those who act in it see it."""

    rng: Random
    now: float
    """Virtual seconds."""
    micro: float
    net: Network
    checkers: list[ShardChecker]
    settings: RaftSettings
    processes: list[ClientProcess]
    """Of clients, in the order in which they were made."""

    trace: Callable[[str], None] | None

    @property
    def scenario(self) -> Scenario: ...
    @property
    def levels(self) -> "Upgrade | None":
        """The operator of an upgrade; None where nobody sees to levels."""

    @property
    def clients(self) -> Clients | None: ...

    @property
    def nodes(self) -> Sequence[Node]: ...
    @property
    def chaotic(self) -> bool:
        """Whether things may still go wrong."""

    def count(self, kind: str) -> int:
        """A fault has happened; returns how often by now."""

    def may(self, kind: str) -> bool:
        """Whether a fault that the run itself triggers may happen; asked once for each."""

    def start_late(self) -> None:
        """Start the node that was never started, if there is one."""

    def crash(self, number: int, *, power_cut: bool, down_s: float | None = None) -> None: ...

    def defect(self, error: BaseException) -> None: ...

    def schedule(self, delay_s: float, run: Callable[..., None], *args: object) -> None: ...


class Upgrade(Protocol):
    """Builds of two levels, as faults (faults/levels.py)."""

    def upgrade(self, faults: "Injector") -> bool: ...
    def put_back(self, faults: "Injector") -> bool: ...
    def finalise(self, faults: "Injector") -> bool: ...
    def former_installed(self, faults: "Injector") -> bool: ...


class Injector(Protocol):
    """Gives a fault the world it happens in, and its own draws."""

    world: World
    rng: Draws
    until_s: float
    """No fault begins later."""
