"""A real three-node cluster for bad input: raw stubs, `muster` commands, node directories."""

import contextlib
import io
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass

import grpc
from prometheus_client.parser import text_string_to_metric_families

from muster.cli import main
from muster.v1 import admin_pb2 as admin
from muster.v1 import admin_pb2_grpc, errors_pb2, group_pb2_grpc
from muster.v1 import group_pb2 as pb
from musterd.coordinator.api.limits.call_acceptor import OVERLOADED
from musterd.coordinator.api.server import STREAMS_PER_CONNECTION_MAX
from musterd.coordinator.node.launcher import Cluster
from musterd.coordinator.runtime.routing import shard_of

SHARDS = 4
TOPIC, PARTITIONS = "orders", 8
WAIT_S = 60.0
POLL_S = 0.02
ATTEMPT_S = 3.0
PARKED_S = 30.0
KILLED_COMMITS = 10
GRPC_LINE = re.compile(r'[EWI]\d{4} [\d:.]+ |\{.*"event": "a library wrote"')
"""What gRPC's C core writes to stderr by itself, and how a node logs it."""
OVERSIZE = 64 * 1024 * 1024
ELSEWHERE = {
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
}
LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}


@dataclass(frozen=True)
class Seen:
    """How muster answered: in the words of docs/errors.md, and the text beside it."""

    answer: str
    text: str = ""
    next_step: str = ""


def status_seen(status) -> Seen:
    """What a Status of the wire says."""
    name = errors_pb2.ErrorCode.Name(status.code)
    return Seen(f"{name} ({int(status.code)})", status.message)


def wait_for(condition, what="condition", timeout_s=WAIT_S):
    """Wait on a condition; returns what it returned."""
    end_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end_s, f"waited {timeout_s} s for: {what}"
        time.sleep(POLL_S)
    return found


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def seen(self) -> Seen:
        """In the words of docs/errors.md: the exit code, and stderr in one line."""
        own = (line for line in self.err.splitlines() if not GRPC_LINE.match(line))
        text, _, next_step = " ".join(" ".join(own).split()).partition(" next: ")
        return Seen(f"exit {self.code}", text.removeprefix("error: "), next_step)

    @property
    def json(self):
        """What a command with -o json printed."""
        return json.loads(self.out)


def run(*args, **env) -> Ran:
    """`muster ARGS` as a process, to its end."""
    done = subprocess.run(
        [sys.executable, "-m", "muster.cli", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env={**plain_environment(), **env},
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@contextlib.contextmanager
def environment(changes):
    """`changes` in this process's environment, and no other MUSTER_* or MUSTERD_* variable."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({**plain_environment(), **changes})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def plain_environment() -> dict[str, str]:
    """This process's environment without MUSTER_*, MUSTERD_* and with wide help."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MUSTER_", "MUSTERD_"))}
    return {**kept, "COLUMNS": "500", "NO_COLOR": "1"}


def command(*args, **env) -> Ran:
    """`muster ARGS` in this process: what only asks a cluster, or is refused before it starts."""
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with redirect_stdout(out), redirect_stderr(err), environment(env):
        try:
            main([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code
    return Ran(int(code or 0), out.getvalue(), err.getvalue())


def patiently(call):
    """`call()`, again where the node was overloaded: then nothing was done."""
    end_s = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except grpc.RpcError as error:
            if not shed(error) or time.monotonic() > end_s:
                raise
        time.sleep(POLL_S)


def shed(error) -> bool:
    """Whether a call was refused for overload, and not for what it is."""
    details = error.details() or ""
    return any(one in details for one in ("repeat after a pause", OVERLOADED))


class World:
    """The cluster, and how to talk to it badly. Every case leaves it as it found it."""

    def __init__(self, cluster: Cluster, scratch) -> None:
        self.cluster = cluster
        self.scratch = scratch
        options = [
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 500),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", OVERSIZE),
        ]
        self._options = options
        self.channels = {
            node_id: grpc.insecure_channel(node.endpoint, options)
            for node_id, node in cluster.nodes.items()
        }
        self.offset = 0
        self.export = None
        """What an exporter wrote beside node 0, once somebody asked for it."""
        self._killed = {}

    def close(self) -> None:
        """Close the channels."""
        for channel in self.channels.values():
            channel.close()

    # ---- calls

    def groups(self, node_id=0):
        """GroupCoordinator at a node."""
        return group_pb2_grpc.GroupCoordinatorStub(self.channels[node_id])

    @contextmanager
    def many_groups(self, node_id, calls):
        """GroupCoordinator at a node, by as many connections as so many calls need."""
        endpoint = self.cluster.nodes[node_id].endpoint
        with ExitStack() as stack:
            yield [
                group_pb2_grpc.GroupCoordinatorStub(
                    stack.enter_context(grpc.insecure_channel(endpoint, self._options))
                )
                for _ in range(0, calls, STREAMS_PER_CONNECTION_MAX)
            ]

    def admin(self, node_id=0):
        """Admin at a node."""
        return admin_pb2_grpc.AdminStub(self.channels[node_id])

    def topics(self, node_id=0):
        """Topics at a node."""
        return admin_pb2_grpc.TopicsStub(self.channels[node_id])

    @property
    def running(self) -> list[int]:
        """The nodes that run."""
        return [node_id for node_id, node in self.cluster.nodes.items() if node.running]

    def anywhere(self, ask, status_of=lambda answer: answer.status):
        """`ask(node_id)` at one running node after the other until it is for one of them."""
        end_s = time.monotonic() + WAIT_S
        while True:
            for node_id in self.running:
                try:
                    answer = ask(node_id)
                except grpc.RpcError as error:
                    if error.code() not in LOST and not shed(error):
                        raise
                    continue
                if status_of(answer).code not in ELSEWHERE:
                    return answer
            assert time.monotonic() < end_s, "nobody answers"
            time.sleep(POLL_S)

    def call(self, method, request, status_of=lambda answer: answer.status, timeout_s=ATTEMPT_S):
        """A call of GroupCoordinator, at whoever coordinates the group."""
        return self.anywhere(
            lambda node_id: getattr(self.groups(node_id), method)(request, timeout=timeout_s),
            status_of,
        )

    def commit(self, group, offset, metadata=""):
        """A simple commit."""
        request = pb.OffsetCommitRequest(
            group_id=group,
            generation=-1,
            partitions=[
                pb.OffsetCommitRequest.Partition(
                    topic=TOPIC, partition=0, offset=offset, metadata=metadata
                )
            ],
        )
        return self.call("OffsetCommit", request)

    def read(self, group) -> int:
        """The committed offset of partition 0, linearizably; -1 where there is none."""
        request = pb.OffsetFetchRequest(
            group_id=group,
            partitions=[pb.OffsetFetchRequest.Partition(topic=TOPIC, partition=0)],
        )
        answer = self.call("OffsetFetch", request)
        assert answer.status.code == 0, answer
        return answer.partitions[0].offset

    def group_in(self, shard: int) -> str:
        """A group id of this shard."""
        return next(name for n in range(1_000) if shard_of(name := f"g{n}", SHARDS) == shard)

    def commit_succeeds(self) -> None:
        """In every shard a commit is acknowledged and read back."""
        self.offset += 1
        for shard in range(SHARDS):
            group = self.group_in(shard)
            answer = self.commit(group, self.offset)
            assert answer.status.code == 0, answer
            assert [p.status.code for p in answer.partitions] == [0], answer
            assert self.read(group) == self.offset

    def create_topic(self) -> None:
        """TOPIC, known on every node."""
        request = admin.CreateTopicRequest(name=TOPIC, partitions=PARTITIONS)
        answer = self.anywhere(lambda n: self.topics(n).CreateTopic(request, timeout=ATTEMPT_S))
        assert answer.status.code == 0, answer
        for node_id in self.running:
            stub = self.topics(node_id)
            wait_for(lambda s=stub: s.ListTopics(admin.ListTopicsRequest()).topics, "the topic")

    # ---- members

    def coordinator(self, group):
        """Who coordinates a group, as FindCoordinator says."""
        key = pb.FindCoordinatorRequest.Key(group_id=group)
        request = pb.FindCoordinatorRequest(keys=[key])

        def found():
            answer = patiently(lambda: self.groups().FindCoordinator(request, timeout=ATTEMPT_S))
            one = answer.results[0]
            return one.coordinator if one.HasField("coordinator") else None

        return wait_for(found, "a coordinator")

    def join_fields(self, group, **changes):
        """A first join; `changes` are fields of the request."""
        return {
            "group_id": group,
            "client_id": "c",
            "join_nonce": secrets.token_hex(16),
            "session_timeout_ms": 30_000,
            "rebalance_timeout_ms": 20_000,
            "protocol_type": "consumer",
            "protocols": [pb.JoinGroupRequest.Protocol(name="range", metadata=b"")],
            "subscribed_topics": [TOPIC],
            **changes,
        }

    def join(self, group, **changes):
        """Send a first join and wait for its answer."""
        fields = self.join_fields(group, **changes)
        return self.call(
            "JoinGroup", pb.JoinGroupRequest(**{**fields, **changes}), timeout_s=PARKED_S
        )

    def member(self, group):
        """A group of one stable member: (member id, generation)."""
        joined = self.join(group)
        assert joined.status.code == 0, joined
        synced = self.call(
            "SyncGroup",
            pb.SyncGroupRequest(
                group_id=group, member_id=joined.member_id, generation=joined.generation
            ),
            timeout_s=PARKED_S,
        )
        assert synced.status.code == 0, synced
        return joined.member_id, joined.generation

    # ---- nodes

    def bootstrap(self, *node_ids) -> str:
        """--bootstrap with these nodes, or all."""
        nodes = self.cluster.nodes
        return "--bootstrap=" + ",".join(nodes[n].endpoint for n in node_ids or nodes)

    def describe(self, node_id):
        """A node's view of the cluster."""
        return self.admin(node_id).DescribeCluster(
            admin.DescribeClusterRequest(), timeout=ATTEMPT_S
        )

    def stop(self, node_id) -> None:
        """SIGKILL: as after a power cut of the process, not of the disk."""
        self.cluster.kill(node_id)

    def start(self, node_id) -> None:
        """Start a node again and wait until it and all others are ready."""
        self.cluster.start(node_id)
        self.cluster.wait_ready(WAIT_S)

    def revive(self) -> None:
        """Start what a case that failed left stopped, so that it fails alone."""
        stopped = [node_id for node_id in self.cluster.nodes if node_id not in self.running]
        for node_id in stopped:
            self.cluster.start(node_id)
        if stopped:
            self.cluster.wait_ready(WAIT_S)

    @contextlib.contextmanager
    def node_down(self, node_id):
        """A node that is killed for a while; its directory is put back as it was."""
        node = self.cluster.nodes[node_id]
        self.stop(node_id)
        kept = self.fresh_folder("kept")
        shutil.copytree(node.data_dir, kept)
        try:
            yield node
        finally:
            if node.running:
                self.stop(node_id)
            if node.data_dir.exists():
                shutil.rmtree(node.data_dir)
            kept.rename(node.data_dir)
            self.start(node_id)

    def fresh_folder(self, name):
        """A path that nothing is at."""
        return self.scratch / f"{name}-{secrets.token_hex(4)}"

    def killed_copy(self, node_id):
        """A copy of a node's directory as kill -9 left it, with acknowledged commits in its log."""
        if node_id not in self._killed:
            for _ in range(KILLED_COMMITS):
                self.commit_succeeds()
            kept = self.scratch / f"killed-{node_id}"
            self.stop(node_id)
            shutil.copytree(self.cluster.nodes[node_id].data_dir, kept)
            self.start(node_id)
            self._killed[node_id] = kept
        copy = self.fresh_folder("copy")
        return shutil.copytree(self._killed[node_id], copy)

    def serve_flags(self, node_id, **changes) -> list[str]:
        """The flags that the launcher gives a node; `changes` as flag names with underscores."""
        node = self.cluster.nodes[node_id]
        flags = {
            "data_dir": node.data_dir,
            "listen": node.endpoint,
            "peer_listen": node.addresses.peer_listen,
            "metrics_listen": node.metrics_endpoint,
            **changes,
        }
        peers = [
            f"--peer={other.node_id}={other.addresses.peer_listen}"
            for other in self.cluster.nodes.values()
            if other is not node
        ]
        return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()] + peers

    def log_of(self, node_id) -> str:
        """What a node has logged since the cluster began."""
        return self.cluster.nodes[node_id].log_path.read_text("utf-8", errors="replace")

    def log_lines(self, node_id, event) -> list[dict]:
        """Log records of one event."""
        found = []
        for line in self.log_of(node_id).splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                record = json.loads(line)
                if isinstance(record, dict) and record.get("event") == event:
                    found.append(record)
        return found

    def metric(self, node_id, name, **labels) -> float:
        """The sum of a metric's samples with these labels; 0 where there is none."""
        at = self.cluster.nodes[node_id].metrics_endpoint
        with urllib.request.urlopen(f"http://{at}/metrics", timeout=ATTEMPT_S) as page:
            families = list(text_string_to_metric_families(page.read().decode()))
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
