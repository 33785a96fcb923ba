"""One shard, spoken to in words: the commands of a scenario.

`g` is the group unless `group=` says otherwise; member a of client a with nonce 1 is `a-1`.
Several commands of one log entry stand on one line, between ` ; `.

    time MS               shard time from here on
    limits NAME=VALUE ... replicated limits of this scenario
    knows N               the registry's version that the leader knows from here on
    rules N               the rules version of entries from here on, as of an older leader
    join CLIENT [nonce=1] [protocols=range] [meta=x] [topics=t,u] [type=consumer]
                [session=MS] [rebalance=MS] [reason=] [instance=] [principal=] [knows=GENERATION]
                `nonce= drawn=N`: without a nonce; the coordinator draws N
    rejoin MEMBER ...     a Join that names its member id
    sync MEMBER [gen=N] [type=] [name=] [instance=] [MEMBER:ASSIGNMENT ...]
    leave MEMBER[@INSTANCE] ... [reason=]     member `-`: whoever holds the instance
    kick MEMBER[@INSTANCE] ... [reason=]      the same by an operator
    expire MEMBER [gen=N] [round=N]           as armed now, unless told otherwise
    fire                                      move to the armed deadline and fire it
    close ROUND TIMER DEADLINE [member=ID]    fire what is named; of a modern group a member's seq
    commit MEMBER TOPIC/PARTITION=[START..]OFFSET[@END][^EPOCH][:METADATA] ... [gen=N] [seq=N]
                                              [instance=]; member `-`: a simple commit
              also: [expect=N,M,...] one expected offset per partition, `-` for no check;
                    [atomic=1] [forward=1] [generation=N: expected of the group] [blob=TEXT]
                    [checked=N: by the registry of this deletions_version]
                    [made=N: the highest creation version of its topics]
    config NAME=VALUE ... [delete=NAME,...]   overrides of the group; SHORT names, see below
    changed TOPIC [version=N]                 the leader tells the group, as the registry is now
    stale                                     what the leader would tell the group now
    delete-group | delete-offsets TOPIC/PARTITION ...
    sweep TOPIC/PARTITION ... [retention=MS] [wall=MS]    wall time counts as shard time does
    due [retention=MS]    what the leader would name in a sweep now
    heartbeat MEMBER [gen=N] [instance=]
    topic NAME COUNT | grow NAME COUNT | replace NODE UUID | checkpoint
    finalize LEVEL [NODE:LEVEL ...]   shard 0 raises the cluster's level
    note NODE:LEVEL ...   shard 0 notes what nodes know
    level LEVEL           a shard follows the cluster
    levels                the shard's level, and the noted ones
    delete-topic NAME [made=N]    the one of this creation version; without it whichever
    begin-drop [known=N] [after=N]    the leader tells the shard what the registry has deleted
    drop TOPIC/PARTITION ... [version=N]      what it names of a group then
    end-drop TOPIC ... | forget TOPIC ...     [version=N]
    acl [+|-]WHO:OPERATION:RESOURCE:NAME[*][:deny] ... [opens=1]
                          rules that come and go; a name that ends in * is a prefix
    token ID WHO [OPERATION:RESOURCE:NAME[*] ...] [expires=MS]     ID is one hex digit
    revoke ID             a token
    backup WALL_MS        was begun then
    quota principal|group[:NAME] KEY=N ...    N a second; 0 removes it
    quotas                those that count
    principals            whose the members are
    may WHO OPERATION RESOURCE [NAME]         what the rules say
    registry              topics, with their version; deletions; what the shard drops
    restored TOKEN        of a backup, with this floor of tokens
    restart               a new coordinator that loads the stored records; parked calls are lost.
                          From here on the replica that was not loaded decides beside it.
    times N LINE          the line N times; `#` is the number of the time, the last one is printed
    show                  the group as applied
    state                 its type and its state, as lists and descriptions name them
    colocated             the topics that it co-locates, and what of that cannot be done
    weighed               what its topics' partitions weigh, and what of that has no effect
    unowned               the partitions that it reads and nobody has, and why
    why                   its last rounds, oldest first
    rounds                how many rounds are kept, and which

After every command the promises of arch-3 are checked: `decide` has changed nothing; invariants
hold after each event; the live and the restored state are equal and go on to do the same; the
running digest equals the recomputed one; commands and events survive the codec.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import replace

from muster.group.consumer_protocol import encode_assignment, encode_subscription
from muster.types import TopicPartition as Owned
from musterd.coordinator.api.frame.group_state import state_of, type_of
from musterd.coordinator.codec import (
    decode_command,
    decode_entry,
    decode_events,
    encode_command,
    encode_entry,
    encode_events,
)
from musterd.coordinator.machine import access, quotas
from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NEVER_JOINED,
    AddPartitions,
    AlterAcls,
    AlterGroupConfig,
    AlterQuotas,
    Assignment,
    BeginDrop,
    Checkpoint,
    CloseRound,
    Command,
    ConfigSetting,
    ConsumerGroupHeartbeat,
    CreateToken,
    CreateTopic,
    DeletedTopic,
    DeleteGroup,
    DeleteTopic,
    DropOffsets,
    DropPart,
    EndDrop,
    ExpireMember,
    ExpireOffsets,
    FinalizeLevel,
    ForgetDeletion,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    NodeLevel,
    NoteBackup,
    NoteLevels,
    NoteTopics,
    OffsetCommit,
    OffsetDelete,
    PartitionCommit,
    PartitionSet,
    PatternTopics,
    Protocol,
    Reconcile,
    ReplaceNode,
    RevokeToken,
    RoundTimer,
    SetTopicZones,
    ShardCommand,
    ShardLevel,
    StoreTarget,
    SyncGroup,
    TopicPartition,
    TopicsChanged,
)
from musterd.coordinator.machine.decide.config import (
    INITIAL_DELAY_MS,
    MAX_AWAY_MS,
    MAX_SESSION_TIMEOUT_MS,
    MAX_SIZE,
    MIN_SESSION_TIMEOUT_MS,
    OFFSETS_RETENTION_MS,
)
from musterd.coordinator.machine.decide.delete import due_offsets
from musterd.coordinator.machine.decide.dispatch import decide, heartbeat
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.envelope import FORMAT, Envelope
from musterd.coordinator.machine.events import (
    AssignmentPublished,
    Event,
    GenerationFormed,
    GroupDeleted,
    LevelRaised,
    MemberRemoved,
    MemberReplaced,
    RebalanceStarted,
)
from musterd.coordinator.machine.evolve import evolve
from musterd.coordinator.machine.evolve_history import rounds_of
from musterd.coordinator.machine.invariants import check
from musterd.coordinator.machine.limits import LIMITS, LIMITS_VERSION
from musterd.coordinator.machine.modern.colocation import COLOCATE, colocated, sets_of
from musterd.coordinator.machine.modern.conversion import MIGRATION_POLICY
from musterd.coordinator.machine.modern.spec import assignor_of, changes_of, spec_of
from musterd.coordinator.machine.modern.topics import unknown_topics, untaken_topics
from musterd.coordinator.machine.modern.unowned import unowned
from musterd.coordinator.machine.modern.weights import WEIGHTS, weighed
from musterd.coordinator.machine.plan import Part, plan
from musterd.coordinator.machine.plan.pace import finished
from musterd.coordinator.machine.records.group_records import FENCE_FLOOR_KEY
from musterd.coordinator.machine.records.values import put_number
from musterd.coordinator.machine.replies import PARKED, join_reply, sync_reply
from musterd.coordinator.machine.shard_state import (
    CommandResult,
    Entry,
    ShardState,
    apply_entry,
    evolve_shard_counted,
    load_state,
    recount,
    refuse_for_deletions,
    reweigh,
    shard_records,
)
from musterd.coordinator.machine.state import Group, deadlines
from musterd.levels import LAST_UNNAMED, LEVEL
from tests.machine.text import (
    WALL_MS,
    put_event,
    put_group,
    put_rebalance,
    put_reply,
)


class World:
    """One shard, spoken to in words, with the parked calls of its coordinator."""

    def __init__(self, level: int = LEVEL) -> None:
        self.state = ShardState()
        if level > LAST_UNNAMED:
            evolve_shard_counted(self.state, LevelRaised(level))
        self.unloaded: ShardState | None = None
        self.limits = LIMITS
        self.level = level
        self.known: int | None = None
        self.now_ms = 0
        self.index = 0
        self.parked: list[tuple[str, str, str]] = []
        self.history: list[tuple[Command, tuple[Event, ...]]] = []
        self.out: list[str] = []

    def run(self, line: str) -> str:
        """One line of a block; returns what it printed."""
        if line.startswith("times "):
            _, count, again = line.split(" ", 2)
            return [self.run(again.replace("#", str(n))) for n in range(1, int(count) + 1)][-1]
        self.out = []
        entry: list[Command] = []
        for words in (part.split() for part in line.split(" ; ")):
            verb, *args = words
            options = dict(a.split("=", 1) for a in args if "=" in a and "/" not in a)
            plain = [a for a in args if "=" not in a or "/" in a]
            made = getattr(self, f"do_{verb.replace('-', '_')}")(plain, options)
            if made is not None:
                entry.append(made)
        if entry:
            self.apply(*entry)
        return "\n".join(self.out)

    def apply(self, *commands: Command) -> tuple[CommandResult, ...]:
        """One log entry, held against every promise on the way."""
        entry = Entry(
            format=FORMAT,
            level=self.level,
            time_ms=self.now_ms,
            wall_ms=WALL_MS + self.now_ms,
            limits_version=LIMITS_VERSION,
            commands=commands,
            topics_version=self.topics_version(),
        )
        assert decode_entry(encode_entry(entry)) == entry
        self.index += 1
        self._forecast = self._decide_first(commands[0])
        results = apply_entry(self.state, entry, self.index, self._seen)
        if self.unloaded is not None:
            assert apply_entry(self.unloaded, entry, self.index) == results
            assert self.unloaded == self.state
        assert self.state.digest == recount(self.state)
        groups = {group_id: group.bytes for group_id, group in self.state.groups.items()}
        assert (self.state.bytes, groups) == reweigh(self.state)
        assert load_state(sorted(shard_records(self.state))) == self.state
        return results

    # ---- promises

    def envelope(self) -> Envelope:
        """What the next command of a group is decided with."""
        return Envelope(
            time_ms=self.now_ms,
            wall_ms=WALL_MS + self.now_ms,
            level=self.level,
            limits_version=LIMITS_VERSION,
            generation_floor=self.state.generation_floor,
            limits=self.limits,
            topics_version=max(self.topics_version(), self.state.dropped_version),
            fence_floor=self.state.fence_floor,
        )

    def topics_version(self) -> int:
        """As the leader knows it: this shard is the registry's own. Rules 1 had none."""
        version = self.state.topics_version if self.level > 1 else 0
        return version if self.known is None else self.known

    def _decide_first(self, command: Command) -> tuple[Event, ...] | None:
        """Decide apart from applying: nothing changes, and every event keeps the invariants."""
        if isinstance(command, ShardCommand):
            return None
        if refuse_for_deletions(self.state, command) is not None:
            return ()
        before = recount(self.state)
        group = self.state.groups.get(command.group_id)
        decision = decide(group, command, self.envelope())
        assert recount(self.state) == before, "decide changed state"
        group = deepcopy(group)
        for event in decision.events:
            group = evolve(group, event)
            assert (group is None) == isinstance(event, GroupDeleted)
            if group is not None:
                check(group, at_rest=False)
        return tuple(decision.events)

    def _seen(self, result: CommandResult) -> None:
        command, events = result.command, result.events
        if self._forecast is not None:
            assert self._forecast == events
            self._forecast = None
        assert decode_command(encode_command(command)) == command
        assert decode_events(encode_events(events)) == events
        for group in self.state.groups.values():
            check(group)
        self.history.append((command, events))
        if result.reply is PARKED:
            kind = "join" if isinstance(command, JoinGroup) else "sync"
            member_id = joining_id(command) if kind == "join" else command.member_id
            seat = (command.group_id, member_id, kind)
            if seat not in self.parked:
                self.parked.append(seat)
        for event in events:
            self.out.append(put_event(event))
            self._answer(event)
        self.out.append(f"-> {put_reply(result.reply)}".rstrip())

    def _answer(self, event: Event) -> None:
        """Whom the coordinator answers, from state right after the event's command (gp-1.5)."""
        for seat in list(self.parked):
            group_id, member_id, kind = seat
            if group_id != getattr(event, "group_id", None):
                continue
            group = self.state.groups[group_id]
            match event:
                case GenerationFormed() if kind == "join":
                    answer = put_reply(join_reply(group, member_id, 0))
                case AssignmentPublished() if kind == "sync":
                    answer = put_reply(sync_reply(group, member_id))
                case RebalanceStarted() if kind == "sync":
                    answer = "REBALANCE_IN_PROGRESS"
                case MemberRemoved() if event.member_id == member_id:
                    answer = "UNKNOWN_MEMBER_ID"
                case MemberReplaced() if event.replaced_id == member_id:
                    answer = "FENCED_INSTANCE_ID"
                case _:
                    continue
            self.parked.remove(seat)
            self.out.append(f"   {kind} of {member_id}: {answer}")

    # ---- commands

    def group(self, options: dict[str, str]) -> Group | None:
        """The group a line speaks of."""
        return self.state.groups.get(options.get("group", "g"))

    def do_time(self, plain, _options):
        self.now_ms = int(plain[0])
        self.out.append(f"time {self.now_ms}")

    def do_limits(self, _plain, options):
        self.limits = replace(self.limits, **{name: int(v) for name, v in options.items()})
        self.out.append("ok")

    def do_knows(self, plain, _options):
        self.known = int(plain[0])
        self.out.append(f"knows {self.known}")

    def do_rules(self, plain, _options):
        self.level = int(plain[0])
        self.out.append(f"rules {self.level}")

    def do_join(self, plain, options):
        return self._join("", plain[0], options)

    def do_rejoin(self, plain, options):
        return self._join(plain[0], plain[0].rsplit("-", 1)[0], options)

    def _join(self, member_id, client_id, options):
        keeps = options.get("keeps")
        meta = options.get("meta", "x").encode()
        if keeps is not None:  # `keeps=A:0,A:1`, as the SDK says it, `of` this generation
            since = int(options.get("of", "-1"))
            owned = _owned(keeps)
            meta = encode_subscription((), owned=owned, generation=since, keeps_owned=True)
        elif meta == b"-":
            meta = b""
        names = [name for name in options.get("protocols", "range").split(",") if name]
        return JoinGroup(
            group_id=options.get("group", "g"),
            member_id=member_id,
            client_id=client_id,
            client_host="10.0.0.1",
            join_nonce=options.get("nonce", "1"),
            session_timeout_ms=int(options.get("session", "10000")),
            rebalance_timeout_ms=int(options.get("rebalance", "60000")),
            protocol_type=options.get("type", "consumer"),
            protocols=tuple(Protocol(name, meta) for name in names),
            subscribed_topics=tuple(filter(None, options.get("topics", "t").split(","))),
            reason=options.get("reason", ""),
            group_instance_id=options.get("instance", ""),
            drawn_nonce=options.get("drawn", ""),
            with_assignment=options.get("with", "") == "assignment",
            released_partitions=options.get("released", "") == "1",
            principal=options.get("principal", ""),
            known_generation=int(options.get("knows", "0")),
        )

    def do_hear(self, plain, options):
        """A heartbeat of a modern group: at its epoch, or at `epoch`; `join`, `bye`, `away`.

        With `owns` it works on the partitions that follow, and with `knows` it knew of grants up to
        this token then. `seq` is the number of what it says of itself. Member `-` names no id.
        """
        member_id, *words = plain
        member_id = "" if member_id == "-" else member_id
        group = self.group(options)
        consumer = group.modern.members.get(member_id) if group and group.modern else None
        epochs = {"join": JOIN_EPOCH, "bye": LEAVE_EPOCH, "away": AWAY_EPOCH}
        epoch = next((epochs[word] for word in words if word in epochs), None)
        if epoch is None:
            epoch = int(options.get("epoch", consumer.epoch if consumer else 1))
        joins = epoch == JOIN_EPOCH
        owns = [w for w in words if "/" in w] if "owns" in words or joins else None
        topics = options.get("topics", "t" if joins else None)
        return ConsumerGroupHeartbeat(
            group_id=options.get("group", "g"),
            member_id=member_id,
            member_epoch=epoch,
            client_id=member_id,
            client_host="10.0.0.1",
            group_instance_id=options.get("instance", ""),
            session_timeout_ms=int(options.get("session", "10000")) if joins else 0,
            rebalance_timeout_ms=int(options.get("rebalance", "60000" if joins else "-1")),
            topics=None if topics is None else tuple(filter(None, topics.split(","))),
            pattern=options.get("pattern"),
            zone=options.get("zone"),
            assignor=options.get("assignor"),
            capacity=int(options.get("capacity", "-1")),
            owned=None if owns is None else _sets(owns),
            back_in_ms=int(options.get("back", "0")),
            holder_disconnected=options.get("gone") == "1",
            reason=options.get("reason", ""),
            known_token=int(options["knows"]) if "knows" in options else None,
            subscription_seq=int(options.get("seq", "0")),
        )

    def do_tell(self, _plain, options):
        """Tell the group what it does not know of the topics."""
        note = unknown_topics(self.group(options), self.state, self.limits.note_topics_max)
        if note is None:
            self.out.append("known")
        return note

    def do_match(self, plain, options):
        """Tell the group that a pattern stands for these topics and for no others."""
        pattern, *names = plain
        modern = self.group(options).modern
        former = modern.patterns.get(pattern, ())
        added = tuple(name for name in names if name not in former)
        change = PatternTopics(pattern, added, tuple(sorted({*former} - {*names})))
        return NoteTopics(options.get("group", "g"), (), (change,), modern.topics_version)

    def do_plan(self, plain, options):
        """Plan, and store the target in parts of `size` partitions; `stale`: of an older spec."""
        group = self.group(options)
        made = plan(spec_of(group))
        size = int(options.get("size", "1000"))
        pieces = [made.changes[at : at + size] for at in range(0, len(made.changes), size)] or [()]
        first, until = int(options.get("from", "0")), int(options.get("to", str(len(pieces))))
        version = group.modern.spec_version - ("stale" in plain)
        for number, piece in enumerate(pieces):
            if not first <= number < until:
                continue
            last = number == len(pieces) - 1
            changes = changes_of(self.group(options), Part(piece, last))
            self.apply(StoreTarget(group.group_id, version, number, changes, last))

    def do_drop_part(self, plain, options):
        """Take back the last stored part of the plan; `stale`: of an older one."""
        storing = self.group(options).modern.storing
        return DropPart(options.get("group", "g"), storing - ("stale" in plain))

    def do_reconcile(self, _plain, options):
        return Reconcile(options.get("group", "g"))

    def do_settle(self, _plain, options):
        """What the leader does by itself: notes, plans, reconciles until nothing is left."""
        while self.group(options) is not None and self.group(options).modern is not None:
            group = self.group(options)
            note = unknown_topics(group, self.state, self.limits.note_topics_max)
            if note is not None:
                self.apply(note)
            elif group.generation > group.modern.target_epoch:
                self.do_plan((), options)
            elif group.modern.behind:
                self.apply(Reconcile(group.group_id))
            else:
                break
        if not self.out:
            self.out.append("settled")

    def do_sync(self, plain, options):
        member_id, *pairs = plain
        group = self.group(options)
        vector = [pair.split(":", 1) for pair in pairs]
        return SyncGroup(
            group_id=options.get("group", "g"),
            member_id=member_id,
            generation=int(options.get("gen", _generation(group, member_id))),
            protocol_type=options.get("type", ""),
            protocol_name=options.get("name", ""),
            assignments=tuple(Assignment(name, _assigned(value)) for name, value in vector),
            group_instance_id=options.get("instance", ""),
        )

    def do_leave(self, plain, options):
        reason = options.get("reason", "")
        return LeaveGroup(
            options.get("group", "g"), tuple(_leaving(name, reason) for name in plain)
        )

    def do_kick(self, plain, options):
        return replace(self.do_leave(plain, options), kicked=True)

    def do_config(self, plain, options):
        names = {key: value for key, value in options.items() if key not in ("group", "delete")}
        return AlterGroupConfig(
            options.get("group", "g"),
            tuple(ConfigSetting(SHORT.get(n, n), value) for n, value in names.items()),
            tuple(SHORT.get(n, n) for n in options.get("delete", "").split(",") if n),
        )

    def do_changed(self, plain, options):
        (topic,) = plain
        known = self.state.topics_changed.get(topic, 0)
        return TopicsChanged(
            options.get("group", "g"),
            topic,
            self.state.topics.get(topic, 0),
            int(options.get("version", known)),
        )

    def do_expire(self, plain, options):
        group = self.group(options)
        if group and group.modern:
            joins = group.modern.members[plain[0]].joins
            joins = int(options.get("round", joins))
            return ExpireMember(group.group_id, plain[0], 0, joins, "silent")
        member = group.members.get(plain[0]) if group else None
        pending = group is not None and plain[0] in group.pending
        armed = member.joined_round if member else NEVER_JOINED if pending else 0
        return ExpireMember(
            group_id=options.get("group", "g"),
            member_id=plain[0],
            generation=int(options.get("gen", group.generation if group else 0)),
            joined_round=int(options.get("round", armed)),
            reason="silent",
        )

    def do_fire(self, _plain, options):
        ((key, deadline_ms),) = deadlines(self.group(options))
        self.now_ms = max(self.now_ms, deadline_ms)
        self.out.append(f"time {self.now_ms}")
        return CloseRound(key.group_id, key.round, key.timer, deadline_ms, key.member_id)

    def do_close(self, plain, options):
        number, timer, deadline_ms = plain
        group_id = options.get("group", "g")
        member_id = options.get("member", "")
        return CloseRound(group_id, int(number), RoundTimer[timer], int(deadline_ms), member_id)

    def do_commit(self, plain, options):
        member_id, *partitions = plain
        member_id = "" if member_id == "-" else member_id
        group = self.group(options)
        current = _generation(group, member_id) if group and member_id else -1
        return OffsetCommit(
            group_id=options.get("group", "g"),
            member_id=member_id,
            generation=int(options.get("gen", current)),
            commit_seq=int(options.get("seq", "0")),
            partitions=_expecting(
                tuple(_partition(text) for text in partitions), options.get("expect", "")
            ),
            group_instance_id=options.get("instance", ""),
            atomic=options.get("atomic") == "1",
            forward_only=options.get("forward") == "1",
            expected_generation=int(options["generation"]) if "generation" in options else None,
            blob=options["blob"].encode() if "blob" in options else None,
            deletions_version=int(options.get("checked", self.state.dropped_version)),
            creation_version=int(options.get("made", "0")),
            tokens=self._tokens(group, member_id, partitions, options),
        )

    def _tokens(self, group, member_id, partitions, options):
        """The present ones, unless told otherwise."""
        if "tokens" in options:
            return tuple(map(int, filter(None, options["tokens"].split(","))))
        consumer = group.modern.members.get(member_id) if group and group.modern else None
        if consumer is None or consumer.is_classic:
            return ()
        places = [_place(text.partition("=")[0].partition(":")[0]) for text in partitions]
        return tuple(consumer.token_of(place.topic, place.partition) for place in places)

    def do_delete_group(self, _plain, options):
        return DeleteGroup(options.get("group", "g"))

    def do_delete_offsets(self, plain, options):
        return OffsetDelete(options.get("group", "g"), tuple(map(_place, plain)))

    def do_sweep(self, plain, options):
        return ExpireOffsets(
            group_id=options.get("group", "g"),
            wall_ms=WALL_MS + int(options.get("wall", self.now_ms)),
            retention_ms=int(options.get("retention", "1000")),
            partitions=tuple(map(_place, plain)),
        )

    def do_due(self, _plain, options):
        group, retention_ms = self.group(options), int(options.get("retention", "1000"))
        due = due_offsets(group, WALL_MS + self.now_ms, retention_ms) if group else ()
        self.out.append(" ".join(f"{topic}/{number}" for topic, number in due) or "nothing is due")

    def do_heartbeat(self, plain, options):
        group = self.group(options)
        generation = int(options.get("gen", _generation(group, plain[0])))
        instance_id = options.get("instance", "")
        self.out.append(heartbeat(group, plain[0], generation, instance_id).name)

    def do_topic(self, plain, options):
        return CreateTopic(plain[0], int(plain[1]), options.get("zones", ""))

    def do_zones(self, plain, _options):
        """Say in which zones a topic's partitions are; without any: in none."""
        return SetTopicZones(plain[0], plain[1] if len(plain) > 1 else "")

    def do_grow(self, plain, _options):
        return AddPartitions(plain[0], int(plain[1]))

    def do_delete_topic(self, plain, options):
        return DeleteTopic(plain[0], int(options["made"]) if "made" in options else None)

    def do_begin_drop(self, _plain, options):
        state = self.state
        version = int(options.get("known", state.deletions_version))
        after = int(options.get("after", state.dropped_version))
        topics = tuple(DeletedTopic(*one) for one in state.topics_deleted.items())
        return BeginDrop(topics, version, after)

    def do_drop(self, plain, options):
        topics = {place.topic for place in map(_place, plain)}
        (topic,) = topics
        return DropOffsets(
            options.get("group", "g"),
            topic,
            int(options.get("version", self.state.dropping.get(topic, 0))),
            tuple(_place(text).partition for text in plain),
        )

    def do_end_drop(self, plain, options):
        return EndDrop(self._deleted(plain, options))

    def do_forget(self, plain, options):
        return ForgetDeletion(self._deleted(plain, options))

    def _deleted(self, names, options):
        known = {**self.state.topics_deleted, **self.state.dropping}
        return tuple(DeletedTopic(n, int(options.get("version", known.get(n, 0)))) for n in names)

    def do_registry(self, _plain, _options):
        state = self.state
        for name, partitions in sorted(state.topics.items()):
            made = state.topics_created.get(name)
            when = "" if made is None else f" made at {made - WALL_MS}"
            if name in state.creation_versions:
                when += f", version {state.creation_versions[name]}"
            self.out.append(f"{name}: {partitions} partitions{when}")
        self.out.append(f"version {state.topics_version}, deletions {state.deletions_version}")
        for what, names in (("deleted", state.topics_deleted), ("dropping", state.dropping)):
            self.out += [f"{what}: {name}@{version}" for name, version in sorted(names.items())]
        self.out.append(f"deletions known to the shard {state.dropped_version}")

    def do_replace(self, plain, _options):
        return ReplaceNode(int(plain[0]), plain[1])

    def do_finalize(self, plain, _options):
        return FinalizeLevel(int(plain[0]), _levels(plain[1:]))

    def do_note(self, plain, _options):
        return NoteLevels(_levels(plain))

    def do_level(self, plain, _options):
        return ShardLevel(int(plain[0]))

    def do_levels(self, _plain, _options):
        noted = " ".join(f"{node}:{level}" for node, level in self.state.node_levels.items())
        self.out.append(f"level {self.state.level} nodes {noted or '-'}")

    def do_acl(self, plain, options):
        def rules(sign):
            return tuple(
                access.AclRule(who, *_scope(*rest[:3]), deny=rest[3:] == ["deny"])
                for who, *rest in (word[1:].split(":") for word in plain if word[0] == sign)
            )

        return AlterAcls(rules("+"), rules("-"), options.get("opens") == "1")

    def do_token(self, plain, options):
        digit, who, *scopes = plain
        return CreateToken(
            digit * 16,
            who,
            digit.encode() * 32,
            WALL_MS + int(options["expires"]) if "expires" in options else 0,
            tuple(access.TokenScope(*_scope(*scope.split(":"))) for scope in scopes),
        )

    def do_backup(self, plain, _options):
        return NoteBackup(int(plain[0]))

    def do_revoke(self, plain, _options):
        return RevokeToken(plain[0] * 16)

    def do_quota(self, plain, options):
        entity, _, name = plain[0].partition(":")
        return AlterQuotas(
            tuple(
                quotas.QuotaChange(
                    quotas.QuotaEntity[entity.upper()],
                    name,
                    quotas.QuotaKey[key.upper()],
                    int(number),
                )
                for key, number in options.items()
            )
        )

    def do_quotas(self, _plain, _options):
        for (entity, name, key), value in sorted(self.state.quotas.items()):
            self.out.append(f"{entity.name}:{name}:{key.name}={value}")

    def do_principals(self, _plain, options):
        """Whose each member of a group is, and how many members each principal has."""
        for member in _members(self.group(options)).values():
            self.out.append(f"{member.member_id} of {member.principal or '-'}")
        whose = [m.principal for g in self.state.groups.values() for m in _members(g).values()]
        assert self.state.members_of == Counter(filter(None, whose))
        self.out.append(" ".join(f"{who}={n}" for who, n in sorted(self.state.members_of.items())))

    def do_may(self, plain, _options):
        who, operation, resource, *name = plain
        may = access.authorize(
            self.state.rule_index,
            who,
            access.Operation[operation.upper()],
            access.Resource[resource.upper()],
            *name,
        )
        self.out.append("yes" if may else "no")

    def do_checkpoint(self, _plain, _options):
        return Checkpoint()

    def do_restored(self, plain, _options):
        floor = (FENCE_FLOOR_KEY, put_number(int(plain[0])))
        self.state = load_state(sorted([*shard_records(self.state), floor]))
        self.out.append(f"tokens above {self.state.fence_floor}")

    def do_restart(self, _plain, _options):
        digest = self.state.digest
        self.unloaded = self.unloaded or self.state
        self.state = load_state(sorted(shard_records(self.state)))
        assert self.state.digest == digest
        self.parked.clear()
        self.out += [
            f"armed {key.timer.name} of {key.group_id} at {deadline_ms}"
            for group in self.state.groups.values()
            for key, deadline_ms in deadlines(group)
        ] or ["nothing armed"]

    def do_why(self, _plain, options):
        group = self.group(options)
        for number, record in reversed([*rounds_of(group)] if group else []):
            self.out += put_rebalance(number, record)
        self.out = self.out or ["no history"]

    def do_rounds(self, _plain, options):
        numbers = [number for number, _ in rounds_of(self.group(options))]
        self.out.append(f"{len(numbers)} rounds, {min(numbers)} to {max(numbers)}")

    def do_colocated(self, _plain, options):
        group = self.group(options)
        for one in finished(colocated(group.modern, sets_of(group.texts.get(COLOCATE, "")))):
            self.out.append(f"{','.join(one.topics)}: {'; '.join(one.problems) or 'together'}")

    def do_weighed(self, _plain, options):
        group = self.group(options)
        assignor = assignor_of(group.modern.members.values())
        for one in weighed(group.modern, group.texts.get(WEIGHTS, ""), assignor):
            self.out.append(f"{one.text}: {'; '.join(one.problems) or 'counts'}")

    def do_unowned(self, _plain, options):
        group = self.group(options)
        for one in finished(unowned(group, untaken_topics(group.modern, self.state))):
            whose = f" {one.member_id}" if one.member_id else ""
            until = f" until {one.until_ms}" if one.until_ms else ""
            numbers = ",".join(map(str, one.partitions))
            self.out.append(f"{one.topic}/{numbers}: {one.why.value}{whose}{until}")
        self.out = self.out or ["all owned"]

    def do_state(self, _plain, options):
        group = self.group(options)
        self.out.append(f"{type_of(group)} {state_of(group)}" if group else "no group")

    def do_show(self, _plain, options):
        group = self.group(options)
        self.out += ["no group"] if group is None else list(put_group(group))


SHORT = {
    "away": MAX_AWAY_MS,
    "colocate": COLOCATE,
    "delay": INITIAL_DELAY_MS,
    "longest": MAX_SESSION_TIMEOUT_MS,
    "size": MAX_SIZE,
    "least": MIN_SESSION_TIMEOUT_MS,
    "policy": MIGRATION_POLICY,
    "retention": OFFSETS_RETENTION_MS,
    "weights": WEIGHTS,
}
"""Settings as the lines of `config` name them."""


def _generation(group: Group | None, member_id: str) -> int:
    """What the member was told last."""
    if group is None:
        return 0
    consumer = group.modern.members.get(member_id) if group.modern else None
    if consumer is not None and consumer.is_classic:
        return consumer.generation
    return group.former.get(member_id, group.generation)


def _owned(places: str) -> list[Owned]:
    found = map(_place, filter(None, places.replace(":", "/").split(",")))
    return [Owned(place.topic, place.partition) for place in found]


def _members(group):
    """By member id, whatever the group's kind."""
    return group.members if group.modern is None else group.modern.members


def _assigned(value: str) -> bytes:
    """`=A/0,A/1` as the SDK says it, `=A/0;A/1` where others wait for A/1; else the bytes."""
    if not value.startswith("="):
        return value.encode()
    owned, _, awaited = value[1:].partition(";")
    return encode_assignment(_owned(owned), _owned(awaited))


def _leaving(text: str, reason: str) -> LeavingMember:
    member_id, _, instance_id = text.partition("@")
    return LeavingMember("" if member_id == "-" else member_id, reason, instance_id)


def _scope(operation, resource, name):
    """Operation, resource, pattern and name of a word's parts."""
    prefix = name.endswith("*")
    return (
        access.Operation[operation.upper()],
        access.Resource[resource.upper()],
        access.Pattern.PREFIX if prefix else access.Pattern.LITERAL,
        name.removesuffix("*"),
    )


def _place(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("/")
    return TopicPartition(topic, int(number))


def _expecting(partitions: tuple[PartitionCommit, ...], expect: str) -> tuple[PartitionCommit, ...]:
    if not expect:
        return partitions
    wanted = [None if word == "-" else int(word) for word in expect.split(",")]
    return tuple(
        partition._replace(expected_offset=offset)
        for partition, offset in zip(partitions, wanted, strict=True)
    )


def _partition(text: str) -> PartitionCommit:
    place, _, value = text.partition("=")
    topic, _, partition = place.rpartition("/")
    value, _, metadata = value.partition(":")
    value, _, epoch = value.partition("^")
    offset, _, end = value.partition("@")
    start, _, offset = offset.rpartition("..")
    return PartitionCommit(
        topic,
        int(partition),
        int(offset),
        metadata,
        int(end) if end else None,
        start_offset=int(start) if start else None,
        leader_epoch=int(epoch) if epoch else None,
    )


def _levels(words):
    return tuple(NodeLevel(*map(int, word.split(":"))) for word in words)


def _sets(places):
    """Partitions by topic, in order."""
    by_topic = {}
    for topic, partition in sorted(map(_place, places)):
        by_topic.setdefault(topic, []).append(partition)
    return tuple(PartitionSet(topic, tuple(numbers)) for topic, numbers in by_topic.items())
