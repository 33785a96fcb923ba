"""Faults of load: more work at once than a cluster of this size is for."""

import re
from pathlib import Path
from random import Random

from muster.v1 import admin_pb2, errors_pb2, group_pb2
from musterd.chaos.child import Child, Message, ask_all, close_all
from musterd.chaos.faults.client_load import CALL_S, GROUP_SIZE, MEMBERS_S_MAX
from musterd.chaos.faults.contract import (
    FaultError,
    FaultGroup,
    Injected,
    Sight,
    Watched,
    counted,
    fault,
    one_of,
)
from musterd.chaos.faults.own_group import answers
from musterd.chaos.world.world import World

COMMITTERS = 32
FLEET = 200
"""Members, in groups of ten."""
FLEET_PROCESSES = 4
"""Each has two or three members of every group, and one `Client`."""
GENERATIONS_MAX = 2
"""No group may have formed more often when every member has had a share."""
TOPIC = "muster-chaos-load"
TOPIC_PARTITIONS = 1_000
FILLED_TOPIC, FILLED_PARTITIONS = "filled", 10_000
ANSWER_S_MAX = 30.0
DELETED_S_MAX = 40.0
LONG_CALLS = 350
"""Calls of a client that reads no answer; each is of 0.3 MB and more."""
DEAF_RISE_MAX_BYTES = 64 << 20
"""What a node's memory may rise by for such a client, and for all else that goes on meanwhile."""
UNTAKEN = 'muster_throttled_requests_total{limit="untaken_answers"}'
GROWTH = 'muster_growth_refused_total{limit="group"}'


class _Clients(Watched):
    """Client processes that ask for much, until heal. They are at a host of clients."""

    group = FaultGroup.RESOURCE
    spares_members = True

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[str] = []
        """They are deleted at heal."""
        self._clients: list[Child] = []
        self._before = 0
        """What a counter said when it was injected."""

    def start(self, world: World, module: str, config: Message) -> Child:
        child = Child(f"musterd.chaos.faults.{module}", config, wrap=world.client_command)
        self._clients.append(child)
        return child

    def start_load(
        self, world: World, rng: Random, what: Message, groups: int = 0, processes: int = 1
    ) -> list[Message]:
        """Start processes of `client_load`, and return what each said once it had an effect.

        `groups`: how many they make; 0: one, by the name alone. Facts: `clients`. Raises ChildError
        where nothing comes.
        """
        self.facts["clients"] = processes
        name = f"muster-chaos-load-{rng.getrandbits(32):08x}"
        self.groups = [f"{name}-{number}" for number in range(groups)] or [name]
        self.hit = world.running()
        endpoints = [world.nodes[one].endpoint for one in self.hit]
        shared = {"endpoints": endpoints, "group": name, "processes": processes}
        for number in range(processes):
            self.start(world, "client_load", {"topic": TOPIC, **shared, "process": number, **what})
        for one in self._clients:
            one.ready(timeout_s=ANSWER_S_MAX)
        return ask_all(self._clients, "begin", MEMBERS_S_MAX + ANSWER_S_MAX)

    def heal(self, world: World) -> None:
        clients, self._clients = self._clients, []
        if clients:
            self.watch(world)
            close_all(clients)
            if left := set(self.groups):
                world.wait(lambda: deleted(world, left), DELETED_S_MAX, f"{sorted(left)} deleted")
        self.hit.clear()


def deleted(world: World, left: set[str]) -> bool:
    """Ask every node to delete what is left of these groups, and take off what is gone."""
    request = admin_pb2.DeleteGroupsRequest(group_ids=sorted(left))
    for answer in answers(world, lambda n: world.admin(n).DeleteGroups(request, timeout=CALL_S)):
        for one in answer.results:
            if one.status.code in {errors_pb2.NONE, errors_pb2.GROUP_ID_NOT_FOUND}:
                left.discard(one.group_id)
    return not left


@fault
class LargeCommits(_Clients):
    kind = "large_commits"
    title = "32 clients commit 1,000 partitions at a time, as fast as they are answered"

    def inject(self, world: World, rng: Random) -> Injected:
        world.create_topic(TOPIC, TOPIC_PARTITIONS)
        self.start_load(world, rng, {"commits": COMMITTERS}, COMMITTERS)
        return self.injected(f"{COMMITTERS} clients")

    def look(self, world: World) -> Sight:
        """Count the commits of each client by what is stored of its last partition."""
        request = group_pb2.OffsetFetchRequest()
        for name in self.groups:
            asked = request.groups.add(group_id=name)
            asked.partitions.add(topic=TOPIC, partition=TOPIC_PARTITIONS - 1)
        stored = {
            group.group_id: partition.offset
            for answer in answers(
                world, lambda n: world.groups(n).OffsetFetch(request, timeout=CALL_S)
            )
            for group in answer.groups
            for partition in group.partitions
        }
        commits = sum(max(0, offset) for offset in stored.values())
        what = f"{commits} commits of {TOPIC_PARTITIONS} partitions are stored"
        return commits > COMMITTERS, what


@fault
class FleetStarts(_Clients):
    kind = "fleet_starts"
    title = "200 members in groups of ten start at once, in four processes with one client each"

    def inject(self, world: World, rng: Random) -> Injected:
        """Start them, and wait until each has its share.

        Raises FaultError where one has none in time, or a group formed more than twice until then.
        """
        world.create_topic(TOPIC, TOPIC_PARTITIONS)
        first: dict[str, set[int]] = {}
        what = {"members": FLEET}
        for answer in self.start_load(world, rng, what, FLEET // GROUP_SIZE, FLEET_PROCESSES):
            for group_id, generations in answer["first"].items():
                first.setdefault(group_id, set()).update(generations)
        formed = max((max(one) - min(one) + 1 for one in first.values()), default=0)
        if formed > GENERATIONS_MAX:
            raise FaultError(f"{self.kind}: a group formed {formed} times until all had a share")
        return self.injected(f"{FLEET} members")

    def look(self, world: World) -> Sight:
        """How many members their coordinators know."""
        request = admin_pb2.DescribeGroupsRequest(group_ids=self.groups)
        members = {
            group.group_id: len(group.members)
            for answer in answers(
                world, lambda n: world.admin(n).DescribeGroups(request, timeout=CALL_S)
            )
            for group in answer.groups
            if group.status.code == errors_pb2.NONE
        }
        known = sum(members.values())
        return known == FLEET, f"{known} members are in {len(members)} groups"


@fault
class StateFull(_Clients):
    kind = "state_full"
    title = "a client fills a group to its limit of state: it is refused, what is there goes on"
    needs = frozenset({"state_limit"})

    def inject(self, world: World, rng: Random) -> Injected:
        """Fill. Facts: `taken` (offsets), `went_on`.

        Raises FaultError where a commit over an offset that was there was refused.
        """
        world.create_topic(FILLED_TOPIC, FILLED_PARTITIONS)
        self._before = counted(world, world.running(), GROWTH)
        what = {"topic": FILLED_TOPIC, "fill": FILLED_PARTITIONS}
        [told] = self.start_load(world, rng, what)
        self.facts |= told
        if not told["went_on"]:
            raise FaultError("a commit over an offset that is there was refused at the limit")
        return self.injected(f"{told['taken']} offsets were taken")

    def look(self, world: World) -> Sight:
        refused = counted(world, self.hit, GROWTH) - self._before
        return refused > 0, f"growth was refused {refused} times"


@fault
class UnreadAnswers(_Clients):
    kind = "unread_answers"
    title = "one node is asked for 350 long answers by a client that never reads"

    _rise_bytes = 0

    def inject(self, world: World, rng: Random) -> Injected:
        node_id = one_of(world, world.running(), rng)
        node = world.nodes[node_id]
        self.hit, self._pid = [node_id], node.pid
        self._before = counted(world, self.hit, UNTAKEN)
        Path(f"/proc/{node.pid}/clear_refs").write_text("5")  # the kernel counts its peak anew
        self._peak_bytes = peak_bytes(node.pid)
        client = self.start(
            world, "nonreading_client", {"endpoint": node.endpoint, "calls": LONG_CALLS}
        )
        return self.injected(f"{client.ready()['calls']} calls on one connection")

    def heal(self, world: World) -> None:
        """Raises FaultError where the node's memory rose by what nobody took."""
        super().heal(world)
        rise_bytes, self._rise_bytes = self._rise_bytes, 0
        if rise_bytes > DEAF_RISE_MAX_BYTES:
            raise FaultError(f"a node took {rise_bytes} bytes for what nobody reads")

    def look(self, world: World) -> Sight:
        refused = counted(world, self.hit, UNTAKEN) - self._before
        if world.nodes[self.hit[0]].pid == self._pid:
            self._rise_bytes = peak_bytes(self._pid) - self._peak_bytes
        return refused > 0, f"the node refused or ended {refused} of its calls"


def peak_bytes(pid: int) -> int:
    """The most resident bytes that a process had since its peak was cleared. Raises OSError."""
    told = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    if told is None:
        raise OSError(f"the kernel does not say how much memory process {pid} had at most")
    return int(told[1]) << 10
