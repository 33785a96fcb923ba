"""A run on an installation of the user's: found, put under load, broken by a command of theirs."""

import random
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from muster.admin.operator_secret import goes_in_the_clear, operator_metadata
from muster.cli.connection import credentials, describe
from muster.net.bearer_token import is_loopback
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2
from musterd.chaos.faults.contract import Injected
from musterd.chaos.run import verification
from musterd.chaos.run.schedule import Kind
from musterd.chaos.run.target_cluster import Healed, TargetCluster, TargetClusterError
from musterd.chaos.world import views
from musterd.coordinator.host import tied_command

CALL_S = 2.0
TRANSFER = "transfer_leadership"
"""The one fault that an installation of the user's has without a command of theirs."""
TRANSFER_S = 10.0
HOOK_S_MAX = 60.0
"""What one call of the user's command may take."""


@dataclass
class Installation(TargetCluster):
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
    _failed: str = field(default="", init=False)
    """The last call that was not answered."""
    _met: set[str] = field(default_factory=set, init=False)
    """Kinds of faults whose node was drawn before."""

    network = "own"
    own = False

    def __post_init__(self) -> None:
        """Read the files that `MUSTER_TLS_*` name. Raises CommandError where one is not there."""
        self._credentials = credentials().channel
        self.secure = self._credentials is not None

    def open(self) -> None:
        view = self._first_view()
        self.shards = view.shards
        self.nodes = {node.endpoint: node.node_id for node in view.nodes if node.endpoint}
        self.beside = dict(self.nodes)
        if len(self.nodes) != len(view.nodes):
            raise TargetClusterError("not every node has told its address; wait until all are up")
        self._wait(lambda: not self.unsettled(), 60.0, "every node up, every shard led")

    def close(self) -> None:
        self.heal()

    def kinds(self) -> list[Kind]:
        named = self.wanted or (TRANSFER,)
        return [Kind(name, 1.0, self.hold_s) for name in named if self.command or name == TRANSFER]

    def skipped(self) -> Mapping[str, str]:
        if self.command:
            return {}
        named = [name for name in self.wanted if name != TRANSFER]
        return dict.fromkeys(named, "no --on-fault command was given")

    def inject(self, kind: str, seed: int, probed: frozenset[int]) -> Injected:
        if kind == TRANSFER:
            return self._transfer()
        node = self._target(kind, random.Random(seed), probed)
        target = f"node-{node}"
        before = self._views()
        self._active = (kind, target)
        self._call("inject", kind, target)
        if not verification.is_known(kind):
            told = f"by {self.command}; not verified: what {kind} does only the command knows"
            return Injected((target,), told, verified=False)
        told = verification.seen(self._views, node, before)
        if not told:
            raise TargetClusterError(
                f"{self.command} exits with 0, and {target} goes on: it answers and leads what it "
                f"led {verification.VERIFY_S:.0f} s later"
            )
        return Injected((target,), f"by {self.command}; {told}")

    def heal(self) -> Healed:
        """Call the command again. That its faults are real was seen when they were injected."""
        if self._active is not None:
            kind, target = self._active
            self._call("heal", kind, target)
            self._active = None
        return Healed()

    def unsettled(self) -> str:
        return views.unsettled({n: self._view(at) for at, n in self.nodes.items()}, self.shards)

    def bind(self, host: int) -> Callable[[list[str]], list[str]]:
        del host
        return tied_command

    def create_topic(self, name: str, partitions: int) -> None:
        request = admin_pb2.CreateTopicRequest(name=name, partitions=partitions)

        def known() -> bool:
            for at in self.nodes:
                with self._channel(at) as channel:
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

    def _transfer(self) -> Injected:
        leader = self._target("leader", random.Random(0), frozenset())
        at = next(at for at, node in self.nodes.items() if node == leader)
        view = self._view(at)
        led = [] if view is None else [one for one in view.shard_states if one.role == "Leader"]
        refused = ""
        moved = 0
        shown = self._shown(at)
        with self._channel(at) as channel:
            admin = admin_pb2_grpc.AdminStub(channel)
            for state in led:
                request = admin_pb2.TransferLeaderRequest(shard=state.shard)
                try:
                    status = admin.TransferLeader(
                        request, timeout=TRANSFER_S, metadata=shown
                    ).status
                except grpc.RpcError as error:
                    refused = str(error)
                    continue
                moved += status.code == errors_pb2.NONE
                refused = status.message or refused
        if not moved:
            why = refused or "it leads none"
            raise TargetClusterError(f"node {leader} handed no shard over: {why}")
        detail = f"{moved} of {len(led)} shards handed over"
        return Injected((f"node-{leader}",), detail)

    def _target(self, kind: str, rng: random.Random, probed: frozenset[int]) -> int:
        leads = {
            node: {one.shard for one in view.shard_states if one.role == "Leader"}
            for node, view in self._views().items()
        }
        if not leads:
            raise TargetClusterError("no node answers, so none can be chosen for a fault")
        leader = max(sorted(leads), key=lambda node: len(leads[node]))
        if "leader" in kind:
            return leader
        nodes = [node for node in sorted(leads) if node != leader or "follower" not in kind]
        met = kind in self._met
        self._met.add(kind)
        leading = [] if met else [node for node in nodes if probed & leads[node]]
        return rng.choice(leading or nodes or [leader])

    def _call(self, verb: str, kind: str, target: str) -> None:
        argv = [*shlex.split(self.command), verb, kind, target]
        try:
            done = subprocess.run(argv, timeout=HOOK_S_MAX, capture_output=True, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise TargetClusterError(f"{shlex.join(argv)}: {error}") from error
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip()[-500:]
            raise TargetClusterError(f"{shlex.join(argv)} exits with {done.returncode}: {said}")

    def _first_view(self) -> admin_pb2.DescribeClusterResponse:
        for at in self.bootstrap:
            if (view := self._view(at)) is not None:
                return view
        how = (
            "over TLS, with the files of MUSTER_TLS_CA, _CERT, _KEY"
            if self.secure
            else (
                "without TLS; if it speaks TLS, name its authority's certificate in MUSTER_TLS_CA"
            )
        )
        asked = ", ".join(self.bootstrap)
        raise TargetClusterError(f"none of {asked} answers {how}: {self._failed}")

    def _shown(self, at: str) -> tuple[tuple[str, bytes], ...]:
        """The metadata of an operator's call. Raises TargetClusterError where others can listen."""
        shown = operator_metadata()
        if shown and not (self.secure or is_loopback(at) or goes_in_the_clear()):
            raise TargetClusterError(
                f"the admin secret would go to {at} in the clear: set MUSTER_TLS_CA; or, in a "
                "network that nobody listens in, MUSTER_INSECURE_ADMIN_SECRET=true"
            )
        return shown

    def _channel(self, at: str) -> grpc.Channel:
        if self._credentials is None:
            return grpc.insecure_channel(at)
        return grpc.secure_channel(at, self._credentials)

    def _views(self) -> dict[int, admin_pb2.DescribeClusterResponse]:
        told = {node: self._view(at) for at, node in self.nodes.items()}
        return {node: view for node, view in told.items() if view is not None}

    def _view(self, at: str) -> admin_pb2.DescribeClusterResponse | None:
        with self._channel(at) as channel:
            try:
                return admin_pb2_grpc.AdminStub(channel).DescribeCluster(
                    admin_pb2.DescribeClusterRequest(), timeout=CALL_S
                )
            except grpc.RpcError as error:
                self._failed = describe(error)
                return None

    @staticmethod
    def _wait(holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise TargetClusterError(f"not within {timeout_s:.0f} s: {what}")
            time.sleep(0.25)
