"""The values of records: the forms that are stored, sent and hashed, one pair of functions each.

A field added later makes a form longer under a version of its own; a form never changes.
"""

from collections.abc import Iterable
from struct import Struct

from musterd.coordinator.machine.access import (
    AclRule,
    Operation,
    Pattern,
    Resource,
    Token,
    TokenScope,
)
from musterd.coordinator.machine.commands import PartitionCommit, Protocol, RoundTimer
from musterd.coordinator.machine.commit_events import CommitColumns
from musterd.coordinator.machine.quotas import QuotaEntity, QuotaKey, QuotaOf
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.records.encoding import (
    RECORD_VERSION,
    Reader,
    RecordError,
    put_bytes,
    put_count,
    put_int,
    put_optional,
    put_text,
    put_texts,
)
from musterd.coordinator.machine.state import Blob, Group, Member, Offset, Phase

_VERSION = bytes((RECORD_VERSION,))
_LONGER_VERSION = RECORD_VERSION + 1
"""The version of a record with one field more: when a member joined, where an offset's partition
starts, a static member's own token."""
_LONGER = bytes((_LONGER_VERSION,))
_ASKING_VERSION = RECORD_VERSION + 2
"""The version of the record of a member that asked for its assignment by its Join: as the longer
one, under any rules."""
_ASKING = bytes((_ASKING_VERSION,))
_PRINCIPAL_VERSION = RECORD_VERSION + 3
"""The version of the record of a member that says who made it one: as the longer one, then whether
it asked for its assignment by its Join, and the principal."""
_PRINCIPAL = bytes((_PRINCIPAL_VERSION,))
_EPOCH_VERSION = RECORD_VERSION + 2
"""The version of the record of an offset with a leader epoch: where its partition starts, if known,
and the epoch."""
_EPOCH = bytes((_EPOCH_VERSION,))
_THREE_INTS = Struct(">qqq")
_OFFSET = Struct(">BqIB")
_OFFSET_AND_END = Struct(">BqIBq")
"""Version, offset, no metadata, no end offset or one."""


def put_header(group: Group) -> bytes:
    """The group without its maps."""
    return b"".join(
        (
            _VERSION,
            put_text(group.phase.value),
            put_text(group.protocol_type),
            put_text(group.protocol_name),
            put_int(group.generation),
            put_int(group.round),
            put_text(group.leader_id),
            put_int(group.next_join_seq),
            put_optional(group.timer),
            put_int(group.deadline_ms),
            put_int(group.remaining_ms),
            b"\x01" if group.new_member_added else b"\x00",
        )
    )


def take_header(group_id: str, reader: Reader) -> Group:
    reader.version()
    try:
        phase = Phase(reader.text())
        group = Group(
            group_id=group_id,
            phase=phase,
            protocol_type=reader.text(),
            protocol_name=reader.text(),
            generation=reader.integer(),
            round=reader.integer(),
            leader_id=reader.text(),
            next_join_seq=reader.integer(),
        )
        timer = reader.optional()
        group.timer = None if timer is None else RoundTimer(timer)
    except ValueError as error:
        raise RecordError(f"group {quoted(group_id)}: {error}") from error
    group.deadline_ms = reader.integer()
    group.remaining_ms = reader.integer()
    group.new_member_added = reader.flag()
    reader.end()
    return group


def put_member(member: Member) -> bytes:
    """A member, without what has records of its own."""
    parts = [
        _VERSION,
        put_text(member.client_id),
        put_text(member.client_host),
        put_int(member.session_timeout_ms),
        put_int(member.rebalance_timeout_ms),
        put_count(len(member.protocols)),
    ]
    for protocol in member.protocols:
        parts += (put_text(protocol.name), put_bytes(protocol.metadata))
    parts += (
        put_texts(member.subscribed_topics),
        put_int(member.join_seq),
        put_int(member.joined_round),
        put_int(member.synced_generation),
    )
    if member.principal:
        parts[0] = _PRINCIPAL
        asked = b"\x01" if member.with_assignment else b"\x00"
        parts += (put_int(member.joined_ms), asked, put_text(member.principal))
    elif member.joined_ms or member.with_assignment:  # else as ever
        parts[0] = _ASKING if member.with_assignment else _LONGER
        parts.append(put_int(member.joined_ms))
    return b"".join(parts)


def take_member(member_id: str, reader: Reader) -> Member:
    version = reader.version(_PRINCIPAL_VERSION)
    member = Member(
        member_id=member_id,
        client_id=reader.text(),
        client_host=reader.text(),
        session_timeout_ms=reader.integer(),
        rebalance_timeout_ms=reader.integer(),
        protocols=tuple(Protocol(reader.text(), reader.blob()) for _ in range(reader.count())),
        subscribed_topics=reader.texts(),
        join_seq=reader.integer(),
        joined_round=reader.integer(),
        synced_generation=reader.integer(),
    )
    if version >= _LONGER_VERSION:
        member.joined_ms = reader.integer()
    member.with_assignment = version == _ASKING_VERSION
    if version == _PRINCIPAL_VERSION:
        member.with_assignment, member.principal = reader.flag(), reader.text()
    reader.end()
    return member


def put_static(member: Member) -> bytes:
    """Encode the fields that only a static member has."""
    version, token = (_LONGER, put_int(member.token)) if member.token else (_VERSION, b"")
    return version + put_text(member.instance_id) + put_text(member.replaced_id) + token


def take_static(member: Member, reader: Reader) -> None:
    """Back from `put_static`, into the member."""
    longer = reader.version(_LONGER_VERSION) == _LONGER_VERSION
    member.instance_id = reader.text()
    member.replaced_id = reader.text()
    member.token = reader.integer() if longer else 0
    reader.end()


def put_writer(member_id: str, generation: int, commit_seq: int, wall_ms: int) -> bytes:
    """Encode the commit that wrote an offset; equal in all offsets of the commit."""
    return put_text(member_id) + _THREE_INTS.pack(generation, commit_seq, wall_ms)


def put_committed_one(one: PartitionCommit, writer: bytes) -> bytes:
    """A stored offset that a commit wrote (`put_writer`), as `put_offset` puts it."""
    _, _, offset, text, end, _, start, epoch = one
    if text or start is not None or epoch is not None:
        return _put_offset(offset, text, end, writer, start, epoch)
    if end is None:
        return _OFFSET.pack(RECORD_VERSION, offset, 0, 0) + writer
    return _OFFSET_AND_END.pack(RECORD_VERSION, offset, 0, 1, end) + writer


def put_committed(columns: CommitColumns, writer: bytes) -> list[bytes]:
    """Each of the stored offsets that one commit wrote (`put_committed_one`), without a call."""
    values = []
    for offset, text, end, start, epoch in zip(*columns, strict=True):
        if text or start is not None or epoch is not None:
            values.append(_put_offset(offset, text, end, writer, start, epoch))
        elif end is None:  # the same bytes, and nearly all that is put
            values.append(_OFFSET.pack(RECORD_VERSION, offset, 0, 0) + writer)
        else:
            values.append(_OFFSET_AND_END.pack(RECORD_VERSION, offset, 0, 1, end) + writer)
    return values


def put_plain(offsets: Iterable[int], writer: bytes) -> list[bytes]:
    """`put_committed` of a commit that has nothing but offsets."""
    put = _OFFSET.pack
    return [put(RECORD_VERSION, offset, 0, 0) + writer for offset in offsets]


def _put_offset(
    offset: int,
    metadata: str,
    end_offset: int | None,
    writer: bytes,
    start_offset: int | None,
    leader_epoch: int | None,
) -> bytes:
    if leader_epoch is not None:
        version, start = _EPOCH, put_optional(start_offset) + put_int(leader_epoch)
    elif start_offset is not None:
        version, start = _LONGER, put_int(start_offset)
    else:
        version, start = _VERSION, b""
    parts = (version, put_int(offset), put_text(metadata), put_optional(end_offset), writer, start)
    return b"".join(parts)


def put_offset(offset: Offset) -> bytes:
    return _put_offset(
        offset.offset,
        offset.metadata,
        offset.end_offset,
        put_writer(offset.member_id, offset.generation, offset.commit_seq, offset.wall_ms),
        offset.start_offset,
        offset.leader_epoch,
    )


def take_offset(reader: Reader) -> Offset:
    version = reader.version(_EPOCH_VERSION)
    offset = Offset(
        offset=reader.integer(),
        metadata=reader.text(),
        end_offset=reader.optional(),
        member_id=reader.text(),
        generation=reader.integer(),
        commit_seq=reader.integer(),
        wall_ms=reader.integer(),
        start_offset=reader.integer() if version == _LONGER_VERSION else None,
    )
    if version == _EPOCH_VERSION:
        offset.start_offset, offset.leader_epoch = reader.optional(), reader.integer()
    reader.end()
    return offset


def put_blob(kept: Blob) -> bytes:
    return b"".join(
        (
            _VERSION,
            put_bytes(kept.blob),
            put_text(kept.member_id),
            put_int(kept.generation),
            put_int(kept.commit_seq),
        )
    )


def take_blob(reader: Reader) -> Blob:
    reader.version()
    kept = Blob(
        blob=reader.blob(),
        member_id=reader.text(),
        generation=reader.integer(),
        commit_seq=reader.integer(),
    )
    reader.end()
    return kept


def put_config(config: dict[str, int]) -> bytes:
    """By name, whatever the order in which they were set."""
    pairs = [put_text(name) + put_int(value) for name, value in sorted(config.items())]
    return _VERSION + put_count(len(pairs)) + b"".join(pairs)


def take_config(reader: Reader) -> dict[str, int]:
    reader.version()
    config = {reader.text(): reader.integer() for _ in range(reader.count())}
    reader.end()
    return config


def put_settings(texts: dict[str, str]) -> bytes:
    """Return the settings that are texts, by name, whatever the order in which they were set."""
    pairs = [put_text(name) + put_text(value) for name, value in sorted(texts.items())]
    return _VERSION + put_count(len(pairs)) + b"".join(pairs)


def take_settings(reader: Reader) -> dict[str, str]:
    reader.version()
    texts = {reader.text(): reader.text() for _ in range(reader.count())}
    reader.end()
    return texts


def put_fence(group: Group) -> bytes:
    """The fencing tokens: its generation's, and the last one."""
    return _VERSION + put_int(group.token) + put_int(group.fence)


def take_fence(group: Group, reader: Reader) -> None:
    """Back from `put_fence`, into the group."""
    reader.version()
    group.token = reader.integer()
    group.fence = reader.integer()
    reader.end()


def put_number(number: int) -> bytes:
    """The value of a shard-wide record that is one number."""
    return _VERSION + put_int(number)


def take_number(value: bytes) -> int:
    reader = Reader(value)
    reader.version()
    number = reader.integer()
    reader.end()
    return number


def put_numbers(first: int, second: int) -> bytes:
    """The value of a shard-wide record that is two numbers."""
    return _VERSION + put_int(first) + put_int(second)


def take_numbers(value: bytes) -> tuple[int, int]:
    reader = Reader(value)
    reader.version()
    numbers = reader.integer(), reader.integer()
    reader.end()
    return numbers


def put_assignment(assignment: bytes) -> bytes:
    return _VERSION + put_bytes(assignment)


def take_assignment(value: bytes) -> bytes:
    reader = Reader(value)
    reader.version()
    blob = reader.blob()
    reader.end()
    return blob


def put_name(name: str) -> bytes:
    """Return the value of a record that is one text."""
    return _VERSION + put_text(name)


def take_name(value: bytes) -> str:
    reader = Reader(value)
    reader.version()
    name = reader.text()
    reader.end()
    return name


def put_rule(rule: AclRule) -> bytes:
    """A rule, of which its key is made."""
    return b"".join(
        (
            put_text(rule.principal),
            put_int(rule.resource),
            put_int(rule.pattern),
            put_text(rule.name),
            put_int(rule.operation),
            b"\x01" if rule.deny else b"\x00",
        )
    )


def take_rule(data: bytes) -> AclRule:
    """Back from `put_rule`. Raises RecordError."""
    reader = Reader(data)
    principal = reader.text()
    try:
        resource, pattern = Resource(reader.integer()), Pattern(reader.integer())
        name, operation = reader.text(), Operation(reader.integer())
    except ValueError as error:
        raise RecordError("a rule with a number unknown to this build") from error
    rule = AclRule(principal, operation, resource, pattern, name, reader.flag())
    reader.end()
    return rule


def put_quota(quota: QuotaOf) -> bytes:
    """What a quota belongs to, of which its key is made."""
    return put_int(quota.entity) + put_text(quota.name) + put_int(quota.key)


def take_quota(data: bytes) -> QuotaOf:
    """Back from `put_quota`. Raises RecordError."""
    reader = Reader(data)
    try:
        quota = QuotaOf(QuotaEntity(reader.integer()), reader.text(), QuotaKey(reader.integer()))
    except ValueError as error:
        raise RecordError("a quota with a number unknown to this build") from error
    reader.end()
    return quota


def put_token(token: Token) -> bytes:
    """A token without its id, which is in the key."""
    scopes = (
        put_int(scope.operation)
        + put_int(scope.resource)
        + put_int(scope.pattern)
        + put_text(scope.name)
        for scope in token.scopes
    )
    return b"".join(
        (
            _VERSION,
            put_text(token.principal),
            put_bytes(token.secret_hash),
            put_int(token.created_wall_ms),
            put_int(token.expires_wall_ms),
            put_count(len(token.scopes)),
            *scopes,
        )
    )


def take_token(value: bytes) -> Token:
    """Back from `put_token`. Raises RecordError."""
    reader = Reader(value)
    reader.version()
    principal, secret_hash = reader.text(), reader.blob()
    created, expires = reader.integer(), reader.integer()
    try:
        scopes = tuple(
            TokenScope(
                Operation(reader.integer()),
                Resource(reader.integer()),
                Pattern(reader.integer()),
                reader.text(),
            )
            for _ in range(reader.count())
        )
    except ValueError as error:
        raise RecordError("a token with a number unknown to this build") from error
    reader.end()
    return Token(principal, secret_hash, created, expires, scopes)
