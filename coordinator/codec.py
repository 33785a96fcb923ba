"""protobuf and the machine's types: the only importer of `log_pb2` and `plain_commit_pb2`.

Commands and events have the fields of the messages of the same name, so the mapping is read off the
dataclasses once, at import. A field, an enum number or a kind that this build does not know is
refused, never skipped: replicas that skipped different things would diverge silently (arch-3.7).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from enum import IntEnum
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, Final, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import DecodeError, Message

from muster.v1 import access_pb2, log_pb2, plain_commit_pb2, quota_pb2
from musterd.coordinator.machine import access, commands, events, quotas
from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.envelope import FORMAT
from musterd.coordinator.machine.events import Event
from musterd.coordinator.machine.limits import LIMITS, LIMITS_BY_VERSION
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.shard_state import Entry
from musterd.levels import LEVEL


class UnknownFormatError(Exception):
    """Bytes that this version cannot read as written. Not retriable: upgrade this node."""


NAMES_MAX: Final = LIMITS.max_topics
"""All topics that there can be; with `LIMITS.id_max_bytes` of each name, 4 MiB at most."""


class _Names(dict[str, str]):
    """By name, the copy that is shared. One name too many, and all are collected anew.

    Each offset would hold a copy of its topic's name otherwise. `sys.intern` does not do: some
    versions of CPython (3.12.0 to 3.12.5) never free what it was given, and whoever sends commits
    chooses the names.
    """

    def __missing__(self, name: str) -> str:
        if len(name) <= LIMITS.id_max_bytes:  # no topic has a longer one
            if len(self) >= NAMES_MAX:
                self.clear()
            self[name] = name
        return name


NAMES: Final = _Names()
"""`NAMES[name]` is equal to `name`; the same object for the same name, as far as it is kept."""


_Convert = Callable[[Any], Any]
_T = TypeVar("_T")

_NESTED: Final[dict[type, type[Message]]] = {
    commands.Protocol: log_pb2.Protocol,
    commands.Assignment: log_pb2.Assignment,
    commands.LeavingMember: log_pb2.LeaveGroup.Member,
    commands.PartitionCommit: log_pb2.OffsetCommit.Partition,
    commands.TopicPartition: log_pb2.TopicPartition,
    commands.ConfigSetting: log_pb2.ConfigSetting,
    commands.DeletedTopic: log_pb2.DeletedTopic,
    commands.NodeLevel: log_pb2.NodeLevel,
    commands.AuditEntry: log_pb2.AuditEntry,
    commands.PartitionSet: log_pb2.PartitionSet,
    commands.TopicCount: log_pb2.TopicCount,
    commands.PatternTopics: log_pb2.PatternTopics,
    commands.TargetChange: log_pb2.TargetChange,
    events.Subscription: log_pb2.Subscription,
    events.ConfigValue: log_pb2.ConfigValue,
    access.AclRule: access_pb2.AclRule,
    access.TokenScope: access_pb2.TokenScope,
    quotas.QuotaChange: quota_pb2.QuotaChange,
}
_LISTS: Final[dict[type, Callable[..., Message]]] = {
    str: log_pb2.TopicNames,
    commands.PartitionSet: log_pb2.PartitionSets,
}
"""By the items of a tuple that may be None: a message whose `items` they are."""


_TOPICS: Final = {"topic", "topics", "added"}
"""The fields of text that are names of topics: groups keep many copies of few."""


def _same(value: Any) -> Any:
    return value


def _shared(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(NAMES.__getitem__, values))


class _Struct(Generic[_T]):
    """One dataclass and its message: field by field, with a converter each."""

    def __init__(self, cls: type[_T], message: type[Message]) -> None:
        self.cls = cls
        self.message = message
        hints = get_type_hints(cls)
        self._fields = [(name, *_converters(hints[name], name)) for name in _names(cls)]

    def encode(self, value: _T) -> Message:
        return self.message(**{name: put(getattr(value, name)) for name, put, _, _ in self._fields})

    def decode(self, message: Message) -> _T:
        return self.cls(
            *(
                None if optional and not message.HasField(name) else take(getattr(message, name))
                for name, _, take, optional in self._fields
            )
        )


def _names(cls: type) -> Sequence[str]:
    """The fields of a dataclass or of a NamedTuple, in order."""
    named: Sequence[str] = getattr(cls, "_fields", ())
    return named or [f.name for f in fields(cast("Any", cls))]


def _converters(hint: Any, name: str) -> tuple[_Convert, _Convert, bool]:
    """How the field is put and taken, and whether it may be missing."""
    if isinstance(hint, UnionType):
        (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
        put, take, _ = _converters(inner, name)
        if get_origin(inner) is tuple:
            put, take = _in_message(_LISTS[get_args(inner)[0]], put, take)
        return put, take, True
    if get_origin(hint) in {tuple, Sequence}:
        return *_of_each(get_args(hint)[0], name), False
    if hint in _NESTED:
        struct = _Struct(hint, _NESTED[hint])
        return struct.encode, struct.decode, False
    take = NAMES.__getitem__ if hint is str and name in _TOPICS else _same
    return _same, hint if issubclass(hint, IntEnum) else take, False


def _of_each(item: Any, name: str) -> tuple[_Convert, _Convert]:
    """For a tuple of such items."""
    if item not in _NESTED:
        return _same, _shared if item is str and name in _TOPICS else tuple
    struct = _Struct(item, _NESTED[item])
    return (
        lambda values: [struct.encode(value) for value in values],
        lambda values: tuple(struct.decode(value) for value in values),
    )


def _in_message(
    message: Callable[..., Message], put: _Convert, take: _Convert
) -> tuple[_Convert, _Convert]:
    """For a tuple that may be None."""
    return (
        lambda values: None if values is None else message(items=put(values)),
        lambda found: take(found.items),
    )


class _Choice(Generic[_T]):
    """A message whose one field of the oneof `kind` says which dataclass it is."""

    def __init__(self, outer: type[Message], classes: Iterable[type[_T]]) -> None:
        self.outer = outer
        by_message = {cls.__name__: cls for cls in classes}
        self._by_field: dict[str, _Struct[_T]] = {}
        self._field_of: dict[type, tuple[str, _Struct[_T]]] = {}
        for descriptor in outer.DESCRIPTOR.oneofs_by_name["kind"].fields:
            kind = descriptor.message_type
            cls = by_message.pop(kind.name if kind is not None else descriptor.name)
            struct = _Struct(cls, getattr(log_pb2, cls.__name__))
            self._by_field[descriptor.name] = struct
            self._field_of[cls] = (descriptor.name, struct)
        if by_message:
            raise TypeError(f"no message for {sorted(by_message)}")

    def encode(self, value: _T) -> Message:
        name, struct = self._field_of[type(value)]
        return self.outer(**{name: struct.encode(value)})

    def decode(self, message: Message) -> _T:
        name = message.WhichOneof("kind")
        if name is None:
            raise UnknownFormatError(f"a {type(message).__name__} of a kind unknown to this build")
        return self._by_field[name].decode(getattr(message, name))


_COMMANDS: Final[_Choice[Command]] = _Choice(log_pb2.Command, get_args(commands.Command))
_PLAIN_FIELDS: Final = attrgetter("topic", "partition", "offset")
_BESIDE_PARTITIONS: Final = tuple(
    one.name for one in plain_commit_pb2.PlainCommit.DESCRIPTOR.fields if one.name != "partitions"
)
_COMMIT_TAG: Final = plain_commit_pb2.EncodedCommand(offset_commit=b"-").SerializeToString()[:1]
_EVENTS: Final[_Choice[Event]] = _Choice(log_pb2.Event, get_args(events.Event))


def encode_entry(entry: Entry) -> bytes:
    return plain_commit_pb2.EncodedEntry(
        format=entry.format,
        level=entry.level,
        time_ms=entry.time_ms,
        wall_ms=entry.wall_ms,
        limits_version=entry.limits_version,
        commands=[_encode(command) for command in entry.commands],
        topics_version=entry.topics_version,
    ).SerializeToString()


def _encode(command: Command) -> bytes:
    """As `_COMMANDS.encode`; commits are nearly all commands, so theirs is written out."""
    if type(command) is not commands.OffsetCommit:
        return encode_command(command)
    message = log_pb2.OffsetCommit(
        group_id=command.group_id,
        member_id=command.member_id,
        generation=command.generation,
        commit_seq=command.commit_seq,
        group_instance_id=command.group_instance_id,
        atomic=command.atomic,
        forward_only=command.forward_only,
        expected_generation=command.expected_generation,
        blob=command.blob,
        deletions_version=command.deletions_version,
        creation_version=command.creation_version,
    )
    if command.tokens:
        message.tokens.extend(command.tokens)
    partitions = command.partitions
    if type(partitions) is PlainPartitions and partitions.encoded:
        message.MergeFromString(partitions.encoded)
    else:
        _add_partitions(message, partitions)
    return plain_commit_pb2.EncodedCommand(
        offset_commit=message.SerializeToString()
    ).SerializeToString()


def _add_partitions(
    message: log_pb2.OffsetCommit, partitions: Iterable[commands.PartitionCommit]
) -> None:
    add = message.partitions.add
    for one in partitions:
        add(
            topic=one.topic,
            partition=one.partition,
            offset=one.offset,
            metadata=one.metadata,
            end_offset=one.end_offset,
            expected_offset=one.expected_offset,
            start_offset=one.start_offset,
            leader_epoch=one.leader_epoch,
        )


def decode_entry(data: bytes) -> Entry:
    """Back from `encode_entry`. Raises UnknownFormatError where this build would differ."""
    message = _parse(plain_commit_pb2.EncodedEntry(), data, _refuse_versions)
    return Entry(
        format=message.format,
        level=message.level,
        time_ms=message.time_ms,
        wall_ms=message.wall_ms,
        limits_version=message.limits_version,
        commands=tuple(map(_decode, message.commands)),
        topics_version=message.topics_version,
    )


def _decode(data: bytes) -> Command:
    """As `decode_command`, with commits written out: they hold no enum to refuse."""
    if data[:1] == _COMMIT_TAG:
        plain = _decode_plain(data)
        if plain is not None:
            return plain
    message = _parse(log_pb2.Command(), data)
    if message.HasField("offset_commit"):
        return _decode_commit(message.offset_commit)
    command = _each(_COMMANDS, (message,))[0]
    if isinstance(command, commands.ShardLevel | commands.FinalizeLevel):
        _refuse_level(command.level)
    return command


def _decode_commit(commit: log_pb2.OffsetCommit) -> commands.OffsetCommit:
    partitions = tuple(
        commands.PartitionCommit(
            NAMES[one.topic],
            one.partition,
            one.offset,
            one.metadata,
            one.end_offset if one.HasField("end_offset") else None,
            one.expected_offset if one.HasField("expected_offset") else None,
            one.start_offset if one.HasField("start_offset") else None,
            one.leader_epoch if one.HasField("leader_epoch") else None,
        )
        for one in commit.partitions
    )
    return commands.OffsetCommit(
        commit.group_id,
        commit.member_id,
        commit.generation,
        commit.commit_seq,
        partitions,
        commit.group_instance_id,
        commit.atomic,
        commit.forward_only,
        commit.expected_generation if commit.HasField("expected_generation") else None,
        commit.blob if commit.HasField("blob") else None,
        commit.deletions_version,
        commit.creation_version,
        tuple(commit.tokens) if commit.tokens else (),
    )


# ---- commits of which each partition has nothing but an offset


def _decode_plain(data: bytes) -> commands.OffsetCommit | None:
    """Such a command, where it is encoded as `encode_entry` does; None: it is read whole."""
    try:
        command = plain_commit_pb2.EncodedCommand.FromString(data)
    except DecodeError:
        return None
    commit = command.offset_commit
    size_bytes = max(1, (len(commit).bit_length() + 6) // 7)
    if len(data) != len(_COMMIT_TAG) + size_bytes + len(commit):
        return None  # there is more, or it is said in more bytes
    message = _plain(commit)
    return None if message is None else _plain_commit(message)


def plain_request(raw: bytes, most: int) -> commands.OffsetCommit | None:
    """The command of an OffsetCommitRequest of `most` partitions at most, as it was encoded.

    None where it has more, where a partition has more than an offset, where the commit is more than
    its partitions (atomic, conditional), and where the client encodes it otherwise than the log.
    """
    message = _plain(raw)
    if message is None or len(message.partitions) > most:
        return None
    if message.deletions_version or message.creation_version:  # which no request has
        return None
    return _plain_commit(message, keep_encoded=True)


def _plain(raw: bytes) -> plain_commit_pb2.PlainCommit | None:
    """The commit, where a view of its plain fields has all that was encoded, in the same bytes."""
    try:
        message = plain_commit_pb2.PlainCommit.FromString(raw)
    except DecodeError:
        return None
    message.DiscardUnknownFields()
    is_plain = bool(message.partitions) and message.SerializeToString() == raw
    return message if is_plain else None


def _plain_commit(
    message: plain_commit_pb2.PlainCommit, *, keep_encoded: bool = False
) -> commands.OffsetCommit:
    """The command; with `keep_encoded` `message` is used up."""
    partitions: Sequence[commands.PartitionCommit]
    if len(message.partitions) == 1:
        topic, number, offset = _PLAIN_FIELDS(message.partitions[0])
        partitions = (commands.PartitionCommit(NAMES[topic], number, offset, "", None),)
    else:
        rows = map(_PLAIN_FIELDS, message.partitions)
        topics, numbers, offsets = zip(*rows, strict=True)
        partitions = PlainPartitions(tuple(map(NAMES.__getitem__, topics)), numbers, offsets)
    commit = commands.OffsetCommit(
        message.group_id,
        message.member_id,
        message.generation,
        message.commit_seq,
        partitions,
        message.group_instance_id,
        deletions_version=message.deletions_version,
        creation_version=message.creation_version,
    )
    if keep_encoded and isinstance(partitions, PlainPartitions):
        rest: Message = message
        for name in _BESIDE_PARTITIONS:
            rest.ClearField(name)
        partitions.encoded = message.SerializeToString()
    return commit


def encode_command(command: Command) -> bytes:
    return _COMMANDS.encode(command).SerializeToString()


def decode_command(data: bytes) -> Command:
    """Back from `encode_command`. Raises UnknownFormatError."""
    return _each(_COMMANDS, (_parse(log_pb2.Command(), data),))[0]


def encode_events(happened: Iterable[Event]) -> bytes:
    """The events of one command, in order; b"" for none."""
    return log_pb2.EventList(
        events=[cast("log_pb2.Event", _EVENTS.encode(event)) for event in happened]
    ).SerializeToString()


def decode_events(data: bytes) -> tuple[Event, ...]:
    """Back from `encode_events`. Raises UnknownFormatError."""
    return _each(_EVENTS, _parse(log_pb2.EventList(), data).events)


_M = TypeVar("_M", bound=Message)


def _parse(message: _M, data: bytes, first: Callable[[_M], None] = lambda _: None) -> _M:
    """Parse, and refuse what protobuf would have skipped; `first` may name a better reason."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise UnknownFormatError(f"not a {type(message).__name__}: {error}") from error
    first(message)
    size = message.ByteSize()
    message.DiscardUnknownFields()
    if message.ByteSize() != size:
        raise UnknownFormatError(f"a {type(message).__name__} with a field unknown to this build")
    return message


def _each(choice: _Choice[_T], messages: Iterable[Message]) -> tuple[_T, ...]:
    try:
        return tuple(choice.decode(message) for message in messages)
    except ValueError as error:
        raise UnknownFormatError(f"a number unknown to this build: {error}") from error


def _refuse_versions(message: plain_commit_pb2.EncodedEntry) -> None:
    if not 1 <= message.format <= FORMAT:
        raise UnknownFormatError(f"an entry of format {message.format}; this build reads {FORMAT}")
    _refuse_level(message.level)
    if message.limits_version not in LIMITS_BY_VERSION:
        raise UnknownFormatError(
            f"an entry under limits {message.limits_version}; this build has "
            f"{sorted(LIMITS_BY_VERSION)}"
        )


def _refuse_level(level: int) -> None:
    if not 1 <= level <= LEVEL:
        raise UnknownFormatError(
            f"an entry of level {level}; this build knows levels up to {LEVEL}: install the "
            "release that wrote it (docs/levels.md)"
        )
