"""Schedules that every version of the suite must run (chaos notes, section 5), each with its check.

Nothing else fails in such a world, no member goes of itself, and all run the shipped SDK.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.sim.network import CLIENTS
from coordinator.machine.events import MemberRemoved, RemovalCause
from coordinator.machine.shard_state import CommandResult, Entry
from coordinator.shard import Shard

if TYPE_CHECKING:
    from chaos.sim.node import SimNode
    from chaos.sim.simulation import Simulation

BEGIN_S = 5.0
"""By then everybody owns something."""

JAM_S = 5.0
STOP_S = 30.0
STALL_S = 2.0
AWAY_S = 3.0
"""Longer than the grace of a broken call, shorter than a session."""


@dataclass(slots=True)
class Script:
    """One schedule in one run."""

    world: "Simulation"
    removed: list[MemberRemoved] = field(default_factory=list)
    _led: tuple[int, int] = (-1, -1)
    _seen: int = 0

    def start(self) -> None:
        """Put the schedule into the queue, and watch who is removed."""
        members = self.world.members
        assert members is not None
        for checker in members.checkers:
            checker.watches.append(self._watch)
        self.world.schedule(BEGIN_S, SCRIPTS[self.world.scenario.script], self)

    def _watch(
        self,
        _node: int,
        _shard: Shard,
        index: int,
        _entry: Entry,
        results: tuple[CommandResult, ...],
    ) -> None:
        """No member is removed in any of these worlds: all of them are alive and willing."""
        if index <= self._seen or not self.world.chaotic:
            return
        self._seen = index
        for event in (event for result in results for event in result.events):
            if isinstance(event, MemberRemoved):
                self.removed.append(event)
                self.world.checkers[0].violated(
                    "H-member-expired",
                    group=event.group_id,
                    member=event.member_id,
                    cause=RemovalCause(event.cause).name,
                    reason=event.reason,
                )

    # ---- what the schedules are made of

    def leader(self) -> "SimNode | None":
        """Who leads shard 0."""
        return next((node for node in self.world.nodes if node.leads_shard(0)), None)

    def freeze(self, nodes: list["SimNode"], seconds: float) -> None:
        """SIGSTOP, or a loop that is jammed: nothing of these processes runs."""
        for node in nodes:
            node.paused_until_s = self.world.now + seconds

    def note_leader(self) -> bool:
        """Remember who leads; False where nobody does yet."""
        leader = self.leader()
        if leader is None:
            return False
        self._led = (leader.number, leader.replica(0).term)
        return True

    def check_leader(self) -> None:
        """It leads still, in the same term."""
        leader = self.leader()
        now = (-1, -1) if leader is None else (leader.number, leader.replica(0).term)
        if now != self._led:
            self.world.checkers[0].violated("L-leader-changed", before=self._led, after=now)

    def again(self, delay_s: float) -> None:
        """Begin this schedule once more, when nobody leads yet."""
        self.world.schedule(delay_s, SCRIPTS[self.world.scenario.script], self)


def jam_leader(script: Script) -> None:
    """The leader's loop stands still for 5 s: another node leads, and nobody's session ends."""
    leader = script.leader()
    if leader is None:
        script.again(0.2)
        return
    script.world.count("jammed_loop")
    script.freeze([leader], JAM_S)


def jam_all(script: Script) -> None:
    """Every node's loop stands still for 5 s, each a moment after the other."""
    script.world.count("jammed_loop")
    for delay, node in enumerate(script.world.nodes):
        script.world.schedule(0.02 * delay, script.freeze, [node], JAM_S)


def stop_all(script: Script) -> None:
    """SIGSTOP of every node for 30 s: no session ends."""
    script.world.count("stopped_all")
    script.freeze(list(script.world.nodes), STOP_S)


def stall_followers(script: Script) -> None:
    """The fsync of both followers takes 2 s: no change of leader."""
    if not script.note_leader():
        script.again(0.2)
        return
    script.world.count("stalled_fsync")
    leader = script.leader()
    for node in script.world.nodes:
        if node is not leader:
            node.sync_stalled_until_s = script.world.now + STALL_S
    for later in (0.5, 1.0, 1.5, 2.0, 2.5, 3.0):
        script.world.schedule(later, script.check_leader)


def reset_peers(script: Script) -> None:
    """The leader's connections to both peers break, all processes alive; three times."""
    leader = script.leader()
    if leader is None:
        script.again(0.2)
        return
    script.world.count("peer_resets")
    net, rng = script.world.net, script.world.rng
    for other in script.world.nodes:
        if other is not leader:
            net.disconnect(leader.number, other.number)
            script.world.schedule(
                0.05 + 0.05 * rng.random(), net.connect, leader.number, other.number
            )
    if script.world.faults.counts["peer_resets"] < 3:
        script.again(2.5)


def break_heartbeats(script: Script) -> None:
    """A proxy dies: every held heartbeat breaks at once, and nobody can come back for 3 s."""
    members = script.world.members
    assert members is not None
    assert members.net is not None
    script.world.count("held_heartbeats_broken")
    for node in script.world.nodes:
        script.world.net.block(CLIENTS, node.number, AWAY_S)
        script.world.net.block(node.number, CLIENTS, AWAY_S)
    broken = members.net.reset_all()
    if broken <= len(members.workers):
        script.world.checkers[0].violated("L-too-few-calls", broken=broken)


SCRIPTS: dict[str, Callable[[Script], None]] = {
    "jam-leader": jam_leader,
    "jam-all": jam_all,
    "stop-all": stop_all,
    "stall-followers": stall_followers,
    "reset-peers": reset_peers,
    "break-heartbeats": break_heartbeats,
}
"""By name, as `Scenario.script` has it."""
