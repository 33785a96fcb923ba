"""Random histories: live = replayed = restored = continued; what may never happen never does."""

import re
from collections import Counter
from copy import deepcopy
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from musterd.coordinator.codec import decode_entry, decode_events, encode_entry, encode_events
from musterd.coordinator.machine import shard_state
from musterd.coordinator.machine.commands import (
    NEVER_JOINED,
    AddPartitions,
    AlterGroupConfig,
    Assignment,
    BeginDrop,
    Checkpoint,
    CloseRound,
    ConfigSetting,
    CreateTopic,
    DeletedTopic,
    DeleteTopic,
    DropOffsets,
    EndDrop,
    ExpireMember,
    ForgetDeletion,
    GroupCommand,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    PartitionCommit,
    Protocol,
    RoundTimer,
    SyncGroup,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.config import INITIAL_DELAY_MS, MAX_SIZE
from musterd.coordinator.machine.decide.dispatch import decide, heartbeat
from musterd.coordinator.machine.decide.join import is_noop_join
from musterd.coordinator.machine.decide.protocols import select
from musterd.coordinator.machine.decide.sync import is_noop_sync
from musterd.coordinator.machine.envelope import FORMAT, Envelope
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    GenerationFormed,
    GroupEmptied,
    OffsetCommitted,
    RebalanceStarted,
    Trigger,
)
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.records.group_records import group_records
from musterd.coordinator.machine.replies import PARKED, Committed, Refused
from musterd.coordinator.machine.shard_state import (
    Entry,
    ShardState,
    apply_entry,
    evolve_counted,
    evolve_shard_counted,
    load_state,
    recount,
    reweigh,
    shard_records,
)
from musterd.coordinator.machine.state import Phase, deadlines
from musterd.levels import LEVEL
from tests.machine.world import World

pytestmark = pytest.mark.long

SETTINGS = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)

CHOICES = {
    "kind": (
        *(("join", "rejoin") * 2),
        *("static", "idless", "idless"),
        *(("sync", "fire", "commit") * 3),
        *("leave", "expire", "simple", "topic", "restart", "told", "config", "deletion"),
    ),
    "group": ("g", "g", "g", "h"),
    "member": [f"{client}-{nonce}" for client in ("z", "m", "a") for nonce in "112"],
    "instance": ("i", "j"),
    "pick": (0, 1, 2, 3, 4),
    "protocols": (
        *([("range", "rr")] * 4),
        *(("rr", "range"), ("rr",), ("range",), ("sticky", "rr")),
    ),
    "meta": (b"x", b"x", b"x", b"y"),
    "off": (0, 0, 0, 0, 0, 1, -1),
    "seq": (0, 1, 2, 3, 4),
    "offset": (0, 1, 2, 3, 4, 5),
    "partition": (0, 1),
    "elapsed": (0, 1, 250, 500, 2_000),
}
"""One command in words that `make` reads against the state it meets.

`pick` chooses a present member; `off` says how far the command is off what is current.
"""
TOPICS = {4: ("u", "t", "u"), 5: ()}
"""What a Join names, by its `offset`; t, where there is no other."""
STEPS = st.fixed_dictionaries({name: st.sampled_from(v) for name, v in CHOICES.items()})


def make(step, state: ShardState, now_ms: int):  # noqa: C901, PLR0911, PLR0912 - one per kind
    """The command a step stands for, as a caller who knows the applied state would send it."""
    group_id, member_id = step["group"], step["member"]
    group = state.groups.get(group_id)
    generation = (group.generation if group else 0) + step["off"]
    if group and group.members and step["kind"] != "join" and step["pick"] < 4:
        member_id = [*group.members][step["pick"] % len(group.members)]
    elif group and group.pending and step["pick"] == 4 and step["kind"] != "join":
        member_id = next(iter(group.pending))
    held = {m: i for i, m in group.instances.items()} if group else {}
    client, nonce = member_id.split("-")
    match step["kind"]:
        case "join" | "rejoin" | "static" | "idless":
            static = step["kind"] == "static" or (member_id in held and step["off"] >= 0)
            idless = step["kind"] == "idless"
            return JoinGroup(
                group_id=group_id,
                member_id=member_id if step["kind"] == "rejoin" else "",
                client_id=client,
                client_host="10.0.0.1",
                join_nonce="" if idless else nonce,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=1_000 * (1 + step["partition"]),
                protocol_type="consumer",
                protocols=tuple(Protocol(name, step["meta"]) for name in step["protocols"]),
                subscribed_topics=TOPICS.get(step["offset"], ("t",)),
                reason="",
                group_instance_id=held.get(member_id, step["instance"]) if static else "",
                drawn_nonce=f"d{nonce}" if idless else "",
                with_assignment=step["pick"] % 2 == 0,
                released_partitions=step["pick"] % 3 == 1,
                known_generation=step["pick"] % 4,
            )
        case "sync":
            members = group.members if group else ()
            vector = tuple(Assignment(m, b"%d" % step["offset"]) for m in members)
            instance_id = held.get(member_id, "") if step["seq"] else step["instance"]
            return SyncGroup(group_id, member_id, generation, "", "", vector, instance_id)
        case "leave":
            one = LeavingMember(member_id, "")
            other = LeavingMember("", "", step["instance"])
            members = (one, other, one) if step["seq"] == 0 else (one,)
            return LeaveGroup(group_id, members, kicked=step["seq"] == 1)
        case "expire":
            member = group.members.get(member_id) if group else None
            joined = (member.joined_round if member else NEVER_JOINED) + step["off"]
            return ExpireMember(group_id, member_id, generation - step["off"], joined, "")
        case "fire":
            for key, deadline_ms in deadlines(group) if group else ():
                return CloseRound(group_id, key.round, key.timer, deadline_ms + step["off"])
            return CloseRound(group_id, 1, RoundTimer.SYNC, now_ms)
        case "topic":
            new = "t" not in state.topics
            return CreateTopic("t", 1) if new else AddPartitions("t", step["seq"])
        case "told":
            known = state.topics_changed.get("t", 0) + step["off"]
            return TopicsChanged(group_id, "t", state.topics.get("t", 0), known)
        case "deletion":
            return deletion(step["seq"], group_id, state, step["off"])
        case "config":
            name = INITIAL_DELAY_MS if step["partition"] else MAX_SIZE
            if step["seq"] == 0:
                return AlterGroupConfig(group_id, (), (name,))
            return AlterGroupConfig(group_id, (ConfigSetting(name, str(step["seq"])),), ())
        case "restart":
            return Checkpoint()
        case _:
            simple = step["kind"] == "simple"
            partition = PartitionCommit("t", step["partition"], step["offset"], "", None)
            return OffsetCommit(
                group_id,
                "" if simple else member_id,
                -1 if simple else generation,
                step["seq"],
                (partition,),
                deletions_version=state.dropped_version + step["off"] * (step["pick"] == 0),
                creation_version=state.creation_versions.get("t", 0) * (step["pick"] > 0),
            )


def deletion(step: int, group_id: str, state: ShardState, off: int):
    """One step of the deletion of t, in whatever state it is."""
    deleted = tuple(DeletedTopic(*one) for one in state.topics_deleted.items())
    dropping = tuple(DeletedTopic(name, at + off) for name, at in state.dropping.items())
    version = state.dropping.get("t", 0) + off
    return {
        0: DeleteTopic("t", state.creation_versions.get("t", 0) + off if off else None),
        1: BeginDrop(deleted, state.deletions_version + min(off, 0), state.dropped_version),
        2: DropOffsets(group_id, "t", version, (0, 1)),
        3: EndDrop(dropping),
        4: ForgetDeletion(deleted),
    }[step]


def entry_of(command, now_ms: int, known: int = 0) -> Entry:
    """One command, one entry; `known`: the topics_version of the proposer's registry."""
    return Entry(FORMAT, LEVEL, now_ms, now_ms + 7, LIMITS_VERSION, (command,), known)


def live(history) -> tuple[ShardState, list[Entry], list]:
    """Run a history; restart steps load the state from its records and go on."""
    state, now_ms = ShardState(), 0
    entries, results = [], []
    for index, step in enumerate(history):
        now_ms += step["elapsed"]
        if step["kind"] == "fire" and not step["off"]:
            group = state.groups.get(step["group"])
            now_ms = max(now_ms, group.deadline_ms if group else 0)
        command = make(step, state, now_ms)
        entries.append(entry_of(command, now_ms, state.topics_version))
        results += apply_entry(state, decode_entry(encode_entry(entries[-1])), index)
        assert state.digest == recount(state)
        for group in state.groups.values():
            check(group)
        if step["kind"] == "restart":
            state = load_state(sorted(shard_records(state)))
    return state, entries, results


HISTORIES = st.integers(0, 60).flatmap(lambda n: st.lists(STEPS, min_size=n, max_size=60))


@SETTINGS
@given(HISTORIES)
def test_live_is_replayed_is_restored(history):
    """arch-3.9: one digest, however the state came about.

    Live with restarts, decided again from entries, evolved from events, built from the records.
    """
    state, entries, results = live(history)
    decided = ShardState()
    for index, entry in enumerate(entries):
        apply_entry(decided, entry, index)
    assert decided == state

    evolved = ShardState(time_ms=state.time_ms)
    evolved.digest = recount(evolved)
    evolved.bytes, _ = reweigh(evolved)
    stored: dict[bytes, bytes] = {}
    for result in results:
        events = decode_events(encode_events(result.events))
        if isinstance(result.command, GroupCommand):
            group = evolved.groups.get(result.command.group_id)
            evolve_counted(evolved, group, events)
        else:
            for event in events:
                evolve_shard_counted(evolved, event)
        for key, value in result.writes:
            if value is None:
                del stored[key]
            else:
                stored[key] = value
    assert evolved == state

    stored |= {key: value for key, value in shard_records(state) if key == b"c"}
    assert load_state(sorted(stored.items())) == state


@SETTINGS
@given(HISTORIES, HISTORIES)
def test_a_restored_shard_goes_on_like_the_original(before, after):
    """arch-3.2: restored in key order, it decides the same from then on."""
    state, _, _ = live(before)
    twin = load_state(sorted(shard_records(state)))
    now_ms = state.time_ms
    for index, step in enumerate(after):
        now_ms += step["elapsed"]
        entry = entry_of(make(step, state, now_ms), now_ms)
        assert apply_entry(state, entry, index) == apply_entry(twin, entry, index)
    assert twin == state


@SETTINGS
@given(st.permutations(("z", "m", "a")), st.sampled_from(("fire", "delete")), st.integers(0, 3))
def test_ids_handed_out_in_any_order_are_noted_and_dropped_in_one(order, end, loaded):
    """arch-3.2, for what has no order of its own: loaded after some of the ids or after all."""
    joins = [f"join {client} nonce= drawn=1" for client in order]
    world = World()
    for line in ["join b", "fire", "sync b-1", "leave b-1"][: 3 if end == "fire" else 4]:
        world.run(line)
    for line in [*joins[:loaded], "restart", *joins[loaded:], "restart"]:
        world.run(line)
    for line in ["rejoin b-1", "fire", "why"] if end == "fire" else ["delete-group"]:
        told = world.run(line)
    names = re.findall(r"([zma])-1(?:\(\)|\b)", told)
    assert names == ["a", "m", "z"]


@SETTINGS
@given(HISTORIES)
def test_decide_changes_nothing_and_every_event_keeps_the_invariants(history):
    """arch-3.3, and gp-I1 to gp-I8 after each event, not only after each command."""
    state, now_ms = ShardState(), 0
    for index, step in enumerate(history):
        now_ms += step["elapsed"]
        command = make(step, state, now_ms)
        if isinstance(command, GroupCommand):
            _decide_apart(state, command, now_ms)
        apply_entry(state, entry_of(command, now_ms), index)


def _decide_apart(state, command, now_ms):
    env = Envelope(now_ms, now_ms + 7, LEVEL, LIMITS_VERSION, 0, LIMITS)
    group = state.groups.get(command.group_id)
    before = list(group_records(group)) if group else None
    decision = decide(group, command, env)
    assert (list(group_records(group)) if group else None) == before
    if isinstance(decision.reply, Refused) and decision.events:
        assert decision.reply.error is Error.GROUP_MAX_SIZE_REACHED
    if isinstance(command, JoinGroup | SyncGroup):
        noop = decision.reply is PARKED and not decision.events
        asked = is_noop_join if isinstance(command, JoinGroup) else is_noop_sync
        assert asked(group, command) is noop
    copy = deepcopy(group)
    for event in decision.events:
        copy = evolve(copy, event)
        check(copy, at_rest=False)


@SETTINGS
@given(HISTORIES)
def test_topics_are_counted_as_the_members_name_them(history):
    """Whoever joined, came back with others, was replaced or left: nobody counts them anew."""
    state, now_ms = ShardState(), 0
    for index, step in enumerate(history):
        now_ms += step["elapsed"]
        apply_entry(state, entry_of(make(step, state, now_ms), now_ms), index)
        for group in state.groups.values():
            named = [member.subscribed_topics for member in group.members.values()]
            assert group.tally.topics == Counter(topic for topics in named for topic in topics)
            assert group.tally.without_topics == named.count(())
            assert group.tally.dropped <= len(group.tally.topics)


@SETTINGS
@given(HISTORIES)
def test_in_stable_the_members_would_select_what_is_selected(history):
    """So a static member that lists what the one before it listed is taken without asking them."""
    state, now_ms = ShardState(), 0
    for index, step in enumerate(history):
        now_ms += step["elapsed"]
        apply_entry(state, entry_of(make(step, state, now_ms), now_ms), index)
        for group in state.groups.values():
            if group.phase is Phase.STABLE:
                leader = group.members[group.leader_id]
                assert select([*group.members.values()], leader) == group.protocol_name


@SETTINGS
@given(HISTORIES)
def test_generations_rise_and_name_one_member_set(history):
    """gp-5.6.6: each number is formed once per group, above all before it, and has one vector."""
    _, _, results = live(history)
    last: dict[str, int] = {}
    published: list[tuple[str, int]] = []
    rounds: dict[str, int] = {}
    for event in (event for result in results for event in result.events):
        match event:
            case GenerationFormed() | GroupEmptied():
                assert event.generation > last.get(event.group_id, 0)
                last[event.group_id] = event.generation
            case AssignmentPublished():
                assert event.generation == last[event.group_id]
                published.append((event.group_id, event.generation))
            case RebalanceStarted():
                assert event.round == rounds.get(event.group_id, 0) + 1
                rounds[event.group_id] = event.round
                assert event.trigger
                assert event.member_id or event.trigger is Trigger.TOPICS_CHANGED
            case _:
                pass
    assert len(published) == len({*published})


@SETTINGS
@given(HISTORIES)
def test_no_two_processes_of_a_group_hold_one_instance_under_one_token(history):
    """arch-3.8: who replaces another has a larger one, and a member's own never falls."""
    state, now_ms = ShardState(), 0
    owners: dict[tuple[str, str, int], str] = {}
    highest: dict[tuple[str, str], int] = {}
    for index, step in enumerate(history):
        now_ms += step["elapsed"]
        apply_entry(state, entry_of(make(step, state, now_ms), now_ms), index)
        for group in state.groups.values():
            for member in group.members.values():
                opens = group.phase is Phase.PREPARING_REBALANCE
                if not group.generation or (opens and not group.has_synced(member)):
                    continue  # nobody has told it a token yet, or not since the round opened
                token = group.token_of(member)
                seat = group.group_id, member.instance_id or member.member_id
                assert owners.setdefault((*seat, token), member.member_id) == member.member_id
                assert token >= highest.get(seat, 0)
                highest[seat] = token


@SETTINGS
@given(HISTORIES)
def test_an_offset_changes_only_by_an_accepted_commit(history):
    """Every other command leaves every offset; an accepted one says so to its caller."""
    state, now_ms = ShardState(), 0
    for index, step in enumerate(history):
        now_ms += step["elapsed"]
        command = make(step, state, now_ms)
        before = deepcopy({name: group.offsets for name, group in state.groups.items()})
        (result,) = apply_entry(state, entry_of(command, now_ms), index)
        after = {name: group.offsets for name, group in state.groups.items()}
        for name, offsets in after.items():
            old = before.get(name, {})
            moved = {key for key, offset in offsets.items() if old.get(key) != offset}
            assert old.keys() <= offsets.keys()
            committed = {
                (event.topic, event.partition)
                for event in result.events
                if isinstance(event, OffsetCommitted) and event.group_id == name
            }
            assert moved <= committed
            if moved:
                _accepted(command, result.reply, state, name)


def _accepted(command, reply, state, name):
    assert isinstance(command, OffsetCommit)
    assert command.group_id == name
    assert isinstance(reply, Committed)
    assert all(p.error is Error.NONE and not p.superseded for p in reply.partitions)
    if command.generation >= 0:
        group = state.groups[name]
        assert heartbeat(group, command.member_id, command.generation) in {
            Error.NONE,
            Error.REBALANCE_IN_PROGRESS,
        }
        assert group.phase is not Phase.COMPLETING_REBALANCE


@SETTINGS
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 1)), max_size=20))
def test_a_late_retry_never_undoes_an_acknowledged_commit(order):
    """gp-O9: in whatever order a member's commits arrive, the largest number stands."""
    state = ShardState()
    join = make(
        {
            "kind": "join",
            "group": "g",
            "member": "a-1",
            "instance": "i",
            "protocols": ("range",),
            "meta": b"",
        }
        | {"off": 0, "offset": 0, "partition": 0, "pick": 0},
        state,
        0,
    )
    apply_entry(state, entry_of(join, 0), 0)
    apply_entry(state, entry_of(CloseRound("g", 1, RoundTimer.INITIAL_DELAY, 500), 500), 1)
    apply_entry(state, entry_of(SyncGroup("g", "a-1", 1, "", "", ()), 500), 2)
    largest: dict[int, int] = {}
    for seq, partition in order:
        commit = OffsetCommit(
            "g", "a-1", 1, seq, (PartitionCommit("t", partition, seq * 10, "", None),)
        )
        (result,) = apply_entry(state, entry_of(commit, 500), 3)
        (answer,) = result.reply.partitions
        assert answer.error is Error.NONE
        assert answer.superseded == (seq < largest.get(partition, 0))
        largest[partition] = max(seq, largest.get(partition, 0))
        kept = state.groups["g"].offsets["t", partition]
        assert (kept.commit_seq, kept.offset) == (largest[partition], largest[partition] * 10)


@SETTINGS
@given(HISTORIES)
def test_no_generation_has_more_members_than_the_group_may_have(history):
    """sc-M08: of those who joined its round; absent static members may come on top (gp-P6.2)."""
    most = 2
    limits = {LIMITS_VERSION: replace(LIMITS, group_max_members=most)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard_state, "LIMITS_BY_VERSION", limits)
        state, now_ms = ShardState(), 0
        for index, step in enumerate(history):
            now_ms += step["elapsed"]
            (result,) = apply_entry(state, entry_of(make(step, state, now_ms), now_ms), index)
            for event in result.events:
                if isinstance(event, GenerationFormed):
                    members = state.groups[event.group_id].members.values()
                    assert sum(m.joined_round == event.round for m in members) <= most
            for group in state.groups.values():
                check(group)


@SETTINGS
@given(HISTORIES)
def test_a_group_is_told_of_a_topic_once_and_knows_more_each_time(history):
    """A round for a topic is of a generation that knew less; the next knows what its entry did."""
    _, entries, results = live(history)
    knew: dict[str, int] = {}
    for entry, result in zip(entries, results, strict=True):
        for event in result.events:
            match event:
                case GenerationFormed():
                    assert event.topics_version == entry.topics_version
                    knew[event.group_id] = event.topics_version
                case RebalanceStarted() if event.trigger is Trigger.TOPICS_CHANGED:
                    assert knew[event.group_id] < result.command.topics_version
                case _:
                    pass


def test_random_histories_reach_every_phase_and_answer():
    """The properties above say something: their histories get everywhere."""
    phases, kinds, errors, triggers = [], [], [], []
    rng = Random(1)
    for _ in range(150):
        history = [{name: rng.choice(v) for name, v in CHOICES.items()} for _ in range(60)]
        state, _, results = live(history)
        phases.extend(group.phase for group in state.groups.values())
        for result in results:
            kinds.extend(type(event).__name__ for event in result.events)
            triggers.extend(getattr(event, "trigger", None) for event in result.events)
            errors.extend([result.reply.error] if isinstance(result.reply, Refused) else [])
    assert {*Phase} - {*phases} == {Phase.DEAD, Phase.MODERN}  # test_modern.py
    assert {
        "MemberJoined",
        "MemberRejoined",
        "MemberRemoved",
        "MemberReplaced",
        "PendingAdded",
        "PendingRemoved",
        "RebalanceStarted",
        "RoundExtended",
        "GenerationFormed",
        "MemberSynced",
        "AssignmentPublished",
        "GroupEmptied",
        "OffsetCommitted",
        "OffsetSuperseded",
        "TopicCreated",
        "PartitionsAdded",
        "CheckpointTaken",
        "GroupConfigChanged",
    } <= {*kinds}
    of_modern_groups = {Trigger.RETURNED, Trigger.SETTINGS_CHANGED}  # test_modern.py, too
    assert {*Trigger} - of_modern_groups <= {*triggers}
    assert {
        Error.UNKNOWN_MEMBER_ID,
        Error.ILLEGAL_GENERATION,
        Error.FENCED_INSTANCE_ID,
        Error.INVALID_REQUEST,
        Error.REBALANCE_IN_PROGRESS,
        Error.INCONSISTENT_GROUP_PROTOCOL,
        Error.GROUP_ID_NOT_FOUND,
    } <= {*errors}
