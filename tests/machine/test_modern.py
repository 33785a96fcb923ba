"""Modern groups under random histories: one owner of each partition, tokens that rise, least moves.

`World` holds each step against the promises of the machine: live = restored = replayed by digest.
"""

import re
from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from musterd.coordinator.api.frame.group_state import ASSIGNING, state_of
from musterd.coordinator.machine.commands import (
    AWAY_EPOCH,
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NO_OWNER,
    AddPartitions,
    AlterGroupConfig,
    CloseRound,
    ConfigSetting,
    ConsumerGroupHeartbeat,
    CreateTopic,
    DeleteTopic,
    DropPart,
    ExpireMember,
    LeaveGroup,
    LeavingMember,
    NoteTopics,
    OffsetCommit,
    PartitionCommit,
    PartitionSet,
    PatternTopics,
    Reconcile,
    SetTopicZones,
    StoreTarget,
)
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.events import TargetStored
from musterd.coordinator.machine.history import NAMES_MAX
from musterd.coordinator.machine.modern.colocation import COLOCATE, colocated, sets_of
from musterd.coordinator.machine.modern.group import GrantPhase, ModernGroup
from musterd.coordinator.machine.modern.spec import changes_of, spec_of
from musterd.coordinator.machine.modern.topics import is_clearing, unknown_topics, untaken_topics
from musterd.coordinator.machine.modern.unowned import WhyUnowned, unowned
from musterd.coordinator.machine.modern.weights import WEIGHTS
from musterd.coordinator.machine.plan import Assignor, Part, Spec, TargetPlan, plan
from musterd.coordinator.machine.plan.pace import finished
from musterd.coordinator.machine.replies import Committed
from musterd.coordinator.machine.state import deadlines
from musterd.replay.modern_trackers import changes_in_force
from tests.machine.plans import best_outcome, check, count_plans, outcome_of, units_of
from tests.machine.world import World

pytestmark = pytest.mark.long

HISTORIES = 50
"""In each of twenty tests: 1,000 in all."""
FEW_HISTORIES = 30
"""What make test has of them."""
STEPS = 40
LATE_MAX = 8
"""Heartbeats that may come once more."""
PLANS_LOOKED_AT = 300
"""Possible plans of a spec beyond which not all are looked at."""
TOPICS = ("a", "b", "c")
PATTERNS = ("[ab]", ".", "z.*")
"""By which some members subscribe; one stands for nothing."""
ZONES = ("", "z1", "z1;z2", "z2;;z1,z3")
COLOCATED = ("a,b", "b,c", "a,b,c")
NEWS = (
    {"topics": ("a",)},
    {"topics": ("a", "b", "c"), "pattern": ""},
    {"pattern": "[ab]"},
    {"zone": "z2"},
    {"capacity": 2_000},
    {"assignor": "weighted"},
    {"assignor": "uniform"},
)
"""What a member may say of itself while it is one."""
NEWS_SHARE = 0.1
WEIGHED = ("a=3", "a[0]=5;b[1-2]=0.5", "c=0.001;d=7")


class Fleet:
    """Members of one group, with what each of them knows, and what the leader does by itself."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.world = World()
        self.owned: dict[str, dict[tuple[str, int], int]] = {}
        """Member id -> what it works on, with the token under which it does."""
        self.epochs: dict[str, int] = {}
        self.instances: dict[str, str] = {}
        self.known: dict[str, int] = {}
        """The largest token of the grants that each was told last."""
        self.said: list[ConsumerGroupHeartbeat] = []
        """The last heartbeats, which may come once more, late."""
        self.away: dict[str, None] = {}
        self.tokens: dict[tuple[str, int], int] = {}
        """The largest token of each partition so far."""
        self.holders: dict[tuple[str, int], tuple[str, int, GrantPhase]] = {}
        """Who had a grant of each partition after the last command, with its joins and phase."""
        self.made: dict[tuple[str, int, int], int] = {}
        """Topic, partition, token -> which topic of that name there was at the grant."""
        self.since: dict[tuple[str, int, int], int] = {}
        """Topic, partition, token -> its owner's epoch at the grant."""
        self.numbers = 0
        self.best = 0
        """How many plans were compared with all others, of which there are some."""
        self.planned_version = 0
        """The spec version of the last plan: capacity and the like change none that stands."""
        self.in_force: dict[tuple[str, int], int] = {}
        """Who owns what in the target that is in force, as far as there are such partitions."""
        self.was_modern = False
        self.planned_from: tuple[int, Spec] | None = None
        """The spec version after the last command, and what plans were made from but the target."""
        self.taken_back = 0
        """How often all that was stored of plans was taken back."""
        self.dropped = 0
        """How many plans came into force after parts of another were stored."""
        for topic in TOPICS:
            self.world.apply(CreateTopic(topic, random.randint(1, 4)))

    @property
    def group(self):
        return self.world.state.groups.get("g")

    @property
    def modern(self):
        return None if self.group is None else self.group.modern

    # ---- what members do

    def join(self) -> None:
        self.numbers += 1
        instance_id = f"i{self.random.randrange(3)}" if self.random.random() < 0.3 else ""
        holder = None if self.group is None else self.group.instances.get(instance_id)
        self.join_as(f"m{self.numbers}", instance_id, gone=holder is not None)
        if holder is not None:  # its process is no more
            self.forget(holder)

    def join_as(self, member_id: str, instance_id: str, *, gone: bool = False) -> None:
        self.owned.pop(member_id, None)
        topics = tuple(t for t in TOPICS if self.random.random() < 0.7) or TOPICS[:1]
        reply = self.hear(
            ConsumerGroupHeartbeat(
                "g",
                member_id,
                JOIN_EPOCH,
                client_id="c",
                group_instance_id=instance_id,
                session_timeout_ms=10_000,
                rebalance_timeout_ms=60_000,
                topics=topics,
                pattern=self.random.choice(("", "", "", *PATTERNS)),
                zone=self.random.choice(("", "z1", "z2")),
                assignor=self.random.choice(("", "uniform", "range", "weighted")),
                capacity=self.random.choice((-1, 500, 3_000)),
                owned=(),
                holder_disconnected=gone,
            )
        )
        if hasattr(reply, "member_epoch"):
            self.owned[member_id], self.epochs[member_id] = {}, reply.member_epoch
            self.instances[member_id] = instance_id
            self.away.pop(member_id, None)
            self.take(member_id, reply)

    def hear(self, command: ConsumerGroupHeartbeat):
        (result,) = self.world.apply(command)
        self.look()
        return result.reply

    def beat(self, member_id: str, *, releases: bool = True, **says: object) -> None:
        """Say what it works on, and take over what it is told; an answer may be lost."""
        said = ConsumerGroupHeartbeat(
            "g",
            member_id,
            self.epochs[member_id],
            group_instance_id=self.instances[member_id],
            owned=sets(self.owned[member_id]),
            known_token=self.known[member_id],
            **says,
        )
        self.said = [*self.said[-LATE_MAX:], said]
        reply = self.hear(said)
        if getattr(reply, "error", None) is not None:
            assert reply.error in (Error.UNKNOWN_MEMBER_ID, Error.FENCED_MEMBER_EPOCH)
            self.forget(member_id)
        elif self.random.random() < 0.9:
            self.take(member_id, reply, releases=releases)

    def take(self, member_id: str, reply, *, releases: bool = True) -> None:
        self.epochs[member_id] = reply.member_epoch
        self.known[member_id] = max((grant.token for grant in reply.grants), default=0)
        owned = self.owned[member_id]
        kept = {}
        for grant in reply.grants:
            place = (grant.topic, grant.partition)
            if grant.phase.name == "ACTIVE" or (not releases and owned.get(place) == grant.token):
                kept[place] = grant.token
        self.owned[member_id] = kept

    def forget(self, member_id: str) -> None:
        """Its process is no more, or knows that it lost everything."""
        for known in (self.owned, self.epochs, self.instances, self.known, self.away):
            known.pop(member_id, None)

    def come_late(self) -> None:
        """A heartbeat that was sent before comes once more; nobody takes the answer."""
        if self.said:
            self.hear(self.random.choice(self.said))

    def leave(self, member_id: str) -> None:
        if self.random.random() < 0.5:
            self.world.apply(LeaveGroup("g", (LeavingMember(member_id, "done"),)))
            self.look()
        else:
            self.hear(
                ConsumerGroupHeartbeat(
                    "g", member_id, LEAVE_EPOCH, group_instance_id=self.instances[member_id]
                )
            )
        self.forget(member_id)

    def go_away(self, member_id: str) -> None:
        self.owned[member_id] = {}
        self.hear(
            ConsumerGroupHeartbeat(
                "g",
                member_id,
                AWAY_EPOCH,
                group_instance_id=self.instances[member_id],
                back_in_ms=5_000,
            )
        )
        self.away[member_id] = None

    def come_back(self, member_id: str) -> None:
        self.join_as(member_id, self.instances[member_id])

    def expire(self, member_id: str) -> None:
        joins = self.modern.members[member_id].joins
        self.world.apply(ExpireMember("g", member_id, 0, joins, "silent"))
        self.look()
        if member_id not in self.away:
            self.forget(member_id)

    def commit(self, member_id: str) -> None:
        """A commit is taken of exactly what the member has a grant of.

        That is told by the grant's token, or, of a commit without any, by a member epoch from that
        on at which the grant began (KIP-1251).
        """
        places = [(t, p) for t in TOPICS for p in range(3)]
        place = self.random.choice(places)
        known = self.owned[member_id].get(place, 0)
        token = self.random.choice((known, self.tokens.get(place, 1), 1))
        consumer = None if self.modern is None else self.modern.members.get(member_id)
        now = 0 if consumer is None else consumer.token_of(*place)
        epoch, tokens = 1, (token,)
        good = bool(token) and token == now
        if self.random.random() < 0.5:
            since = self.since.get((*place, now), 1)
            last = 1 if consumer is None else consumer.epoch
            near = (since - 1, since, last, last + 1, self.epochs[member_id])
            epoch, tokens = self.random.choice(near), ()
            good, token = bool(now) and since <= epoch <= last, now
        wanted = PartitionCommit(*place, 7, "", None)
        registry = self.world.state
        made = registry.creation_versions.get(place[0], 0)
        command = OffsetCommit(
            "g",
            member_id,
            max(epoch, 0),
            0,
            (wanted,),
            deletions_version=registry.dropped_version,
            creation_version=made,
            tokens=tokens,
        )
        (result,) = self.world.apply(command)
        taken = isinstance(result.reply, Committed) and (
            result.reply.partitions[0].error is Error.NONE
        )
        away = member_id in self.away
        later = self.group is not None and made > self.group.topics_version
        assert taken == (good and not away and not later)
        former = made > self.made.get((*place, token), 0)
        assert not (taken and former), "a commit of a former topic is the new one's"

    # ---- what the leader does

    def lead(self) -> bool:
        """One thing that it does by itself; False where there is nothing to do."""
        group, modern = self.group, self.modern
        if group is None or modern is None:
            return False
        note = unknown_topics(group, self.world.state, 2)
        change = self.matched(modern)
        if change is not None and self.random.random() < 0.5:
            self.world.apply(NoteTopics("g", (), (change,), modern.topics_version))
            assert self.matched(self.modern) != change
        elif note is not None:
            self.world.apply(note)
        elif modern.storing and self.random.random() < 0.2:
            self.fail_plan(until=self.random.choice((1, 99)))
        elif group.generation > modern.target_epoch:
            self.plan(until=self.random.choice((1, 99)))
        elif modern.behind:
            self.world.apply(Reconcile("g"))
        else:
            return change is not None
        self.look()
        return True

    def matched(self, modern: ModernGroup) -> PatternTopics | None:
        """What one of its members' patterns does not stand for yet, or not any more."""
        for pattern in sorted(modern.pattern_readers):
            names = {name for name in self.world.state.topics if re.fullmatch(pattern, name)}
            former = set(modern.patterns.get(pattern, ()))
            if names != former:
                added, removed = sorted(names - former), sorted(former - names)
                return PatternTopics(pattern, tuple(added), tuple(removed))
        return None

    def plan(self, until: int) -> None:
        """Store a target in small parts; a leader may end before the last."""
        spec = spec_of(self.group)
        made, version = plan(spec), self.modern.spec_version
        self.look_at_plan(spec, made)
        self.planned_version = version
        pieces = [made.changes[at : at + 2] for at in range(0, len(made.changes), 2)] or [()]
        for number, piece in enumerate(pieces[:until]):
            last = number == len(pieces) - 1
            changes = changes_of(self.group, Part(piece, last))
            epoch = self.group.generation if last else 0
            event = TargetStored("g", version, number, changes, epoch, 0)
            told = changes_in_force(event, self.modern)
            self.dropped += last and len(told) > len(made.changes)
            self.world.apply(StoreTarget("g", version, number, changes, last))
            if last:
                self.look_at_moves(told)
            self.look()

    def fail_plan(self, until: int) -> None:
        """Take back what is stored of plans; a leader may end before all of it is."""
        for _ in range(until):
            self.world.apply(DropPart("g", self.modern.storing))
            self.look()
            if not self.modern.storing:
                self.taken_back += 1
                there = owners_of(self.modern)
                assert there == {place: self.in_force.get(place, NO_OWNER) for place in there}
                moves = self.group.rebalances[self.group.round].moves
                assert not moves.moved
                assert not any(moves.flows.values())
                break

    def look_at_moves(self, told: dict[tuple[str, int], tuple[int, int, int]]) -> None:
        """What has moved is how the target differs from the one that was in force before.

        It makes no difference how many plans were stored in part: the group's history, and replay,
        which was `told` of the last part, count each partition once.
        """
        before, self.in_force = self.in_force, owners_of(self.modern)
        moves = self.group.rebalances[self.group.round].moves
        expected = {
            place: (before.get(place, NO_OWNER), owner)
            for place, owner in self.in_force.items()
            if before.get(place, NO_OWNER) != owner
        }
        found = {place: (a, b) for place, (a, _, b) in told.items() if a != b}
        assert found == expected
        assert moves.moved == sum(NO_OWNER not in pair for pair in expected.values())
        assert moves.count == Counter(told[place][1] for place in expected)
        flows = {flow: count for flow, count in moves.flows.items() if count}
        every = Counter((*pair, told[place][1]) for place, pair in expected.items())
        assert flows.items() <= every.items()
        assert len(moves.flows) == NAMES_MAX or flows == every
        assert all(owner in moves.names or owner not in self.modern.by_seq for _, owner, _ in flows)

    def fire(self) -> None:
        for key, deadline_ms in list(deadlines(self.group)) if self.group is not None else ():
            self.world.now_ms = max(self.world.now_ms, deadline_ms)
            closing = CloseRound("g", key.round, key.timer, deadline_ms, key.member_id)
            self.world.apply(closing)
            self.look()
            self.forget(key.member_id)

    def configure(self) -> None:
        """An operator sets which topics are co-located, or what partitions weigh, or no more."""
        name, texts = self.random.choice(((COLOCATE, COLOCATED), (WEIGHTS, WEIGHED)))
        text = self.random.choice(("", *texts))
        setting = (ConfigSetting(name, text),) if text else ()
        removed = () if text else (name,)
        self.world.apply(AlterGroupConfig("g", setting, removed))
        self.look()

    def topics(self) -> None:
        topic = self.random.choice(TOPICS)
        count = self.world.state.topics.get(topic, 0)
        if count and self.random.random() < 0.4:
            self.world.apply(DeleteTopic(topic))
            for verb in ("begin-drop", "end-drop", "forget"):
                self.world.run(f"{verb} {topic}")
        elif count and self.random.random() < 0.5:
            self.world.apply(SetTopicZones(topic, self.random.choice(ZONES)))
        elif count:
            self.world.apply(AddPartitions(topic, count + 1))
        else:
            zones = self.random.choice(ZONES)
            self.world.apply(CreateTopic(topic, self.random.randint(1, 4), zones))
        self.look()

    # ---- what must hold

    def look(self) -> None:
        """One owner of each partition, whose token only rises with each new grant, or a reason."""
        self.look_at_unowned()
        self.look_at_spec()
        there = {} if self.modern is None else owners_of(self.modern)
        if self.modern is not None and not self.was_modern:
            self.in_force = there  # what a conversion makes the target of
        self.was_modern = self.modern is not None
        if self.modern is not None and state_of(self.group) != ASSIGNING:
            present = [one for one in self.modern.members.values() if not one.is_away]
            settled = not self.modern.behind and all(map(self.modern.is_settled, present))
            assert self.modern.is_carried_out == settled
        self.in_force = {place: seq for place, seq in self.in_force.items() if place in there}
        owners: dict[tuple[str, int], str] = {}
        holders: dict[tuple[str, int], tuple[str, int, GrantPhase]] = {}
        for member in self.modern.members.values() if self.modern is not None else ():
            for grant in member.grants():
                place = (grant.topic, grant.partition)
                assert place not in owners, "two owners"
                owners[place] = member.member_id
                holder = (member.member_id, member.joins, grant.phase)
                before = self.holders.get(place, ("", 0, GrantPhase.ACTIVE))
                goes_on = before[:2] == holder[:2] and before[2] <= grant.phase
                last = self.tokens.get(place, 0)
                if goes_on:
                    assert grant.token == last, "a grant that goes on has another token"
                else:  # also what it released, and had back at once
                    assert grant.token > last, "another grant has no larger token"
                holders[place] = holder
                self.tokens[place] = grant.token
                made = self.world.state.creation_versions.get(grant.topic, 0)
                self.made.setdefault((*place, grant.token), made)
                self.since.setdefault((*place, grant.token), member.epoch)
        self.holders = holders
        working: dict[tuple[str, int, int], str] = {}
        for member_id, owned in self.owned.items():
            for (topic, partition), token in owned.items():
                if token == self.tokens.get((topic, partition)):
                    key = (topic, partition, token)
                    assert key not in working, "two work under one token"
                    working[key] = member_id
            consumer = None if self.modern is None else self.modern.members.get(member_id)
            for place, token in owned.items() if consumer is not None else ():
                assert consumer.token_of(*place) == token, "it works on what was taken from it"

    def look_at_plan(self, spec: Spec, made: TargetPlan) -> None:
        """It gives each partition to one of its readers, or to nobody for a reason that is true.

        Of a small group `uniform` is the best of all plans there are: even, near, and few moves.
        """
        check(spec, made)
        if spec.assignor is not Assignor.UNIFORM or count_plans(spec) > PLANS_LOOKED_AT:
            return
        if all(len(held) <= 1 for _, _, held in units_of(spec)):  # else two may keep it
            self.best += count_plans(spec) > 1
            assert outcome_of(spec, made.target) == best_outcome(spec), "a better plan"

    def look_at_spec(self) -> None:
        """What plans are made from is another only at another spec version: no plan is stale."""
        former, self.planned_from = self.planned_from, None
        if self.modern is not None:
            spec = replace(spec_of(self.group), last={})
            self.planned_from = self.modern.spec_version, spec
            assert former is None or former[0] != self.modern.spec_version or former[1] == spec

    def look_at_unowned(self) -> None:
        """Each partition of a topic that somebody reads is granted, or named once, and truly."""
        group, modern, registry = self.group, self.modern, self.world.state
        if modern is None:
            return
        named: dict[tuple[str, int], WhyUnowned] = {}
        due = group.generation > modern.target_epoch or modern.storing
        for one in finished(unowned(group, untaken_topics(modern, registry))):
            owner = modern.members.get(one.member_id)
            assert {
                WhyUnowned.PLAN_DUE: due,
                WhyUnowned.NOT_RELEASED: owner and owner.revoking,
                WhyUnowned.GRANT_DUE: owner and owner.join_seq in modern.behind,
                WhyUnowned.AWAY: owner and one.until_ms == owner.away_until_ms > 0,
                WhyUnowned.TOPIC_DUE: unknown_topics(group, registry, 9) or is_clearing(modern),
                WhyUnowned.OVER_LIMIT: False,  # so many there are not
            }[one.why], one
            for partition in one.partitions:
                assert (one.topic, partition) not in named
                named[one.topic, partition] = one.why
        members = modern.members.values()
        for topic in registry.topics:
            if not any(modern.reads(member, topic) for member in members):
                continue
            # A grant of a former topic, of which the group knows that it is gone, is none of this.
            held = modern.held.get(topic, {}) if topic in modern.topics else {}
            for partition in range(registry.topics[topic]):
                assert (partition in held) != ((topic, partition) in named), (topic, partition)

    def step(self) -> None:  # noqa: C901, PLR0912 - one arm for each thing that may happen
        members = list(self.owned)
        present = [m for m in members if m not in self.away]
        choice = self.random.random()
        if choice < 0.12 or not members:
            self.join()
        elif choice < 0.15:
            self.topics()
        elif choice < 0.17:
            self.configure()
        elif choice < 0.20 and self.away:
            self.come_back(self.random.choice(list(self.away)))
        elif choice < 0.23:
            self.fire()
        elif choice < 0.45:
            for _ in range(self.random.randint(1, 4)):
                self.lead()
        elif present:
            member_id = self.random.choice(present)
            if self.modern is None or member_id not in self.modern.members:
                self.forget(member_id)
            elif choice < 0.70:
                says = self.random.choice(NEWS) if self.random.random() < NEWS_SHARE else {}
                self.beat(member_id, releases=self.random.random() < 0.8, **says)
            elif choice < 0.75:
                self.come_late()
            elif choice < 0.85:
                self.commit(member_id)
            elif choice < 0.89:
                self.leave(member_id)
            elif choice < 0.94:
                self.go_away(member_id)
            elif choice < 0.97:
                self.expire(member_id)
            else:
                self.join_as(member_id, self.instances[member_id])

    def settle(self) -> None:
        """Churn stops: all that is due is done, in a bounded number of steps."""
        for member_id in [m for m in self.away if m in self.owned]:
            self.come_back(member_id)
        for _ in range(8):
            while self.lead():
                pass
            for member_id in list(self.owned):
                if self.modern is None or member_id not in self.modern.members:
                    self.forget(member_id)
                else:
                    self.beat(member_id)


def owners_of(modern: ModernGroup) -> dict[tuple[str, int], int]:
    """The target by partition."""
    return {
        (topic, partition): owner
        for topic, owners in modern.target.items()
        for partition, owner in enumerate(owners)
    }


def sets(owned: dict[tuple[str, int], int]) -> tuple[PartitionSet, ...]:
    topics = sorted({topic: None for topic, _ in owned})
    return tuple(
        PartitionSet(topic, tuple(sorted(p for t, p in owned if t == topic))) for topic in topics
    )


def test_each_partition_has_one_owner_and_a_rising_token_in_any_history():
    live_through(range(FEW_HISTORIES))


@pytest.mark.histories(weight=8)
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_histories_keep_one_owner_and_rising_tokens(part):
    live_through(range(part * HISTORIES, (part + 1) * HISTORIES))


def live_through(seeds: range) -> None:
    best = dropped = taken_back = 0
    for seed in seeds:
        fleet = Fleet(Random(seed))
        try:
            for _ in range(STEPS):
                fleet.step()
            fleet.settle()
            settled(fleet)
            best += fleet.best
            dropped += fleet.dropped
            taken_back += fleet.taken_back
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert best > len(seeds) / 2
    assert dropped > len(seeds) / 10
    assert taken_back > len(seeds) / 10


def settled(fleet: Fleet) -> None:
    """Everybody holds its target; a partition without an owner is one that nobody reads."""
    group, modern = fleet.group, fleet.modern
    if modern is None:
        return
    assert modern.target_epoch == group.generation
    assert not modern.behind
    assert all(modern.is_settled(consumer) for consumer in modern.members.values())
    read = {topic for consumer in modern.members.values() for topic in modern.topics_of(consumer)}
    for one in finished(colocated(modern, sets_of(group.texts.get(COLOCATE, "")))):
        rows = [modern.target[topic] for topic in one.counts]
        if one.all:  # else nobody can have all of them
            assert all(len({*owners}) == 1 for owners in zip(*rows, strict=False))
    for topic, count in modern.topics.items():
        if topic in read:
            assert sorted(modern.held.get(topic, ())) == list(range(count))
    assert not plan(spec_of(group)).changes or modern.spec_version > fleet.planned_version, (
        "a settled group moves nothing"
    )
