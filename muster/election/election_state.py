"""The statements by which members of an election agree who leads."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from muster.errors import InconsistentGroupProtocol, InvalidConfig
from muster.group.actions import Assignments, JoinAnswered
from muster.group.consumer_protocol import decode_assignment
from muster.group.group_kind import GroupKind, encoded, members_of, said, tell, to_json, told
from muster.types import TopicPartition

KEY = TopicPartition("leader", 0)
"""The one thing to own; it is in no topic of the registry."""

VALUE_BYTES_MAX = 4096
"""Bytes of what a candidate says of itself, in UTF-8."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The member that leads an election, and its fencing token."""

    member_id: str
    value: str
    """What it says of itself: its address, for example."""
    token: int


@dataclass(frozen=True, slots=True)
class Statement:
    """A member's statement in its Join."""

    candidate: bool
    token: int  # of the leadership that it has; 0 = none
    value: str

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> "Statement":
        """From what was said. Raises InconsistentGroupProtocol: something else was."""
        match fields:
            case {"candidate": bool(candidate), "token": int(token), "value": str(value)}:
                return cls(candidate, token, value)
            case _:
                raise InconsistentGroupProtocol("a member does not say what a candidate says")

    def encode(self) -> bytes:
        fields = {"candidate": self.candidate, "token": self.token, "value": self.value}
        return to_json(fields).encode()


def leader_of(assignment: bytes) -> Leader | None:
    """Who leads, as a member was told with its assignment; None: nobody, or it was left out.

    Raises:
        InconsistentGroupProtocol: no SDK of muster's wrote it.
    """
    match told(assignment):
        case {"leader": [str(member_id), str(value), int(token)]}:
            return Leader(member_id, value, token)
        case _:
            return None


class ElectionState(GroupKind):
    """One member's part in an election."""

    protocol_type = "election"
    counts_from_call = True

    def __init__(self, value: str) -> None:
        if len(value.encode()) > VALUE_BYTES_MAX:
            raise InvalidConfig(f"value: at most {VALUE_BYTES_MAX} bytes of UTF-8")
        self.is_candidate = False
        self.token = 0
        """The token of the leadership that this member has now; 0 = none."""
        self.leader: Leader | None = None
        """Who leads since the last round that this member was in."""
        self.heard = False
        """Whether there was such a round."""
        self.synced: Callable[[float], None] | None = None
        """Called with the time at which the call was sent that brought the assignment."""
        self._value = value
        self._said: Statement | None = None  # in the last Join
        self._counted: Statement | None = None  # in the last round that came to its end
        self._pending = False  # in that round: there are candidates, and none of them was given it
        self._statements: dict[str, Statement] = {}  # the group leader's: of all members
        self._token = 0  # of the generation that this member assigns, as group leader

    def statement(self) -> bytes:
        """Return this member's statement for its next Join."""
        self._said = Statement(self.is_candidate, self.token, self._value)
        return self._said.encode()

    def is_outdated(self, member_id: str) -> bool:
        """Whether the last round went by what is not so any more: another one is needed."""
        if self._counted is None or self._counted.candidate != self.is_candidate:
            return True
        mine = self.leader is not None and self.leader.member_id == member_id
        return mine and self.leader is not None and self.leader.token != self.token

    def is_settled_without_this(self) -> bool:
        """Whether a round that went without this one gave the leadership to who shall have it."""
        counted = self._counted
        return counted is not None and not counted.candidate and not self._pending

    # ---- what the calls ask

    async def on_joined(self, answer: JoinAnswered) -> JoinAnswered:
        """Candidates are those that want the one thing; nobody else may be given it."""
        members = members_of(answer)
        self._statements = {m.member_id: Statement.of(said(m)) for m in members}
        self._token = answer.fencing_token
        members = [
            replace(m, topics=(KEY.topic,) if self._statements[m.member_id].candidate else ())
            for m in members
        ]
        counts = {KEY.topic: 1} if any(m.topics for m in members) else {}
        return replace(answer, members=encoded(members), partition_counts=counts)

    def on_assigning(self, assignments: Assignments) -> Assignments:
        """Everybody is told who leads, what it says of itself, and under which token."""
        news: dict[str, object] = {
            "leader": None,
            "pending": any(one.candidate for one in self._statements.values()),
        }
        for member_id, assignment in assignments:
            if KEY in decode_assignment(assignment):
                statement = self._statements[member_id]
                token = statement.token or self._token
                news = {"leader": [member_id, statement.value, token], "pending": False}
        return tuple((member_id, tell(one, news)) for member_id, one in assignments)

    def on_assigned(self, assignment: bytes, sent_at: float) -> None:
        match told(assignment):
            case {"leader": None, "pending": bool(pending)}:
                self.leader, self._pending = None, pending
            case {"leader": [str(member_id), str(value), int(token)]}:
                self.leader, self._pending = Leader(member_id, value, token), False
            case _:
                self.leader, self._pending = None, True  # joined while it was decided
        self.heard = True
        self._counted = self._said
        if self.synced is not None:
            self.synced(sent_at)
