"""Builds of two levels in one cluster: upgrades, nodes put back, and the level finalised meanwhile.

A build of the former level is today's whose hello names the former one; whatever it must not be
sent is found in the log before it is applied. The operator puts no node back once it asked to
finalise, but may install the former build again afterwards: that node has to be turned away.
"""

from typing import Final

from musterd.chaos.sim.checks.applied import Applied
from musterd.chaos.sim.checks.shard_checks import ShardChecker
from musterd.chaos.sim.engine.world import Injector, Node, World
from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import FinalizeLevel, ShardLevel
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.replies import Done
from musterd.coordinator.runtime import level_keeper
from musterd.coordinator.runtime.answers import Answer
from musterd.levels import LAST_UNNAMED, LEVEL
from musterd.raft.log_format import KIND_COMMAND

COMMAND_BYTES: Final = 512
AWAY_SHARE: Final = 0.4
"""Of the times that it is asked for: a node was put back just before, and is not back yet."""
AWAY_S: Final = 0.8
"""So long does a former build try to come back, at least."""


class Levels:
    """The operator of an upgrade, and what must hold of it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = False
        """To finalise, and it was not refused."""
        self._raised: dict[int, tuple[int, int]] = {}
        """By shard, where in its log it was raised first, and to which level."""

    # -- what happens

    def upgrade(self, faults: Injector) -> bool:
        """One node gets the later build."""
        former = [node for node in self._world.nodes if node.alive and node.level < LEVEL]
        return bool(former) and self._install(faults.rng.choice(former), LEVEL)

    def put_back(self, faults: Injector) -> bool:
        """One node gets the former build back, as nobody has asked to finalise."""
        later = [node for node in self._world.nodes if node.alive and node.level == LEVEL]
        if self._asked or not later:
            return False
        return self._install(faults.rng.choice(later), LAST_UNNAMED)

    def _install(self, node: Node, level: int) -> bool:
        node.level = level
        self._world.crash(node.number, power_cut=False)
        return True

    def finalise(self, faults: Injector) -> bool:
        """Ask whoever leads shard 0, with the levels that it heard; a follower may hear it late."""
        leader = next((n for n in self._world.nodes if n.alive and n.leads_shard(0)), None)
        if leader is None or leader.shard(0).state.level >= LEVEL:
            return False
        others = [node for node in self._world.nodes if node is not leader]
        if not self._asked and faults.rng.random() < AWAY_SHARE:
            away = faults.rng.choice(others)
            if away.alive and away.level == LEVEL:
                self._install(away, LAST_UNNAMED)
                self.ask(leader)
                return True
        late = faults.rng.choice(others)
        self._world.net.block(leader.number, late.number, AWAY_S)
        self._world.schedule(AWAY_S / 2, self._come_back, late)
        self.ask(leader)
        return True

    def ask(self, leader: Node) -> None:
        """Put the command to the leader's shard 0; what is refused may be asked for again."""
        self._asked = True

        def answered(answer: Answer) -> None:
            if isinstance(answer, Done):
                self._world.count("finalised")
            else:
                self._asked = False

        def put() -> None:
            known = dict(leader.running.levels.nodes())
            if level_keeper.lacking(known, LEVEL):  # as the RPC says it
                self._asked = False
                return
            command = level_keeper.finalisation(leader.shard(0).state, known, LEVEL)
            leader.shard(0).submit(command, COMMAND_BYTES, answered)

        leader.run_later(leader.incarnation, put)

    def _come_back(self, node: Node) -> None:
        """As the former build, where the cluster is at the later level by now."""
        if 0 in self._raised and node.alive and self._world.chaotic:
            self._world.count("former_installed")
            self._install(node, LAST_UNNAMED)

    def former_installed(self, faults: Injector) -> bool:
        """The former build is installed although the level was finalised."""
        living = [node for node in self._world.nodes if node.alive and node.level == LEVEL]
        if 0 not in self._raised or len(living) < len(self._world.nodes):
            return False
        return self._install(faults.rng.choice(living), LAST_UNNAMED)

    def turned_away(self, node: Node) -> None:
        """A node learned that the cluster is at a level that its build lacks: it gets another."""
        self._world.count("turned_away")
        self._world.schedule(AWAY_S, self._mend, node, node.incarnation)

    def _mend(self, node: Node, life: int) -> None:
        if node.incarnation == life and node.level < LEVEL:
            self._install(node, LEVEL)

    def end(self) -> None:
        """Every node gets the later build, and the level is finalised."""
        for node in self._world.nodes:
            if node.level < LEVEL:
                self._install(node, LEVEL)
        for delay_s in (1.0, 2.0, 3.0):
            self._world.schedule(delay_s, self._ask_again)

    def _ask_again(self) -> None:
        leader = next((n for n in self._world.nodes if n.alive and n.leads_shard(0)), None)
        if leader is not None and leader.shard(0).state.level < LEVEL:
            self.ask(leader)

    # -- what must hold

    def watch(self, checker: ShardChecker, one: Applied) -> None:
        """Every node knows a level before the cluster is at it; no shard falls below its own."""
        number, level = one.shard.number, one.shard.state.level
        if any(isinstance(event, LevelRaised) for event in one.events):
            behind = [node.number for node in self._world.nodes if node.level < level]
            if number not in self._raised:
                self._raised[number] = (one.index, level)
                if behind and number == 0:  # the others follow it, whoever came since
                    checker.violated("A-finalised-early", level=level, behind=behind)
        index, raised = self._raised.get(number, (one.index, 0))
        if one.index >= index and level < raised:
            checker.violated("H-level-fell", node=one.node, index=one.index, level=level)

    def look(self, checker: ShardChecker, node: Node, command: bytes) -> None:
        """No log takes an entry that its node's build does not know."""
        if command[0] != KIND_COMMAND:
            return
        entry = decode_entry(command[1:])
        levels = [
            one.level for one in entry.commands if isinstance(one, FinalizeLevel | ShardLevel)
        ]
        if max(entry.level, *levels, 0) > node.level:
            checker.violated("S-entry-above-level", node=node.number, level=node.level)

    def started(self, node: Node) -> bool:
        """Whether the build of a node opens its directory; the former one ends at a later level."""
        shards = range(self._world.scenario.shards)
        if all(node.shard(shard).state.level <= node.level for shard in shards):
            return True
        self._world.count("ended_at_level")
        node.level = LEVEL
        return False

    @property
    def settled(self) -> bool:
        """Whether each shard of each node is at the level that every build knows."""
        shards = range(self._world.scenario.shards)
        return all(
            node.shard(shard).state.level == LEVEL for node in self._world.nodes for shard in shards
        )
