"""Groups are told of topics that grew or came to exist: once, in slices, by whoever leads."""

import pytest

from musterd.coordinator.machine.commands import AddPartitions, CreateTopic
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Done, Joined
from musterd.coordinator.machine.shard_state import ShardState
from musterd.coordinator.machine.state import Phase
from musterd.coordinator.runtime import topic_change_notifier
from musterd.raft.contract import NodeId
from tests.coordinator.fakes import Rig, id_of, join, sync
from tests.coordinator.runtime.test_shard import group_of, settle


@pytest.fixture
def rig():
    """A shard that leads; it is shard 0, so it has the registry, with topic t."""
    rig = Rig()
    rig.log.lead()
    rig.ask("create", CreateTopic("t", 2))
    rig.turn()
    return rig


def rejoin(rig, member, name, group="g"):
    """A member that was told to joins again; answers under `name`."""
    rig.ask(name, join(member, group, member_id=id_of(member)))


def grow(rig, count):
    """The registry moves, and the groups are told of it."""
    rig.ask(f"grow {count}", AddPartitions("t", count))
    rig.run(50)
    assert rig.answers[f"grow {count}"] == Done()


def test_a_running_group_rebalances_once_for_new_partitions(rig):
    """gp-3.4: members are told by their heartbeat; the next generation knows, and is left alone."""
    generation = settle(rig, "a", "b")
    grow(rig, 4)
    group = group_of(rig)
    assert group.phase is Phase.PREPARING_REBALANCE
    for member in ("a", "b"):
        rejoin(rig, member, f"again {member}")
    rig.run(50)
    joined = rig.answers["again a"]
    assert isinstance(joined, Joined)
    assert joined.generation == generation + 1
    rig.ask("sync", sync("a", joined.generation, {"a": b"A", "b": b"B"}))
    rig.ask("sync too", sync("b", joined.generation))
    rig.run(200)
    assert group.phase is Phase.STABLE
    assert group.topics_version == 4
    rig.run(10_500)  # the last checkpoint is taken
    entries = len(rig.log.entries)
    rig.run(500)
    assert len(rig.log.entries) == entries


def test_a_topic_that_comes_to_exist_is_told_to_its_readers(rig):
    """They named it before it was there."""
    rig.ask("join", join("a"))
    rig.registry = ShardState  # nothing is registered as far as this leader knows
    rig.run(1_100)
    rig.ask("sync", sync("a", 1, {"a": b"A"}))
    rig.run(100)
    assert group_of(rig).topics_version == 0
    rig.registry = lambda: rig.shard.state
    rig.run(50)
    assert group_of(rig).phase is Phase.PREPARING_REBALANCE


def test_the_next_leader_tells_whom_the_last_one_did_not(rig):
    """The registry moved, and the leader went before it could say so."""
    settle(rig, "a")
    behind = ShardState(topics={"t": 2}, topics_changed={"t": 2}, topics_version=2)
    rig.registry = lambda: behind
    rig.ask("grow", AddPartitions("t", 4))
    rig.run(100)
    assert group_of(rig).phase is Phase.STABLE
    rig.log.follow(NodeId(1))
    rig.run(100)
    rig.registry = lambda: rig.shard.state
    rig.run(100)
    assert group_of(rig).phase is Phase.STABLE  # it does not lead
    rig.log.lead()
    rig.run(50)
    assert group_of(rig).phase is Phase.PREPARING_REBALANCE


def test_a_generation_that_forms_while_the_registry_moves_is_told(rig):
    """The groups were looked at while its round was open; its entry was proposed before."""
    rig.ask("join", join("a"))
    grow(rig, 4)
    assert group_of(rig).phase is Phase.PREPARING_REBALANCE
    rig.proposer._topics_version = lambda: 2
    while group_of(rig).generation == 0:
        rig.turn()
    assert group_of(rig).topics_version == 2
    rig.run(20)
    assert (group_of(rig).round, group_of(rig).phase) == (2, Phase.PREPARING_REBALANCE)


def test_a_notice_that_failed_is_repeated(rig):
    """The log was full, then it was not."""
    settle(rig, "a")
    rig.ask("grow", AddPartitions("t", 4))
    rig.turn()
    rig.log.overloaded = True
    rig.run(200)
    assert group_of(rig).phase is Phase.STABLE
    rig.log.overloaded = False
    rig.run(100)
    assert group_of(rig).phase is Phase.PREPARING_REBALANCE


def test_many_groups_are_told_in_slices(rig, monkeypatch):
    """A few rounds open in one turn, and each group gets its one."""
    monkeypatch.setattr(topic_change_notifier, "NOTICES_PER_TURN", 2)
    for number in range(7):
        settle(rig, f"m{number}", group=f"g{number}")
    rig.ask("grow", AddPartitions("t", 4))
    rig.turn()
    open_rounds = []
    for _ in range(6):
        rig.turn()
        groups = rig.shard.state.groups.values()
        open_rounds.append(sum(g.phase is Phase.PREPARING_REBALANCE for g in groups))
    assert open_rounds == [2, 4, 6, 7, 7, 7]
    assert not rig.shard.leadership._notices.busy


def test_groups_of_many_names_take_a_turn_each(rig, monkeypatch):
    """What a turn looks at is bounded by the names, too."""
    monkeypatch.setattr(topic_change_notifier, "NAMES_PER_TURN", 1)
    for number in range(3):
        settle(rig, f"m{number}", group=f"g{number}")
    rig.ask("grow", AddPartitions("t", 4))
    rig.turn()
    for expected in (1, 2, 3):
        rig.turn()
        groups = rig.shard.state.groups.values()
        assert sum(g.phase is Phase.PREPARING_REBALANCE for g in groups) == expected


def test_the_limits_stand(rig):
    """A topic grows to its maximum and no further; nobody is told of a refusal."""
    settle(rig, "a")
    rig.ask("more", AddPartitions("t", LIMITS.topic_max_partitions + 1))
    rig.run(50)
    assert rig.answers["more"].error is Error.INVALID_PARTITIONS
    assert group_of(rig).phase is Phase.STABLE
