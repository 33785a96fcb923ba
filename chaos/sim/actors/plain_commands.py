"""Clients that propose plain commands and read strictly, shard by shard."""

from musterd.chaos.sim.engine.world import Node, World
from musterd.raft.contract import Applied, Outcome


class Commands:
    """Numbers commands, gives them to whoever leads, and keeps what was answered."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked = 0
        self._waiting: dict[int, tuple[int, int]] = {}

    def start(self) -> None:
        """Begin to ask, when a first leader may be there."""
        for shard in range(self._world.scenario.shards):
            self._world.schedule(1.0, self._propose, shard)
            self._world.schedule(1.2, self._read, shard)

    def finished(self) -> None:
        """Every command was answered once, unless its process died meanwhile."""
        lives = {(node.number, node.incarnation) for node in self._world.nodes}
        forgotten = [c for c, asked in self._waiting.items() if asked in lives]
        if forgotten and not any(c.violations for c in self._world.checkers):
            self._world.checkers[0].violated(
                "L-never-answered", first=forgotten[0], count=len(forgotten)
            )

    def _propose(self, shard: int) -> None:
        rng = self._world.rng
        leaders = [n for n in self._world.nodes if n.leads_shard(shard)]
        for _ in range(rng.choice((1, 1, 2, 4, 8, 12))):
            node = rng.choice(leaders or self._world.nodes)
            if node.alive:
                self._propose_one(node, shard)
        if self._world.now < self._world.scenario.chaos_s:
            self._world.schedule(rng.expovariate(1 / 0.06), self._propose, shard)

    def _propose_one(self, node: Node, shard: int) -> None:
        self._asked += 1
        command, life = self._asked, node.incarnation
        entry = command.to_bytes(8, "big") + b"." * self._world.rng.choice((0, 0, 0, 8, 70))

        def done(outcome: Outcome) -> None:
            if self._waiting.pop(command, None) is None:
                self._world.checkers[shard].violated("H-answered-twice", command=command)
            if isinstance(outcome, Applied):
                if outcome.result != command:
                    self._world.checkers[shard].violated("H-wrong-result", command=command)
                self._world.checkers[shard].answered(command, outcome.index)

        self._waiting[command] = (node.number, life)
        node.propose(shard, entry, done)

    def _read(self, shard: int) -> None:
        checker = self._world.checkers[shard]
        for node in self._world.nodes:
            if not node.leads_shard(shard):
                continue
            acked, life = checker.acked_index, node.incarnation

            def done(ok: bool, node: Node = node, acked: int = acked, life: int = life) -> None:
                if ok and node.alive and node.incarnation == life:
                    checker.read(node.number, node.replica(shard).applied_index, acked)

            node.read(shard, done)
        if self._world.now < self._world.scenario.chaos_s:
            self._world.schedule(self._world.rng.expovariate(1 / 0.05), self._read, shard)
