"""Members that the group counts on a word that was not theirs any more, and until when.

The clients' network has a proxy that may deliver a Join a second time, seconds later (rpc.py). Such
a copy may count as its member's Join of a round that came after the one it was sent for, with a
claim of what the member held then. A Join has no number, so the group cannot tell it from a Join
sent now (nor can Kafka): it keeps a member that it would have dropped from the round, and gives
away what the member holds by now. This file knows exactly these cases, because it sees what is
sent, what is applied, and what the members know:

* what the member said last in the round that formed a generation came from the proxy;
* it last sent these bytes before it was given the assignment that it has, of a generation before.

A static member that misses a round is kept as it was (sc-S25), and so is what it said last. Where
it said that before it was given its assignment, the next one is made as if it held nothing of it,
and the same holds as after such a copy.

A copy of what the member would still say now is no such case, whatever it looks like.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from muster.v1 import group_pb2
from musterd.chaos.sim.engine.rpc import PROXY_HOST
from musterd.coordinator.api.rpcs import translate
from musterd.coordinator.machine.commands import JoinGroup
from musterd.coordinator.machine.decide.requests import joining_id
from musterd.coordinator.machine.events import (
    GenerationFormed,
    GroupDeleted,
    MemberJoined,
    MemberRejoined,
    MemberRemoved,
    MemberReplaced,
)
from musterd.coordinator.machine.shard_state import CommandResult

NOTHING = -1
"""The generation of a member that was not given an assignment yet."""

MemberKey = tuple[str, str]
"""Group and member id."""


class _Formed(NamedTuple):
    """A generation that counts a member on a copy."""

    said_in: int
    """The generation that the member knew when it last sent these bytes."""
    known: int
    """The one that it knew when this one was formed."""


@dataclass(slots=True)
class StaleJoins:
    """Knows the stale Joins of one shard's groups."""

    told: Callable[[str, str], int] = lambda _group, _member: NOTHING
    """Group and member id -> the generation of the assignment that its process has now."""
    _sent: dict[MemberKey, dict[JoinGroup, int]] = field(default_factory=dict)
    """What each member sent, and in which generation it did so last."""
    _word: dict[MemberKey, int | None] = field(default_factory=dict)
    """What each member said last in the open round: None where it said so itself; of a copy, in
    which generation it last sent that."""
    _counted: dict[MemberKey, int] = field(default_factory=dict)
    """In which generation each static member last sent what it said last, in whichever round."""
    _formed: dict[MemberKey, dict[int, _Formed]] = field(default_factory=dict)

    def sent(self, request: bytes) -> None:
        """A member sends a Join, for the first time or again."""
        said = translate.join(group_pb2.JoinGroupRequest.FromString(request), "", "")
        key = (said.group_id, joining_id(said))
        self._sent.setdefault(key, {})[said] = self.told(*key)

    def applied(self, result: CommandResult) -> None:
        """A command was applied, for the first time on any node."""
        for event in result.events:
            match event:
                case MemberJoined() | MemberRejoined():
                    self._joined((event.group_id, event.member_id), result.command)
                case MemberReplaced():
                    self._forget((event.group_id, event.replaced_id))
                    self._joined((event.group_id, event.member_id), result.command)
                case MemberRemoved():
                    self._forget((event.group_id, event.member_id))
                case GenerationFormed():
                    self._form(event)
                case GroupDeleted():
                    for key in [key for key in self._word if key[0] == event.group_id]:
                        self._forget(key)
                case _:
                    pass

    def _joined(self, key: MemberKey, command: object) -> None:
        if not isinstance(command, JoinGroup):
            self._word[key] = None
            return
        said = replace(command, client_host="", drawn_nonce="")
        sent_in = self._sent.get(key, {}).get(said)
        self._word[key] = sent_in if command.client_host == PROXY_HOST else None
        if command.group_instance_id and sent_in is not None:
            self._counted[key] = sent_in

    def _form(self, event: GenerationFormed) -> None:
        for member_id in event.member_ids:
            key = (event.group_id, member_id)
            word = self._word.pop(key) if key in self._word else self._counted.get(key)
            if word is not None:
                known = self.told(*key)
                self._formed.setdefault(key, {})[event.generation] = _Formed(word, known)

    def _forget(self, key: MemberKey) -> None:
        self._word.pop(key, None)
        self._counted.pop(key, None)
        self._formed.pop(key, None)

    def excuse(self, group: str, member_id: str, given_in: int, generation: int) -> bool:
        """Whether `generation` gave away what this member holds since `given_in`, for such a word.

        It may do so until the member is given an assignment of a later generation. Where it knows
        that one itself it is giving up what moves.
        """
        formed = self._formed.get((group, member_id), {}).get(generation)
        if formed is None or given_in >= generation:
            return False
        knows = self.told(group, member_id)
        if knows == generation:
            knows = formed.known
        return formed.said_in < knows < generation
