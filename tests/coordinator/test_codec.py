"""Entries, commands and events survive the wire; what this build does not know is refused."""

from dataclasses import fields, replace
from typing import get_args

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.v1 import access_pb2, group_pb2, log_pb2, quota_pb2
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.codec import (
    UnknownFormatError,
    decode_command,
    decode_entry,
    decode_events,
    encode_command,
    encode_entry,
    encode_events,
    plain_request,
)
from musterd.coordinator.machine import access, commands, events, quotas
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.events import Event
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.shard_state import Entry
from musterd.levels import LEVEL

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NESTED = {
    "Protocol": log_pb2.Protocol,
    "Assignment": log_pb2.Assignment,
    "LeavingMember": log_pb2.LeaveGroup.Member,
    "PartitionCommit": log_pb2.OffsetCommit.Partition,
    "TopicPartition": log_pb2.TopicPartition,
    "ConfigSetting": log_pb2.ConfigSetting,
    "DeletedTopic": log_pb2.DeletedTopic,
    "NodeLevel": log_pb2.NodeLevel,
    "AuditEntry": log_pb2.AuditEntry,
    "PartitionSet": log_pb2.PartitionSet,
    "TopicCount": log_pb2.TopicCount,
    "PatternTopics": log_pb2.PatternTopics,
    "TargetChange": log_pb2.TargetChange,
    "Subscription": log_pb2.Subscription,
    "ConfigValue": log_pb2.ConfigValue,
    "AclRule": access_pb2.AclRule,
    "TokenScope": access_pb2.TokenScope,
    "QuotaChange": quota_pb2.QuotaChange,
}
LISTS = ("TopicNames", "PartitionSets")
"""Messages of one field, that stand for a tuple that may be None."""
ENUMS = {
    "timer": commands.RoundTimer,
    "cause": events.RemovalCause,
    "trigger": events.Trigger,
    "ending": events.Ending,
    "operation": access.Operation,
    "resource": access.Resource,
    "pattern": access.Pattern,
    "entity": quotas.QuotaEntity,
    "key": quotas.QuotaKey,
}


def values_of(cls: type, message: type) -> st.SearchStrategy:
    """Any value of the dataclass, drawn by the message's own field types."""
    drawn = {}
    for descriptor in message.DESCRIPTOR.fields:
        drawn[descriptor.name] = _values(cls, descriptor)
    return st.builds(cls, **drawn)


def _values(cls: type, descriptor: FieldDescriptor) -> st.SearchStrategy:
    kind = FieldDescriptor
    if descriptor.name == "level":
        return st.integers(1, LEVEL)  # a later one is refused
    match descriptor.type:
        case kind.TYPE_STRING:
            one = TEXT
        case kind.TYPE_BYTES:
            one = st.binary(max_size=20)
        case kind.TYPE_INT32:
            one = INT32
        case kind.TYPE_INT64:
            one = INT64
        case kind.TYPE_BOOL:
            one = st.booleans()
        case kind.TYPE_ENUM:
            one = st.sampled_from([*ENUMS[descriptor.name]])
        case kind.TYPE_MESSAGE:
            one = _messages(cls, descriptor)
        case _:
            raise AssertionError(f"{cls.__name__}.{descriptor.name}: unknown type")
    if descriptor.is_repeated:
        return st.lists(one, max_size=3).map(tuple)
    return st.none() | one if descriptor.has_presence and descriptor.type != 11 else one


def _messages(cls: type, descriptor: FieldDescriptor) -> st.SearchStrategy:
    if descriptor.message_type.name in LISTS:
        (items,) = descriptor.message_type.fields
        return st.none() | _values(cls, items)
    (inner,) = [
        name
        for name, message in NESTED.items()
        if message.DESCRIPTOR.full_name == descriptor.message_type.full_name
    ]
    home = next(one for one in (access, quotas, commands, events) if hasattr(one, inner))
    return values_of(getattr(home, inner), NESTED[inner])


COMMANDS = st.one_of(
    *(values_of(cls, getattr(log_pb2, cls.__name__)) for cls in get_args(commands.Command))
)
EVENTS = st.one_of(
    *(values_of(cls, getattr(log_pb2, cls.__name__)) for cls in get_args(events.Event))
)
ENTRIES = st.builds(
    Entry,
    format=st.just(1),
    level=st.just(1),
    time_ms=INT64,
    wall_ms=INT64,
    limits_version=st.just(1),
    commands=st.lists(COMMANDS, max_size=5).map(tuple),
    topics_version=INT64,
)
ENTRY = Entry(1, 1, 10, 20, 1, (commands.Checkpoint(), commands.CreateTopic("t", 3)))


@given(ENTRIES)
def test_an_entry_survives_the_wire(entry):
    """Every field of every command, at the edges of its type too."""
    assert decode_entry(encode_entry(entry)) == entry


@given(st.lists(values_of(commands.OffsetCommit, log_pb2.OffsetCommit), max_size=3).map(tuple))
def test_commits_are_coded_as_any_other_command_is(commits):
    """Entries have a path of their own for commits; single commands go the way of all fields."""
    encoded = encode_entry(replace(ENTRY, commands=commits))
    message = log_pb2.Entry.FromString(encoded)
    assert list(message.commands) == [
        log_pb2.Command.FromString(encode_command(commit)) for commit in commits
    ]
    assert decode_entry(encoded).commands == tuple(
        decode_command(encode_command(commit)) for commit in commits
    )


@pytest.mark.parametrize("cls", [*get_args(Command), *get_args(Event)])
def test_each_kind_survives_the_wire(cls):
    """Each of them, however rarely it is drawn among all; alone and, as a command, in an entry."""

    @settings(max_examples=20)
    @given(values_of(cls, getattr(log_pb2, cls.__name__)))
    def survives(value):
        if cls in get_args(Event):
            assert decode_events(encode_events([value])) == (value,)
            return
        assert decode_command(encode_command(value)) == value
        assert decode_entry(encode_entry(replace(ENTRY, commands=(value,)))).commands == (value,)

    survives()


HEARTBEAT = commands.ConsumerGroupHeartbeat("g", "m", 1)


@pytest.mark.parametrize("said", [None, (), ("t",)])
def test_topics_that_are_not_named_are_not_an_empty_list(said):
    """None is "as before", () is "no topic at all"."""
    command = replace(HEARTBEAT, topics=said)
    assert decode_command(encode_command(command)).topics == said


@pytest.mark.parametrize("owned", [None, (), (commands.PartitionSet("t", (0, 1)),)])
def test_partitions_that_are_not_named_are_not_an_empty_list(owned):
    """None says nothing of what the member released, () that it released all."""
    command = replace(HEARTBEAT, owned=owned)
    assert decode_command(encode_command(command)).owned == owned


@pytest.mark.parametrize("field", ["pattern", "zone", "assignor"])
@pytest.mark.parametrize("said", [None, "", "x"])
def test_what_a_member_does_not_say_is_not_nothing(field, said):
    """None is "as before", "" takes back what it said before."""
    command = replace(HEARTBEAT, **{field: said})
    assert getattr(decode_command(encode_command(command)), field) == said


def test_a_commit_without_tokens_has_the_bytes_of_before():
    """Entries of groups that take none are those that older builds write."""
    plain = commands.OffsetCommit("g", "m", 1, 2, (commands.PartitionCommit("t", 0, 7, "", None),))
    entry = encode_entry(replace(ENTRY, commands=(plain,)))
    assert entry.hex() == "08011001180a20142801321332110a016712016d180120022a050a01741807"
    with_token = encode_entry(replace(ENTRY, commands=(replace(plain, tokens=(300,)),)))
    assert len(with_token) == len(entry) + 4


UNKNOWN_FIELD = b"\xf8\x07\x01"
"""Field 127, a varint."""


def _nested(tag: int, inner: bytes) -> bytes:
    return bytes((tag << 3 | 2, len(inner))) + inner


def replace_last(commit: log_pb2.OffsetCommit, **fields: int) -> bytes:
    """The commit with fields that come after all others."""
    return commit.SerializeToString() + log_pb2.OffsetCommit(**fields).SerializeToString()


PLAIN = st.builds(
    commands.OffsetCommit,
    *(TEXT, TEXT, INT64, INT64),
    st.lists(st.tuples(TEXT, INT32, INT64), min_size=1, max_size=4).map(
        lambda rows: tuple(commands.PartitionCommit(*row, "", None) for row in rows)
    ),
    TEXT,
    deletions_version=INT64,
    creation_version=INT64,
)


@given(PLAIN)
def test_a_commit_of_nothing_but_offsets_is_read_in_columns(commit):
    """And is the same as one that is read field by field."""
    encoded = encode_entry(replace(ENTRY, commands=(commit,)))
    (read,) = decode_entry(encoded).commands
    assert isinstance(read.partitions, PlainPartitions) is (len(commit.partitions) > 1)
    assert read == commit
    assert decode_command(encode_command(commit)) == read
    assert encode_entry(decode_entry(encoded)) == encoded


REQUESTS = st.builds(
    replace,
    st.one_of(PLAIN, PLAIN, values_of(commands.OffsetCommit, log_pb2.OffsetCommit)),
    deletions_version=st.just(0),
    creation_version=st.just(0),
)


@given(REQUESTS)
def test_a_plain_request_is_the_command_that_its_fields_make(commit):
    """What the view of plain fields lets pass is what the whole request says, in the log, too."""
    raw = log_pb2.OffsetCommit.FromString(_commit_of(commit)).SerializeToString()
    command = plain_request(raw, 3)
    is_plain = commit == plain_of(commit) and 1 <= len(commit.partitions) <= 3
    assert (command is not None) is is_plain
    if command is not None:
        assert command == translate.commit(group_pb2.OffsetCommitRequest.FromString(raw))
        alike = [encode_entry(replace(ENTRY, commands=(one,))) for one in (command, commit)]
        assert alike[0] == alike[1]


def _commit_of(commit: commands.OffsetCommit) -> bytes:
    return log_pb2.Command.FromString(encode_command(commit)).offset_commit.SerializeToString()


def plain_of(commit: commands.OffsetCommit) -> commands.OffsetCommit:
    """The commit without all that is more than offsets."""
    partitions = tuple(
        commands.PartitionCommit(one.topic, one.partition, one.offset, "", None)
        for one in commit.partitions
    )
    return replace(
        commit,
        partitions=partitions,
        atomic=False,
        forward_only=False,
        expected_generation=None,
        blob=None,
        tokens=(),
    )


TWO = log_pb2.OffsetCommit(group_id="g", partitions=[{"topic": "t", "offset": 1}] * 2)


@pytest.mark.parametrize(
    "raw",
    [
        TWO.SerializeToString() + UNKNOWN_FIELD,
        TWO.SerializeToString() + _nested(5, b"\x0a\x01t" + UNKNOWN_FIELD),
        TWO.SerializeToString() + _nested(1, b"other"),
        TWO.SerializeToString() + _nested(5, b"\x0a\x01t\x22\x00"),
        TWO.SerializeToString() + _nested(5, b"\x0a\x01t\x10\x81\x00"),
        _nested(5, b"\x0a\x01t") + _nested(1, b"g"),
        log_pb2.OffsetCommit(deletions_version=1).SerializeToString() + TWO.SerializeToString(),
        replace_last(TWO, deletions_version=1),
        b"",
        b"\x0a",
    ],
    ids=[
        *("unknown", "unknown in a partition", "group twice", "metadata of no bytes"),
        *("a long varint", "another order", "a version first", "a version", "empty", "cut"),
    ],
)
def test_a_request_that_is_encoded_otherwise_is_read_field_by_field(raw):
    """Its bytes are not those that the log would have."""
    assert plain_request(raw, 9) is None
    assert plain_request(TWO.SerializeToString(), 9) is not None


@given(COMMANDS)
def test_a_command_survives_the_wire(command):
    """Alone, as the export stores it."""
    assert decode_command(encode_command(command)) == command


@given(st.lists(EVENTS, max_size=5).map(tuple))
def test_events_survive_the_wire(happened):
    """In order; none is no bytes at all."""
    data = encode_events(happened)
    assert decode_events(data) == happened
    assert (data == b"") is (happened == ())


@pytest.mark.parametrize("cls", [*get_args(Command), *get_args(Event)])
def test_each_message_has_the_fields_of_its_dataclass(cls):
    """Same names in the same order: commands.py and events.py say what log.proto says."""
    message = getattr(log_pb2, cls.__name__)
    names = getattr(cls, "_fields", None) or tuple(f.name for f in fields(cls))
    assert list(names) == [f.name for f in message.DESCRIPTOR.fields]


@pytest.mark.parametrize("outer", [log_pb2.Command, log_pb2.Event])
def test_each_kind_on_the_wire_has_its_dataclass(outer):
    """No kind of log.proto is left without a type here."""
    names = {field.message_type.name for field in outer.DESCRIPTOR.oneofs_by_name["kind"].fields}
    union = Command if outer is log_pb2.Command else Event
    assert names == {cls.__name__ for cls in get_args(union)}


@pytest.mark.parametrize(
    ("mine", "wire"),
    [
        (commands.RoundTimer, log_pb2.RoundTimer),
        (events.RemovalCause, log_pb2.RemovalCause),
        (events.Trigger, log_pb2.Trigger),
    ],
)
def test_enum_numbers_are_those_of_the_wire(mine, wire):
    """All but the unspecified zero, which is never written."""
    theirs = {value.name: value.number for value in wire.DESCRIPTOR.values if value.number}
    assert {member.name: member.value for member in mine} == theirs


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"format": 2}, "format 2"),
        ({"format": 0}, "format 0"),
        ({"level": LEVEL + 1}, f"level {LEVEL + 1}"),
        ({"level": 0}, "level 0"),
        ({"commands": (commands.ShardLevel(LEVEL + 1),)}, f"level {LEVEL + 1}"),
        ({"commands": (commands.FinalizeLevel(LEVEL + 1),)}, f"level {LEVEL + 1}"),
        ({"limits_version": 2}, "limits 2"),
    ],
)
def test_another_version_is_refused(change, word):
    """arch-3.7: a replica that knows less stops with one clear line."""
    with pytest.raises(UnknownFormatError, match=word):
        decode_entry(encode_entry(replace(ENTRY, **change)))


@pytest.mark.parametrize(
    "data",
    [
        encode_entry(ENTRY) + UNKNOWN_FIELD,
        encode_entry(replace(ENTRY, commands=())) + _nested(6, UNKNOWN_FIELD),
        encode_entry(replace(ENTRY, commands=()))
        + _nested(6, _nested(1, _nested(9, UNKNOWN_FIELD))),
    ],
    ids=["in the entry", "a command of an unknown kind", "in a protocol of a join"],
)
def test_an_unknown_field_is_refused_at_any_depth(data):
    """Protobuf would skip it, and this replica would diverge silently."""
    with pytest.raises(UnknownFormatError, match="unknown to this build"):
        decode_entry(data)


def test_an_event_of_an_unknown_kind_is_refused():
    """An export of a later version is not read half."""
    with pytest.raises(UnknownFormatError):
        decode_events(_nested(1, _nested(19, b"")))
    with pytest.raises(UnknownFormatError, match="kind"):
        decode_events(_nested(1, b""))
    with pytest.raises(UnknownFormatError, match="kind"):
        decode_command(b"")


@pytest.mark.parametrize("number", [0, 9])
def test_an_unknown_enum_number_is_refused(number):
    """proto3 enums are open: the number arrives, and has no meaning here."""
    data = log_pb2.Command(
        close_round=log_pb2.CloseRound(group_id="g", timer=number)
    ).SerializeToString()
    with pytest.raises(UnknownFormatError, match="number"):
        decode_command(data)


@pytest.mark.parametrize(
    "event",
    [
        log_pb2.Event(spec_changed={"group_id": "g", "trigger": 99}),
        log_pb2.Event(consumer_removed={"group_id": "g", "cause": 99}),
        log_pb2.Event(spec_changed={"group_id": "g"}),
        log_pb2.Event(consumer_removed={"group_id": "g"}),
    ],
)
def test_an_unknown_enum_number_of_an_event_is_refused(event):
    """So are a trigger and a cause of a later build, and none at all."""
    with pytest.raises(UnknownFormatError, match="number"):
        decode_events(log_pb2.EventList(events=[event]).SerializeToString())


@given(st.binary(max_size=40))
def test_garbage_is_refused_or_read_never_a_crash(data):
    """Whatever the bytes, the outcome is an Entry or UnknownFormatError."""
    try:
        entry = decode_entry(data)
    except UnknownFormatError:
        return
    assert decode_entry(encode_entry(entry)) == entry


def test_a_cut_entry_is_refused():
    """Every proper prefix: none of them reads as the whole."""
    data = encode_entry(ENTRY)
    for end in range(len(data)):
        try:
            assert decode_entry(data[:end]) != ENTRY
        except UnknownFormatError:
            continue
