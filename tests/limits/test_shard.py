"""Limits that the coordinator holds before the log: calls, queues, heartbeats, groups, entries."""

from dataclasses import replace

import pytest

from musterd.coordinator.api.limits.untaken_answers import ANSWER_BYTES, UntakenAnswers
from musterd.coordinator.codec import decode_entry
from musterd.coordinator.machine.commands import (
    LEAVE_EPOCH,
    AlterGroupConfig,
    ConfigSetting,
    ConsumerGroupHeartbeat,
    DeleteGroup,
    ExpireMember,
    ExpireOffsets,
    LeaveGroup,
    LeavingMember,
    PartitionCommit,
    Protocol,
    SyncGroup,
    TopicPartition,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import LevelRaised
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.modern import decide_heartbeat
from musterd.coordinator.machine.modern.weights import WEIGHTS
from musterd.coordinator.machine.replies import Committed, Joined, Refused
from musterd.coordinator.machine.shard_state import evolve_shard_counted, recount
from musterd.coordinator.machine.state import Phase, modern_of
from musterd.coordinator.runtime import command_router, heartbeats
from musterd.coordinator.runtime.answers import Shed
from musterd.coordinator.runtime.large_commits import LARGE
from musterd.coordinator.runtime.proposer import (
    BYTES_PER_GRANT,
    COMMAND_OVERHEAD_BYTES,
    ENTRY_OVERHEAD_BYTES,
    GRANTS_PER_PARTITION,
    JOIN_BYTES_PER_PARTITION,
    JOINING_WORK,
    LEAVING_WORK,
    MEMBERS_PER_PARTITION,
    OFFSETS_PER_PARTITION,
    REPLACEMENT_WORK,
    SYNC_BYTES_PER_PARTITION,
    TEXT_BYTES_PER_PARTITION,
    TOPICS_PER_PARTITION,
    TURN_PARTITIONS_MAX,
)
from musterd.coordinator.runtime.timeouts import UNTAKEN_ROOM_MS
from musterd.invariant import InvariantError
from musterd.levels import LEVEL
from musterd.raft.contract import ENTRY_BYTES_MAX
from tests.coordinator.fakes import Rig, commit, id_of, join
from tests.coordinator.runtime.test_heartbeats import Held
from tests.limits.rows import ENTRY, limit

pytestmark = pytest.mark.long

MODERN = ConsumerGroupHeartbeat(
    "g", "m", 0, session_timeout_ms=10_000, rebalance_timeout_ms=60_000, topics=("t",), owned=()
)
"""A Join of a modern group, or again."""


@pytest.fixture
def rig():
    """A shard that leads, on a log of one replica."""
    rig = Rig()
    rig.log.lead()
    rig.turn()
    return rig


def simple(number, offset=1):
    """A commit that makes a group of its own."""
    return commit("", -1, offset, group=f"g{number}")


def offset_of(rig, number):
    """What is stored in that group, or None."""
    group = rig.shard.state.groups.get(f"g{number}")
    return None if group is None else group.offsets["t", 0].offset


@limit("queue_max_commands")
def test_commands_in_the_queue(rig, step):
    """What was taken is answered; what was not is refused at once, and may come again."""
    count = LIMITS.queue_max_commands + step
    for number in range(count):
        rig.ask(number, simple(number))
    refused = {count - 1: Shed("the shard's queue of commands")} if step > 0 else {}
    assert rig.answers == refused
    rig.drain()
    assert sum(isinstance(a, Committed) for a in rig.answers.values()) == count - len(refused)
    assert [offset_of(rig, n) for n in (0, count - 1)] == [1, None if refused else 1]
    rig.ask("again", simple(count - 1, offset=2))
    rig.turn()
    assert offset_of(rig, count - 1) == 2


@limit("queue_max_bytes")
def test_bytes_in_the_queue(rig, step):
    """Counted as the commands are announced; one that fits is taken after one that does not."""
    full = LIMITS.queue_max_bytes // LIMITS.command_max_bytes
    sizes = [LIMITS.command_max_bytes] * (full - 1) + [LIMITS.command_max_bytes - 1_000]
    for number, size in enumerate(sizes):
        rig.ask(number, simple(number), size=size)
    rig.ask("last", simple("last"), size=1_000 + step)
    expected = {"last": Shed("the bytes in the shard's queue")} if step > 0 else {}
    assert rig.answers == expected
    assert rig.proposer.bytes == LIMITS.queue_max_bytes + (-1_000 if expected else step)
    if expected:
        rig.ask("small", simple("small"), size=1_000)
    rig.turn()
    rig.turn()
    assert rig.proposer.bytes == 0
    assert offset_of(rig, "small" if expected else "last") == 1
    assert (offset_of(rig, "last") is None) == bool(expected)


def wide(number, partitions, offset=1, first=0):
    """A commit of so many partitions, in a group of its own."""
    numbers = range(first, first + partitions)
    wanted = tuple(PartitionCommit("t", p, offset, "", None) for p in numbers)
    return replace(simple(number), partitions=wanted)


@limit("queue_max_partitions")
def test_partitions_in_the_queue(rig, step):
    """What applying them takes is bounded, however short they are; one that fits is taken."""
    most, each = LIMITS.queue_max_partitions, LIMITS.commit_max_partitions
    for number in range(most // each - 1):
        rig.ask(number, wide(number, each))
    rig.ask("last but one", wide("last but one", each - 2 * LARGE))
    rig.ask("last", wide("last", 2 * LARGE + step))
    shed = Shed("the partitions in the shard's queue")
    expected = {"last": shed} if step > 0 else {}
    assert rig.answers == expected
    rig.ask("fits", wide("fits", LARGE + 1))
    assert (rig.answers.get("fits") is None) == (step > 0)
    rig.drain()
    assert rig.proposer.work == 0
    assert (offset_of(rig, "last") is None) == bool(expected)


def test_small_commands_have_room_of_their_own_in_the_queue(rig):
    """As many partitions as large ones have, which are refused no room by them either."""
    most = LIMITS.queue_max_partitions
    for number in range(most // LIMITS.commit_max_partitions):
        rig.ask(number, wide(number, LIMITS.commit_max_partitions))
    rig.ask("large", wide("large", LARGE + 1))
    for number in range(most // LARGE + 1):
        rig.ask(f"small {number}", wide(f"small {number}", LARGE))
    shed = Shed("the partitions in the shard's queue")
    assert rig.answers == {"large": shed, f"small {most // LARGE}": shed}
    rig.drain()
    assert sum(isinstance(answer, Committed) for answer in rig.answers.values()) == 105


def test_what_the_coordinator_itself_proposes_is_not_shed_by_partitions(rig):
    """A sweep of old offsets is what makes room."""
    for number in range(LIMITS.queue_max_partitions // LIMITS.commit_max_partitions):
        rig.ask(number, wide(number, LIMITS.commit_max_partitions))
    sweep = ExpireOffsets("g0", 1, 1, (TopicPartition("t", 0),))
    assert rig.proposer.offer(sweep, 100) is None


@limit("entry_max_partitions")
def test_partitions_of_an_entry(rig, step):
    """Two commands share an entry up to the limit; the largest has one of its own."""
    most = LIMITS.entry_max_partitions
    assert most >= LIMITS.commit_max_partitions
    rig.ask(0, wide(0, most - 10))
    rig.ask(1, wide(1, 10 + step))
    rig.turn()
    assert len(rig.log.entries) == (2 if step > 0 else 1)
    assert [offset_of(rig, n) for n in (0, 1)] == [1, 1]


@pytest.mark.parametrize(("offsets", "entries"), [(1, [5]), (300 * OFFSETS_PER_PARTITION, [3, 2])])
def test_deletions_fill_an_entry_by_the_offsets_that_go_with_them(rig, offsets, entries):
    """Of groups that hold little many are deleted at once; of large ones a few."""
    made = range(5)
    for number in made:
        for first in range(0, offsets, 1_000):
            count = min(1_000, offsets - first)
            rig.ask(f"make {number} {first}", wide(number, count, first=first))
            rig.drain()
    before = len(rig.log.entries)
    for number in made:
        rig.ask(number, DeleteGroup(f"g{number}"))
    rig.drain()
    assert [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]] == entries


def test_joins_that_name_many_topics_share_an_entry_with_few_others(rig):
    """Each of their names is weighed and put: an entry of five Joins took 400 ms."""
    each = LIMITS.entry_max_partitions // 4
    topics = ("t",) * (TOPICS_PER_PARTITION * (each - 1))
    before = len(rig.log.entries)
    for number in range(5):
        rig.ask(number, replace(join(f"m{number}", f"g{number}"), subscribed_topics=topics))
    assert rig.proposer.work == 5 * each
    rig.drain()
    made = [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]]
    assert made == [4, 1]
    assert rig.proposer.work == 0


def test_settings_that_are_long_texts_share_an_entry_with_few_others(rig):
    """Each is checked and put in its one form, which takes some ms."""
    evolve_shard_counted(rig.shard.state, LevelRaised(LEVEL))
    each = LIMITS.entry_max_partitions // 10
    size = TEXT_BYTES_PER_PARTITION * (each - 1)
    text = ";".join(f"{number:03}{'x' * 94}=2" for number in range(size // 100))
    text += f";{'y' * (size - len(text) - 3)}=2"
    before = len(rig.log.entries)
    for number in range(11):
        rig.ask(number, AlterGroupConfig(f"g{number}", (ConfigSetting(WEIGHTS, text),), ()))
    rig.drain()
    made = [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]]
    assert made == [10, 1]


def test_joins_that_name_many_partitions_share_an_entry_with_few_others(rig):
    """Where the coordinator assigns these are read: an entry of twelve Joins took 1.3 s."""
    each = LIMITS.entry_max_partitions // 4
    said = (Protocol("range", b"x" * (JOIN_BYTES_PER_PARTITION * (each - 1))),)
    before = len(rig.log.entries)
    for number in range(5):
        rig.ask(number, replace(join(f"m{number}", f"g{number}"), protocols=said))
    rig.drain()
    made = [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]]
    assert made == [4, 1]


def test_joins_of_a_member_with_many_partitions_share_an_entry_with_few_others(rig):
    """Each gives all of them new tokens: a thousand in one entry would take ten seconds."""
    evolve_shard_counted(rig.shard.state, LevelRaised(LEVEL))
    rig.ask("first", MODERN)
    rig.drain()
    (member,) = rig.shard.state.groups["g"].modern.members.values()
    each = LIMITS.entry_max_partitions // 4
    member.size = GRANTS_PER_PARTITION * (each - 1)
    before = len(rig.log.entries)
    for number in range(5):
        rig.ask(number, MODERN)
    assert rig.proposer.large_work == 5 * each
    rig.drain()
    entries = [decode_entry(entry).commands for entry in rig.log.entries[before:]]
    made = [sum(one == MODERN for one in commands) for commands in entries]
    assert [count for count in made if count] == [4, 1]


def test_syncs_of_a_classic_member_weigh_as_much_as_its_partitions(rig):
    """The coordinator assigns: each answer names all of them."""
    evolve_shard_counted(rig.shard.state, LevelRaised(LEVEL))
    rig.ask("first", MODERN)
    rig.drain()
    said = (Protocol("range", b""),)
    rig.ask("joined", replace(join("c"), protocols=said, subscribed_topics=("t",)))
    rig.drain()
    joined = rig.answers["joined"]
    member = rig.shard.state.groups["g"].modern.members[joined.member_id]
    each = LIMITS.entry_max_partitions // 4
    member.size = GRANTS_PER_PARTITION * (each - 1)
    for number in range(5):
        rig.ask(number, SyncGroup("g", joined.member_id, joined.generation, "", "", ()))
    assert rig.proposer.large_work == 5 * each


def unreadable(rig):
    """A classic group that no modern member can join, as what its member has cannot be read."""
    evolve_shard_counted(rig.shard.state, LevelRaised(LEVEL))
    rig.ask("classic", join("c"))
    rig.drain()
    group = rig.shard.state.groups["g"]
    (member,) = group.members.values()
    member.assignment = b"\xff"  # that cannot be read
    group.phase, group.protocol_name = Phase.STABLE, "range"
    return group


def test_modern_joins_of_a_large_classic_group_weigh_as_much_as_is_read_for_them(rig):
    """Where the log decides: each reads what all its members say."""
    group = unreadable(rig)
    each = LIMITS.entry_max_partitions // 4
    group.bytes = BYTES_PER_GRANT * GRANTS_PER_PARTITION * (each - 1)
    rig.ask("before", join("d"))  # under way, so that what follows goes into the log
    for number in range(5):
        rig.ask(number, MODERN)
    assert rig.proposer.large_work == 5 * each


def test_modern_joins_that_a_quiet_classic_group_refuses_read_what_its_members_say_once(
    rig, monkeypatch
):
    """In an open round never. A thousand that each read megabytes stop a node; a change is seen."""
    group = unreadable(rig)
    read, reads = [], decide_heartbeat.why_not
    monkeypatch.setattr(
        decide_heartbeat, "why_not", lambda *given: read.append(given) or reads(*given)
    )
    group.phase = Phase.PREPARING_REBALANCE
    for number in range(20):
        rig.ask(f"open {number}", MODERN)
    rig.log.run()  # reads are confirmed
    assert rig.answers["open 19"].error is Error.REBALANCE_IN_PROGRESS
    assert read == []
    group.phase, group.digest = Phase.STABLE, group.digest + 1
    for number in range(20):
        rig.ask(number, MODERN)
    rig.log.run()
    refused = [rig.answers[number] for number in range(20)]
    assert {type(one) for one in refused} == {Refused}
    assert len({one.message for one in refused}) == len(read) == 1
    setting = ConfigSetting("offsets.retention.ms", "1000")
    rig.ask("changed", AlterGroupConfig("g", (setting,), ()))
    rig.drain()
    rig.ask("again", MODERN)
    assert len(read) == 2


def test_leaves_of_many_members_share_an_entry_with_few_others(rig):
    """144 of 300 members shared one, which took 0.2 s on each replica."""
    each = LIMITS.entry_max_partitions // 4
    members = (LeavingMember("", "", ""),) * (each * MEMBERS_PER_PARTITION)
    before = len(rig.log.entries)
    for number in range(5):
        rig.ask(number, LeaveGroup(f"g{number}", members))
    rig.drain()
    made = [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]]
    assert made == [4, 1]


def test_large_syncs_share_an_entry_with_few_others_and_none_is_refused(rig):
    """38 of 20 KB shared one, and what each assigned was decoded in the same apply."""
    size = SYNC_BYTES_PER_PARTITION * (LIMITS.entry_max_partitions // 4 - 1)
    before = len(rig.log.entries)
    for number in range(25):
        assert rig.proposer.offer(SyncGroup(f"g{number}", "m", 1, "", "", ()), size) is None
    while rig.proposer.waiting:
        rig.turn()
    made = [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]]
    assert made == [4] * 6 + [1]


def test_a_fleet_of_static_members_comes_back_a_few_in_an_entry_and_none_is_refused(rig):
    """Each may take a place among 2,000, which all replicas do: 250 in an entry took a second."""
    few = LIMITS.entry_max_partitions // REPLACEMENT_WORK
    before = len(rig.log.entries)
    for number in range(LIMITS.group_max_members):
        rig.ask(number, join(f"m{number}", instance=f"i{number}"))
    assert rig.answers == {}
    closed = []
    while rig.proposer.waiting:
        start = len(rig.log.entries)
        rig.turn()
        closed.append(sum(len(decode_entry(e).commands) for e in rig.log.entries[start:]))
        assert len(closed) <= LIMITS.group_max_members
    made = [len(decode_entry(entry).commands) for entry in rig.log.entries[before:]]
    assert max(made) == few
    assert max(closed) == TURN_PARTITIONS_MAX // REPLACEMENT_WORK
    assert len(rig.shard.state.groups["g"].members) == LIMITS.group_max_members


def in_entries(rig, before, kind):
    """How many commands of a kind each entry has that was made since."""
    entries = (decode_entry(entry).commands for entry in rig.log.entries[before:])
    counts = [sum(isinstance(one, kind) for one in commands) for commands in entries]
    return [count for count in counts if count]


@pytest.mark.parametrize("how", ["leave", "end"])
def test_a_fleet_of_modern_members_joins_and_goes_a_few_in_an_entry_and_none_is_refused(rig, how):
    """500 that fell silent shared one, which took a third of a second of each node."""
    evolve_shard_counted(rig.shard.state, LevelRaised(LEVEL))
    count = 120
    before = len(rig.log.entries)
    for number in range(count):
        rig.ask(number, replace(MODERN, member_id=f"m{number}"))
    rig.drain()
    joined = in_entries(rig, before, ConsumerGroupHeartbeat)
    assert sum(joined) == count
    assert max(joined) == LIMITS.entry_max_partitions // (JOINING_WORK + 1)
    rig.turn()
    before = len(rig.log.entries)
    if how == "leave":
        for number in range(count):
            beat = ConsumerGroupHeartbeat("g", f"m{number}", LEAVE_EPOCH)
            rig.ask(f"leave {number}", beat)
        rig.drain()
    else:
        rig.run(MODERN.session_timeout_ms + 2_000)
    gone = in_entries(rig, before, ExpireMember if how == "end" else ConsumerGroupHeartbeat)
    assert sum(gone) == count
    assert max(gone) == LIMITS.entry_max_partitions // (LEAVING_WORK + 1)
    assert modern_of(rig.shard.state.groups.get("g")) is None


def test_a_turn_closes_entries_over_a_part_of_a_long_queue_and_asks_for_the_next(rig):
    """Encoding them holds up the node, too; the order stays."""
    count = LIMITS.queue_max_partitions // LARGE
    for number in range(count):
        rig.ask(number, wide(number, LARGE))
    closed = []
    while rig.proposer.waiting:
        before, wakes = len(rig.log.entries), rig.wakes
        rig.turn()
        closed.append(len(rig.log.entries) - before)
        assert rig.wakes > wakes or not rig.proposer.waiting
    assert closed == [2, 2, 1]
    assert 2 * LIMITS.entry_max_partitions == TURN_PARTITIONS_MAX
    assert [offset_of(rig, n) for n in range(count)] == [1] * count
    assert list(rig.answers) == list(range(count))


@limit("command_max_bytes")
def test_bytes_of_a_command(rig, step):
    """A larger one is refused where the request is read (test_wire.py): here it would be a bug."""
    size = LIMITS.command_max_bytes + step
    if step > 0:
        with pytest.raises(InvariantError):
            rig.ask("a", simple(0), size=size)
        return
    rig.ask("a", simple(0), size=size)
    rig.turn()
    assert offset_of(rig, 0) == 1


@limit("sync_max_bytes")
def test_bytes_of_a_sync(rig, step):
    """More than other commands take, and alone in an entry still less than the log takes."""
    size = LIMITS.sync_max_bytes + step
    vector = SyncGroup("g", "a-1", 1, "", "", ())
    if step > 0:
        with pytest.raises(InvariantError):
            rig.proposer.offer(vector, size)
        return
    assert rig.proposer.offer(vector, size) is None
    assert ENTRY_OVERHEAD_BYTES + COMMAND_OVERHEAD_BYTES + size < ENTRY_BYTES_MAX


@limit(ENTRY)
def test_bytes_of_an_entry(rig, step):
    """Two commands share an entry that stays below the limit; else each has its own."""
    room = ENTRY_BYTES_MAX - 1 - ENTRY_OVERHEAD_BYTES - 2 * COMMAND_OVERHEAD_BYTES
    first = LIMITS.command_max_bytes
    rig.ask(0, simple(0), size=first)
    rig.ask(1, simple(1), size=room - first + step)
    rig.turn()
    assert len(rig.log.entries) == (2 if step > 0 else 1)
    assert [offset_of(rig, n) for n in (0, 1)] == [1, 1]
    assert all(len(entry) < ENTRY_BYTES_MAX for entry in rig.log.entries)


@limit("max_parked_calls")
def test_parked_calls(rig, step):
    """Over all shards of a node. Who is refused is in no group; the others are answered."""
    count, groups = LIMITS.max_parked_calls + step, 20
    for number in range(count):
        rig.ask(number, join(f"m{number}", group=f"g{number % groups}"))
        if number % LIMITS.queue_max_commands == LIMITS.queue_max_commands - 1:
            rig.drain()
    rig.drain()
    assert rig.answers == ({count - 1: Shed("parked calls")} if step > 0 else {})
    members = sum(len(group.members) for group in rig.shard.state.groups.values())
    assert members == rig.call_limits.parked.used == count - max(step, 0)
    rig.run(1_200)
    joined = [answer for answer in rig.answers.values() if isinstance(answer, Joined)]
    assert len(joined) == members
    assert rig.call_limits.parked.used == 0
    assert id_of(f"m{LIMITS.max_parked_calls}") not in rig.shard.state.groups["g0"].members


@limit("held_heartbeats_per_connection")
def test_held_heartbeats_of_a_connection(step):
    """One more is refused; another connection has places of its own."""
    node = Held()
    members = [f"m{number}" for number in range(LIMITS.held_heartbeats_per_connection + step)]
    node.stable(*members, "b")
    held = [node.beat(m, 1, m, nonce=m, connection="c") is not None for m in members]
    assert held == [True] * (len(held) - max(step, 0)) + [False] * max(step, 0)
    assert node.beat("b", 1, "b", connection="d") is not None


@limit("held_members_per_connection")
def test_members_in_the_held_heartbeats_of_a_connection(step):
    """However they are spread over calls."""
    node = Held()
    node.stable("a", "b")
    count = LIMITS.held_members_per_connection + step - 2_000
    first = ["a", *(f"x{number}" for number in range(count - 1))]
    node.beat("1", 1, *first, nonce="1", connection="c")
    node.beat("1 again", 2, *first, nonce="1", connection="c")
    rest = ["b", *(f"y{number}" for number in range(1_999))]
    node.beat("2", 1, *rest, nonce="2", connection="c")
    last = node.beat("2 again", 2, *rest, nonce="2", connection="c")
    assert (last is not None) == (step <= 0)
    assert node.beats.held == 2 - max(step, 0)


@limit("held_heartbeats_per_member")
def test_held_heartbeats_of_a_member(step):
    """So many processes may say that they are it."""
    node = Held()
    node.stable("a")
    count = LIMITS.held_heartbeats_per_member + step
    held = [node.beat(n, 1, "a", nonce=f"p{n}") is not None for n in range(count)]
    assert held == [True] * (count - max(step, 0)) + [False] * max(step, 0)


@limit("untaken_connection_max_bytes")
def test_bytes_of_answers_that_a_connection_has_not_taken(step):
    """With so many waiting it is refused; what others ask for is answered."""
    untaken = UntakenAnswers(lambda: 0.0, lambda _: None)
    size = LIMITS.untaken_connection_max_bytes - ANSWER_BYTES + step
    assert not untaken.refuses("c")
    answer = untaken.keep(bytes(size), "c", None)
    assert answer is not None
    assert untaken.refuses("c") == (step >= 0)
    assert (untaken.keep(b"", "c", None) is None) == (step >= 0)
    assert untaken.keep(b"", "d", None) is not None
    untaken.let_go(answer)
    assert not untaken.refuses("c")


@limit("untaken_max_bytes")
def test_bytes_of_answers_that_a_node_keeps(step):
    """One more byte is dropped; when the oldest have waited for a second, they make room."""
    now_s, ended = [0.0], []
    untaken = UntakenAnswers(lambda: now_s[0], ended.append)
    each = LIMITS.untaken_connection_max_bytes
    full = LIMITS.untaken_max_bytes // each
    for number in range(full - 1):
        assert untaken.keep(bytes(each - ANSWER_BYTES), f"c{number}", number) is not None
    last = bytes(each - ANSWER_BYTES + step)
    assert (untaken.keep(last, "last", "last") is None) == (step > 0)
    assert not ended
    now_s[0] = UNTAKEN_ROOM_MS / 1_000 + 0.001
    assert untaken.keep(bytes(2 * each - ANSWER_BYTES), "large", "large") is not None
    assert ended == list(range(1 if step > 0 else 2))
    assert untaken.bytes <= LIMITS.untaken_max_bytes


@limit("max_held_heartbeats")
def test_held_heartbeats(step, monkeypatch):
    """One more is refused and holds nobody's session; the others are answered in their time."""
    monkeypatch.setattr(heartbeats, "PER_MEMBER_MAX", 10**6)
    node = Held()
    node.stable("a")
    count = LIMITS.max_held_heartbeats + step
    held = [node.beat(n, 1, "a", nonce=f"p{n}") is not None for n in range(count)]
    assert held == [True] * (count - max(step, 0)) + [False] * max(step, 0)
    assert node.beats.held == node.rig.call_limits.disconnects.held == sum(held)
    assert node.answers == {}
    for _ in range(-(-count // heartbeats.BEATS_PER_TURN)):
        node.beats.turn(node.rig.clock_ms + 10_000)
    assert len(node.answers) == sum(held)
    assert node.beats.held == 0
    if step > 0:
        assert node.beat("again", 2, "a", nonce=f"p{count - 1}") is not None


@limit("shard_max_groups")
@pytest.mark.parametrize("kind", ["commit", "join"])
def test_groups_of_a_shard(rig, kind, step, monkeypatch):
    """What would make one more is refused; those that are there are served.

    The number is a small one here: the rule counts a map's length and nothing else.
    """
    most = 5
    monkeypatch.setattr(command_router, "LIMITS", replace(LIMITS, shard_max_groups=most))
    for number in range(most - 1 + step):
        rig.ask(number, simple(number))
        rig.turn()
    digest = rig.shard.state.digest
    rig.ask("last", simple("last") if kind == "commit" else join("m", group="glast"))
    if step > 0:
        answer = rig.answers["last"]
        assert isinstance(answer, Refused)
        assert answer.error is Error.INVALID_REQUEST
        assert "shard_max_groups" in answer.message
    rig.turn()
    assert ("glast" in rig.shard.state.groups) == (step <= 0)
    if step > 0:
        assert rig.shard.state.digest == digest
    rig.ask("known", simple(0, offset=9))
    rig.turn()
    assert offset_of(rig, 0) == 9
    assert rig.shard.state.digest == recount(rig.shard.state)
