"""Clients that ask for a member id and never come back with it.

So several ids wait at once, in the members' groups and in one that has no members; nodes that start
meanwhile, or load a snapshot, have them in another order than those that handed them out. Rounds
end without them, and the group of strangers is deleted while it has them.
"""

from musterd.chaos.sim.actors.deleter import Deleter
from musterd.chaos.sim.actors.members import TOPIC, Member, Members
from musterd.chaos.sim.engine.world import World
from musterd.coordinator.machine.commands import JoinGroup, Protocol
from musterd.coordinator.runtime.answers import Answer

ID_MS = 4_000
"""How long an id waits: longer than a node is down."""

IN_VAIN = 0.12
"""How often it is a group with members: each id that waits there holds its rounds up."""


def start(world: World, members: Members) -> None:
    """One stranger for each shard, and who deletes the group that strangers alone are in."""
    for shard in range(world.scenario.shards):
        Stranger(members, shard, f"strangers-{shard}", "stranger", "").look()
        Deleter(members, shard, f"strangers-{shard}", "operator", "").look()


class Stranger(Member):
    """Asks for one id after another, a new one each time."""

    def look(self) -> None:
        self._attempt += 1
        self._later(0.1 + 0.3 * self._rng.random(), self._attempt, self._ask)

    def _ask(self) -> None:
        group = self._group
        if self._rng.random() < IN_VAIN:
            group = f"g{self._rng.randrange(2)}-{self._shard}"
        command = JoinGroup(
            group_id=group,
            member_id="",
            client_id=f"{self._rng.getrandbits(16):04x}",
            client_host="sim",
            join_nonce="",
            session_timeout_ms=ID_MS,
            rebalance_timeout_ms=self._all.rebalance_ms,
            protocol_type="consumer",
            protocols=(Protocol("range", b""),),
            subscribed_topics=(TOPIC,),
            reason="",
            drawn_nonce=self._rng.randbytes(16).hex(),
        )
        self._call(command, self._told)

    def _told(self, _: Answer) -> None:
        self.look()
