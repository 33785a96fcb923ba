"""Limits that the machine holds, at their real numbers: what is over one leaves no trace."""

from dataclasses import replace

import pytest

from musterd.coordinator.machine import access, quotas
from musterd.coordinator.machine.commands import (
    AddPartitions,
    AlterAcls,
    AlterQuotas,
    Assignment,
    CloseRound,
    CreateToken,
    CreateTopic,
    ExpireOffsets,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    Protocol,
    ReplaceNode,
    RevokeToken,
    RoundTimer,
    SetTopicZones,
    SyncGroup,
    TopicPartition,
)
from musterd.coordinator.machine.decide.dispatch import decide
from musterd.coordinator.machine.envelope import FORMAT, Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import GroupDeleted, LevelRaised, MemberRemoved
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.replies import PARKED, Committed, IdGiven, Refused
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    evolve_shard_counted,
    recount,
)
from musterd.coordinator.machine.state import MEMBER_OVERHEAD_BYTES, TOPIC_OVERHEAD_BYTES
from musterd.levels import LEVEL
from tests.limits.rows import limit
from tests.machine.test_phase_table import join
from tests.machine.text import WALL_MS

WIDE = "é"
"""A character of two bytes."""


class Shard:
    """A shard with the real limits, to which entries are applied."""

    def __init__(self):
        self.state = ShardState()
        evolve_shard_counted(self.state, LevelRaised(LEVEL))
        self.index = 0

    def apply(self, *commands, time_ms=1, wall_ms=WALL_MS):
        """One entry; the results of its commands."""
        self.index += 1
        entry = Entry(FORMAT, LEVEL, time_ms, wall_ms, LIMITS_VERSION, commands)
        return apply_entry(self.state, entry, self.index)

    def hold_against(self, command, step, error):
        """Accepted up to the limit; over it refused with `error`, and not a byte has changed."""
        before = self.state.digest
        (result,) = self.apply(command)
        if step <= 0:
            assert not isinstance(result.reply, Refused), result.reply
            assert result.events
        else:
            assert isinstance(result.reply, Refused)
            assert result.reply.error is error
            assert result.reply.message.endswith(".")
            assert (result.events, result.writes) == ((), ())
            assert self.state.digest == before
        for group in self.state.groups.values():
            check(group)
        assert self.state.digest == recount(self.state)


@pytest.fixture
def shard():
    """Nothing stored; at ms 1 of shard time."""
    shard = Shard()
    shard.apply()
    return shard


def wide(size: int) -> str:
    """A text of `size` bytes, and as few characters as may be."""
    return WIDE * (size // 2) + "x" * (size % 2)


def commit(*partitions, **more):
    """A simple commit."""
    return replace(OffsetCommit("g", "", -1, 0, partitions), **more)


def settled(shard, *members):
    """A group of these members in Completing; its generation is 1."""
    for member in members:
        shard.apply(join(client=member))
    for _ in range(2):
        group = shard.state.groups["g"]
        if group.timer is not RoundTimer.SYNC:
            firing = CloseRound("g", group.round, group.timer, group.deadline_ms)
            shard.apply(firing, time_ms=group.deadline_ms)
    assert shard.state.groups["g"].generation == 1


# ---- text and bytes of one request


@limit("id_max_bytes")
@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda text: replace(join(), group_id=text), Error.INVALID_GROUP_ID),
        (lambda text: join(instance=text), Error.INVALID_REQUEST),
        (lambda text: join(client=text[:-1], nonce=""), Error.INVALID_REQUEST),
        (lambda text: replace(join(), protocol_type=text), Error.INVALID_REQUEST),
        (lambda text: replace(join(), client_host=text), Error.INVALID_REQUEST),
        (lambda text: commit(PartitionCommit(text, 0, 1, "", None)), Error.INVALID_REQUEST),
        (
            lambda text: CreateTopic("t" * len(text.encode()), 1),
            Error.INVALID_TOPIC_EXCEPTION,
        ),
        (lambda text: ReplaceNode(1, text), Error.INVALID_REQUEST),
    ],
    ids=["group", "instance", "member", "type", "host", "commit", "topic", "store"],
)
def test_ids_in_bytes(shard, make, error, step):
    """Group, member and instance ids, topics and what else names something: bytes of UTF-8."""
    command = make(wide(LIMITS.id_max_bytes + step))
    if getattr(command, "client_id", "n") != "n":  # its id is "-9" longer than the client's
        client = wide(LIMITS.id_max_bytes + step - len("-9"))
        command = replace(command, client_id=client)
    shard.hold_against(command, step, error)


@limit("reason_max_chars")
def test_reasons_are_cut_and_not_refused(shard, step):
    """KIP-800: whoever leaves for a long story leaves all the same."""
    shard.apply(join(client="a"))
    reason = WIDE * (LIMITS.reason_max_chars + step)
    (result,) = shard.apply(LeaveGroup("g", (LeavingMember("a-1", reason),)))
    (removed,) = [event for event in result.events if isinstance(event, MemberRemoved)]
    assert removed.reason == WIDE * (LIMITS.reason_max_chars + min(step, 0))


@limit("member_metadata_max_bytes")
def test_metadata_of_a_member(shard, step):
    """Names and metadata of its protocols, and the topics that it names."""
    rest = LIMITS.member_metadata_max_bytes - len("range") - len("rr") - len("t")
    protocols = (Protocol("range", b"x" * (rest - 100)), Protocol("rr", b"x" * (100 + step)))
    shard.hold_against(replace(join(), protocols=protocols), step, Error.INVALID_REQUEST)


@limit("member_max_protocols")
def test_protocols_of_a_member(shard, step):
    """Entries of rules 1 knew no such limit."""
    count = LIMITS.member_max_protocols + step
    wanted = replace(join(), protocols=tuple(Protocol(f"p{n}", b"") for n in range(count)))
    old = Envelope(1, 1, 1, LIMITS_VERSION, 0, LIMITS)
    assert decide(None, wanted, old).reply is PARKED
    shard.hold_against(wanted, step, Error.INVALID_REQUEST)


def weight(member_id, metadata):
    """Of a member of protocol "range" and topic "t"."""
    texts = "range" + "t" + member_id
    return len(texts) + metadata + MEMBER_OVERHEAD_BYTES + TOPIC_OVERHEAD_BYTES


@limit("group_metadata_max_bytes")
def test_metadata_of_a_group(shard, step):
    """47 members of the most; the last brings a byte less, as much, or a byte more."""
    most = LIMITS.member_metadata_max_bytes - len("range") - len("t")
    names = [f"m{number:02}" for number in range(47)]
    for name in names:
        shard.apply(join(client=name, meta=b"x" * most))
    shard.apply(join(client="small", meta=b"x" * 100))
    others = len(names) * weight("m00-1", most) + weight("small-1", 100)
    rest = LIMITS.group_metadata_max_bytes - others - weight("last-1", 0)
    last = join(client="last", meta=b"x" * (rest + step))
    shard.hold_against(last, step, Error.GROUP_MAX_SIZE_REACHED)
    # nobody lost a place, and one that joins again is not counted twice
    assert len(shard.state.groups["g"].members) == len(names) + 1 + (step <= 0)
    again = join("small-1", "small", meta=b"x" * (100 - min(step, 0)))
    assert not isinstance(shard.apply(again)[0].reply, Refused)


@limit("member_assignment_max_bytes")
def test_assignment_of_a_member(shard, step):
    """Refused as a whole, and the group leader may send a smaller one."""
    settled(shard, "a", "b")
    size = LIMITS.member_assignment_max_bytes + step
    vector = (Assignment("a-1", b"a"), Assignment("b-1", b"x" * size))
    whole = SyncGroup("g", "a-1", 1, "", "", vector)
    shard.hold_against(whole, step, Error.INVALID_REQUEST)
    if step > 0:
        shard.hold_against(replace(whole, assignments=vector[:1]), 0, None)


@limit("assignments_max_bytes")
def test_assignments_of_a_group(shard, step):
    """Of all members together."""
    full = LIMITS.assignments_max_bytes // LIMITS.member_assignment_max_bytes
    names = [f"m{number}" for number in range(full + 1)]
    settled(shard, *names)
    sizes = [LIMITS.member_assignment_max_bytes] * (full - 1)
    sizes += [LIMITS.member_assignment_max_bytes - 100, 100 + step]
    vector = tuple(
        Assignment(f"{name}-1", b"x" * size) for name, size in zip(names, sizes, strict=True)
    )
    shard.hold_against(SyncGroup("g", "m0-1", 1, "", "", vector), step, Error.INVALID_REQUEST)


@limit("offset_metadata_max_bytes")
def test_metadata_of_an_offset(shard, step):
    """That partition alone is refused: the others are stored (gp-O7)."""
    text = wide(LIMITS.offset_metadata_max_bytes + step)
    partitions = [PartitionCommit("t", n, 5, text if n == 1 else "", None) for n in range(3)]
    (result,) = shard.apply(commit(*partitions))
    told = Error.OFFSET_METADATA_TOO_LARGE if step > 0 else Error.NONE
    assert isinstance(result.reply, Committed)
    assert [p.error for p in result.reply.partitions] == [Error.NONE, told, Error.NONE]
    stored = {number for _, number in shard.state.groups["g"].offsets}
    assert stored == ({0, 2} if step > 0 else {0, 1, 2})


@limit("offset_metadata_max_bytes")
def test_metadata_of_an_offset_in_an_atomic_commit(shard, step):
    """All, or none."""
    text = wide(LIMITS.offset_metadata_max_bytes + step)
    partitions = [PartitionCommit("t", n, 5, text if n == 1 else "", None) for n in range(3)]
    (result,) = shard.apply(commit(*partitions, atomic=True, blob=b"b"))
    assert len(result.events) == (0 if step > 0 else 4)
    assert ("g" in shard.state.groups) == (step <= 0)


@limit("commit_max_partitions")
def test_partitions_of_a_commit(shard, step):
    """Refused as a whole."""
    count = LIMITS.commit_max_partitions + step
    partitions = [PartitionCommit("t", number, 1, "", None) for number in range(count)]
    shard.hold_against(commit(*partitions), step, Error.INVALID_REQUEST)


@limit("commit_blob_max_bytes")
def test_blob_of_a_commit(shard, step):
    """Refused with its offsets."""
    blob = b"x" * (LIMITS.commit_blob_max_bytes + step)
    wanted = commit(PartitionCommit("t", 0, 1, "", None), atomic=True, blob=blob)
    shard.hold_against(wanted, step, Error.INVALID_REQUEST)


@limit("offset_delete_max_partitions")
def test_offsets_deleted_in_one_call(shard, step):
    """Refused as a whole: everything is still stored."""
    count = LIMITS.offset_delete_max_partitions + step
    keys = [TopicPartition("t", number) for number in range(count)]
    for key in keys:
        shard.apply(commit(PartitionCommit(*key, 1, "", None)))
    shard.hold_against(OffsetDelete("g", tuple(keys)), step, Error.INVALID_REQUEST)
    assert len(shard.state.groups["g"].offsets) == (count if step > 0 else 0)


@limit("sweep_max_partitions")
def test_offsets_of_one_sweep(shard, step):
    """What is more stays for the next, and the group with it."""
    count = LIMITS.sweep_max_partitions + step
    keys = [TopicPartition("t", number) for number in range(count)]
    for key in keys:
        shard.apply(commit(PartitionCommit(*key, 1, "", None)))
    sweep = ExpireOffsets("g", WALL_MS + 10, 10, tuple(keys))
    (result,) = shard.apply(sweep)
    assert any(isinstance(event, GroupDeleted) for event in result.events) == (step <= 0)
    if step > 0:
        assert len(shard.state.groups["g"].offsets) == step
        shard.apply(replace(sweep, partitions=tuple(keys[-step:])))
    assert "g" not in shard.state.groups


@limit("session_timeout_min_ms")
def test_the_shortest_session_timeout(shard, step):
    """Here the forbidden side is below."""
    wanted = replace(join(), session_timeout_ms=LIMITS.session_timeout_min_ms - step)
    shard.hold_against(wanted, step, Error.INVALID_SESSION_TIMEOUT)


@limit("session_timeout_max_ms")
def test_the_longest_session_timeout(shard, step):
    """30 minutes."""
    wanted = replace(join(), session_timeout_ms=LIMITS.session_timeout_max_ms + step)
    shard.hold_against(wanted, step, Error.INVALID_SESSION_TIMEOUT)


# ---- how many of a kind


@limit("group_max_members")
def test_members_of_a_group(shard, step):
    """The others keep their places, and one that goes makes room."""
    for number in range(LIMITS.group_max_members - 1 + step):
        shard.apply(join(client=f"m{number}"))
    shard.hold_against(join(client="last"), step, Error.GROUP_MAX_SIZE_REACHED)
    assert len(shard.state.groups["g"].members) == LIMITS.group_max_members + min(step, 0)
    if step > 0:
        shard.apply(LeaveGroup("g", (LeavingMember("m0-1", ""),)))
        shard.hold_against(join(client="last"), 0, None)


@limit("group_max_members")
def test_members_that_leave_in_one_call(shard, step):
    """No group has more; nobody leaves by half of a call."""
    shard.apply(join(client="a"))
    others = [LeavingMember(f"m{number}", "") for number in range(LIMITS.group_max_members + step)]
    wanted = LeaveGroup("g", (LeavingMember("a-1", ""), *others[1:]))
    shard.hold_against(wanted, step, Error.INVALID_REQUEST)
    assert bool(shard.state.groups["g"].members) == (step > 0)


@limit("group_max_pending")
def test_ids_handed_out(shard, step):
    """One that is used makes room."""
    for number in range(LIMITS.group_max_pending - 1 + step):
        (result,) = shard.apply(join(client=f"m{number}", nonce=""))
        assert isinstance(result.reply, IdGiven)
    shard.hold_against(join(client="last", nonce=""), step, Error.GROUP_MAX_SIZE_REACHED)
    assert len(shard.state.groups["g"].pending) == LIMITS.group_max_pending + min(step, 0)
    if step > 0:
        shard.hold_against(join("m0-9", "m0"), 0, None)
        shard.hold_against(join(client="last", nonce=""), 0, None)


@limit("max_topics")
def test_topics(shard, step):
    """Of the cluster."""
    for number in range(LIMITS.max_topics - 1 + step):
        shard.apply(CreateTopic(f"t{number}", 1))
    shard.hold_against(CreateTopic("last", 1), step, Error.INVALID_REQUEST)
    # what is known may still be said again, and grow
    assert not isinstance(shard.apply(CreateTopic("t0", 1))[0].reply, Refused)
    assert not isinstance(shard.apply(AddPartitions("t0", 2))[0].reply, Refused)


@limit("topic_max_partitions")
@pytest.mark.parametrize("grown", [False, True])
def test_partitions_of_a_topic(shard, grown, step):
    """New, or grown: it keeps those that it had."""
    count = LIMITS.topic_max_partitions + step
    if grown:
        shard.apply(CreateTopic("t", 1))
    wanted = AddPartitions("t", count) if grown else CreateTopic("t", count)
    shard.hold_against(wanted, step, Error.INVALID_PARTITIONS)


@limit("topic_zones_max_bytes")
@pytest.mark.parametrize("altered", [False, True])
def test_bytes_of_the_zones_of_a_topic(shard, altered, step):
    """Of a new one, or of one that is there."""
    size = LIMITS.topic_zones_max_bytes + step
    text = ("zz;" * size)[: size - 1] + "z"
    if altered:
        shard.apply(CreateTopic("t", 1))
    wanted = SetTopicZones("t", text) if altered else CreateTopic("t", 1, text)
    shard.hold_against(wanted, step, Error.INVALID_REQUEST)


@limit("partition_max_zones")
def test_zones_of_a_partition(shard, step):
    """Whichever of the topic's."""
    zones = ",".join(f"z{n}" for n in range(LIMITS.partition_max_zones + step))
    shard.hold_against(CreateTopic("t", 1, f"a;{zones}"), step, Error.INVALID_REQUEST)


@limit("all_zones_max_bytes")
def test_bytes_of_the_zones_of_all_topics(shard, step):
    """One whose zones are set again counts once."""
    size = LIMITS.topic_zones_max_bytes
    text = ("zz;" * size)[: size - 1] + "z"
    for number in range(LIMITS.all_zones_max_bytes // size - 1):
        shard.apply(CreateTopic(f"t{number}", 1, text))
    shard.apply(CreateTopic("one", 1, "zzz"), CreateTopic("last", 1, "a"))
    shard.hold_against(SetTopicZones("last", text[3 - step :]), step, Error.INVALID_REQUEST)


@limit("max_nodes")
def test_replaced_nodes(shard, step):
    """One that was replaced may be replaced again."""
    for number in range(LIMITS.max_nodes - 1 + step):
        shard.apply(ReplaceNode(number, "store"))
    shard.hold_against(ReplaceNode(99_999, "store"), step, Error.INVALID_REQUEST)
    assert not isinstance(shard.apply(ReplaceNode(0, "another"))[0].reply, Refused)


def acl(number, name="g"):
    """A rule of its own."""
    pattern, operation = access.Pattern.LITERAL, access.Operation.JOIN
    return access.AclRule(f"p{number}", operation, access.Resource.GROUP, pattern, name)


@limit("alter_acls_max_rules")
def test_rules_that_change_at_once(shard, step):
    """Those that are added and those that are removed count alike."""
    count = LIMITS.alter_acls_max_rules + step
    rules = tuple(map(acl, range(count)))
    shard.hold_against(AlterAcls(rules[1:], rules[:1]), step, Error.INVALID_REQUEST)


@limit("max_acl_rules")
def test_rules_of_the_cluster(shard, step):
    """One that stands may be added again, and one removed makes room."""
    count = LIMITS.max_acl_rules - 1 + step
    at_once = LIMITS.alter_acls_max_rules
    for start in range(0, count, at_once):
        shard.apply(AlterAcls(tuple(map(acl, range(start, min(start + at_once, count))))))
    shard.hold_against(AlterAcls((acl("new"),)), step, Error.INVALID_REQUEST)
    assert not isinstance(shard.apply(AlterAcls((acl(0),)))[0].reply, Refused)
    assert not isinstance(shard.apply(AlterAcls((acl("next"),), (acl(0),)))[0].reply, Refused)


def token(number, scopes=0):
    """A token of its own, with so many scopes."""
    literal, join = access.Pattern.LITERAL, access.Operation.JOIN
    scope = access.TokenScope(join, access.Resource.GROUP, literal, "g")
    return CreateToken(f"{number:016x}", "ann", bytes(32), scopes=(scope,) * scopes)


@limit("max_tokens")
def test_tokens_of_the_cluster(shard, step):
    """One that is revoked makes room."""
    (first,) = shard.apply(token(0))
    (created,) = first.events
    for number in range(1, LIMITS.max_tokens - 1 + step):  # each decision looks at all of them
        version = created.access_version + number
        made = replace(created, token_id=token(number).token_id, access_version=version)
        evolve_shard_counted(shard.state, made)
    shard.hold_against(token(99_999), step, Error.INVALID_REQUEST)
    shard.apply(RevokeToken(token(0).token_id))
    assert not isinstance(shard.apply(token(99_998))[0].reply, Refused)


@limit("token_max_scopes")
def test_scopes_of_a_token(shard, step):
    """As many as there may be."""
    made = token(0, LIMITS.token_max_scopes + step)
    shard.hold_against(made, step, Error.INVALID_REQUEST)


def quota(number, value=1):
    """A quota of a group of its own."""
    group, joins = quotas.QuotaEntity.GROUP, quotas.QuotaKey.JOINS
    return quotas.QuotaChange(group, f"g{number}", joins, value)


@limit("alter_quotas_max")
def test_quotas_that_change_at_once(shard, step):
    """Those that are removed count, too."""
    count = LIMITS.alter_quotas_max + step
    changes = tuple(quota(number, number % 2) for number in range(count))
    shard.hold_against(AlterQuotas(changes), step, Error.INVALID_REQUEST)


@limit("max_quotas")
def test_quotas_of_the_cluster(shard, step):
    """One that counts may be changed, and one removed makes room."""
    count = LIMITS.max_quotas - 1 + step
    at_once = LIMITS.alter_quotas_max
    for start in range(0, count, at_once):
        shard.apply(AlterQuotas(tuple(map(quota, range(start, min(start + at_once, count))))))
    shard.hold_against(AlterQuotas((quota("new"),)), step, Error.INVALID_REQUEST)
    assert not isinstance(shard.apply(AlterQuotas((quota(0, 2),)))[0].reply, Refused)
    both = AlterQuotas((quota("next"), quota(1, 0)))
    assert not isinstance(shard.apply(both)[0].reply, Refused)
