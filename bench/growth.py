"""State grows by each path until it is refused, for minutes, and a node is restarted.

Three nodes, each in a control group of 2 GiB; raw stubs. No node may end, and at the limit commits
over offsets that are there, heartbeats, leaves and deletions are taken. Without control groups (no
root) memory is only watched. `--limit-mib` lowers the limits for a quick look.
"""

import argparse
import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import grpc
import psutil

from bench.raw import SESSION_MAX_MS, Pool, shard_of
from bench.report import Report
from muster.client import Client
from muster.errors import MusterError
from muster.group.group import Group
from muster.types import TopicPartition
from muster.v1 import admin_pb2, admin_pb2_grpc, errors_pb2
from muster.v1 import group_pb2 as pb
from musterd.chaos.world.equipment.client import EquipmentClient
from musterd.chaos.world.equipment.limits import Limits
from musterd.chaos.world.world import World
from musterd.coordinator.node.launcher import Equipment

MIB: Final = 1 << 20
MEMORY_BYTES: Final = 2 << 30
SHARDS: Final = 16
WORKERS: Final = 12
TOPICS: Final = 8
PARTITIONS: Final = 10_000
LOOK_S: Final = 1.0
CALL_S: Final = 10.0
RESTARTED_S: Final = 180.0
FULL: Final = "POLICY_VIOLATION"
REFUSED_PAUSE_S: Final = 0.02
METADATA: Final = "m" * 4_000
MEMBER_METADATA: Final = b"m" * 60_000
KEPT: Final = "kept"
KEPT_OFFSETS: Final = 10
MEMBER_SESSION_MS: Final = 60_000
"""This process is busy with growth as well."""
_MOVED = {
    errors_pb2.NOT_COORDINATOR,
    errors_pb2.COORDINATOR_NOT_AVAILABLE,
    errors_pb2.COORDINATOR_LOAD_IN_PROGRESS,
}


class Environment(Equipment):
    """Equipment of a cluster: settings of every node, as environment variables."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = dict(variables)

    def environment(self, node_id: int) -> Mapping[str, str]:  # noqa: ARG002
        return self._variables


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench growth")
    parser.add_argument("--path", choices=sorted(PATHS), action="append")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--limit-mib", type=int, help="of a node; a quarter of it of a shard")
    parser.add_argument("--memory-mib", type=int, default=MEMORY_BYTES // MIB)
    options = parser.parse_args(arguments)
    report = Report("growth", arguments)
    for path in options.path or sorted(PATHS):
        grow(report, path, options.minutes * 60, options.memory_mib, options.limit_mib)
    return report.finish()


def grow(
    report: Report,
    path: str,
    seconds: float,
    memory_mib: int,
    limit_mib: int | None = None,
    enough: int | None = None,
) -> None:
    """One path in a cluster of its own; adds to `report` what came of it.

    For so many seconds, or until growth was refused `enough` times.
    """
    memory = Limits(EquipmentClient())
    lacks = memory.lacks()
    if lacks:
        report.say(f"memory is watched, not limited: {lacks}")
    with World(3, SHARDS, equipment=(memory, Environment(_settings(limit_mib)))) as cluster:
        if not lacks:
            for node_id in cluster.nodes:
                memory.limit_memory(node_id, memory_mib * MIB)
        for number in range(TOPICS):
            cluster.create_topic(f"t{number}", PARTITIONS)
        cluster.wait_balanced()
        _run(report, cluster, memory, path, seconds, memory_mib, enough)


def _settings(limit_mib: int | None) -> dict[str, str]:
    if limit_mib is None:
        return {}
    return {
        "MUSTERD_STATE_NODE_MAX_BYTES": str(limit_mib * MIB),
        "MUSTERD_STATE_SHARD_MAX_BYTES": str(max(1, limit_mib // 4) * MIB),
        "MUSTERD_STATE_GROUP_MAX_BYTES": str(max(1, limit_mib // 8) * MIB),
    }


def _run(
    report: Report,
    cluster: World,
    memory: Limits,
    path: str,
    seconds: float,
    memory_mib: int,
    enough: int | None,
) -> None:
    watch = {node_id: psutil.Process(node.pid) for node_id, node in cluster.nodes.items()}
    rss: dict[int, int] = dict.fromkeys(watch, 0)
    began_s = time.monotonic()
    outcomes, still = asyncio.run(_grow(cluster, path, seconds, watch, rss, enough))
    report.say(f"{path}: {dict(outcomes)} in {time.monotonic() - began_s:.0f} s")
    held = max(state_bytes(cluster, node_id) for node_id in cluster.nodes)
    report.add_count(f"{path}_state_mib", held // MIB, "MiB")
    report.add_count(f"{path}_rss_max_mib", max(rss.values()) // MIB, "MiB")
    report.add_count(f"{path}_taken", outcomes["NONE"])
    report.add_count(f"{path}_refused", outcomes[FULL])
    if not outcomes[FULL]:
        report.say(f"{path}: the limit in bytes was not reached in that time")
    ended = [node_id for node_id, node in cluster.nodes.items() if not node.running]
    report.require(not ended, f"{path}: no node ended ({ended})")
    report.require(not still, f"{path}: at the limit what does not grow is taken ({still})")
    if ended:
        return
    restarted_s = time.monotonic()
    node_id = cluster.leads_most()[0]
    cluster.stop(node_id)
    cluster.start(node_id)
    cluster.wait_settled(RESTARTED_S)
    loaded = psutil.Process(cluster.nodes[node_id].pid).memory_info().rss
    report.say(
        f"{path}: restarted in {time.monotonic() - restarted_s:.1f} s, {loaded / MIB:.0f} MiB"
    )
    report.add_count(f"{path}_rss_restarted_mib", loaded // MIB, "MiB")
    if not memory.lacks():
        killed = sum(memory.memory_kills(one) for one in cluster.nodes)
        report.require(killed == 0, f"{path}: {memory_mib} MiB were enough for each node")


def state_bytes(cluster: World, node_id: int) -> int:
    """What the state of all shards of a node weighs, as its limits count it."""
    lines = cluster.metrics(node_id, 20.0).splitlines()
    return sum(int(float(x.split()[1])) for x in lines if x.startswith("muster_state_bytes{"))


class LeaderClient:
    """Calls of whoever leads the group's shard."""

    def __init__(self, cluster: World) -> None:
        self.pool = Pool()
        self.endpoints = cluster.endpoints
        self._at: dict[int, str] = {}
        self.outcomes: Counter[str] = Counter()

    async def call(
        self, method: str, group: str, request: object, timeout_s: float = CALL_S
    ) -> object:
        """The answer of the coordinator, or None where none came."""
        shard = shard_of(group, SHARDS)
        endpoint = self._at.get(shard) or secrets.choice(self.endpoints)
        try:
            answer = await getattr(self.pool.at(endpoint), method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            self._at.pop(shard, None)
            self.outcomes[error.code().name] += 1
            await asyncio.sleep(REFUSED_PAUSE_S)
            return None
        code = answer.status.code
        if code in _MOVED:
            self._at[shard] = answer.status.coordinator.endpoint or secrets.choice(self.endpoints)
            return None
        self._at[shard] = endpoint
        codes = {code} | {one.status.code for one in getattr(answer, "partitions", ())}
        for one in codes - {errors_pb2.NONE} or codes:
            self.outcomes[errors_pb2.ErrorCode.Name(one)] += 1
        if code != errors_pb2.NONE:
            await asyncio.sleep(REFUSED_PAUSE_S)
        return answer


def _commit(group: str, first: int, count: int, metadata: str = "") -> pb.OffsetCommitRequest:
    """Partitions from `first` on, over all topics one after the other."""
    request = pb.OffsetCommitRequest(group_id=group, generation=-1)
    for number in range(first, first + count):
        topic, partition = divmod(number, PARTITIONS)
        request.partitions.add(topic=f"t{topic}", partition=partition, offset=1, metadata=metadata)
    return request


async def _offsets(caller: LeaderClient, worker: int, number: int) -> None:
    """1,000 new offsets a call; a group has 80,000."""
    group, first = divmod(number, TOPICS * PARTITIONS // 1_000)
    name = f"o-{worker}-{group}"
    await caller.call("OffsetCommit", name, _commit(name, first * 1_000, 1_000))


async def _metadata(caller: LeaderClient, worker: int, number: int) -> None:
    """100 new offsets with 4,000 bytes of metadata each."""
    group, first = divmod(number, TOPICS * PARTITIONS // 100)
    name = f"d-{worker}-{group}"
    await caller.call("OffsetCommit", name, _commit(name, first * 100, 100, METADATA))


async def _groups(caller: LeaderClient, worker: int, number: int) -> None:
    """A group of its own with a long name."""
    name = f"{worker}-{number}-".ljust(249, "g")
    await caller.call("OffsetCommit", name, _commit(name, 0, 1))


async def _topics(caller: LeaderClient, worker: int, number: int) -> None:
    """A topic with a long name: shard 0 alone has them."""
    endpoint = secrets.choice(caller.endpoints)
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = admin_pb2_grpc.TopicsStub(channel)
        request = admin_pb2.CreateTopicRequest(
            name=f"{worker}-{number}-".ljust(249, "t"), partitions=1
        )
        with contextlib.suppress(grpc.aio.AioRpcError):
            answer = await stub.CreateTopic(request, timeout=CALL_S)  # type: ignore[misc]
            caller.outcomes[errors_pb2.ErrorCode.Name(answer.status.code)] += 1


async def _members(caller: LeaderClient, worker: int, number: int) -> None:
    """A static member with much to say, its assignment as large, and then it is silent."""
    name = f"m-{worker}-{number}"
    join = pb.JoinGroupRequest(
        group_id=name,
        client_id="c",
        join_nonce=secrets.token_hex(16),
        session_timeout_ms=SESSION_MAX_MS,
        rebalance_timeout_ms=SESSION_MAX_MS,
        protocol_type="consumer",
        protocols=[pb.JoinGroupRequest.Protocol(name="own", metadata=MEMBER_METADATA)],
        group_instance_id="i",
    )
    joined = await caller.call("JoinGroup", name, join, 30.0)
    if not isinstance(joined, pb.JoinGroupResponse) or joined.status.code:
        return
    sync = pb.SyncGroupRequest(
        group_id=name, member_id=joined.member_id, generation=joined.generation
    )
    sync.group_instance_id = "i"
    sync.assignments.add(member_id=joined.member_id, assignment=MEMBER_METADATA)
    await caller.call("SyncGroup", name, sync)


PATHS: Final[Mapping[str, Callable[[LeaderClient, int, int], Awaitable[None]]]] = {
    "offsets": _offsets,
    "metadata": _metadata,
    "groups": _groups,
    "topics": _topics,
    "members": _members,
}


async def _grow(
    cluster: World,
    path: str,
    seconds: float,
    watch: Mapping[int, psutil.Process],
    rss: dict[int, int],
    enough: int | None,
) -> tuple[Counter[str], list[str]]:
    """The outcomes of growth, and what was refused at its end although it does not grow."""
    async with Client(cluster.endpoints) as client:
        kept = {TopicPartition("t0", number): 1 for number in range(KEPT_OFFSETS)}
        await client.commit_offsets(KEPT, kept)
        member = client.group(f"{KEPT}-member", ["t1"], session_timeout_ms=MEMBER_SESSION_MS)
        generation = (await member.next_assignment()).generation
        outcomes = await _grow_by(LeaderClient(cluster), path, seconds, watch, rss, enough)
        return outcomes, await _at_limit(client, member, generation)


async def _grow_by(
    caller: LeaderClient,
    path: str,
    seconds: float,
    watch: Mapping[int, psutil.Process],
    rss: dict[int, int],
    enough: int | None,
) -> Counter[str]:
    until_s = time.monotonic() + seconds

    def going() -> bool:
        done = enough is not None and caller.outcomes[FULL] >= enough
        return not done and time.monotonic() < until_s

    async def work(worker: int) -> None:
        number = 0
        while going():
            await PATHS[path](caller, worker, number)
            number += 1

    async def look() -> None:
        while going():
            for node_id, process in watch.items():
                with contextlib.suppress(psutil.NoSuchProcess):
                    rss[node_id] = max(rss[node_id], process.memory_info().rss)
            await asyncio.sleep(LOOK_S)

    await asyncio.gather(look(), *(work(worker) for worker in range(WORKERS)))
    return caller.outcomes


async def _at_limit(client: Client, member: Group, generation: int) -> list[str]:
    """Return the calls that were refused although they do not grow the state."""
    wrong = []
    kept = {TopicPartition("t0", number): 2 for number in range(KEPT_OFFSETS)}
    asked: list[tuple[str, Callable[[], Awaitable[object]]]] = [
        ("a commit over offsets that are there", lambda: client.commit_offsets(KEPT, kept)),
        ("a member that leaves", member.close),
        ("a deletion of offsets", lambda: client.delete_offsets(KEPT, list(kept)[1:])),
        ("a deletion of a group", lambda: client.delete_groups([KEPT])),
    ]
    assignment = member.assignment
    if assignment is None or assignment.generation != generation:
        wrong.append("heartbeats")
    for what, ask in asked:
        try:
            answer = await ask()
        except MusterError as error:
            answer = {what: error}
        refused = [one for one in answer.values() if one] if isinstance(answer, dict) else []
        if refused:
            wrong.append(f"{what}: {refused[0]}")
    return wrong
