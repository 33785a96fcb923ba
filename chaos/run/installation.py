"""A run on an installation of the user's: found, put under load, broken by a command of theirs."""

import random
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from chaos.child import command_with_parent
from chaos.faults.contract import Injected
from chaos.run.schedule import Kind
from chaos.run.stage import Done, Stage, StageError
from chaos.world.cluster import CAUGHT_UP_ENTRIES
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2

CALL_S = 2.0
TRANSFER = "transfer_leadership"
TRANSFER_S = 10.0
HOOK_S_MAX = 60.0
"""What one call of the user's command may take."""


@dataclass
class Installation(Stage):
    """A cluster of the user's. Nothing on it is destroyed.

    Its faults are the user's own command, and leadership that is handed over by the admin API.
    """

    bootstrap: Sequence[str]
    command: str = ""
    """Called as `COMMAND inject KIND node-N` and `COMMAND heal KIND node-N`; "" = there is none."""
    wanted: Sequence[str] = ()
    """Kinds, by names that the command knows, and `TRANSFER`; none = `TRANSFER` alone.
    With `leader` in it the node that leads most shards
    is the target, with `follower` another one, else one is drawn."""
    hold_s: tuple[float, float] = (5.0, 10.0)
    _active: tuple[str, str] | None = field(default=None, init=False)

    network = "own"
    own = False

    def open(self) -> None:
        """Learn its nodes and shards; every node must answer."""
        view = self._first_view()
        self.shards = view.shards
        self.nodes = {node.endpoint: node.node_id for node in view.nodes if node.endpoint}
        self.beside = dict(self.nodes)
        if len(self.nodes) != len(view.nodes):
            raise StageError("not every node has told its address yet; wait until all are up")
        self._wait(self.settled, 60.0, "every node up, every shard led")

    def close(self) -> None:
        """Undo a fault that is active."""
        self.heal()

    def kinds(self) -> list[Kind]:
        """What the user named, and can have."""
        named = self.wanted or (TRANSFER,)
        return [Kind(name, 1.0, self.hold_s) for name in named if self.command or name == TRANSFER]

    def skipped(self) -> Mapping[str, str]:
        """What takes a command, where there is none."""
        if self.command:
            return {}
        named = [name for name in self.wanted if name != TRANSFER]
        return dict.fromkeys(named, "no --on-fault command was given")

    def inject(self, kind: str, seed: int) -> Done:
        """Call the command, or the admin API."""
        if kind == TRANSFER:
            return self._transfer()
        target = f"node-{self._target(kind, random.Random(seed))}"
        self._active = (kind, target)
        self._call("inject", kind, target)
        return Done(Injected((target,), f"by {self.command}"), quorum=True)

    def heal(self) -> None:
        """Call the command again."""
        if self._active is not None:
            kind, target = self._active
            self._call("heal", kind, target)
            self._active = None

    def settled(self) -> bool:
        """All nodes answer, agree on leaders, and have caught up."""
        views = {node: self._view(at) for at, node in self.nodes.items()}
        told = [view for view in views.values() if view is not None]
        if len(told) != len(views):
            return False
        led = [{s.shard: (s.term, s.leader_id) for s in view.shard_states} for view in told]
        ahead: dict[int, int] = {}
        for view in told:
            for state in view.shard_states:
                ahead[state.shard] = max(ahead.get(state.shard, 0), state.commit_index)
        return all(one == led[0] and len(one) == self.shards for one in led) and all(
            state.leader_id >= 0 and ahead[state.shard] - state.applied_index <= CAUGHT_UP_ENTRIES
            for view in told
            for state in view.shard_states
        )

    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        """On this machine."""
        del host
        return command_with_parent

    def create_topic(self, name: str, partitions: int) -> None:
        """Where it exists with at least so many partitions, it is taken as it is."""
        request = admin_pb2.CreateTopicRequest(name=name, partitions=partitions)

        def known() -> bool:
            for at in self.nodes:
                with grpc.insecure_channel(at) as channel:
                    topics = admin_pb2_grpc.TopicsStub(channel)
                    try:
                        topics.CreateTopic(request, timeout=CALL_S)
                        asked = admin_pb2.DescribeTopicsRequest(names=[name])
                        answer = topics.DescribeTopics(asked, timeout=CALL_S)
                    except grpc.RpcError:
                        return False
                if not any(one.topic.partitions >= partitions for one in answer.results):
                    return False
            return True

        self._wait(known, 30.0, f"topic {name} with {partitions} partitions known to every node")

    # ---- inside

    def _transfer(self) -> Done:
        """Each shard of the node that leads most goes to another one."""
        leader = self._target("leader", random.Random(0))
        at = next(at for at, node in self.nodes.items() if node == leader)
        view = self._view(at)
        led = [] if view is None else [one for one in view.shard_states if one.role == "Leader"]
        refused = ""
        moved = 0
        with grpc.insecure_channel(at) as channel:
            admin = admin_pb2_grpc.AdminStub(channel)
            for state in led:
                request = admin_pb2.TransferLeaderRequest(shard=state.shard)
                try:
                    status = admin.TransferLeader(request, timeout=TRANSFER_S).status
                except grpc.RpcError as error:
                    refused = str(error)
                    continue
                moved += status.code == errors_pb2.NONE
                refused = status.message or refused
        if not moved:
            raise StageError(f"node {leader} handed no shard over: {refused or 'it leads none'}")
        detail = f"{moved} of {len(led)} shards handed over"
        return Done(Injected((f"node-{leader}",), detail), quorum=True)

    def _target(self, kind: str, rng: random.Random) -> int:
        views = [view for at in self.nodes if (view := self._view(at)) is not None]
        leads = {
            view.node_id: sum(one.role == "Leader" for one in view.shard_states) for view in views
        }
        if not leads:
            raise StageError("no node answers, so none can be chosen for a fault")
        leader = max(sorted(leads), key=lambda node: leads[node])
        if "leader" in kind:
            return leader
        others = [node for node in sorted(leads) if node != leader]
        return rng.choice(others or [leader]) if "follower" in kind else rng.choice(sorted(leads))

    def _call(self, verb: str, kind: str, target: str) -> None:
        argv = [*shlex.split(self.command), verb, kind, target]
        try:
            done = subprocess.run(argv, timeout=HOOK_S_MAX, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StageError(f"{shlex.join(argv)}: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise StageError(f"{shlex.join(argv)} exits with {done.returncode}: {said}")

    def _first_view(self) -> admin_pb2.DescribeClusterResponse:
        for at in self.bootstrap:
            if (view := self._view(at)) is not None:
                return view
        raise StageError(f"none of {', '.join(self.bootstrap)} answers")

    def _view(self, at: str) -> admin_pb2.DescribeClusterResponse | None:
        with grpc.insecure_channel(at) as channel:
            try:
                return admin_pb2_grpc.AdminStub(channel).DescribeCluster(
                    admin_pb2.DescribeClusterRequest(), timeout=CALL_S
                )
            except grpc.RpcError:
                return None

    @staticmethod
    def _wait(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise StageError(f"not within {timeout_s:.0f} s: {what}")
            time.sleep(0.25)
