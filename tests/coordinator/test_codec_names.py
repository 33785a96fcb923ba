"""Topic names are shared by all offsets that are decoded, and hostile ones are not kept."""

from muster.v1 import group_pb2 as pb
from muster.v1 import log_pb2
from musterd.coordinator import codec
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.codec import NAMES, NAMES_MAX
from musterd.coordinator.machine import commands
from musterd.coordinator.machine.limits import LIMITS


def decoded(topic: str) -> str:
    """The topic of a commit as it is read from the log."""
    commit = log_pb2.OffsetCommit(group_id="g", partitions=[{"topic": topic, "offset": 1}])
    entry = log_pb2.Entry(
        format=codec.FORMAT,
        level=codec.LEVEL,
        limits_version=1,
        commands=[log_pb2.Command(offset_commit=commit)],
    )
    (command,) = codec.decode_entry(entry.SerializeToString()).commands
    return command.partitions[0].topic


def asked(topic: str) -> str:
    """The topic of a commit as it is taken from a request."""
    request = pb.OffsetCommitRequest(partitions=[{"topic": topic, "offset": 1}])
    return translate.commit(request).partitions[0].topic


def test_commits_of_one_topic_hold_one_copy_of_its_name():
    """From the wire, from the log, in whichever group."""
    first = asked("a topic of many")
    assert decoded("a topic of many") is first
    assert asked("a topic of many") is first


def test_members_of_modern_groups_hold_one_copy_of_a_name():
    """What each says that it reads, counts of partitions, plans, and what members work on."""
    first = asked("a topic of modern groups")
    sets = (commands.PartitionSet(first, (0,)),)
    heard = commands.ConsumerGroupHeartbeat("g", "m", 0, topics=(first,), owned=sets)
    patterns = (commands.PatternTopics("a .*", (first,), ()),)
    noted = commands.NoteTopics("g", (commands.TopicCount(first, 1),), patterns, 1)
    change = commands.TargetChange(first, (0,), (1,), (1,))
    target = commands.StoreTarget("g", 1, 0, (change,), True)
    heard, noted, target = (
        codec.decode_command(codec.encode_command(command)) for command in (heard, noted, target)
    )
    assert heard.topics[0] is first
    assert heard.owned[0].topic is first
    assert noted.counts[0].topic is first
    assert noted.patterns[0].added[0] is first
    assert target.changes[0].topic is first


def test_names_that_a_client_makes_up_are_kept_up_to_a_number():
    """As many as there may be topics, none longer than a topic's: then they go."""
    longest, longer = "n" * LIMITS.id_max_bytes, "n" * (LIMITS.id_max_bytes + 1)
    assert asked(longest) is asked(longest)
    assert asked(longer) == longer
    assert longer not in NAMES
    for number in range(NAMES_MAX + 1):
        assert asked(f"made up {number}") == f"made up {number}"
        assert len(NAMES) <= NAMES_MAX
    assert f"made up {NAMES_MAX}" in NAMES
    assert "made up 0" not in NAMES


def test_no_name_is_interned_for_ever():
    """Some versions of CPython never free an interned string."""
    for module in (codec, translate):
        assert "intern" not in vars(module)
