"""Whoever asks which topics a group reads is told without a walk over all that its members name."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit, TopicsChanged
from musterd.coordinator.machine.replies import Joined
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Group, Phase
from musterd.coordinator.machine.subscriptions import named_topics
from musterd.coordinator.metrics.groups import GroupCounts, Ownership, ownership
from musterd.coordinator.runtime.topic_change_notifier import TopicChangeNotifier, unknown_to
from musterd.coordinator.runtime.topic_registry import TopicRegistry

NAMES = 1_000


class Counted(str):
    """A name that counts how often it is looked up."""

    __slots__ = ()
    looked_up = 0

    def __hash__(self):
        Counted.looked_up += 1
        return str.__hash__(self)


@pytest.fixture
def group():
    """A Stable group whose members name t, u and many topics that do not exist."""
    group = Group("g", Phase.STABLE, "consumer", "range", generation=1)
    group.members = {"m": SimpleNamespace()}  # it does not even say what it names
    group.tally.topics = {Counted(name): 1 for name in ("u", "t", *map(str, range(NAMES)))}
    Counted.looked_up = 0
    return group


@pytest.fixture
def registry():
    """Topics t, u and v; u changed last."""
    topics, changed = {"t": 2, "u": 4, "v": 1}, {"t": 2, "v": 3, "u": 7}
    return ShardState(topics=topics, topics_changed=changed, topics_version=7)


def test_the_group_leader_is_told_the_counts_of_the_topics_that_exist(group, registry):
    """In the order of their names; each Join of the leader asks."""
    topics = TopicRegistry(lambda: registry, lambda: True)
    joined = Joined(1, "consumer", "range", "m", "m", (), topics=named_topics(group))
    assert list(topics.counts_for(joined).items()) == [("t", 2), ("u", 4)]
    assert Counted.looked_up <= len(registry.topics)


def test_only_a_group_leader_waits_for_topics_that_this_node_does_not_know_yet():
    """Another member has its place at once, from a node whose copy of the topics is behind."""
    behind = TopicRegistry(ShardState, lambda: False)
    of_leader = Joined(1, "consumer", "range", "m", "m", (), topics={"t": 1}, topics_version=7)
    assert behind.counts_for(of_leader) is None
    assert behind.counts_for(replace(of_leader, member_id="n")) == {}


def test_the_group_leader_is_not_told_of_a_topic_made_again_since_the_generation_formed():
    """Its members may hold a former one of that name; of other topics nobody is kept waiting."""
    made = {"t": 2, "u": 6}
    registry = ShardState(topics={"t": 2, "u": 4}, creation_versions=made, topics_version=6)
    topics = TopicRegistry(lambda: registry, lambda: True)
    joined = Joined(1, "consumer", "range", "m", "m", (), topics={"t": 1, "u": 1}, topics_version=5)
    assert topics.counts_for(joined) == {"t": 2}
    assert topics.counts_for(replace(joined, topics_version=6)) == {"t": 2, "u": 4}
    assert topics.creation_versions(["u", "nope"]) == {"u": 6}


def test_members_wait_for_a_copy_that_may_lack_a_deletion():
    """They compare creation versions, so theirs have to be those that the generation has."""
    behind = TopicRegistry(lambda: ShardState(topics_version=6), lambda: True)
    joined = Joined(1, "consumer", "range", "n", "m", (), topics_version=7, dropped_version=5)
    assert behind.counts_for(joined) is None
    assert behind.counts_for(replace(joined, dropped_version=0)) == {}
    assert behind.counts_for(replace(joined, topics_version=6)) == {}


def test_a_group_is_told_of_the_latest_change_of_what_it_reads(group, registry):
    """Once its generation knows of that, of none."""
    assert unknown_to(group, registry) == TopicsChanged("g", "u", 4, 7)
    group.topics_version = 7
    assert unknown_to(group, registry) is None
    assert unknown_to(group, ShardState()) is None
    assert Counted.looked_up <= 2 * len(registry.topics)


def test_a_turn_of_notices_counts_what_it_looks_at(group, registry):
    """Names that no topic has cost nothing: the turn goes on to the next group."""
    groups = {str(number): group for number in range(3)}
    assert len(list(TopicChangeNotifier().turn(registry, groups))) == len(groups)


def test_what_nobody_owns_is_counted_among_the_topics_that_exist(group, registry):
    """The metrics page asks for each group that it shows."""
    counts = GroupCounts(owners_generation=1, owners={("t", 0): "m", ("t", 1): "m", ("u", 3): "m"})
    assert ownership(group, counts, registry.topics, {}) == Ownership(unassigned=3, idle_members=0)
    assert Counted.looked_up <= 2 * len(registry.topics)


def test_what_is_left_of_a_commit_keeps_the_tokens_of_its_own_partitions(registry):
    """A partition that does not exist takes its fencing token with it."""
    topics = TopicRegistry(lambda: registry, lambda: True)
    partitions = tuple(
        PartitionCommit(topic, partition, 1, "", None)
        for topic, partition in (("t", 0), ("t", 2), ("gone", 0), ("v", 0))
    )
    commit = OffsetCommit("g", "m", 1, 0, partitions, tokens=(4, 5, 6, 7))
    split = topics.split(commit)
    assert split.remainder.partitions == (partitions[0], partitions[3])
    assert split.remainder.tokens == (4, 7)
    plain = topics.split(replace(commit, tokens=()))
    assert plain.remainder.tokens == ()
