"""Groups that change from one protocol to the other and back, with members of both kinds.

Random histories: no partition is worked on by two members, tokens rise, no commit is refused to who
works on the partition. `World` holds each step against live = restored = replayed.
"""

from random import Random

import pytest

from muster.group.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    is_awaited,
)
from muster.types import TopicPartition
from musterd.coordinator.machine.commands import (
    AlterGroupConfig,
    Assignment,
    ConfigSetting,
    ExpireMember,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    SyncGroup,
)
from musterd.coordinator.machine.decide.dispatch import decide, heartbeat
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern import consumer_protocol
from musterd.coordinator.machine.modern.consumer_protocol import (
    Said,
    UnreadableError,
    read_assignment,
    read_subscription,
    read_zone,
    write_assignment,
)
from musterd.coordinator.machine.modern.conversion import (
    MIGRATION_POLICY,
    POLICIES,
    upgraded,
    why_not,
)
from musterd.coordinator.machine.replies import Committed, Joined, Synced
from musterd.coordinator.machine.state import Group, Member, Phase
from tests.machine.test_modern import TOPICS, Fleet
from tests.machine.world import World

pytestmark = pytest.mark.long

HISTORIES = 50
FEW_HISTORIES = 8
STEPS = 60


class Process:
    """A classic member: what it works on, and under which generation."""

    def __init__(self, *, keeps: bool, topics: tuple[str, ...]) -> None:
        self.keeps, self.topics = keeps, topics
        self.generation = -1
        self.owned: dict[tuple[str, int], int] = {}
        self.waits = True
        """Its Join was taken, and the answer is due."""
        self.releases = False
        """It gave up what others wait for, and joins again to say so."""


class Mixed(Fleet):
    """Members of both kinds in one group."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.classic: dict[str, Process] = {}
        self.told: dict[tuple[str, int], int] = {}
        """The largest token of each partition that a classic member was told."""
        self.owners: dict[tuple[str, int], str] = {}
        self.phases: set[str] = set()

    # ---- classic members

    def join_classic(self, member_id: str = "") -> None:
        known = self.classic.get(member_id)
        if known is None:
            self.numbers += 1
            topics = tuple(t for t in TOPICS if self.random.random() < 0.7) or TOPICS[:1]
            known = Process(keeps=self.random.random() < 0.5, topics=topics)
            member_id, first = f"c-{self.numbers}", True
        else:
            first = False
        if not known.keeps:
            known.owned = {}
        metadata = encode_subscription(
            known.topics,
            owned=[TopicPartition(*place) for place in known.owned],
            generation=known.generation,
            keeps_owned=known.keeps and bool(known.owned),
        )
        (result,) = self.world.apply(
            JoinGroup(
                "g",
                "" if first else member_id,
                "c",
                "h",
                member_id.removeprefix("c-"),
                10_000,
                60_000,
                "consumer",
                (Protocol("range", metadata),),
                known.topics,
                "",
            )
        )
        if getattr(result.reply, "error", None) in (
            Error.UNKNOWN_MEMBER_ID,
            Error.GROUP_MAX_SIZE_REACHED,
        ):
            self.classic.pop(member_id, None)
            return
        assert getattr(result.reply, "error", None) is None, result.reply
        self.classic[member_id] = known
        known.waits = True
        if isinstance(result.reply, Joined) and self.modern is not None:
            known.generation = result.reply.generation
            self.sync(member_id, ())
        self.look()

    def sync(self, member_id: str, vector: tuple[Assignment, ...]) -> None:
        known = self.classic[member_id]
        (result,) = self.world.apply(
            SyncGroup("g", member_id, known.generation, "consumer", "range", vector)
        )
        if isinstance(result.reply, Synced):
            self.take_assignment(member_id, result.reply.assignment, result.reply.token)

    def take_assignment(self, member_id: str, assignment: bytes, token: int) -> None:
        known = self.classic[member_id]
        known.waits = False
        before, known.owned = known.owned, {}
        for one in decode_assignment(assignment):
            known.owned[one.topic, one.partition] = token
        known.releases = is_awaited(assignment) or bool(before.keys() - known.owned.keys())
        for place in known.owned:
            last = max(self.told.get(place, 0), self.tokens.get(place, 0))
            assert token > last or self.owners.get(place, member_id) == member_id, "an old token"
            assert token >= last, "a token fell"
            self.told[place], self.owners[place] = token, member_id

    def go_on(self, member_id: str) -> None:
        """What its heartbeat says, and what answers wait for it."""
        group, known = self.group, self.classic[member_id]
        if group is None or not group.has_member(member_id):
            del self.classic[member_id]
            return
        if known.waits and group.modern is None:
            self.collect(member_id)
            return
        status = heartbeat(group, member_id, known.generation)
        if status in (Error.UNKNOWN_MEMBER_ID, Error.ILLEGAL_GENERATION):
            assert known.waits, "a member that knows its generation is told of another"
            self.join_classic(member_id)
        elif status is Error.REBALANCE_IN_PROGRESS or known.waits or known.releases:
            self.join_classic(member_id)

    def collect(self, member_id: str) -> None:
        """The answers of a round of a classic group."""
        group, known = self.group, self.classic[member_id]
        member = group.members[member_id]
        if group.phase is Phase.PREPARING_REBALANCE:
            if not group.has_joined(member):
                self.join_classic(member_id)
        elif member.joined_round == group.round:
            known.generation = group.generation
            leads = group.leader_id == member_id and group.phase is Phase.COMPLETING_REBALANCE
            self.sync(member_id, self.vector() if leads else ())
            if self.group.phase is Phase.STABLE and known.waits:
                self.sync(member_id, ())
        self.look()

    def vector(self) -> tuple[Assignment, ...]:
        """Who works on a partition keeps it; the others go round."""
        members = self.group.members
        said = {m: decode_subscription(m, one.metadata_of("range")) for m, one in members.items()}
        shares: dict[str, list[TopicPartition]] = {m: [] for m in members}
        for topic, count in sorted(self.world.state.topics.items()):
            for number in range(count):
                place = TopicPartition(topic, number)
                readers = [m for m in members if topic in said[m].topics]
                owners = [m for m in members if said[m].keeps_owned and place in said[m].owned]
                if [m for m in owners if m in readers] or (readers and not owners):
                    of = owners[0] if owners else readers[number % len(readers)]
                    shares[of].append(place)
        return tuple(Assignment(m, encode_assignment(share)) for m, share in shares.items())

    def commit_classic(self, member_id: str) -> None:
        """Who works on a partition may commit it, whatever the group is becoming."""
        known, group = self.classic[member_id], self.group
        if group is None or not group.has_member(member_id) or not known.owned:
            return
        topic, number = self.random.choice(sorted(known.owned))
        made = self.world.state.creation_versions.get(topic, 0)
        (result,) = self.world.apply(
            OffsetCommit(
                "g",
                member_id,
                known.generation,
                0,
                (PartitionCommit(topic, number, 7, "", None),),
                deletions_version=self.world.state.dropped_version,
                creation_version=made,
            )
        )
        if not known.waits and made <= group.topics_version:
            assert isinstance(result.reply, Committed), result.reply

    # ---- what must hold

    def look(self) -> None:
        super().look()
        group = self.group
        self.phases.add("" if group is None else group.phase)
        working: dict[tuple[str, int], str] = {}
        held = {m: owned for m, owned in self.owned.items() if m not in self.away}
        held |= {m: one.owned for m, one in self.classic.items()}
        for member_id, owned in held.items():
            if group is not None and group.has_member(member_id):
                for place in owned:
                    assert place not in working, f"two work on {place}"
                    working[place] = member_id

    def topics(self) -> None:
        """Topics only grow: what a classic member does when one is made again is its own affair.

        An operator changes what the group may become instead.
        """
        self.allow(self.random.choice(POLICIES))

    def allow(self, policy: str) -> None:
        self.world.apply(AlterGroupConfig("g", (ConfigSetting(MIGRATION_POLICY, policy),), ()))

    def step(self) -> None:
        choice = self.random.random()
        if choice < 0.08 and len(self.classic) < 5:
            self.join_classic()
        elif choice < 0.55 and self.classic:
            member_id = self.random.choice(list(self.classic))
            what = self.random.random()
            if what < 0.7:
                self.go_on(member_id)
            elif what < 0.92:
                self.commit_classic(member_id)
            elif what < 0.97 and self.group is not None:
                self.world.apply(LeaveGroup("g", (LeavingMember(member_id, ""),)))
                del self.classic[member_id]
            elif self.group is not None and self.group.has_member(member_id):
                self.silent(member_id)
            self.look()
        elif choice < 0.75 and len(self.owned) > 2:
            self.leave(self.random.choice(list(self.owned)))
        else:
            super().step()

    def leave(self, member_id: str) -> None:
        if self.modern is not None and member_id in self.modern.members:
            super().leave(member_id)
        else:
            self.forget(member_id)

    def silent(self, member_id: str) -> None:
        group = self.group
        if group.modern is not None:
            joins = group.modern.members[member_id].joins
            self.world.apply(ExpireMember("g", member_id, 0, joins, ""))
        else:
            joined = group.members[member_id].joined_round
            self.world.apply(ExpireMember("g", member_id, group.generation, joined, ""))
        del self.classic[member_id]

    def settle(self) -> None:
        for _ in range(12):
            super().settle()
            for member_id in list(self.classic):
                self.go_on(member_id)
            if self.modern is None:
                self.fire()


def live_through(seeds: range) -> set[str]:
    phases: set[str] = set()
    for seed in seeds:
        mixed = Mixed(Random(seed))
        try:
            for _ in range(STEPS):
                mixed.step()
            mixed.settle()
            settled(mixed)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        phases |= mixed.phases
    return phases


def settled(mixed: Mixed) -> None:
    group = mixed.group
    if group is None or group.phase is Phase.EMPTY:
        return
    if group.modern is not None:
        assert group.modern.target_epoch == group.generation
        assert all(group.modern.is_settled(one) for one in group.modern.members.values())
        for member_id, known in mixed.classic.items():
            consumer = group.modern.members[member_id]
            has = {(g.topic, g.partition): g.token for g in consumer.grants()}
            assert known.owned == has
    else:
        assert group.phase is Phase.STABLE


def test_members_of_both_kinds_never_share_a_partition_and_lose_no_commit():
    phases = live_through(range(FEW_HISTORIES))
    assert {"Modern", "Stable", "PreparingRebalance", "CompletingRebalance"} <= phases


def test_classic_members_alone_are_assigned_to_where_the_group_may_not_go_back():
    alone = 0
    for seed in range(6):
        mixed = Mixed(Random(seed))
        for _ in range(STEPS // 2):
            mixed.step()
        mixed.allow("upgrade")
        was_modern = mixed.modern is not None
        for member_id in list(mixed.owned):
            mixed.leave(member_id)
        if was_modern and mixed.modern is not None:
            alone += 1
            mixed.settle()
            settled(mixed)
            assert all(one.is_classic for one in mixed.modern.members.values())
    assert alone


@pytest.mark.histories(weight=8)
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_histories_of_both_kinds(part):
    live_through(range(part * HISTORIES, (part + 1) * HISTORIES))


# ---- what members say in bytes


def test_what_the_sdk_says_is_read_as_the_sdk_reads_it():
    owned = [TopicPartition("a", 0), TopicPartition("a", 300), TopicPartition("ü", 2**31 - 1)]
    said = encode_subscription(
        ("a", "b"), owned=owned, keeps_owned=True, rack="z1", user_data=b"\x00\xff", generation=-1
    )
    assert read_subscription(said) == Said("z1", dict.fromkeys(tuple(one) for one in owned), -1)
    gave_up = encode_subscription(("a",), owned=owned, keeps_owned=False)
    assert read_subscription(gave_up) == Said("", {}, -1)
    assert read_subscription(b"") == Said("", {}, 0)


def test_a_zone_is_read_without_the_partitions_beside_it(monkeypatch):
    """When a group is converted, all that its members say is looked at in one entry."""
    owned = [TopicPartition("a", partition) for partition in range(1_900)]
    said = encode_subscription(("a", "b"), owned=owned, keeps_owned=True, rack="z1")
    read = []
    monkeypatch.setattr(consumer_protocol, "_partitions", read.append)
    assert read_zone(said) == "z1"
    protocols = (Protocol("range", said),)
    members = {
        name: Member(*(name, "", "", 10_000, 60_000, protocols, ("a",), number), joined_round=1)
        for number, name in enumerate("xy")
    }
    group = Group("g", phase=Phase.STABLE, protocol_name="range", members=members)
    assert why_not(group, LIMITS) == ""
    assert [one.said.zone for one in upgraded(group).modern.members.values()] == ["z1", "z1"]
    assert read == []
    with pytest.raises(UnreadableError):
        read_zone(said[:-1])


def test_what_a_classic_member_says_is_read_once(monkeypatch):
    """It may name as many partitions as its bytes have room for, under each protocol's name."""
    world = World()
    for line in ("topic t 4", "hear m join", "settle", "join c keeps=", "settle"):
        world.run(line)
    read = []
    partitions = consumer_protocol._partitions
    monkeypatch.setattr(
        consumer_protocol, "_partitions", lambda said: read.append(said) or partitions(said)
    )
    again = world.do_rejoin(["c-1"], {"keeps": "t:0", "protocols": "range,cooperative-sticky"})
    decision = decide(world.state.groups["g"], again, world.envelope())
    assert isinstance(decision.reply, Joined)
    assert len(read) == 1


@pytest.mark.parametrize("numbers", [b"\x01\x80", b"\x80" * 11, b"\x01" + b"\xff" * 10 + b"\x01"])
def test_a_number_of_many_that_does_not_end_is_told(numbers):
    topic = b"\x0a\x01t\x12" + bytes((len(numbers),)) + numbers
    with pytest.raises(UnreadableError):
        read_subscription(b"\x1a" + bytes((len(topic),)) + topic + b"\x28\x01")


def test_what_is_written_is_what_the_sdk_writes():
    owned = [TopicPartition("b", 200), TopicPartition("a", 1), TopicPartition("a", 0)]
    awaited = [TopicPartition("c", 70_000)]
    written = write_assignment({"b": [200], "a": [1, 0]}, {"c": [70_000]})
    assert written == encode_assignment(owned, awaited)
    assert list(read_assignment(written)) == [("a", 0), ("a", 1), ("b", 200)]


@pytest.mark.parametrize(
    "said",
    [b"x", b"\x00\x01", b"\x0a\x05ab", b"\x0b", b"\x0a\x01\xff", b"\x1a\x02\x10\x01", b"\xff" * 11],
)
def test_bytes_that_are_no_such_message_are_told_apart(said):
    with pytest.raises(UnreadableError):
        read_subscription(said)


def test_a_classic_member_with_more_neighbours_than_a_topic_may_have_is_loaded_again():
    """Its group leader may have assigned them: `World` loads the shard after each entry."""
    count = LIMITS.topic_max_partitions + 1
    assigned = ",".join(f"t/{number}" for number in range(count))
    world = World()
    for line in ("topic t 2", "join e meta=- topics=t", "fire", f"sync e-1 e-1:={assigned}"):
        world.run(line)
    world.run("hear m join topics=t")
    assert world.state.groups["g"].modern.members["e-1"].size == count
