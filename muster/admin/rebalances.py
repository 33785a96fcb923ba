"""The causes of a group's last rebalances, as its coordinator kept them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from muster.v1.admin_pb2 import DescribeRebalancesResponse as Response

KEPT = 32
"""So many rounds does a group keep."""

_SECOND_MS = 1_000
_CAUSES = {
    "member_joined": "{} joined",
    "metadata_changed": "{} changed what it supports or subscribes to",
    "partitions_released": "{} gave up partitions that others wait for",
    "leader_rejoined": "the group leader {} asked for a new assignment",
    "member_left": "{} left",
    "session_expiry": "{} fell silent",
    "sync_timeout": "{} did not sync in time",
    "static_replaced": "{} came back as a new process",
    "member_kicked": "{} was removed by an operator",
    "returned": "{} is back, after a plan that was made without it",
}
_REMOVED_BY_TIME = "{} was removed"
"""Where the coordinator assigns: it fell silent, was not back, or did not release, join or sync in
time. The reason says which."""
_IN_VAIN = {
    "not_rejoined": "which did not rejoin",
    "absent": "which did not join",
    "left": "which left",
    "session_expired": "which fell silent",
    "no_room": "which found no room",
    "kicked": "which an operator removed",
    "not_released": "which did not release its partitions in time",
    "not_back": "which was away, and not back in time",
}
_GONE = _IN_VAIN | {"not_synced": "which joined and did not sync"}
"""How members go that a plan is made without."""


@dataclass(frozen=True, slots=True)
class Who:
    """A member by all its names; it may be gone. "" where a name is not known, or there is none."""

    member_id: str
    client_id: str
    instance_id: str

    @property
    def name(self) -> str:
        """The instance id of a static member, else the member id."""
        return self.instance_id or self.member_id


@dataclass(frozen=True, slots=True)
class Delay:
    """A member that held up a round, and how.

    `how` is last_to_join, assignment (of the group leader), not_rejoined, not_synced, left,
    session_expired, not_released, not_back, kicked, no_room, absent, or, in an open round, awaited.
    `after_ms` counts from the start of the round; that of an assignment from the moment when
    everybody had joined.
    """

    how: str
    who: Who
    after_ms: int


@dataclass(frozen=True, slots=True)
class Move:
    """Partitions that a plan moves from one owner to another for one reason.

    Owners are named by instance id, else member id; "" = nobody.
    """

    former: str
    owner: str
    why: str
    """new, owner left, owner unsubscribed, gone, co-located, balance, away, zone."""
    partitions: int


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One round: its one cause, how long it took, who held it up, how it ended.

    Durations count the coordinator's time; of a phase that lasts they say how long it has been,
    None where it never came to that. Of new and of missing members the first 8 are named.
    """

    round: int
    started_wall_ms: int
    """When, for people: milliseconds since 1970."""
    from_generation: int
    generation: int
    """What it formed; 0 = nothing yet."""
    trigger: str
    """One of a closed list: member_joined, member_left, session_expiry, ..."""
    culprit: Who | None
    reason: str
    """What the culprit said, at most 255 characters."""
    initial: bool
    """From a group without members: it waits a while for whoever else comes."""
    members_before: int
    members_after: int
    joining_ms: int | None
    syncing_ms: int | None
    ended: str
    """open, stable, superseded (by the next round), emptied."""
    leader: Who | None
    new_members: int
    new_member_ids: tuple[str, ...]
    missing_members: int
    delays: tuple[Delay, ...]
    awaited_members: int
    """To join or to sync, while the round is open; to release partitions, where it is a plan."""
    planned: bool = False
    """A plan of a group whose coordinator assigns.

    `joining_ms` is until its target was in force, `syncing_ms` from then on until everybody held
    what that gives; `generation` is the group epoch that it was made for.
    """
    moves: tuple[Move, ...] = ()
    """What it moves: the first 8 pairs of owners and reason."""
    moved_partitions: Mapping[str, int] = field(default_factory=dict)
    """All partitions that have another owner in the target, by reason."""

    @property
    def sentence(self) -> str:
        """The cause of the round in one sentence, for people."""
        parts = [f"{self._cause()}: {self.members_before} -> {self.members_after} members"]
        if self.planned:
            return "; ".join((*parts, *self._plan()))
        if self.joining_ms is not None and self.ended != "emptied":
            parts.append(self._joining(self.joining_ms))
        if self.syncing_ms is not None:
            parts.append(self._syncing(self.syncing_ms))
        return "; ".join(part for part in parts if part)

    def _cause(self) -> str:
        name = self.culprit.name if self.culprit is not None else ""
        known = _CAUSES.get(self.trigger)
        if self.planned and self.trigger == "session_expiry":
            known = _REMOVED_BY_TIME
        if known is None or not name:
            cause = " ".join(filter(None, (self.trigger.replace("_", " "), name)))
        else:
            cause = known.format(name)
        return f"{cause} ({self.reason})" if self.reason else cause

    def _joining(self, joining_ms: int) -> str:
        """Who was waited for the longest."""
        vain = [delay for delay in self.delays if delay.how in _IN_VAIN]
        last = next((delay for delay in self.delays if delay.how == "last_to_join"), None)
        waited = f"waited {_spelled(joining_ms)}"
        if self.ended == "open" and self.syncing_ms is None:
            awaited = self._awaited() or "whoever else will come"
            return f"waits for {awaited} to join, for {_spelled(joining_ms)} now"
        longest = max(vain, key=lambda delay: delay.after_ms, default=None)
        if longest is not None and (last is None or longest.after_ms >= last.after_ms):
            others = self.missing_members - sum(d.how == "not_synced" for d in self.delays) - 1
            return f"{waited} for {longest.who.name}, {_IN_VAIN[longest.how]}{_more(others)}"
        if self.initial:
            return f"{waited} for whoever else would come"
        if last is not None and last.after_ms > 0:
            gone = f"; without {longest.who.name}, {_IN_VAIN[longest.how]}" if longest else ""
            return f"{waited} for {last.who.name} to join{gone}"
        return ""

    def _plan(self) -> Iterator[str]:
        """Others that came and went, what moves, and how long it took."""
        culprit = self.culprit.member_id if self.culprit is not None else ""
        gone = [one for one in self.delays if one.how in _GONE]
        others = [one for one in gone if one.who.member_id != culprit]
        if others:
            more = self.missing_members - 1 - (len(gone) - len(others))
            yield f"without {others[0].who.name}, {_GONE[others[0].how]}{_more(more)}"
        if self.ended == "emptied":
            return
        if self.ended == "open" and not self.generation:
            yield f"the plan is due, for {_spelled(self.joining_ms or 0)} now"
            return
        moved = ", ".join(f"{count} ({why})" for why, count in self.moved_partitions.items())
        yield f"moves {moved}" if moved else "nothing moves"
        yield f"planned after {_spelled(self.joining_ms or 0)}"
        spelled = _spelled(self.syncing_ms or 0)
        if self.ended == "open":
            awaited = self._awaited() or "grants"
            yield f"waits for {awaited} to release partitions, for {spelled} now"
        elif self.ended == "stable":
            yield f"everybody had it {spelled} later"
        else:
            yield f"another plan was due {spelled} later"

    def _awaited(self) -> str:
        names = [delay.who.name for delay in self.delays if delay.how == "awaited"]
        return names[0] + _more(self.awaited_members - 1) if names else ""

    def _syncing(self, syncing_ms: int) -> str:
        name = self.leader.name if self.leader is not None else "the group leader"
        spelled = _spelled(syncing_ms)
        if self.ended == "open":
            return f"waits for the assignment of {name}, for {spelled} now"
        if self.ended == "superseded":
            return f"the assignment of {name} had not come after {spelled}"
        late = [delay.who.name for delay in self.delays if delay.how == "not_synced"]
        tail = f"; {', '.join(late)} did not sync" if late else ""
        return f"{spelled} for the assignment of {name}{tail}"


def rebalances_of(response: Response) -> list[Rebalance]:
    """The rounds of an answer, the newest first."""
    return [_rebalance(message) for message in response.rebalances]


def _rebalance(message: Response.Rebalance) -> Rebalance:
    return Rebalance(
        round=message.round,
        started_wall_ms=message.started_wall_ms,
        from_generation=message.from_generation,
        generation=message.generation,
        trigger=message.trigger,
        culprit=_who_or_nobody(message.culprit),
        reason=message.reason,
        initial=message.initial,
        members_before=message.members_before,
        members_after=message.members_after,
        joining_ms=message.joining_ms if message.HasField("joining_ms") else None,
        syncing_ms=message.syncing_ms if message.HasField("syncing_ms") else None,
        ended=message.ended,
        leader=_who_or_nobody(message.leader),
        new_members=message.new_members,
        new_member_ids=tuple(message.new_member_ids),
        missing_members=message.missing_members,
        delays=_delays(message.delays),
        awaited_members=message.awaited_members,
        planned=message.planned,
        moves=tuple(Move(one.former, one.owner, one.why, one.partitions) for one in message.moves),
        moved_partitions=dict(sorted(message.moved_partitions.items())),
    )


def _delays(messages: Sequence[Response.Delay]) -> tuple[Delay, ...]:
    return tuple(Delay(one.how, _who(one.who), one.after_ms) for one in messages)


def _who(message: Response.Who) -> Who:
    return Who(message.member_id, message.client_id, message.group_instance_id)


def _who_or_nobody(message: Response.Who) -> Who | None:
    return _who(message) if message.member_id else None


def _more(others: int) -> str:
    return f" (and {others} more)" if others > 0 else ""


def _spelled(duration_ms: int) -> str:
    return f"{duration_ms} ms" if duration_ms < _SECOND_MS else f"{duration_ms / _SECOND_MS:.1f} s"
