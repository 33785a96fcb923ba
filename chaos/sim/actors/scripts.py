"""Schedules that every version of the suite must run, each with its check.

Nothing else fails in such a world, no member goes of itself, and all run the shipped SDK.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from musterd.chaos.sim.actors.members import Members
from musterd.chaos.sim.engine.network import CLIENTS
from musterd.chaos.sim.engine.world import Node, World
from musterd.coordinator.runtime.disconnect_detector import BREAKS_MIN
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard

BEGIN_S = 5.0
"""By then everybody owns something."""

JAM_S = 5.0
STOP_S = 30.0
STALL_S = 2.0
THAW_S = 3.0
"""Longer than an election takes: when the stopped leader goes on, another one leads."""
ANSWERED_S = 0.05
"""By then a round is answered."""
CUT_S = 1.0
"""So much longer than its stop a leader is cut off."""
THAWS = 3
ASK_S = 0.01
ASLEEP_S = 4.0
"""Longer than a session by so much."""
AWAY_S = 3.0
"""Longer than the grace of a broken call, shorter than a session."""


@dataclass(slots=True)
class Script:
    """One schedule in one run."""

    world: World
    members: Members
    _led: tuple[int, int] = (-1, -1)
    _sent: int | None = None

    def start(self) -> None:
        """Put the schedule into the queue."""
        self.again(BEGIN_S)

    # ---- what the schedules are made of

    def leader(self) -> "Node | None":
        return next((node for node in self.world.nodes if node.leads_shard(0)), None)

    def freeze(self, nodes: list[Node], seconds: float) -> None:
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

    def has_just_sent(self, leader: Node) -> bool:
        """Whether it has sent an append since this was asked last."""
        before, self._sent = self._sent, leader.replica(0)._seq
        return before is not None and before < self._sent

    def ask_soon(self, node: Node, after_s: float, until_s: float) -> None:
        """From `after_s` from now on a client whose route is old asks `node` how members stand."""
        self.world.schedule(after_s, self._ask, node, node.incarnation, until_s)

    def _ask(self, node: Node, life: int, until_s: float) -> None:
        members = self.members
        shard = members.shard_at(node.number, 0)
        if shard is None or life != node.incarnation or self.world.now > until_s:
            return
        node.run_later(life, partial(_ask_all, shard))
        self.ask_soon(node, ASK_S, until_s)

    def again(self, delay_s: float) -> None:
        """Begin this schedule once more, when nobody leads yet, or too little is under way."""
        self.world.schedule(delay_s, SCRIPTS[self.world.scenario.script][0], self)


def _ask_all(shard: Shard) -> None:
    """A heartbeat of every member; round_checks.py looks at what is answered."""
    for group in shard.state.groups.values():
        for member in group.members.values():
            shard.heartbeat(MemberKey(group.group_id, member.member_id), group.generation)


def jam_leader(script: Script) -> None:
    """The leader's loop stands still for 5 s: another node leads, and nobody's session ends."""
    leader = script.leader()
    if leader is None:
        script.again(0.2)
        return
    script.world.count("jammed_loop")
    script.freeze([leader], JAM_S)


def thaw_leader(script: Script) -> None:
    """The leader is stopped when its round has left, and goes on cut off from its peers; thrice.

    The answers wait in its sockets, and nothing that its peers said later. Clients do reach it.
    """
    _stop_leader(script, "thawed_leader", lambda leader: script.freeze([leader], THAW_S))


def suspend_leader(script: Script) -> None:
    """As `thaw_leader`, but the machine sleeps: its monotonic clock stands still, too."""
    _stop_leader(script, "suspended_leader", lambda leader: leader.suspend(THAW_S))


def _stop_leader(script: Script, kind: str, stop: "Callable[[Node], None]") -> None:
    leader = script.leader()
    if leader is None or not script.has_just_sent(leader):
        script.again(0.001)
        return
    world = script.world
    times = world.count(kind)
    stop(leader)
    script.ask_soon(leader, THAW_S, world.now + THAW_S + CUT_S)
    for other in world.nodes:
        if other is not leader:
            for link in ((other.number, leader.number), (leader.number, other.number)):
                world.schedule(ANSWERED_S, world.net.block, *link, THAW_S + CUT_S - ANSWERED_S)
    if times < THAWS:
        script.again(THAW_S + 2 * CUT_S)


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
    times = script.world.count("peer_resets")
    net, rng = script.world.net, script.world.rng
    for other in script.world.nodes:
        if other is not leader:
            net.disconnect(leader.number, other.number)
            script.world.schedule(
                0.05 + 0.05 * rng.random(), net.connect, leader.number, other.number
            )
    if times < 3:
        script.again(2.5)


def break_heartbeats(script: Script) -> None:
    """A proxy dies: every held heartbeat breaks at once, and nobody can come back for 3 s."""
    members = script.members
    assert members.net is not None
    held = max(node.assembly.core.heartbeats.held for node in script.world.nodes)
    if held <= BREAKS_MIN:  # some are in a round: what breaks now may be single deaths
        script.again(ASK_S)
        return
    script.world.count("held_heartbeats_broken")
    for node in script.world.nodes:
        script.world.net.block(CLIENTS, node.number, AWAY_S)
        script.world.net.block(node.number, CLIENTS, AWAY_S)
    broken = members.net.reset_all()
    if broken <= len(members.workers):
        script.world.checkers[0].violated("L-too-few-calls", broken=broken)


def suspend_members(script: Script) -> None:
    """The machines of half the members sleep for longer than a session; others take over."""
    members = script.members
    for worker in members.workers[::2]:
        script.world.count("suspended_member")
        worker.process.suspend(members.session_ms / 1_000 + ASLEEP_S)


SCRIPTS: dict[str, tuple[Callable[[Script], None], str]] = {
    "jam-leader": (jam_leader, "jammed_loop"),
    "thaw-leader": (thaw_leader, "thawed_leader"),
    "suspend-leader": (suspend_leader, "suspended_leader"),
    "stop-all": (stop_all, "stopped_all"),
    "stall-followers": (stall_followers, "stalled_fsync"),
    "reset-peers": (reset_peers, "peer_resets"),
    "break-heartbeats": (break_heartbeats, "held_heartbeats_broken"),
    "suspend-members": (suspend_members, "suspended_member"),
}
"""By name, as `Scenario.script` has it: the schedule, and the fault that it counts."""
