"""What an entry does to a member with very many grants: a bounded part of what is due."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from random import Random

import pytest

from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    Command,
    ConsumerGroupHeartbeat,
    NoteTopics,
    Reconcile,
    StoreTarget,
    TopicCount,
)
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.events import GrantsChanged, LevelRaised, Subscription
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.limits import LIMITS, LIMITS_BY_VERSION, LIMITS_VERSION
from musterd.coordinator.machine.modern.group import Consumer, partition_sets
from musterd.coordinator.machine.modern.spec import changes_of, spec_of
from musterd.coordinator.machine.plan import differences, parts, plan
from musterd.coordinator.machine.records import group_records, modern_values
from musterd.coordinator.machine.records.digest import digest_of
from musterd.coordinator.machine.records.encoding import RecordError, put_int
from musterd.coordinator.machine.records.group_records import group_prefix
from musterd.coordinator.machine.records.modern_values import GRANTS_RECORD_MAX
from musterd.coordinator.machine.shard_state import (
    CommandResult,
    Entry,
    ShardState,
    apply_entry,
    evolve_shard_counted,
    load_state,
    shard_records,
)
from musterd.levels import LEVEL

TOPICS = tuple(f"t{n:03}" for n in range(60))
GRANTS = (b"l", b"}")
"""What kinds of records have grants: of a member, and of a member and a topic."""
PARTITIONS = 100
"""Of each topic: all of them are several times as many as one record has."""


class Replica:
    """One shard with a group `g`; each entry is checked, and what it writes is counted."""

    def __init__(self) -> None:
        self.state = ShardState()
        evolve_shard_counted(self.state, LevelRaised(LEVEL))
        self.stored = dict(shard_records(self.state))
        self.index = 0

    @property
    def modern(self):
        return self.state.groups["g"].modern

    def take(self, command: Command) -> CommandResult:
        """Apply an entry of one command; what was written is what there is, and gives it back.

        A replica that was loaded before it does, and writes, the same.
        """
        entry = Entry(FORMAT, LEVEL, 1_000, 1_000, LIMITS_VERSION, (command,), 1)
        self.index += 1
        loaded = load_state(sorted(shard_records(self.state)))
        (result,) = apply_entry(self.state, entry, self.index)
        assert apply_entry(loaded, entry, self.index) == (result,)
        for key, value in result.writes:
            if value is None:
                del self.stored[key]
            else:
                self.stored[key] = value
        now = dict(shard_records(self.state))
        self.stored[b"c"] = now[b"c"]  # shard time is written by whoever stores
        assert self.stored == now
        assert self.state.digest == digest_of(now.items())
        loaded = load_state((key, now[key]) for key in sorted(now))
        assert loaded.groups == self.state.groups
        for group in loaded.groups.values():
            check(group)
        return result

    def join(self, member_id: str, topics: tuple[str, ...] = TOPICS) -> CommandResult:
        return self.take(
            ConsumerGroupHeartbeat(
                "g",
                member_id,
                JOIN_EPOCH,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                topics=topics,
            )
        )

    def say(self, member_id: str, epoch: int | None = None) -> CommandResult:
        """A member says that it works on what it has, without what it was told to release."""
        member = self.modern.members[member_id]
        owned = partition_sets(member.assigned)
        at = member.epoch if epoch is None else epoch
        return self.take(ConsumerGroupHeartbeat("g", member_id, at, owned=owned, back_in_ms=9_000))

    def read(self, member_id: str, topics: tuple[str, ...]) -> CommandResult:
        """A member says that it reads these topics, and has released nothing yet."""
        member = self.modern.members[member_id]
        owned = partition_sets(
            {
                topic: {**member.assigned.get(topic, {}), **member.revoking.get(topic, {})}
                for topic in (*member.assigned, *member.revoking)
            }
        )
        beat = ConsumerGroupHeartbeat("g", member_id, member.epoch, topics=topics, owned=owned)
        return self.take(beat)

    @property
    def is_due(self) -> bool:
        """True where a plan is due."""
        return self.state.groups["g"].generation > self.modern.target_epoch

    def plan(self) -> list[CommandResult]:
        """Plan, store that and carry it out; returns what each Reconcile did."""
        for _ in self.plan_stored():
            pass
        return self.settle()

    def plan_stored(self) -> Iterator[None]:
        """Plan, and store that in parts; each of them is stored when it is yielded."""
        group, version = self.state.groups["g"], self.modern.spec_version
        for number, part in enumerate(list(parts(plan(spec_of(group))))):
            self.take(StoreTarget("g", version, number, changes_of(group, part), part.last))
            yield

    def settle(self) -> list[CommandResult]:
        """Carry out what is stored, in as many entries as that takes."""
        done = []
        while self.modern.behind:
            done.append(self.take(Reconcile("g")))
            assert done[-1].events
        return done


@pytest.fixture
def replica() -> Replica:
    """One member, `a`, that has all partitions."""
    replica = Replica()
    replica.join("a")
    counts = tuple(TopicCount(topic, PARTITIONS) for topic in TOPICS)
    replica.take(NoteTopics("g", counts, (), 1))
    replica.granted = replica.plan()
    assert replica.modern.members["a"].size == len(TOPICS) * PARTITIONS > 4 * GRANTS_RECORD_MAX
    return replica


def kind_of(key: bytes) -> bytes:
    """What kind of record of the group has this key."""
    start = group_prefix("g")
    return key[len(start) : len(start) + 1] if key.startswith(start) else b""


def grants_written(result: CommandResult) -> int:
    """Bytes of the records that have grants."""
    return sum(len(value or b"") for key, value in result.writes if kind_of(key) in GRANTS)


def test_a_grant_writes_what_it_grants_and_not_all_that_the_member_has(replica):
    """The first entries write all, while that is little; later ones what they grant."""
    written = [grants_written(result) for result in replica.granted]
    few = LIMITS.reconcile_max_partitions * 8 + 2_000  # a number each, and one token of a topic
    assert max(written[2:]) <= few
    assert len(written) == len(TOPICS) * PARTITIONS // LIMITS.reconcile_max_partitions


@pytest.mark.parametrize("count", [GRANTS_RECORD_MAX, GRANTS_RECORD_MAX + 1])
def test_grants_have_one_record_up_to_a_number_and_beyond_it_one_for_each_topic(count):
    """Whatever way a member comes by that number."""
    replica = Replica()
    replica.join("a", ("s", "t"))
    one = TopicCount("s", 1)
    replica.take(NoteTopics("g", (one, TopicCount("t", count - 1)), (), 1))
    replica.plan()
    kinds = [kind for kind in map(kind_of, sorted(replica.stored)) if kind in GRANTS]
    assert kinds == ([b"l"] if count == GRANTS_RECORD_MAX else [b"l", b"}", b"}"])
    replica.take(NoteTopics("g", (TopicCount("s", 0),), (), 2))  # its grant is over
    replica.plan()
    replica.say("a")
    assert replica.modern.members["a"].size == count - 1
    assert GRANTS[1] not in map(kind_of, replica.stored)


def test_who_has_many_grants_moves_comes_back_goes_away_and_leaves(replica):
    """After each step the stored records are those of the state, and give it back."""
    replica.join("b")
    replica.plan()
    while replica.modern.members["a"].revoking:
        replica.say("a")
        replica.settle()
    assert replica.modern.members["b"].size == replica.modern.members["a"].size
    replica.join("a")
    replica.say("a", AWAY_EPOCH)
    replica.join("a")
    replica.say("a", LEAVE_EPOCH)
    replica.plan()
    assert replica.modern.members["b"].size == len(TOPICS) * PARTITIONS
    replica.say("b", LEAVE_EPOCH)
    assert replica.modern is None


def test_who_joins_again_has_new_tokens_and_none_of_its_many_grants_is_written(replica):
    """What it is granted later has a later token; runs of grants name the same ones."""
    result, token = replica.join("a"), replica.state.groups["g"].fence
    assert grants_written(result) < PARTITIONS
    assert {grant.token for grant in result.reply.grants} == {token}
    replica.take(NoteTopics("g", (TopicCount(TOPICS[0], PARTITIONS + 1),), (), 2))
    replica.plan()
    a = replica.modern.members["a"]
    later = a.token_of(TOPICS[0], PARTITIONS)
    assert later > token == a.token_of(TOPICS[0], 0)
    (_, _, partitions, tokens), *others = a.grants().runs()
    assert dict(zip(partitions, tokens, strict=True)) == {
        number: later if number == PARTITIONS else token for number in range(PARTITIONS + 1)
    }
    assert all(set(tokens) == {token} for _, _, _, tokens in others)


@pytest.mark.parametrize("epoch", [AWAY_EPOCH, JOIN_EPOCH])
@pytest.mark.parametrize("left", [GRANTS_RECORD_MAX - 200, GRANTS_RECORD_MAX + 200])
def test_who_stops_before_it_has_released_has_the_records_of_what_is_left(epoch, left):
    """It goes away or joins again; what is left is in one record, or in one for each topic."""
    replica = Replica()
    replica.join("a", ("s", "t"))
    replica.take(NoteTopics("g", (TopicCount("s", left), TopicCount("t", left)), (), 1))
    replica.plan()
    replica.join("b", ("s", "t"))
    replica.plan()
    a = replica.modern.members["a"]
    assert a.revoking
    assert a.size == 2 * left > GRANTS_RECORD_MAX
    replica.join("a", ("s", "t")) if epoch == JOIN_EPOCH else replica.say("a", epoch)
    a = replica.modern.members["a"]
    assert not a.revoking
    assert a.size == left
    assert (GRANTS[1] in map(kind_of, replica.stored)) == (left > GRANTS_RECORD_MAX)


def test_a_record_of_more_neighbouring_partitions_than_a_group_has_is_refused():
    """A record that is damaged, or of a backup that somebody wrote, takes no memory for them."""
    most = LIMITS.modern_max_partitions
    consumer = Consumer("m", "", Subscription("", "", 1, 1, ()), 0, 1, 1, 0, "")
    consumer.assigned = {"t": dict.fromkeys(range(most), 7)}
    consumer.recount()
    value = modern_values.put_grants_of_topic(consumer, "t")
    read = replace(consumer, assigned={})
    modern_values.take_grants_of_topic(read, "t", value)
    assert read.assigned == consumer.assigned
    for count in (0, -1, most + 1):
        wrong = value.replace(put_int(most), put_int(count))
        with pytest.raises(RecordError):
            modern_values.take_grants_of_topic(read, "t", wrong)


MOST = LIMITS.reconcile_max_partitions


def changed(result: CommandResult, member_id: str, what: str) -> list[int]:
    """How many partitions of a member each event names under `what`."""
    events = [one for one in result.events if isinstance(one, GrantsChanged)]
    mine = [getattr(one, what) for one in events if one.member_id == member_id]
    return [sum(len(one.partitions) for one in sets) for sets in mine if sets]


def test_a_member_is_told_to_release_a_bounded_number_at_once_and_then_the_rest(replica):
    """No other plan is waited for; the last entry leaves nothing to be told."""
    replica.join("b")
    half = len(TOPICS) * PARTITIONS // 2
    told = [count for one in replica.plan() for count in changed(one, "a", "revoking")]
    assert told == [MOST] * (half // MOST)
    a = replica.modern.members["a"]
    assert not a.telling
    assert a.deadline_ms


def test_what_a_member_has_released_is_taken_in_bounded_numbers(replica):
    """One heartbeat says so; entries follow, each of which frees and grants so many."""
    replica.join("b")
    replica.plan()
    half = len(TOPICS) * PARTITIONS // 2
    entries = [replica.say("a"), *replica.settle()]
    taken = [count for one in entries for count in changed(one, "a", "released")]
    assert taken == [MOST] * (half // MOST)
    assert all(sum(changed(one, "b", "granted")) <= MOST for one in entries)
    assert replica.modern.members["a"].size == replica.modern.members["b"].size == half


def test_who_has_released_has_no_deadline_while_it_is_taken(replica):
    """No timer removes it for what it has done; it is not told of another plan meanwhile."""
    replica.join("b")
    replica.plan()
    replica.say("a")
    a = replica.modern.members["a"]
    assert a.has_stopped
    assert "a" not in replica.modern.timers
    epoch = a.epoch
    replica.take(Reconcile("g"))
    assert replica.modern.members["a"].epoch == epoch
    replica.settle()
    assert replica.modern.members["a"].epoch == replica.modern.target_epoch > epoch


def test_who_releases_what_it_was_told_so_far_is_told_the_rest(replica):
    """It may hear of a first part of it before the rest is in the log."""
    replica.join("b")
    for _ in replica.plan_stored():
        pass
    replica.take(Reconcile("g"))
    assert replica.modern.members["a"].telling
    said = replica.say("a")
    assert changed(said, "a", "released") == [MOST]
    while replica.modern.behind or replica.modern.members["a"].revoking:
        replica.settle()
        replica.say("a")
    assert replica.modern.members["a"].size == replica.modern.members["b"].size


def test_what_a_member_reads_no_more_is_told_in_such_numbers_too(replica):
    """It was told of one topic and is not done with that when it says that it reads only one."""
    replica.read("a", TOPICS[:-1])
    replica.plan()
    assert sum(map(len, replica.modern.members["a"].revoking.values())) == PARTITIONS
    entries = [replica.read("a", TOPICS[:1]), *replica.settle()]
    told = [count for one in entries for count in changed(one, "a", "revoking")]
    assert max(told) == MOST
    assert sum(told) == (len(TOPICS) - 2) * PARTITIONS
    assert max(map(grants_written, entries)) <= MOST * 9 + 2_000
    while replica.modern.behind or replica.modern.members["a"].revoking:
        replica.settle()
        replica.say("a")
    assert replica.modern.members["a"].size == PARTITIONS


SEEDS = 25
"""`make test` has FEW_SEEDS of them."""
FEW_SEEDS = 10
FEW = 2
"""Partitions to an entry."""
COUNTS = {"s": 9, "t": 8}
SUBSCRIPTIONS = (("s", "t"), ("s", "t"), ("t",))


class Histories:
    """Members of one group that come, go, say what they do, and hear of plans, by chance."""

    def __init__(self, seed: int) -> None:
        self.random, self.replica = Random(seed), Replica()

    def join(self, member_id: str, topics: tuple[str, ...] = tuple(COUNTS)) -> None:
        """It joins, for the first time or again; the group is told of topics that are new to it."""
        self.replica.join(member_id, topics)
        known = self.replica.modern.topics
        counts = tuple(TopicCount(*one) for one in COUNTS.items() if one[0] not in known)
        if counts:
            self.replica.take(NoteTopics("g", counts, (), 1))

    def step(self) -> None:
        """One thing happens."""
        members = self.replica.modern.members
        member_id = self.random.choice("abcd")
        doing = self.random.choice((*["say"] * 3, "join", "gone", "plan", "read", *["entry"] * 3))
        if member_id not in members or doing == "join":
            self.join(member_id, self.random.choice(SUBSCRIPTIONS))
        elif doing == "gone" and len(members) > 1:
            stays = self.random.random() < 0.5 and not members[member_id].is_away
            self.replica.say(member_id, AWAY_EPOCH if stays else LEAVE_EPOCH)
        elif doing == "plan" and self.replica.is_due:
            parts_stored = self.random.choice((1, 100))
            list(islice(self.replica.plan_stored(), parts_stored))
        elif doing == "entry":
            self.replica.take(Reconcile("g"))
        elif doing == "read" and not members[member_id].is_away:
            self.replica.read(member_id, self.random.choice(SUBSCRIPTIONS))
        elif not members[member_id].is_away:
            self.replica.say(member_id)

    def end(self) -> None:
        """Everybody is back, and does what it is told."""
        for one in list(self.replica.modern.members.values()):
            if one.is_away:
                self.join(one.member_id)
        self.join("e")
        self.replica.plan()
        for _ in range(40):
            for member_id in list(self.replica.modern.members):
                self.replica.say(member_id)
            self.replica.settle()


@pytest.mark.parametrize(
    "seed",
    [
        *range(FEW_SEEDS),
        *(pytest.param(n, marks=pytest.mark.histories) for n in range(FEW_SEEDS, SEEDS)),
    ],
)
def test_whatever_happens_between_such_entries_everybody_gets_its_share(monkeypatch, seed):
    """With two partitions to an entry, so that all that happens comes between."""
    few = replace(LIMITS_BY_VERSION[LIMITS_VERSION], reconcile_max_partitions=FEW)
    monkeypatch.setattr(shard_state, "LIMITS_BY_VERSION", {LIMITS_VERSION: few})
    monkeypatch.setattr(differences, "PART_PARTITIONS", FEW)
    monkeypatch.setattr(modern_values, "GRANTS_RECORD_MAX", 2 * FEW)
    monkeypatch.setattr(group_records, "GRANTS_RECORD_MAX", 2 * FEW)
    histories = Histories(seed)
    histories.join("a")
    histories.replica.plan()
    for _ in range(60):
        histories.step()
    histories.end()
    modern = histories.replica.modern
    assert all(map(modern.is_settled, modern.members.values()))
    assert modern.granted == sum(modern.topics.values()) == sum(COUNTS.values())
