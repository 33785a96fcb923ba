"""The faults, one method each. They fire by progress and wait until their effect is to be seen."""

import asyncio
import time
from collections.abc import Callable

from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.node.loopback import ClusterError
from musterd.demo.evidence import (
    Evidence,
    NodeKill,
    NodeRestart,
    WorkerAdded,
    WorkerEvents,
    WorkerKill,
)
from musterd.demo.ledger import Ledger
from musterd.demo.plan import GROUP
from musterd.demo.watch import Watch
from musterd.demo.worker_processes import WorkerProcesses

POLL_S = 0.02


class Faults:
    """Everything that goes wrong on purpose. What really happened is written into the evidence."""

    effect_s_max = 30.0
    """How long an effect is waited for; then work goes on, and a check fails."""

    def __init__(
        self,
        cluster: Cluster,
        workers: WorkerProcesses,
        watch: Watch,
        ledger: Ledger,
        worker_events: WorkerEvents,
        evidence: Evidence,
    ) -> None:
        self.cluster = cluster
        self.workers = workers
        self.watch = watch
        self.ledger = ledger
        self.worker_events = worker_events
        self.evidence = evidence

    async def kill_leader(self, at_percent: float) -> str:
        """Signal 9 to the node that leads the group's shard."""
        before = await self.watch.group(GROUP, self.effect_s_max)
        if before is None:
            return "no node coordinates the group"
        kill = NodeKill(at_percent, time.monotonic_ns(), before.node_id, before)
        self.evidence.node_kill = kill
        kill.exit_status = self.kill_node(before.node_id)
        every = range(len(self.evidence.lines))
        terms = self.worker_events.terms
        await self.until(lambda: all(terms.get(number, 0) > before.term for number in every))
        kill.after = await self.watch.group(GROUP, self.effect_s_max)
        if kill.after is None:
            return f"node {before.node_id} killed; nobody leads the group's shard since"
        return (
            f"node {before.node_id} killed in term {before.term}; "
            f"node {kill.after.node_id} leads in term {kill.after.term}"
        )

    def kill_node(self, node_id: int) -> int | None:
        """The signal itself; returns the exit status of the process."""
        return self.cluster.kill(node_id)

    async def restart_node(self, at_percent: float) -> str:
        """Start the killed node again, on its own data."""
        kill = self.evidence.node_kill
        if kill is None:
            return "no node was killed"
        if self.cluster.nodes[kill.node_id].running:
            return f"node {kill.node_id} still runs"
        restart = self.evidence.node_restart = NodeRestart(at_percent, kill.node_id)
        self.cluster.start(kill.node_id)
        try:
            await asyncio.to_thread(self.cluster.wait_ready, self.effect_s_max)
        except ClusterError as error:
            return str(error)
        restart.ready = True
        return f"node {kill.node_id} is back and up to date"

    async def kill_worker(self, at_percent: float) -> str:
        """Signal 9 to the worker that owns most partitions."""
        owned = {name: share for name, (_, share) in self.worker_events.owned.items()}
        if not owned:
            return "no worker owns anything"
        name = min(owned, key=lambda one: (-len(owned[one]), one))
        member, share = self.worker_events.members[name], owned[name]
        kill = WorkerKill(at_percent, time.monotonic_ns(), name, member, tuple(sorted(share)))
        self.evidence.worker_kill = kill
        kill.exit_status = await self.workers.kill(name)
        self.worker_events.gone(name)
        kill.taken_over = await self.until(
            lambda: all(self.ledger.owners()[number].member != member for number in share)
        )
        return f"{name} killed, {len(share)} partitions taken over by others"

    async def add_worker(self, at_percent: float) -> str:
        """Start one more worker; it is given its share."""
        one = await self.workers.start()
        added = WorkerAdded(at_percent, time.monotonic_ns(), one.name)
        self.evidence.worker_added = added
        partitions = len(self.evidence.lines)
        running = sum(one.running for one in self.workers.started.values())
        added.joined = await self.until(
            lambda: (
                one.name in self.worker_events.owned
                and self.worker_events.settled(running, partitions)
            )
        )
        return f"{one.name} joined" if added.joined else f"{one.name} did not join in time"

    async def until(self, holds: Callable[[], bool]) -> bool:
        """Wait for a condition; False where it does not come true in time."""
        end_s = time.monotonic() + self.effect_s_max
        while not holds():
            if time.monotonic() > end_s:
                return False
            await asyncio.sleep(POLL_S)
        return True
