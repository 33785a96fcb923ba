"""What a modern group is told of topics that are deleted and made again, many, or of others."""

import pytest

from musterd.coordinator.machine.commands import CreateTopic, SetTopicZones
from musterd.coordinator.machine.events import SpecChanged
from musterd.coordinator.machine.modern.topics import unknown_topics
from tests.machine.world import World

NOTES_MAX = 8


@pytest.fixture
def world():
    """A cluster in which a topic was deleted: it keeps creation versions since."""
    world = World()
    world.run("topic other 1")
    remove(world, "other")
    return world


def remove(world, name):
    """Delete a topic to the end: it may be made again."""
    for line in (f"delete-topic {name}", f"begin-drop {name}", f"end-drop {name}"):
        world.run(line)
    world.run(f"forget {name}")


def tell(world, limit=1_000):
    """Tell the group all that it does not know; returns what it was told."""
    told = []
    while note := unknown_topics(world.state.groups["g"], world.state, limit):
        told.append(note)
        world.apply(note)
        assert len(told) < NOTES_MAX, "it is told the same again and again"
    return told


def test_topics_that_fill_several_commands_are_told_once_each(world):
    for number in range(5):
        world.apply(CreateTopic(f"t{number}", 1))
    world.run("hear A join topics=t4,t0,t3,t1,t2")
    told = tell(world, limit=2)
    assert [len(note.counts) for note in told] == [2, 2, 1]
    assert world.state.groups["g"].modern.topics_version == world.state.topics_version


def test_a_topic_that_was_made_again_and_a_new_one_beside_it_are_told_once_each(world):
    world.run("topic a 1")
    world.run("hear A join topics=a,b")
    world.run("settle")
    remove(world, "a")
    world.run("topic a 2")
    world.run("topic b 1")
    tell(world)
    world.run("settle")
    world.run("hear A owns")
    world.run("settle")
    assert world.state.groups["g"].modern.topics == {"a": 2, "b": 1}


@pytest.mark.parametrize("meanwhile", [(), ("topic c 1", "hear A topics=a,c", "settle")])
def test_no_commit_of_a_former_topic_is_taken_for_one_that_was_made_again(world, meanwhile):
    world.run("topic a 1")
    world.run("hear A join topics=a")
    world.run("settle")
    token = world.state.groups["g"].modern.members["A"].token_of("a", 0)
    remove(world, "a")
    world.run("topic a 1")
    made = world.state.creation_versions["a"]
    for line in ("settle", *meanwhile):
        world.run(line)
        world.run(f"commit A a/0=5000 tokens={token} made={made}")
        assert not world.state.groups["g"].offsets
    world.run("hear A owns")
    world.run("settle")
    world.run(f"commit A a/0=5000 tokens={token} made={made}")
    assert not world.state.groups["g"].offsets
    world.run(f"commit A a/0=1 made={made}")
    assert world.state.groups["g"].offsets["a", 0].offset == 1


def test_who_is_away_does_not_keep_a_topic_that_was_made_again(world):
    world.run("topic a 1")
    world.run("hear A join topics=a")
    world.run("hear B join topics=a")
    world.run("settle")
    world.run("hear A away back=600000")
    remove(world, "a")
    world.run("topic a 1")
    world.run("settle")
    assert list(world.state.groups["g"].modern.topics) == ["a"]


def test_a_leader_whose_copy_is_older_tells_nothing(world):
    world.run("topic a 1")
    world.run("hear A join topics=a")
    world.run("settle")
    older = World()
    assert older.state.topics_version < world.state.topics_version
    assert unknown_topics(world.state.groups["g"], older.state, 1) is None


def test_topics_that_are_too_many_partitions_do_not_stop_the_group(world):
    """One member names them; those that were there go on, and growth of what they read is told."""
    world.run("topic t 2")
    for number in range(11):
        world.apply(CreateTopic(f"big{number:02}", 10_000))
    world.run("hear A join topics=t")
    world.run("settle")
    names = ",".join(f"big{number:02}" for number in range(11))
    world.run(f"hear B join topics={names}")
    tell(world)
    world.run("grow t 4")
    tell(world)
    modern = world.state.groups["g"].modern
    assert modern.topics["t"] == 4
    assert len(modern.topics) == 10  # t and nine of the others


def test_a_member_that_names_no_epoch_does_not_commit(world):
    """Whether its grant is of a former topic is asked of members alone, and such is nobody's."""
    world.run("topic a 1")
    world.run("hear A join topics=a")
    world.run("settle")
    world.run("commit A a/0=5 gen=-1")
    assert not world.state.groups["g"].offsets
    world.run("commit A a/0=5 gen=0")
    assert world.state.groups["g"].offsets["a", 0].offset == 5


def test_generation_0_is_none_that_a_classic_member_of_a_modern_group_had():
    """It has joined once, so there is no former generation in which a commit could race."""
    world = World()
    world.run("topic a 1")
    for line in ("join x meta=- topics=a", "fire", "sync x-1 x-1:=a/0", "hear m join topics=a"):
        world.run(line)
    assert world.run("commit x-1 a/0=5 gen=0").splitlines() == ["-> ILLEGAL_GENERATION"]
    assert not world.state.groups["g"].offsets
    world.run("commit x-1 a/0=6 gen=1")
    assert world.state.groups["g"].offsets["a", 0].offset == 6


END_OF_MODERN = {
    "emptied": (
        "hear a join topics=B",
        "settle",
        "hear a owns B/0 topics=A,B",
        "settle",
        "restart",
        "hear a bye",
    ),
    "downgraded": (
        "join x meta=- topics=B",
        "fire",
        "sync x-1 x-1:=B/0",
        "hear m join topics=B",
        "settle",
        "rejoin x-1 meta=- topics=A,B",
        "settle",
        "restart",
        "hear m bye",
    ),
}


@pytest.mark.parametrize("end", END_OF_MODERN)
def test_a_restarted_replica_writes_what_one_that_never_stopped_writes(end):
    """A group came to read its topics in another order than that of their names.

    World compares the results of both replicas, with the records that are written.
    """
    world = World()
    world.run("topic A 3")
    world.run("topic B 3")
    for line in END_OF_MODERN[end]:
        world.run(line)
    assert world.unloaded is not None
    assert world.state.groups["g"].modern is None


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a", "b", "c"], "a, b, c"),
        (["a", "b", "c", "d", "e"], "a, b, c and 2 more"),
        (["a" * 60, "b" * 249], "a" * 60 + ", " + "b" * 57 + "..."),
    ],
)
def test_the_cause_of_a_plan_names_the_first_topics_that_changed(world, names, said):
    for name in names:
        world.apply(CreateTopic(name, 1))
    world.run("hear A join topics=" + ",".join(names))
    world.apply(unknown_topics(world.state.groups["g"], world.state, 1_000))
    world.run("settle")
    assert reason_of(world) == f"topics that the group reads changed: {said}"


def test_a_cause_that_names_as_much_as_it_may_is_not_cut_off(world):
    """The longest is of the zones of very many topics."""
    names = [f"{number:0249}" for number in range(100)]
    for name in names:
        world.apply(CreateTopic(name, 1))
    world.run("hear A join topics=" + ",".join(names))
    world.run("settle")
    for name in names:
        world.apply(SetTopicZones(name, "x"))
    world.run("settle")
    assert reason_of(world).startswith("zones of topics that the group reads changed: 000")
    assert reason_of(world).endswith("... and 97 more")


def reason_of(world):
    """What the last event said that has a cause."""
    told = [event for _, events in world.history for event in events]
    return [one.reason for one in told if isinstance(one, SpecChanged)][-1]
