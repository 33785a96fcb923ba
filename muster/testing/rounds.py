"""The history of a test cluster's rounds, kept as a coordinator does."""

import time
from collections import deque
from dataclasses import dataclass, field

from muster.admin.rebalances import KEPT
from muster.v1.admin_pb2 import DescribeRebalancesResponse as Response

NAMED_MAX = 8
"""New members, and who held a round up, that a round names."""

_PEOPLE = {"member_left": "left", "session_expiry": "session_expired", "member_kicked": "kicked"}
"""A trigger -> what its member did to a round that was open already."""


@dataclass(slots=True)
class _Open:
    """The round that lasts, with the times of the loop that durations are counted from."""

    message: Response.Rebalance
    began_at: float
    formed_at: float | None = None
    joined: dict[str, tuple[Response.Who, float]] = field(default_factory=dict)


class Rounds:
    """The last rounds, at most KEPT. `now` is the loop's time in seconds."""

    def __init__(self) -> None:
        self._kept: deque[Response.Rebalance] = deque(maxlen=KEPT)
        self._count = 0
        self._open: _Open | None = None

    def begin(
        self,
        trigger: str,
        who: Response.Who | None,
        reason: str,
        generation: int,
        members: int,
        now: float,
    ) -> None:
        """A round begins; one that is open is superseded. `members`: before it; None: by nobody."""
        self._end("superseded", now)
        self._count += 1
        message = Response.Rebalance(
            round=self._count,
            started_wall_ms=int(time.time() * 1000),
            from_generation=generation,
            trigger=trigger,
            culprit=who,
            reason=reason,
            initial=members == 0,
            members_before=members,
            ended="open",
        )
        self._kept.append(message)
        self._open = _Open(message, now)

    def came(self, who: Response.Who, *, is_new: bool, now: float) -> None:
        """A member has joined the open round."""
        if self._open is None or self._open.formed_at is not None:
            return
        message = self._open.message
        self._open.joined[who.member_id] = (who, now)
        if is_new:
            message.new_members += 1
            if len(message.new_member_ids) < NAMED_MAX:
                message.new_member_ids.append(who.member_id)

    def went(self, who: Response.Who, trigger: str, now: float) -> None:
        """A member was removed while everybody joined."""
        if self._open is None or self._open.formed_at is not None:
            return
        message = self._open.message
        self._open.joined.pop(who.member_id, None)
        message.missing_members += 1
        if len(message.delays) < NAMED_MAX:
            after_ms = _ms(now - self._open.began_at)
            message.delays.add(how=_PEOPLE[trigger], who=who, after_ms=after_ms)

    def formed(self, generation: int, leader: Response.Who, members: int, now: float) -> None:
        if self._open is None:
            return
        message, began_at = self._open.message, self._open.began_at
        self._open.formed_at = now
        message.generation, message.members_after = generation, members
        message.leader.CopyFrom(leader)
        message.joining_ms = _ms(now - began_at)
        last, at = max(self._open.joined.values(), key=lambda one: one[1], default=(leader, now))
        message.delays.add(how="last_to_join", who=last, after_ms=_ms(at - began_at))

    def assigned(self, now: float) -> None:
        if self._open is not None and self._open.formed_at is not None:
            message, formed_at = self._open.message, self._open.formed_at
            after_ms = _ms(now - formed_at)
            message.delays.add(how="assignment", who=message.leader, after_ms=after_ms)
        self._end("stable", now)

    def emptied(self, generation: int, now: float) -> None:
        if self._open is not None:
            self._open.message.generation = generation
        self._end("emptied", now)

    def _end(self, how: str, now: float) -> None:
        if self._open is not None:
            self._time_phases(self._open, self._open.message, now)
            self._open.message.ended = how
            self._open = None

    def _time_phases(self, one: _Open, message: Response.Rebalance, now: float) -> None:
        if one.formed_at is None:
            message.joining_ms = _ms(now - one.began_at)
        else:
            message.syncing_ms = _ms(now - one.formed_at)

    def described(
        self, most: int, awaited: list[Response.Who], members: int, now: float
    ) -> list[Response.Rebalance]:
        """The newest first; `awaited`: of the open round, to join or to sync; 0 = all are told."""
        told = []
        for message in list(reversed(self._kept))[: most or KEPT]:
            one = Response.Rebalance()
            one.CopyFrom(message)
            if self._open is not None and message is self._open.message:
                self._time_phases(self._open, one, now)
                one.members_after = members
                one.awaited_members = len(awaited)
                after_ms = _ms(now - self._open.began_at)
                for who in awaited[:NAMED_MAX]:
                    one.delays.add(how="awaited", who=who, after_ms=after_ms)
            told.append(one)
        return told


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
