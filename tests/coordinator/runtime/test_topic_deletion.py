"""A topic is deleted: its offsets go in every shard, in the log's order, then its name is free."""

from copy import deepcopy
from dataclasses import replace

import pytest

from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import (
    BeginDrop,
    CreateTopic,
    DeleteTopic,
    OffsetCommit,
    PartitionCommit,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.shard import decide_shard, evolve_shard
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.records.shard_records import ShardState
from musterd.coordinator.machine.replies import Committed, Done
from musterd.coordinator.machine.shard_state import DELETIONS_DIFFER
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.runtime import topic_deletion
from musterd.coordinator.runtime.topic_registry import TopicRegistry
from musterd.coordinator.runtime.turn import Joins, Turn
from tests.coordinator.fakes import Rig, id_of, join, sync
from tests.coordinator.runtime.test_shard import group_of, settle


class Pair:
    """Shard 0, which has the registry, and another shard of the same node."""

    def __init__(self):
        self.first, self.other = Rig(), Rig()
        self.rigs = (self.first, self.other)
        self.asked = 0
        for rig in self.rigs:
            rig.registry = lambda: self.first.shard.state
            rig.log.lead()
            rig.offsets_dropped = lambda *one: all(r.shard.has_dropped(*one) for r in self.rigs)
        assert self.ask(self.first, CreateTopic("t", 3)) == Done()
        assert self.ask(self.first, CreateTopic("u", 1)) == Done()

    def ask(self, rig, command):
        """Its answer, after one turn."""
        self.asked += 1
        rig.ask(self.asked, command)
        rig.turn()
        return rig.answers[self.asked]

    def commit(self, rig, *partitions, topic="t", group="g", checked=None):
        """A simple commit of these partitions, checked by the registry as it is now."""
        now = self.first.shard.state.deletions_version
        wanted = tuple(PartitionCommit(topic, number, 7, "", None) for number in partitions)
        version = now if checked is None else checked
        return self.ask(rig, OffsetCommit(group, "", -1, 0, wanted, deletions_version=version))

    def run(self, ms):
        """Turns of both."""
        for _ in range(ms // 10):
            for rig in self.rigs:
                rig.turn()

    def stored(self, topic="t"):
        """How many offsets of a topic there are, by shard."""
        return [
            sum(
                name == topic
                for group in rig.shard.state.groups.values()
                for name, _ in group.offsets
            )
            for rig in self.rigs
        ]


@pytest.fixture
def pair():
    """Offsets of t and u in two groups of each shard."""
    pair = Pair()
    for rig in pair.rigs:
        for group in ("g", "h"):
            assert isinstance(pair.commit(rig, 0, 1, 2, group=group), Committed)
            assert isinstance(pair.commit(rig, 0, topic="u", group=group), Committed)
    assert (pair.stored(), pair.stored("u")) == ([6, 6], [2, 2])
    return pair


def test_offsets_go_in_every_shard_and_a_topic_made_again_has_none(pair):
    """sc-E16, sc-E17: those of other topics stay; nothing is left to do, and nothing is done."""
    assert pair.ask(pair.first, DeleteTopic("t")) == Done()
    refused = pair.ask(pair.first, CreateTopic("t", 3))
    assert (refused.error, refused.error.retriable) == (Error.COORDINATOR_LOAD_IN_PROGRESS, True)
    pair.run(500)
    assert (pair.stored(), pair.stored("u")) == ([0, 0], [2, 2])
    assert pair.ask(pair.first, CreateTopic("t", 3)) == Done()
    assert isinstance(pair.commit(pair.other, 1), Committed)
    pair.run(10_500)
    assert pair.stored() == [0, 1]
    entries = [len(rig.log.entries) for rig in pair.rigs]
    pair.run(500)
    assert [len(rig.log.entries) for rig in pair.rigs] == entries
    assert all(rig.shard.quiet for rig in pair.rigs)


def test_a_shard_without_a_leader_keeps_the_name_from_being_used(pair):
    """sc-E17: its offsets go once it has one, and only then the name is free."""
    pair.other.log.follow()
    pair.ask(pair.first, DeleteTopic("t"))
    pair.run(2_000)
    assert pair.stored() == [0, 6]
    refused = pair.ask(pair.first, CreateTopic("t", 3))
    assert refused.error is Error.COORDINATOR_LOAD_IN_PROGRESS
    pair.other.log.lead()
    pair.run(500)
    assert pair.stored() == [0, 0]
    assert pair.ask(pair.first, CreateTopic("t", 3)) == Done()


def test_a_new_leader_goes_on_where_the_last_one_was(pair, monkeypatch):
    """At whatever point the leadership ends."""
    monkeypatch.setattr(topic_deletion, "GROUPS_PER_TURN", 1)
    pair.ask(pair.first, DeleteTopic("t"))
    for _ in range(12):
        pair.run(20)
        for rig in pair.rigs:
            rig.log.follow()
            rig.log.lead()
    pair.run(500)
    assert pair.stored() == [0, 0]
    assert not pair.first.shard.state.topics_deleted
    assert not any(rig.shard.state.dropping for rig in pair.rigs)


def test_what_was_checked_before_the_deletion_is_not_stored_after_it_was_told(pair):
    """An offset that came late would be the first of the topic that is made again."""
    before = pair.first.shard.state.deletions_version
    pair.ask(pair.first, DeleteTopic("t"))
    pair.run(50)
    entries = len(pair.other.log.entries)
    assert pair.commit(pair.other, 0, checked=before) == DELETIONS_DIFFER
    assert len(pair.other.log.entries) <= entries + 1  # the turn's own, if any
    pair.run(500)
    pair.ask(pair.first, CreateTopic("t", 3))
    assert pair.commit(pair.other, 0, checked=before) == DELETIONS_DIFFER
    assert pair.stored() == [0, 0]


def test_what_comes_between_the_word_and_its_place_in_the_log_is_not_stored(pair):
    """Shard 0 has deleted the topic, the shard's leader has only just heard of it."""
    before = pair.first.shard.state.deletions_version
    pair.ask(pair.first, DeleteTopic("t"))
    assert pair.commit(pair.other, 0, checked=before) == DELETIONS_DIFFER
    assert pair.other.shard.state.dropped_version > before


def test_what_is_checked_after_the_deletion_goes_into_the_log_behind_it(pair):
    """The shard is told first, so no commit of another topic is refused for that."""
    pair.first.ask("delete", DeleteTopic("t"))
    pair.first.turn()
    assert pair.other.shard.state.dropped_version == 0
    assert isinstance(pair.commit(pair.other, 0, topic="u"), Committed)
    (entry,) = [decode_entry(one) for one in pair.other.log.entries[-1:]]
    assert [type(command) for command in entry.commands[:2]] == [BeginDrop, OffsetCommit]


def test_a_leader_whose_registry_is_behind_stores_nothing(pair):
    """It may think that the topic is there; who asks it is told to ask again."""
    behind = deepcopy(pair.first.shard.state)
    pair.ask(pair.first, DeleteTopic("t"))
    pair.run(500)
    pair.other.registry = lambda: behind
    assert pair.commit(pair.other, 0, checked=behind.deletions_version) == DELETIONS_DIFFER
    assert pair.commit(pair.other, 0, topic="u", checked=0) == DELETIONS_DIFFER
    pair.run(500)
    assert pair.stored() == [0, 0]


def test_a_log_that_takes_nothing_is_told_again(pair):
    """The shard's way begins once it does."""
    pair.other.log.overloaded = True
    pair.ask(pair.first, DeleteTopic("t"))
    pair.run(500)
    assert pair.stored() == [0, 6]
    pair.other.log.overloaded = False
    pair.run(500)
    assert pair.stored() == [0, 0]


def test_many_deletions_and_many_offsets_go_a_few_at_a_time(pair, monkeypatch):
    """Neither an entry nor a turn grows with what was deleted."""
    monkeypatch.setattr(topic_deletion, "TOPICS_PER_COMMAND", 3)
    monkeypatch.setattr(topic_deletion, "LOOKS_PER_TURN", 2)
    names = [f"many-{number}" for number in range(10)]
    for name in names:
        pair.ask(pair.first, CreateTopic(name, 1))
        pair.commit(pair.other, 0, topic=name)
    for name in names:
        pair.ask(pair.first, DeleteTopic(name))
    pair.run(2_000)
    assert [pair.stored(name)[1] for name in names] == [0] * 10
    commands = [c for one in pair.other.log.entries for c in decode_entry(one).commands]
    told = [len(c.topics) for c in commands if isinstance(c, BeginDrop)]
    assert sum(told) == 10
    assert max(told) <= 3
    assert not pair.first.shard.state.topics_deleted


def test_a_running_group_that_reads_the_topic_rebalances_once():
    """It loses the partitions; others are left alone, and the deletion waits until it was told."""
    rig = Rig()
    rig.log.lead()
    rig.ask("create", CreateTopic("t", 2))
    rig.turn()
    generation = settle(rig, "a")
    rig.ask("delete", DeleteTopic("t"))
    rig.run(100)
    group = group_of(rig)
    assert group.phase is Phase.PREPARING_REBALANCE
    rig.ask("again", join("a", member_id=id_of("a")))
    rig.run(50)
    assert rig.answers["again"].generation == generation + 1
    rig.ask("sync", sync("a", generation + 1, {"a": b""}))
    rig.run(500)
    assert group.phase is Phase.STABLE
    assert group.generation == generation + 1
    assert not rig.shard.state.topics_deleted
    # A Join that waited says of which deletion the shard knows, and so does one answered at once.
    rig.ask("repeated", join("a"))
    rig.turn()
    told = rig.answers["again"].dropped_version
    assert rig.answers["repeated"].dropped_version == told == rig.shard.state.dropped_version > 0


def test_a_shard_that_lacks_a_deletion_is_told_of_no_later_one(pair):
    """A word that the log did not take leaves a gap; the repetition covers it."""
    deletion, registry = topic_deletion.TopicDeletion(pair.other.shard.state), ShardState()
    registry.topics_deleted["t"] = registry.deletions_version = 5
    (first,) = deletion.begin(registry)
    registry.topics_deleted["u"] = registry.deletions_version = 6
    (second,) = deletion.begin(registry)
    deletion.failed()
    (both,) = deletion.begin(registry)
    state = pair.other.shard.state
    assert decide_shard(state, second, LIMITS).events == ()
    assert [topic.name for topic in decide_shard(state, both, LIMITS).events[0].topics] == [
        "t",
        "u",
    ]
    evolve_shard(state, *decide_shard(state, first, LIMITS).events)
    evolve_shard(state, *decide_shard(state, both, LIMITS).events)
    assert (state.dropping, state.dropped_version) == ({"t": 5, "u": 6}, 6)


@pytest.mark.parametrize("topics", [("t",), ()], ids=["named", "unnamed"])
def test_no_generation_from_before_commits_to_a_topic_made_again(topics):
    """What a member has read of the former topic, first sent or repeated, says nothing of this one.

    A member that names no topic is not told of the deletion: its commit opens the round.
    """
    rig = Rig()
    rig.log.lead()
    registry = TopicRegistry(lambda: rig.shard.state, lambda: True)
    rig.ask("create", CreateTopic("t", 2))
    rig.turn()
    rig.ask("join", replace(join("a"), subscribed_topics=topics))
    rig.run(1_100)
    generation = rig.answers["join"].generation
    rig.ask("sync", sync("a", generation, {"a": b"t-0"}))
    rig.turn()

    def commit(seq, offset):
        wanted = (PartitionCommit("t", 0, offset, "", None),)
        command = OffsetCommit("g", id_of("a"), generation, seq, wanted)
        rig.ask(seq, registry.split(command).remainder)
        rig.turn()
        return rig.answers.pop(seq)

    assert isinstance(commit(1, 1_000), Committed)
    rig.ask("delete", DeleteTopic("t"))
    rig.run(500)
    rig.ask("again", CreateTopic("t", 2))
    rig.turn()
    assert rig.answers["again"] == Done()
    for seq, offset in ((1, 1_000), (2, 1_001), (2, 1_001)):
        assert commit(seq, offset).error is Error.REBALANCE_IN_PROGRESS
    assert group_of(rig).phase is Phase.PREPARING_REBALANCE
    rig.ask("rejoin", replace(join("a", member_id=id_of("a")), subscribed_topics=topics))
    rig.run(100)
    generation = rig.answers["rejoin"].generation
    rig.ask("sync again", sync("a", generation, {"a": b"t-0"}))
    rig.turn()
    assert not group_of(rig).offsets
    assert isinstance(commit(3, 7), Committed)
    assert group_of(rig).offsets["t", 0].offset == 7


def test_a_deletion_opens_few_rounds_in_a_turn(monkeypatch):
    """All members of these groups come back at once."""
    monkeypatch.setattr(topic_deletion, "NOTICES_PER_TURN", 2)
    rig = Rig()
    rig.log.lead()
    rig.ask("create", CreateTopic("t", 2))
    rig.turn()
    for number in range(5):
        settle(rig, f"m{number}", group=f"g{number}")
    rig.ask("delete", DeleteTopic("t"))
    rig.run(500)
    opened = [
        sum(isinstance(command, TopicsChanged) for command in decode_entry(one).commands)
        for one in rig.log.entries
    ]
    assert sum(opened) == 5
    assert max(opened) == 2


def test_a_commit_that_is_to_be_asked_again_is_a_sign_of_life():
    """sc-H12: its member has said something, though this node is behind with deletions."""
    rig = Rig()
    rig.log.lead()
    rig.ask("create", CreateTopic("t", 2))
    rig.ask("other", CreateTopic("u", 1))
    rig.turn()
    generation = settle(rig, "a")
    rig.ask("delete", DeleteTopic("u"))
    rig.run(500)
    wanted = (PartitionCommit("t", 0, 7, "", None),)
    for number in range(8):
        late = OffsetCommit("g", id_of("a"), generation, number + 1, wanted)
        rig.ask(number, late)
        assert rig.answers[number] == DELETIONS_DIFFER
        rig.run(4_000)
    assert group_of(rig).members


def test_a_copy_of_the_registry_in_quarantine_deletes_nothing(pair):
    """What it says was deleted may be there: the offsets of a topic that lives stay."""
    wrong = deepcopy(pair.first.shard.state)
    wrong.topics_deleted["t"] = wrong.deletions_version = wrong.topics_version = 1 << 40
    pair.other.registry, pair.other.registry_distrusted = lambda: wrong, lambda: True
    pair.run(500)
    assert pair.stored() == [6, 6]
    pair.other.registry = lambda: pair.first.shard.state
    assert isinstance(pair.commit(pair.other, 0), Committed)
    pair.ask(pair.first, DeleteTopic("t"))
    pair.run(500)
    assert pair.stored()[1] == 6
    pair.other.registry_distrusted = lambda: False  # it took the right state
    pair.run(500)
    assert pair.stored() == [0, 0]


def test_large_commits_without_a_pause_do_not_keep_a_deletion_from_ending():
    """What looks for offsets that go waits for large commits, but one look at a time goes on."""
    rig = Rig()
    rig.log.lead()
    rig.ask("t", CreateTopic("t", 1))
    rig.ask("big", CreateTopic("big", 1_000))
    rig.turn()

    def commit_of(topic, count):
        version = rig.shard.state.deletions_version
        some = tuple(PartitionCommit(topic, number, 1, "", None) for number in range(count))
        return OffsetCommit("g", "", -1, 0, some, deletions_version=version)

    rig.ask("stored", commit_of("t", 1))
    rig.turn()
    rig.ask("delete", DeleteTopic("t"))
    asked = 0
    for _ in range(500):
        while asked - sum(isinstance(name, int) for name in rig.answers) < 5:
            asked += 1
            rig.ask(asked, commit_of("big", 1_000))
        before = len(rig.log.waiting)
        rig.clock_ms += 10
        rig.loop_round += 1
        rig.shard.turn(Turn(rig.clock_ms, 0, rig.loop_round, Joins.FEW))
        rig.log.run(before)  # an entry is committed in the turn after its own
    assert not rig.shard.state.topics_deleted
    assert ("t", 0) not in group_of(rig).offsets


def test_of_many_deletions_few_are_asked_for_in_a_turn():
    """Each looks at every shard, and as many topics as there may be can be deleted at once."""
    state, asked = ShardState(), []
    state.topics_deleted = {f"t-{number}": number + 1 for number in range(1_000)}
    deletion = topic_deletion.TopicDeletion(state)
    assert list(deletion.forget(0, lambda *one: asked.append(one))) == []
    assert len(asked) == topic_deletion.FORGET_LOOKED_AT
