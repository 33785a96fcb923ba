"""Faults of load: more work at once than a cluster of this size is for."""

import contextlib
from random import Random
from typing import ClassVar

import grpc

from muster.v1 import admin_pb2, errors_pb2, group_pb2
from musterd.chaos.child import Child, Message, ask_all, close_all
from musterd.chaos.faults.contract import FaultError, Group, Injected, Sight, Watched, fault
from musterd.chaos.faults.crowd import GROUP_SIZE, MEMBERS_S_MAX
from musterd.chaos.world.world import World
from musterd.coordinator.node.loopback import node_place

COMMITTERS = 32
FLEET = 200
"""Members, in groups of ten."""
FLEET_PROCESSES = 4
"""Each has two or three members of every group, and one `Client`."""
GENERATIONS_MAX = 2
"""No group may have formed more often when every member has had a share."""

TOPIC = "muster-chaos-load"
TOPIC_PARTITIONS = 1_000
ANSWER_S_MAX = 30.0
CALL_S = 3.0
DELETED_S_MAX = 40.0


class _Crowd(Watched):
    """Client processes that ask for much, until heal."""

    group = Group.RESOURCE
    spares_members = True
    groups: ClassVar[int]
    """How many they ask for."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: list[Child] = []
        self._answers: list[Message] = []

    def _begin(self, world: World, rng: Random, what: Message, processes: int = 1) -> Injected:
        """Start them, and wait until something came of it. Raises ChildError where nothing does.

        Facts: `clients`.
        """
        self._answers = []
        self._name = f"muster-chaos-load-{rng.getrandbits(32):08x}"
        world.create_topic(TOPIC, TOPIC_PARTITIONS)
        config = {
            "endpoints": [world.nodes[one].endpoint for one in world.running()],
            "group": self._name,
            "topic": TOPIC,
            **what,
        }
        for number in range(processes):
            own = {**config, "process": number, "processes": processes}
            self._clients.append(
                Child("musterd.chaos.faults.crowd", own, wrap=world.client_command)
            )
        for one in self._clients:
            one.ready(timeout_s=ANSWER_S_MAX)
        self._answers = ask_all(self._clients, "begin", MEMBERS_S_MAX + ANSWER_S_MAX)
        hit = tuple(node_place(one) for one in world.running())
        detail = ", ".join(f"{v} {k}" for k, v in what.items())
        return Injected(hit, detail, facts={"clients": len(self._answers)})

    def heal(self, world: World) -> None:
        clients, self._clients = self._clients, []
        if clients:
            self.watch(world)
            close_all(clients)
            left = set(self._groups())
            world.wait(lambda: deleted(world, left), DELETED_S_MAX, f"{self._name}-.. deleted")

    def _groups(self) -> list[str]:
        return [f"{self._name}-{number}" for number in range(self.groups)]


def deleted(world: World, left: set[str]) -> bool:
    """Ask every node to delete what is left of these groups, and take off what is gone."""
    for node_id in world.running():
        with contextlib.suppress(grpc.RpcError):
            request = admin_pb2.DeleteGroupsRequest(group_ids=sorted(left))
            for one in world.admin(node_id).DeleteGroups(request, timeout=CALL_S).results:
                if one.status.code in {errors_pb2.NONE, errors_pb2.GROUP_ID_NOT_FOUND}:
                    left.discard(one.group_id)
    return not left


@fault
class LargeCommits(_Crowd):
    kind = "large_commits"
    groups = COMMITTERS
    title = "32 clients commit 1,000 partitions at a time, as fast as they are answered"

    def inject(self, world: World, rng: Random) -> Injected:
        return self._begin(world, rng, {"commits": COMMITTERS})

    def look(self, world: World) -> Sight:
        """What is stored of each one's last partition is how often it committed."""
        request = group_pb2.OffsetFetchRequest()
        for name in self._groups():
            asked = request.groups.add(group_id=name)
            asked.partitions.add(topic=TOPIC, partition=TOPIC_PARTITIONS - 1)
        stored: dict[str, int] = {}
        for node_id in world.running():
            with contextlib.suppress(grpc.RpcError):
                answer = world.groups(node_id).OffsetFetch(request, timeout=CALL_S)
                for one in answer.groups:
                    for partition in one.partitions:
                        stored[one.group_id] = max(0, partition.offset)
        commits = sum(stored.values())
        return (
            commits > COMMITTERS,
            f"{commits} commits of {TOPIC_PARTITIONS} partitions are stored",
        )


@fault
class FleetStarts(_Crowd):
    kind = "fleet_starts"
    groups = FLEET // GROUP_SIZE
    title = "200 members in groups of ten start at once, in four processes with one client each"

    def inject(self, world: World, rng: Random) -> Injected:
        """Start them, and wait until each has its share.

        Raises FaultError where one has none in time, or a group formed more than twice until then.
        """
        injected = self._begin(world, rng, {"members": FLEET}, FLEET_PROCESSES)
        first: dict[str, set[int]] = {}
        for answer in self._answers:
            for group_id, generations in answer["first"].items():
                first.setdefault(group_id, set()).update(generations)
        formed = max((max(one) - min(one) + 1 for one in first.values()), default=0)
        if formed > GENERATIONS_MAX:
            raise FaultError(f"{self.kind}: a group formed {formed} times until all had a share")
        return injected

    def look(self, world: World) -> Sight:
        """How many members their coordinators know."""
        request = admin_pb2.DescribeGroupsRequest(group_ids=self._groups())
        members: dict[str, int] = {}
        for node_id in world.running():
            with contextlib.suppress(grpc.RpcError):
                answer = world.admin(node_id).DescribeGroups(request, timeout=CALL_S)
                for one in answer.groups:
                    if one.status.code == errors_pb2.NONE:
                        members[one.group_id] = len(one.members)
        known = sum(members.values())
        return known == FLEET, f"{known} members are in {len(members)} groups"
