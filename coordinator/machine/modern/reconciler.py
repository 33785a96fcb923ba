"""The reconciler: what a member is granted and has to release next (gp-1.8, with its corrections).

It compares what a member holds with what the target gives it, of topics that it reads. What it
holds beyond that is revoked; while any of it is not released the member gets nothing new (KIP-848).
What nobody holds is granted. Nothing is done by a target of which a part is missing.

One entry tells a member to release at most `reconcile_max_partitions`, and takes as many that it
has released: who has more of them is behind, and the entries that follow go on with it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from musterd.coordinator.machine.commands import NO_OWNER, PartitionSet
from musterd.coordinator.machine.decide.fencing import next_token
from musterd.coordinator.machine.envelope import Envelope
from musterd.coordinator.machine.events import GrantsChanged, MembersBehind
from musterd.coordinator.machine.modern.group import (
    Consumer,
    ModernGroup,
    Tokens,
    partition_sets,
)
from musterd.coordinator.machine.state import Group

Owned = Mapping[str, Mapping[int, None]]
"""Topic -> partitions."""


@dataclass(slots=True)
class Reconciler:
    """Decides the grants of some members of one group, in one command.

    At most `reconcile_max_partitions` change their grants, of which `left` are left, and those of
    about `reconcile_max_members`; whoever is not reached is behind. It also takes at most as many
    released partitions; `takes` says how many more. `token` is the last one that the decision took,
    0 = none.
    `freed` has what events of the same decision free: members that are gone, partitions that were
    released; `late` is the event that names whom they are for and this entry does not reach.
    `missed` are members whom the next entry goes on with: they were decided before something of
    theirs was released, or go away and have more than the target gives them.
    `joins` is the join sequence of a classic member whose Join is decided, -1 = of none: the answer
    tells it of its grants, and others have a deadline to come and hear of theirs.
    """

    group: Group
    modern: ModernGroup
    env: Envelope
    token: int = 0
    joins: int = -1
    left: int = field(init=False)
    takes: int = field(init=False)
    freed: dict[str, Mapping[int, object]] = field(default_factory=dict)
    events: list[GrantsChanged] = field(default_factory=list)
    late: tuple[MembersBehind, ...] = ()
    done: dict[int, None] = field(default_factory=dict)
    missed: dict[int, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = self.takes = self.env.limits.reconcile_max_partitions

    @property
    def decided(self) -> tuple[GrantsChanged | MembersBehind, ...]:
        """The events in their order; who is behind comes first, as the plan goes on for them."""
        return (*self.late, *self.events)

    @property
    def is_full(self) -> bool:
        """True where the entry changes as much as one may."""
        return self.left <= 0 or len(self.events) >= self.env.limits.reconcile_max_members

    def free(self, topic: str, partitions: Mapping[int, object]) -> None:
        """Note that nobody has these partitions once the events so far are applied.

        The map is kept, and not written to.
        """
        others = self.freed.get(topic)
        self.freed[topic] = {**others, **partitions} if others else partitions

    def reconcile(
        self,
        consumer: Consumer,
        owned: Owned | None,
        *,
        confirmed: bool,
        known_token: int | None = None,
    ) -> None:
        """Decide one member's grants.

        Args:
            consumer: as it is, with what it said last.
            owned: what it says it works on; None where it says nothing.
            confirmed: it released all that it was told to.
            known_token: the largest token that it knew of when it said `owned`; None: it knew all.
        """
        self.done[consumer.join_seq] = None
        released: dict[str, dict[int, None]] = {}
        is_told = False
        if confirmed or consumer.has_stopped:
            if self._release(consumer, consumer.revoking, released):
                self._note(consumer, released, {}, {}, behind=True, partly=True)
                return
        elif consumer.telling and not self.modern.storing:
            is_told = True
        elif consumer.revoking:  # it goes on when it has confirmed
            unread = {
                topic: tokens
                for topic, tokens in consumer.assigned.items()
                if not self.modern.reads(consumer, topic)
            }
            told, more = _first(unread, None if consumer.is_classic else self.left)
            self._note(consumer, {}, told, {}, behind=consumer.telling or more)
            return
        if self.modern.storing:
            self._note(consumer, released, {}, {}, behind=True)
            return
        all_at_once = owned is not None or consumer.is_away or consumer.is_classic
        revoke = self._beyond_target(consumer, None if all_at_once else self.left)
        works_on = {} if consumer.is_away else owned
        at_once = {} if is_told else _not_in(revoke, works_on, known_token)
        if revoke and len(at_once) == len(revoke):
            if self._release(consumer, at_once, released):
                self._note(consumer, released, {}, {}, behind=True, partly=True)
                return
            revoke = {}
        if revoke or consumer.is_away or is_told:
            told, more = _first(revoke, None if consumer.is_classic else self.left)
            self._note(consumer, released, told, {}, behind=more)
            return
        granted, behind = self._grantable(consumer)
        self._note(consumer, released, {}, granted, behind=behind)

    def follow(self) -> None:
        """Decide for those whose target has what was freed, in join order."""
        waiting: dict[int, None] = {}
        for topic, partitions in self.freed.items():
            owners = self.modern.target.get(topic, ())
            count = len(owners)
            few = {owners[one]: None for one in partitions if one < count}
            for owner in few:
                if owner not in self.done and owner in self.modern.by_seq:
                    waiting[owner] = None
        late: list[int] = []
        for seq in sorted(waiting):
            consumer = self.modern.members[self.modern.by_seq[seq]]
            if consumer.revoking or consumer.is_away:
                continue
            if not self.is_full:
                before = len(self.events)
                self.reconcile(consumer, None, confirmed=False)
                if len(self.events) == before or not self.events[-1].behind:
                    continue
            if seq not in self.modern.behind:
                late.append(seq)
        late += self._missed()
        if late:
            self.late = (MembersBehind(self.group.group_id, tuple(sorted(late))),)

    def go_on_with(self, consumer: Consumer) -> None:
        """Have the next entry see to a member that has more than the target gives it."""
        if self._beyond_target(consumer, 0):
            self.missed[consumer.join_seq] = None

    def _missed(self) -> list[int]:
        """Return who was missed and has no event, by join sequence; the others' events say it."""
        late: list[int] = []
        for seq in sorted(self.missed):
            member_id = self.modern.by_seq[seq]
            for at, event in enumerate(self.events):
                if event.member_id == member_id:
                    self.events[at] = replace(event, behind=True)
                    break
            else:
                if seq not in self.modern.behind:
                    late.append(seq)
        return late

    def _release(
        self, consumer: Consumer, tokens: Tokens, released: dict[str, dict[int, None]]
    ) -> bool:
        """Note in `released` what the member has no more, and that it is free.

        Return True where it is to have still more no more, which the next entry takes.
        """
        few, more = _first(tokens, None if consumer.is_classic else self.takes)
        for topic, partitions in few.items():
            self.takes -= len(partitions)
            released.setdefault(topic, {}).update(dict.fromkeys(partitions))
            self.free(topic, partitions)
            owners = self.modern.target.get(topic, ())
            for one in partitions:
                owner = owners[one] if one < len(owners) else NO_OWNER
                if owner in self.done and owner != consumer.join_seq:
                    self.missed[owner] = None
        return more

    def _beyond_target(self, consumer: Consumer, most: int | None) -> Tokens:
        """Return active grants that the target does not give it, or of topics it does not read.

        All of them where `most` is None; else, in order of topics, none after those that are more.
        """
        wanted = self.modern.wanted.get(consumer.join_seq, {})
        found: Tokens = {}
        for topic in consumer.assigned if most is None else sorted(consumer.assigned):
            tokens = consumer.assigned[topic]
            keep = wanted.get(topic, {}) if self.modern.reads(consumer, topic) else {}
            if tokens.keys() <= keep.keys():
                continue
            gone = {
                partition: token for partition, token in tokens.items() if partition not in keep
            }
            found[topic] = gone
            if most is not None:
                most -= len(gone)
                if most < 0:
                    break
        return found

    def _grantable(self, consumer: Consumer) -> tuple[dict[str, Iterable[int]], bool]:
        """Return what it may have now of its target, within `left`, and whether there is more."""
        found: dict[str, Iterable[int]] = {}
        wanted = self.modern.wanted.get(consumer.join_seq, {})
        for topic in sorted(wanted):
            if not self.modern.reads(consumer, topic):
                continue
            has = len(consumer.assigned.get(topic, ()))
            if has == len(wanted[topic]) and topic not in self.freed:
                continue  # all of it: nothing that it has is beyond the target
            held, freed = self.modern.held.get(topic, {}), self.freed.get(topic, {})
            ready = [
                partition
                for partition in sorted(wanted[topic])
                if partition not in held or partition in freed
            ]
            if len(ready) > self.left:
                if self.left > 0:  # a classic member may have been told more
                    found[topic] = ready[: self.left]
                self.left = 0
                return found, True
            self.left -= len(ready)
            if ready:
                found[topic] = ready
        return found, False

    def _note(
        self,
        consumer: Consumer,
        released: Mapping[str, Iterable[int]],
        revoking: Tokens,
        granted: Mapping[str, Iterable[int]],
        *,
        behind: bool,
        partly: bool = False,
    ) -> None:
        """Make the event, where anything changes; `partly` where the member has more to release."""
        is_behind = consumer.join_seq in self.modern.behind
        gone, kept = partition_sets(released), partition_sets(revoking)
        new = partition_sets(granted)
        if not (gone or kept or new) and behind == is_behind:
            return
        token = deadline_ms = 0
        if new:
            token = self.token = next_token(self.group, self.env, self.token)
        if kept:
            self.left -= sum(len(one.partitions) for one in kept)
        if self._begins_deadline(consumer, gone=gone, kept=kept, new=new):
            deadline_ms = self.env.time_ms + consumer.said.rebalance_timeout_ms
        stays = kept or partly or not (gone or new)
        epoch = consumer.epoch if stays else self.modern.target_epoch
        self.events.append(
            GrantsChanged(
                self.group.group_id,
                consumer.member_id,
                max(epoch, consumer.epoch),
                gone,
                kept,
                new,
                token,
                deadline_ms,
                behind,
                self.env.time_ms,
            )
        )

    def _begins_deadline(
        self,
        consumer: Consumer,
        *,
        gone: tuple[PartitionSet, ...],
        kept: tuple[PartitionSet, ...],
        new: tuple[PartitionSet, ...],
    ) -> bool:
        """True where a rebalance timeout begins for the member with what its event says.

        What it is to release beside what it was told of before it has to release by the deadline of
        that: else it could put that off by reading fewer topics again and again.
        """
        if kept:
            return bool(gone) or not consumer.revoking
        return bool(gone or new) and self._is_told_to_join(consumer)

    def _is_told_to_join(self, consumer: Consumer) -> bool:
        """True where its next heartbeat tells a classic member to join, which it was not told yet.

        Its grants change, and are no more what its last Join was answered with (gp-4.2).
        """
        is_told = consumer.version != consumer.given
        return consumer.is_classic and consumer.join_seq != self.joins and not is_told


def _first(tokens: Tokens, most: int | None) -> tuple[Tokens, bool]:
    """Return as many partitions as that, None = all, in order of topics, and whether more are left.

    A classic member is told all at once, and gives it up at once: each change is a Join of it.
    """
    if most is None or sum(map(len, tokens.values())) <= most:
        return tokens, False
    first: Tokens = {}
    for topic in sorted(tokens):
        if most <= 0:
            break
        few = dict(islice(sorted(tokens[topic].items()), most))
        first[topic] = few
        most -= len(few)
    return first, True


def _not_in(tokens: Tokens, owned: Owned | None, known_token: int | None) -> Tokens:
    """Return the topics of which no partition is among `owned`, with their partitions.

    There are none where who said `owned` did not know of all of them yet: it may work on them now.
    """
    if owned is None or not is_known(tokens, known_token):
        return {}
    return {
        topic: partitions
        for topic, partitions in tokens.items()
        if topic not in owned or not any(one in owned[topic] for one in partitions)
    }


def is_known(tokens: Tokens, known_token: int | None) -> bool:
    """True where a member that knows of its grants up to this token, None = of all, knows these.

    What it has since before it joined again it is told under a larger token than stands here, at
    its epoch since then; so whoever names that epoch knows of it.
    """
    return known_token is None or all(max(one.values()) <= known_token for one in tokens.values())


def by_topic(sets: Iterable[PartitionSet]) -> Owned:
    """Return partitions by topic, to look them up."""
    found: dict[str, dict[int, None]] = {}
    for topic, partitions in sets:
        found.setdefault(topic, {}).update(dict.fromkeys(partitions))
    return found
