"""OffsetCommit (gp-2.7): how far the members have read."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from musterd.coordinator.machine.commands import OffsetCommit, PartitionCommit
from musterd.coordinator.machine.commit_events import CommitEvents, StoredResults
from musterd.coordinator.machine.decide.decision import (
    Decision,
    illegal_generation,
    refuse,
    unavailable,
)
from musterd.coordinator.machine.decide.identity import refuse_identity
from musterd.coordinator.machine.decide.rebalance_rounds import Roster, rebalance
from musterd.coordinator.machine.decide.requests import below_0
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    BlobCommitted,
    GroupEvent,
    OffsetCommitted,
    OffsetSuperseded,
    Trigger,
)
from musterd.coordinator.machine.modern.group import Consumer
from musterd.coordinator.machine.plain_partitions import PlainPartitions
from musterd.coordinator.machine.quotation import quoted
from musterd.coordinator.machine.replies import Committed, PartitionResult, Refused
from musterd.coordinator.machine.state import Blob, Group, Offset, Phase, modern_of

_COMMITS_IN = frozenset({Phase.STABLE, Phase.PREPARING_REBALANCE})
"""The phases of a group with members in which these commit."""


def decide_commit(group: Group | None, command: OffsetCommit, env: Envelope) -> Decision:
    """gp-O4 to gp-O9: the group's checks, then each partition on its own, or all together (atomic).

    A commit of nothing never reaches the group's checks (gp-0.4). A simple commit is stored as
    nobody's, with `commit_seq` 0, because nothing vouches for its ids (sc-O13).
    """
    if not command.partitions:
        return Decision((), Committed(()))
    refused = _refuse(group, command)
    if refused is not None:
        return refused
    if env.level >= 5 and group is not None:  # noqa: PLR2004 - the version in which it came
        older = _refuse_older(group, command, env)
        if older is not None:
            return older
    stale = _stale(group, command)
    if stale:
        return _decide_around(group, command, stale, env)
    stored = _store_all(group, command, env)
    if stored is not None:
        return stored
    if command.atomic:
        return _decide_atomic(group, command, env)
    events, results = _each(group, command, env)
    return Decision(events, Committed(results))


def _stale(group: Group | None, command: OffsetCommit) -> dict[int, PartitionResult]:
    """Return, by position, the partitions of which the member may not commit.

    A commit that names tokens has that of the present grant of each partition. One that names none,
    as Kafka's clients send it, has a member epoch at which the grant was there (gp-O6, KIP-1251).
    """
    modern = modern_of(group)
    if modern is None:
        return {}
    consumer = modern.members[command.member_id]
    if consumer.is_classic:
        return _not_held_since(consumer, command)
    found: dict[int, PartitionResult] = {}
    for at, wanted in enumerate(command.partitions):
        now = consumer.token_of(wanted.topic, wanted.partition)
        if not now:
            message = "The member has no grant of this partition."
        elif command.tokens:
            token = command.tokens[at]
            if token == now:
                continue
            message = f"The member's grant has token {now}, not {token}."
        else:
            since = consumer.assignment_epoch(now)
            if since <= command.generation <= consumer.epoch:
                continue
            message = (
                f"The member's grant is of its epochs {since} to {consumer.epoch}, and the commit "
                f"of {command.generation}."
            )
        found[at] = _result(wanted, Error.STALE_MEMBER_EPOCH, message)
    return found


def _not_held_since(consumer: Consumer, command: OffsetCommit) -> dict[int, PartitionResult]:
    """A classic member's commit that races with its Join is good for what it kept (KIP-1251)."""
    if command.generation == consumer.generation:
        return {}
    message = "The member does not hold it since that generation."
    return {
        at: _result(wanted, Error.ILLEGAL_GENERATION, message)
        for at, wanted in enumerate(command.partitions)
        if not 0 < consumer.token_of(wanted.topic, wanted.partition) <= consumer.generation
    }


def _decide_around(
    group: Group | None, command: OffsetCommit, stale: dict[int, PartitionResult], env: Envelope
) -> Decision:
    """Store the partitions that are not stale; of an atomic commit nothing."""
    if command.atomic:
        message = "The commit is atomic, and a token or the epoch of it is stale."
        results = [
            stale.get(at) or _result(wanted, Error.OPERATION_NOT_ATTEMPTED, message)
            for at, wanted in enumerate(command.partitions)
        ]
        return Decision((), Committed(tuple(results)))
    good = [one for at, one in enumerate(command.partitions) if at not in stale]
    events, found = _each(group, replace(command, partitions=tuple(good), tokens=()), env)
    left = iter(found)
    merged = (stale.get(at) or next(left) for at in range(len(command.partitions)))
    return Decision(events, Committed(tuple(merged)))


def decide_again(group: Group | None, command: OffsetCommit, env: Envelope) -> Decision | None:
    """A member's plain commit of partitions that the group has offsets of; None: any other.

    Nearly all commits are such, and `decide` comes to the same by each rule in turn: what is stored
    was within its bounds, as the names of the group and of the member were.
    """
    commit_seq, member_id = command.commit_seq, command.member_id
    instance_id = command.group_instance_id
    if (
        group is None
        or group.phase not in _COMMITS_IN
        or group.generation != command.generation
        or member_id not in group.members
        or (instance_id and group.instances.get(instance_id) != member_id)
        or command.creation_version > group.topics_version
        or commit_seq < 0
        or command.atomic
        or command.forward_only
        or command.blob is not None
        or command.expected_generation is not None
    ):
        return None
    partitions = command.partitions
    if isinstance(partitions, PlainPartitions):
        return _decide_columns(group, command, partitions, env)
    if len(partitions) != 1:
        return None
    topic, partition, offset, metadata, _, expected, start, _ = partitions[0]
    ref = (topic, partition)
    kept = group.offsets.get(ref)
    if (
        kept is None
        or offset < 0
        or (commit_seq and commit_seq <= kept.commit_seq and kept.member_id == member_id)
        or metadata
        or expected is not None
        or start is not None
    ):
        return None
    events = CommitEvents(command, (ref,), (member_id, commit_seq), env.wall_ms, None)
    return Decision(events, Committed(StoredResults((ref,))))


def _decide_columns(
    group: Group, command: OffsetCommit, partitions: PlainPartitions, env: Envelope
) -> Decision | None:
    """`decide_again` of several partitions, each of which may be named once."""
    refs, member_id, commit_seq = partitions.refs, command.member_id, command.commit_seq
    if len(dict.fromkeys(refs)) < len(refs) or min(partitions.offsets) < 0:
        return None
    for one in map(group.offsets.get, refs):
        if one is None:
            return None
        if commit_seq and commit_seq <= one.commit_seq and one.member_id == member_id:
            return None
    events = CommitEvents(command, refs, (member_id, commit_seq), env.wall_ms, None)
    return Decision(events, Committed(StoredResults(refs)))


def _store_all(group: Group | None, command: OffsetCommit, env: Envelope) -> Decision | None:
    """Every partition is stored, as nearly always; None where anything stands against one.

    Then the partitions are looked at one by one (`_each`): the outcome of that is the rule, and
    where this decides it is the same.
    """
    topics, partitions, offsets, metadata, _, expected, starts, _ = zip(
        *command.partitions, strict=True
    )
    refs = tuple(zip(topics, partitions, strict=True))
    if len(dict.fromkeys(refs)) < len(refs) or _any_below_0(partitions, offsets, starts):
        return None
    most = env.limits.offset_metadata_max_bytes
    if any(metadata) and any(len(text.encode()) > most for text in metadata):
        return None
    member_id, commit_seq = _writer(command)
    stored = {} if group is None else group.offsets
    if expected.count(None) < len(refs) or command.forward_only:
        now = [-1 if kept is None else kept.offset for kept in map(stored.get, refs)]
        if any(at not in (None, was) for at, was in zip(expected, now, strict=True)):
            return None
        if command.forward_only and any(map(int.__lt__, offsets, now)):
            return None
    for kept in map(stored.get, refs) if commit_seq else ():
        if kept is not None and commit_seq <= kept.commit_seq and kept.member_id == member_id:
            return None
    room = _room(stored, env)
    if room < len(refs) and room < sum(ref not in stored for ref in refs):
        return None
    blob, late = _blob(group, command)
    if late:
        return None
    events = CommitEvents(command, refs, (member_id, commit_seq), env.wall_ms, blob)
    return Decision(events, Committed(StoredResults(refs)))


def _any_below_0(
    partitions: Sequence[int], offsets: Sequence[int], starts: Sequence[int | None]
) -> bool:
    """Refused as a whole before rules 4 (requests.py)."""
    below = min(partitions) < 0 or min(offsets) < 0
    return below or any(start is not None and start < 0 for start in starts)


def _room(stored: Mapping[tuple[str, int], Offset], env: Envelope) -> int:
    """How many partitions more the group may have offsets of. Rules 1 had no such limit."""
    if env.level < 2:  # noqa: PLR2004 - the version in which this came
        return env.limits.commit_max_partitions
    return env.limits.group_max_offsets - len(stored)


_Stored = OffsetCommitted | OffsetSuperseded


def _each(
    group: Group | None, command: OffsetCommit, env: Envelope
) -> tuple[tuple[_Stored, ...], tuple[PartitionResult, ...]]:
    """Every partition on its own, after those before it (gp-O7 to gp-O9)."""
    group_id, generation, wall_ms = command.group_id, command.generation, env.wall_ms
    member_id, commit_seq = _writer(command)
    stored = {} if group is None else group.offsets
    room = _room(stored, env)
    written: dict[tuple[str, int], OffsetCommitted] = {}
    events: list[_Stored] = []
    results: list[PartitionResult] = []
    for wanted in command.partitions:
        topic, partition, offset, metadata, end_offset, expected, start_offset, epoch = wanted
        key = (topic, partition)
        kept = written.get(key) or stored.get(key)
        late = commit_seq and kept is not None and commit_seq <= kept.commit_seq
        below = min(partition, offset, start_offset or 0) < 0
        if metadata or late or below or expected is not None or command.forward_only:
            exception = _exception(command, wanted, kept, env)
            if exception is not None:
                event, result = exception
                results.append(result)
                if event is not None:
                    events.append(event)
                continue
        if kept is None:
            if room <= 0:
                message = f"The group has offsets of its {env.limits.group_max_offsets} partitions."
                results.append(_result(wanted, Error.INVALID_COMMIT_OFFSET_SIZE, message))
                continue
            room -= 1
        written[key] = committed = OffsetCommitted(
            group_id,
            topic,
            partition,
            offset,
            metadata,
            end_offset,
            member_id,
            generation,
            commit_seq,
            wall_ms,
            start_offset,
            epoch,
        )
        events.append(committed)
        results.append(PartitionResult(topic, partition, Error.NONE, "", False))
    return tuple(events), tuple(results)


def _decide_atomic(group: Group | None, command: OffsetCommit, env: Envelope) -> Decision:
    """Everything, or nothing where a partition or the blob is refused or superseded.

    A retry of what was applied finds every partition as it wrote it, and writes nothing.
    """
    stored, found = _each(group, command, env)
    wrong = [r for r in found if r.error is not Error.NONE or r.superseded]
    blob, late = _blob(group, command)
    if wrong or late:
        message = "The commit is atomic, and a newer one stands."
        if wrong and wrong[0].error is not Error.NONE:
            message = f"The commit is atomic: {wrong[0].message}"
        results = tuple(
            result
            if result.error is not Error.NONE or result.superseded
            else _result(wanted, Error.OPERATION_NOT_ATTEMPTED, message)
            for wanted, result in zip(command.partitions, found, strict=True)
        )
        return Decision((), Committed(results))
    events: list[GroupEvent] = [*stored]
    if events and blob is not None:
        events.append(blob)
    return Decision(tuple(events), Committed(found))


def _blob(group: Group | None, command: OffsetCommit) -> tuple[BlobCommitted | None, bool]:
    """Return the blob to keep, and whether this member has committed a newer one (gp-O9)."""
    if command.blob is None:
        return None, False
    member_id, commit_seq = _writer(command)
    kept = Blob() if group is None else group.blob
    late = kept.member_id == member_id and commit_seq < kept.commit_seq
    event = BlobCommitted(command.group_id, command.blob, member_id, command.generation, commit_seq)
    return event, bool(commit_seq) and late


def _writer(command: OffsetCommit) -> tuple[str, int]:
    """Member and number of the commit; a simple one is nobody's (sc-O13)."""
    return ("", 0) if command.generation < 0 else (command.member_id, command.commit_seq)


def _refuse(group: Group | None, command: OffsetCommit) -> Decision | None:
    """gp-O4, gp-O5, and the generation that the caller expects."""
    refused = _refuse_caller(group, command)
    expected = command.expected_generation
    current = 0 if group is None else group.generation
    if refused is None and expected is not None and expected != current:
        return refuse(
            Error.ILLEGAL_GENERATION, f"The group's generation is {current}, not {expected}."
        )
    return refused


def _refuse_older(group: Group, command: OffsetCommit, env: Envelope) -> Decision | None:
    """A generation that is older than a topic cannot mean that one, but a former one of its name.

    The next one can, and a round opens for it: a member that names no topics is told of none.
    """
    if command.generation < 0 or command.creation_version <= group.topics_version:
        return None
    events: list[GroupEvent] = []
    if group.phase is Phase.STABLE:
        reason = "a commit to a topic that was made since the generation formed"
        events = rebalance(group, env, Roster(group), Trigger.TOPICS_CHANGED, "", reason)
    message = "A topic of this commit was made since the generation formed: join the next one."
    return Decision(tuple(events), Refused(Error.REBALANCE_IN_PROGRESS, message))


def _refuse_caller(group: Group | None, command: OffsetCommit) -> Decision | None:
    """The rules gp-O4 and gp-O5."""
    simple = command.generation < 0
    if group is None:
        if simple:
            return None
        return refuse(Error.GROUP_ID_NOT_FOUND, f"There is no group {quoted(command.group_id)}.")
    if group.phase is Phase.DEAD:
        return unavailable()
    if simple and group.phase is Phase.EMPTY:
        return None
    stranger = refuse_identity(group, command.member_id, command.group_instance_id)
    if stranger is not None:
        return stranger
    if group.modern is not None and not simple:
        return _refuse_consumer(group.modern.members[command.member_id], command)
    if command.generation not in (group.generation, group.former.get(command.member_id)):
        return illegal_generation(command.generation, group.generation)
    if group.phase is Phase.COMPLETING_REBALANCE:
        return refuse(Error.REBALANCE_IN_PROGRESS, "The new generation has no assignment yet.")
    return None


def _refuse_consumer(consumer: Consumer, command: OffsetCommit) -> Decision | None:
    """A member of a modern group commits nothing when away; else each partition is looked at.

    A classic member's is checked by its generation, which is its token, or was before it joined,
    whatever tokens it names.
    """
    if consumer.is_classic:
        former = consumer.former_generation or consumer.generation  # 0 = none
        if command.generation not in (consumer.generation, former):
            return illegal_generation(command.generation, consumer.generation)
        return None
    if consumer.is_away:
        return refuse(
            Error.STALE_MEMBER_EPOCH, "The member is away: its last commit was before that."
        )
    return None


def _exception(
    command: OffsetCommit,
    wanted: PartitionCommit,
    kept: Offset | OffsetCommitted | None,
    env: Envelope,
) -> tuple[OffsetSuperseded | None, PartitionResult] | None:
    """Why one partition is not simply stored over `kept`: refused, late, or a repetition.

    None where it is stored (gp-O7 to gp-O9).
    """
    low = below_0(wanted)
    if low is not None:
        return None, _result(wanted, Error.INVALID_REQUEST, low)
    most = env.limits.offset_metadata_max_bytes
    if len(wanted.metadata.encode()) > most:
        message = f"An offset's metadata is at most {most} bytes."
        return None, _result(wanted, Error.OFFSET_METADATA_TOO_LARGE, message)
    member_id, commit_seq = _writer(command)
    if commit_seq and kept is not None and kept.member_id == member_id:
        if commit_seq < kept.commit_seq:
            return _superseded(command, wanted, kept.offset)
        if commit_seq == kept.commit_seq:
            if wanted.offset == kept.offset:
                return None, _result(wanted, Error.NONE, "")
            message = f"commit_seq {commit_seq} stored {kept.offset}; new content needs a new one."
            return None, _result(wanted, Error.INVALID_REQUEST, message)
    now = -1 if kept is None else kept.offset
    if wanted.expected_offset is not None and wanted.expected_offset != now:
        message = f"{_spelled(now)} is stored, not {_spelled(wanted.expected_offset)}."
        return None, _result(wanted, Error.INVALID_UPDATE_VERSION, message)
    if command.forward_only and wanted.offset < now:
        return _superseded(command, wanted, now)
    return None


def _superseded(
    command: OffsetCommit, wanted: PartitionCommit, kept_offset: int
) -> tuple[OffsetSuperseded, PartitionResult]:
    member_id, commit_seq = _writer(command)
    event = OffsetSuperseded(
        command.group_id,
        wanted.topic,
        wanted.partition,
        wanted.offset,
        member_id,
        commit_seq,
        kept_offset,
    )
    return event, _result(wanted, Error.NONE, "", superseded=True)


def _spelled(offset: int) -> str:
    return "No offset" if offset < 0 else f"Offset {offset}"


def _result(
    wanted: PartitionCommit, error: Error, message: str, *, superseded: bool = False
) -> PartitionResult:
    return PartitionResult(wanted.topic, wanted.partition, error, message, superseded)
