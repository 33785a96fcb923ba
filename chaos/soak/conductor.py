"""A soak: starts everything, keeps it busy, takes samples, and ends it.

Three nodes, worker processes of the public SDK. Everything that is done is drawn from one seed;
when it is done depends on the machine.
"""

import os
import random
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import grpc

from muster.v1 import admin_pb2, errors_pb2
from musterd.chaos.child import Child, ChildError, Message, close_all
from musterd.chaos.hash_seeds import hash_seed
from musterd.chaos.soak import plan, sampling
from musterd.chaos.soak.plan import Membership, Timetable, Window
from musterd.chaos.soak.records import Load, Writer
from musterd.chaos.soak.sampling import Sample, SampleError
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import ClusterError

ANSWER_S = 60.0
BOUNCE_EVERY_S = 4.0
BOUNCE_WARM_S = 1.3
"""During the warm-up: each group keeps its last 32 rounds, and they are to be full afterwards."""
VISIT_EVERY_S = 10.0
LOOK_EVERY_S = 7.0
KILL_EVERY_S = 90.0
TRANSFER_EVERY_S = 60.0
PAUSE_EVERY_S = 300.0
PAUSE_S = 3.0
"""A node that stands still for so long loses its shards, and gets them back when it is well."""
GONE_S = 20.0
SETTLE_S = 90.0
ADMIN_S = 10.0
TURN_S = 0.1
PHASE = 0.4
"""An action first happens after this part of its interval."""

Say = Callable[[float, str], None]


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """A soak was ended by a signal, in good order: all that it started is gone."""


class Soak:
    """One run. `run` returns when everything has ended; what it saw is in the file."""

    def __init__(self, timetable: Timetable, writer: Writer, seed: int, say: Say) -> None:
        """`say(at_s, line)` is told what happens, for people, and "" with each sample."""
        self._times = timetable
        self._writer = writer
        self._random = random.Random(seed)
        self._say = say
        self._steady: dict[str, Child] = {}
        self._churned: dict[str, Child] = {}
        self._told: dict[str, Message] = {}
        self._past_commits = 0
        """Of churned processes that were killed."""
        self._refused: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._next_bounce_s = 0.0
        self._began = time.monotonic()

    def run(self) -> None:
        """Run to the end of the timetable; a failure ends it earlier and is in the file.

        On KeyboardInterrupt everything is ended, too. Raises Interrupted then; a second one while
        that goes on is raised as it is.
        """
        marker = f"MUSTER_SOAK={uuid.uuid4()}"
        name, _, value = marker.partition("=")
        os.environ[name] = value
        try:
            self._inside()
        except (ChildError, ClusterError, SampleError, OSError, grpc.RpcError) as error:
            self._writer.failure(self._at_s(), f"{type(error).__name__}: {error}")
        except KeyboardInterrupt as error:
            self._event("interrupted")
            raise Interrupted from error
        finally:
            close_all(self._all().values())
            del os.environ[name]
            left = sampling.wait_gone(marker, GONE_S)
            for message in self._told.values():
                self._refused.update(message["refused"])
            self._writer.end(left, dict(self._refused))

    def _at_s(self) -> float:
        return time.monotonic() - self._began

    # ---- life of the run

    def _inside(self) -> None:
        with World(nodes=plan.NODES) as cluster:
            self._cluster = cluster
            cluster.create_topic(plan.TOPIC, plan.PARTITIONS)
            for number in range(plan.STEADY):
                self._steady[f"worker-{number}"] = self._worker(number)
            for number in range(plan.STEADY, plan.STEADY + plan.CHURNED):
                self._churned[f"worker-{number}"] = self._worker(number)
            visits = [Membership("", plan.VISITS, "")]
            self._steady[plan.VISITOR] = self._process(plan.VISITOR, visits)
            for child in self._all().values():
                child.ready(ANSWER_S)
            cluster.wait_balanced()
            self._wait_settled()
            self._began = time.monotonic()
            self._say(0.0, "everybody has joined")
            try:
                self._go()
            finally:
                close_all(self._all().values())

    def _worker(self, number: int) -> Child:
        return self._process(f"worker-{number}", plan.memberships(number))

    def _process(self, name: str, memberships: list[Membership]) -> Child:
        config = {
            "bootstrap": ",".join(self._cluster.endpoints),
            "name": name,
            "memberships": [[one.group, one.kind, one.instance] for one in memberships],
        }
        environment = {**os.environ, **hash_seed(None, name)}
        return Child("musterd.chaos.soak.worker", config, environment=environment)

    def _all(self) -> dict[str, Child]:
        return {**self._steady, **self._churned}

    def _go(self) -> None:
        every_s = {
            self._visit: VISIT_EVERY_S,
            self._look_at_groups: LOOK_EVERY_S,
            self._transfer: min(TRANSFER_EVERY_S, self._times.total_s / 6),
            self._kill: min(KILL_EVERY_S, self._times.total_s / 6),
            self._pause: min(PAUSE_EVERY_S, self._times.total_s / 3),
        }
        due_s = {act: PHASE * seconds for act, seconds in every_s.items()}
        windows = list(self._times.windows())
        next_sample_s = 0.0
        while windows:
            at_s = self._at_s()
            if at_s >= windows[0].begin_s:
                self._quiet(windows.pop(0))
                continue
            if at_s >= next_sample_s:
                next_sample_s = max(next_sample_s + self._times.sample_s, at_s)
                self._sample(None)
            if not self._times.is_calm(at_s):
                for act, seconds in every_s.items():
                    if self._at_s() >= due_s[act]:
                        due_s[act] = self._at_s() + seconds
                        act()
                self._bounce_if_due()
            time.sleep(TURN_S)

    def _quiet(self, window: Window) -> None:
        """Wait until everybody is at rest, then look for as long as a window is."""
        self._cluster.wait_balanced()
        self._wait_settled()
        for _ in range(int(self._times.window_s / self._times.sample_s)):
            self._sample(window.number)
            time.sleep(self._times.sample_s)

    def _wait_settled(self) -> None:
        """Every member stands in its group, every visit is over."""

        def settled() -> bool:
            return all(child.ask("sample", ANSWER_S)["settled"] for child in self._all().values())

        self._cluster.wait(settled, SETTLE_S, "every member stands in its group", poll_s=1.0)

    # ---- what is done

    def _bounce_if_due(self) -> None:
        """A member leaves and comes back."""
        at_s = self._at_s()
        if at_s < self._next_bounce_s:
            return
        is_warm = at_s >= self._times.warm_up_s
        self._next_bounce_s = at_s + (BOUNCE_EVERY_S if is_warm else BOUNCE_WARM_S)
        name = self._random.choice([one for one in self._steady if one != plan.VISITOR])
        member = self._random.randrange(plan.MEMBERSHIPS)
        self._steady[name].ask("bounce", ANSWER_S, member=member)
        self._done["bounces"] += 1

    def _visit(self) -> None:
        """The next visit, where the last one is over."""
        visitor = self._steady[plan.VISITOR]
        if visitor.ask("sample", ANSWER_S)["settled"]:
            visitor.ask("bounce", ANSWER_S, member=0)

    def _look_at_groups(self) -> None:
        """List the groups of one node, describe some, and ask why one of them rebalanced."""
        stub = self._cluster.admin(self._random.randrange(plan.NODES))
        try:
            listed = stub.ListGroups(admin_pb2.ListGroupsRequest(), timeout=ADMIN_S)
            if names := [one.group_id for one in listed.groups][:5]:
                described = admin_pb2.DescribeGroupsRequest(group_ids=names)
                stub.DescribeGroups(described, timeout=ADMIN_S)
                explained = admin_pb2.DescribeRebalancesRequest(group_id=names[0])
                stub.DescribeRebalances(explained, timeout=ADMIN_S)
        except grpc.RpcError as error:  # the node is too busy, stands still, or led until now
            self._refused[error.code().name] += 1

    def _kill(self) -> None:
        name = self._random.choice(list(self._churned))
        child = self._churned[name]
        child.process.send_signal(signal.SIGKILL)
        child.close()
        told = self._told.pop(name, None)
        if told is not None:
            self._past_commits += told["commits"]
            self._refused.update(told["refused"])
        self._churned[name] = self._worker(int(name.rpartition("-")[2]))
        self._churned[name].ready(ANSWER_S)
        self._done["kills"] += 1
        self._event(f"killed {name} and started it again")

    def _transfer(self) -> None:
        """Another node leads one shard, until the shard goes back to where it belongs."""
        shard = self._random.randrange(self._cluster.shards)
        leader = self._cluster.leaders().get(shard)
        if leader is None:
            return
        request = admin_pb2.TransferLeaderRequest(shard=shard)
        try:
            answer = self._cluster.admin(leader).TransferLeader(request, timeout=ADMIN_S)
        except grpc.RpcError as error:
            self._refused[error.code().name] += 1
            return
        self._done["transfers"] += answer.status.code == errors_pb2.NONE

    def _pause(self) -> None:
        """Leadership goes to the other nodes, and comes back by transfer."""
        node_id = self._random.randrange(plan.NODES)
        pid = self._cluster.nodes[node_id].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            os.kill(pid, signal.SIGCONT)
        self._done["pauses"] += 1
        self._event(f"node {node_id} stood still for {PAUSE_S:g} s")

    def _event(self, what: str) -> None:
        self._writer.event(self._at_s(), what)
        self._say(self._at_s(), what)

    # ---- what is seen

    def _sample(self, window: int | None) -> None:
        """One look at everything. A node that does not answer in time is looked at again later."""
        at_s = self._at_s()
        found = []
        for node in self._cluster.nodes.values():
            try:
                tasks = sampling.node_tasks(node.metrics_endpoint)
            except SampleError as error:
                if not node.running:
                    raise
                self._event(f"no sample: {error}")
                continue
            name = f"node-{node.node_id}"
            found.append(sampling.look(at_s, name, "node", node.pid, tasks, window))
        for kind, children in (("worker", self._steady), ("churned", self._churned)):
            found += [self._child(at_s, kind, name, one, window) for name, one in children.items()]
        self._writer.samples(found)
        commits = self._past_commits + sum(one["commits"] for one in self._told.values())
        done = {what: self._done[what] for what in ("bounces", "kills", "pauses", "transfers")}
        visits = self._told[plan.VISITOR]["visits"]
        self._writer.load(Load(at_s=round(at_s, 2), commits=commits, visits=visits, **done))
        self._say(at_s, "")

    def _child(self, at_s: float, kind: str, name: str, child: Child, window: int | None) -> Sample:
        self._told[name] = told = child.ask("sample", ANSWER_S)
        return sampling.look(at_s, name, kind, child.pid, told["tasks"], window)


def soak(timetable: Timetable, samples: Path, seed: int, say: Say) -> None:
    """Run, and leave everything seen in `samples`. Raises OSError where that cannot be written."""
    Soak(timetable, Writer(samples, timetable.total_s), seed, say).run()
