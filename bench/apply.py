"""Measures what applying entries costs one replica, in CPU time of one process; no cluster.

Commits are of one member's group that has offsets of these partitions already, decoded from the log
(`decode`) and applied (`apply`), an entry each. A round is all Joins of a group that was empty, the
timer that forms the generation, the leader's Sync with everybody's assignment and all others'; it
is applied, an entry for each command. Of a modern group whose first member has many partitions, and
a second one gets half of them, the longest entry of each kind: those that grant, that have the
first one release them, and that take what it has released; a heartbeat of it that changes nothing;
that it joins again, goes away, and leaves.

Printed last is the digest of all that was applied, so that two builds of the machine can be
compared, and which one was measured: a module of `coordinator/machine` may be compiled.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.report import Report
from musterd.coordinator.codec import decode_entry, encode_entry
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Assignment,
    CloseRound,
    Command,
    ConsumerGroupHeartbeat,
    JoinGroup,
    NoteTopics,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    Reconcile,
    StoreTarget,
    SyncGroup,
    TopicCount,
)
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.limits import LIMITS_VERSION
from musterd.coordinator.machine.modern.decide_heartbeat import unchanged
from musterd.coordinator.machine.modern.group import ModernGroup, partition_sets
from musterd.coordinator.machine.modern.spec import changes_of, spec_of
from musterd.coordinator.machine.plan import parts, plan
from musterd.coordinator.machine.records.digest import DIGEST_MODULUS
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    evolve_shard_counted,
)
from musterd.coordinator.machine.state import Phase, deadlines, modern_of
from musterd.levels import LEVEL

COMMITS = 20_000
PARTITIONS = (1, 20)
MEMBERS = (100, 1_000)
GROUP = "g"
TOPIC = "t"
METADATA_BYTES = 100
TOPICS = 1_000
TOPIC_PARTITIONS = 100
"""Of each topic of a modern group of two members."""


@dataclass(slots=True)
class Replica:
    """One shard's state, and how far it is."""

    state: ShardState = field(default_factory=ShardState)
    index: int = 0
    time_ms: int = 0

    def entry(self, command: Command) -> bytes:
        """The entry of a command, as the log has it."""
        return encode_entry(
            Entry(FORMAT, LEVEL, self.time_ms, self.time_ms, LIMITS_VERSION, (command,), 1)
        )

    def apply(self, entries: Sequence[Entry]) -> float:
        """Apply them; returns the CPU seconds."""
        return cpu_s(lambda: self._apply(entries))

    def take(self, command: Command) -> float:
        """Apply an entry of one command; returns the CPU seconds."""
        return self.apply([decode_entry(self.entry(command))])

    def _apply(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self.index += 1
            apply_entry(self.state, entry, self.index)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of `work`, without the garbage collector, which has its own time."""
    gc.disable()
    began = time.process_time()
    work()
    took = time.process_time() - began
    gc.enable()
    return took


def rounds(replica: Replica, members: int) -> Iterator[list[Command]]:
    """The commands of a first round: its Joins, its timer, its Syncs; each once those before are.

    `members` join the group, which has none yet.
    """
    yield [
        JoinGroup(
            group_id=GROUP,
            member_id="",
            client_id=f"worker-{n:05}",
            client_host="10.0.0.1",
            join_nonce="1",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            protocol_type="consumer",
            protocols=(Protocol("range", bytes(METADATA_BYTES)),),
            subscribed_topics=(TOPIC,),
            reason="",
        )
        for n in range(members)
    ]
    group = replica.state.groups[GROUP]
    while group.phase is Phase.PREPARING_REBALANCE:  # it waits once more for who comes late
        ((key, replica.time_ms),) = deadlines(group)
        yield [CloseRound(GROUP, key.round, key.timer, replica.time_ms)]
    everybody = sorted(group.members, key=lambda member_id: member_id != group.leader_id)
    shares = tuple(Assignment(member_id, bytes(METADATA_BYTES)) for member_id in everybody)
    yield [
        SyncGroup(
            group_id=GROUP,
            member_id=member_id,
            generation=group.generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=shares if member_id == group.leader_id else (),
        )
        for member_id in everybody
    ]


def form(replica: Replica, members: int) -> float:
    """Apply a first round; returns the CPU seconds. Raises ValueError where nobody is assigned."""
    took = 0.0
    for commands in rounds(replica, members):
        took += replica.apply([decode_entry(replica.entry(one)) for one in commands])
    assigned = [one.assignment for one in replica.state.groups[GROUP].members.values()]
    if len(assigned) != members or not all(assigned):
        raise ValueError(f"{len(assigned)} members, of whom some have no assignment")
    return took


def commits(replica: Replica, partitions: int, count: int, first: int) -> list[bytes]:
    """The entries of `count` commits of the group's one member, numbered from `first`."""
    group = replica.state.groups[GROUP]
    (member_id,) = group.members
    return [
        replica.entry(
            OffsetCommit(
                group_id=GROUP,
                member_id=member_id,
                generation=group.generation,
                commit_seq=number,
                partitions=tuple(
                    PartitionCommit(TOPIC, p, number, "", None) for p in range(partitions)
                ),
            )
        )
        for number in range(first, first + count)
    ]


def decoded(data: Sequence[bytes]) -> tuple[list[Entry], float]:
    """Decode entries; returns them and the CPU seconds."""
    entries: list[Entry] = []
    return entries, cpu_s(lambda: entries.extend(map(decode_entry, data)))


def store_plan(replica: Replica) -> list[float]:
    """Plan the modern group, store that and carry it out; returns CPU seconds of each Reconcile."""
    group = replica.state.groups[GROUP]
    modern = modern_of(group)
    if modern is None:
        raise ValueError("the coordinator does not assign")
    version = modern.spec_version
    for number, part in enumerate(list(parts(plan(spec_of(group))))):
        store = StoreTarget(GROUP, version, number, changes_of(group, part), part.last)
        replica.take(store)
    return carry_out(replica, modern)


def carry_out(replica: Replica, modern: ModernGroup) -> list[float]:
    """Apply Reconciles until nobody is behind; returns the CPU seconds of each."""
    took: list[float] = []
    while modern.behind:
        took.append(replica.take(Reconcile(GROUP)))
    return took


def hand_over(topics: int, partitions: int) -> dict[str, float]:
    """Have one member get all partitions, and a second one half of them; returns CPU seconds.

    The keys say of what; where several entries do it, of the longest one.
    """
    replica = Replica()
    evolve_shard_counted(replica.state, LevelRaised(LEVEL))
    names = tuple(f"t{n:05}" for n in range(topics))

    def joins(member_id: str) -> ConsumerGroupHeartbeat:
        return ConsumerGroupHeartbeat(
            GROUP,
            member_id,
            JOIN_EPOCH,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=60_000,
            topics=names,
        )

    replica.take(joins("a"))
    replica.take(NoteTopics(GROUP, tuple(TopicCount(name, partitions) for name in names), (), 1))
    granted = max(store_plan(replica))
    replica.take(joins("b"))
    revoked = max(store_plan(replica))
    modern = modern_of(replica.state.groups[GROUP])
    if modern is None:
        raise ValueError("the coordinator does not assign")
    first = modern.members["a"]
    owned = partition_sets(first.assigned)
    says = ConsumerGroupHeartbeat(GROUP, "a", first.epoch, owned=owned)
    half = topics * partitions // 2
    if sum(map(len, first.revoking.values())) != half:
        raise ValueError("the first member is not told to release half of what it has")
    released = max([replica.take(says), *carry_out(replica, modern)])
    if modern.members["a"].revoking:
        raise ValueError("the first member's release was not taken")
    late = replace(says, member_epoch=modern.members["a"].epoch - 1)

    def answer() -> None:
        heard = unchanged(replica.state.groups[GROUP], late)
        if heard is None or not list(heard.grants.runs()):
            raise ValueError("a heartbeat changed something")

    took = {"grant": granted, "revoke": revoked, "release": released, "heard": cpu_s(answer)}
    # It has half of them by now.
    took["rejoin"] = replica.take(joins("a"))
    took["away"] = replica.take(ConsumerGroupHeartbeat(GROUP, "a", AWAY_EPOCH, back_in_ms=1_000))
    replica.take(joins("a"))
    took["leave"] = replica.take(ConsumerGroupHeartbeat(GROUP, "a", LEAVE_EPOCH))
    return took


def start_fleet(members: int, *, leaves: bool) -> dict[str, float]:
    """Have one member get a topic of so many partitions, and so many more join, which wait for it.

    The first one is told to release what they shall have, and does, or leaves. Returns CPU seconds
    of the entry that frees it, and of the longest one that follows.
    """
    replica = Replica()
    evolve_shard_counted(replica.state, LevelRaised(LEVEL))
    first = ConsumerGroupHeartbeat(
        GROUP,
        "first",
        JOIN_EPOCH,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        topics=(TOPIC,),
    )
    replica.take(first)
    replica.take(NoteTopics(GROUP, (TopicCount(TOPIC, members),), (), 1))
    store_plan(replica)
    for n in range(members - 1):
        replica.take(replace(first, member_id=f"worker-{n:05}"))
    store_plan(replica)
    modern = modern_of(replica.state.groups[GROUP])
    if modern is None:
        raise ValueError("the coordinator does not assign")
    one = modern.members["first"]
    if len(one.revoking[TOPIC]) != members - 1:
        raise ValueError("nobody waits for the first member")
    if leaves:
        freed = replica.take(ConsumerGroupHeartbeat(GROUP, "first", LEAVE_EPOCH))
        following = max(carry_out(replica, modern), default=0.0)
        return {"waited_leave": freed, "waited_leave_next": following}
    owned = partition_sets(one.assigned)
    freed = replica.take(ConsumerGroupHeartbeat(GROUP, "first", one.epoch, owned=owned))
    following = max(carry_out(replica, modern), default=0.0)
    return {"waited_release": freed, "waited_release_next": following}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; see the module's docstring. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench apply", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commits", type=int, default=COMMITS, help="of one partition each")
    parser.add_argument("--topics", type=int, default=TOPICS, help="of the modern group")
    parser.add_argument("--members", type=int, default=max(MEMBERS), help="that wait for one")
    given = parser.parse_args(arguments)
    report = Report("apply", arguments)
    digest = 0
    for partitions in PARTITIONS:
        replica = Replica()
        form(replica, 1)
        count = given.commits // partitions
        replica.apply(decoded(commits(replica, partitions, 1, 1))[0])  # it makes the offsets
        decode: list[float] = []
        apply: list[float] = []
        for n in range(given.rounds):
            entries, took_s = decoded(commits(replica, partitions, count, 2 + n * count))
            decode.append(1e6 * took_s / count)
            apply.append(1e6 * replica.apply(entries) / count)
        report.add(f"commit_{partitions}_decode_cpu", decode, "us")
        report.add(f"commit_{partitions}_apply_cpu", apply, "us")
        digest += replica.state.digest
    for members in MEMBERS:
        took: list[float] = []
        for _ in range(given.rounds):
            replica = Replica()
            took.append(1000 * form(replica, members))
        report.add(f"round_{members}_apply_cpu", took, "ms")
        digest += replica.state.digest
    all_took = [
        hand_over(given.topics, TOPIC_PARTITIONS)
        | start_fleet(given.members, leaves=False)
        | start_fleet(given.members, leaves=True)
        for _ in range(given.rounds)
    ]
    for what in all_took[0]:
        report.add(f"modern_{what}_cpu", [1000 * one[what] for one in all_took], "ms")
    suffix = Path(str(shard_state.__file__)).suffix
    report.say(f"digest {digest % DIGEST_MODULUS:032x}, shard_state is a {suffix} file")
    return report.finish()
