"""One request on its way through the core: answered exactly once, or abandoned by its caller."""

from collections.abc import Callable, Collection
from typing import Final

from musterd.coordinator.machine.commands import Command
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.replies import Refused
from musterd.coordinator.runtime.answers import Answer, Respond
from musterd.coordinator.runtime.disconnect_detector import DisconnectDetector
from musterd.coordinator.runtime.large_commits import LargeCommits
from musterd.coordinator.runtime.planner import PlanTurns
from musterd.coordinator.runtime.sessions import MemberKey, Sessions

OnOutcome = Callable[[Answer | None, bool], None]
"""Told once what became of a command, also where its caller is gone: the answer, and whether the
command was on its way to the log. None: it was given up before."""


class CountedLimit:
    """A counted maximum over the whole node, such as the parked calls."""

    __slots__ = ("limit", "name", "refused_total", "used")

    def __init__(self, name: str, limit: int) -> None:
        self.name: Final = name
        self.limit: Final = limit
        self.used = 0
        self.refused_total = 0

    def take(self) -> bool:
        """Take one; False where none is left."""
        if self.used >= self.limit:
            self.refused_total += 1
            return False
        self.used += 1
        return True

    def give(self) -> None:
        self.used -= 1


class NodeCallLimits:
    """Counts that all shards of a node share: parked and broken-off calls, large commits, plans."""

    __slots__ = ("disconnects", "large", "parked", "planning")

    def __init__(self, superusers: Collection[str] = ()) -> None:
        """`superusers`: principals whom no rule keeps from a topic."""
        self.disconnects: Final = DisconnectDetector()
        self.large: Final = LargeCommits()
        self.planning: Final = PlanTurns(superusers)
        self.parked: Final = CountedLimit("parked calls", LIMITS.max_parked_calls)


class Call:
    """A command and whom to answer.

    A Join or Sync *holds* its member: from its arrival to its end the member's session does not
    run, whether it is in the log or parked. The sessions are told of its end as what it was, a
    reply or a break.
    """

    __slots__ = (
        "_call_limits",
        "_respond",
        "_sessions",
        "broken",
        "command",
        "ended",
        "held",
        "in_entry",
        "offered",
        "on_outcome",
        "on_park",
        "on_wait",
        "recheck",
    )

    def __init__(
        self,
        command: Command,
        respond: Respond,
        call_limits: NodeCallLimits,
        on_park: Callable[[], None] | None = None,
        recheck: Callable[[], Refused | None] | None = None,
        on_outcome: OnOutcome | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self.recheck = recheck
        self.on_outcome = on_outcome
        self.offered = False
        """Whether it is in the queue for the log, or was: then what it asks for may happen."""
        self.in_entry = False
        """Whether it is in an entry of the log, and is neither answered nor parked: it is answered
        by what becomes of it."""
        self.command = command
        self.held: MemberKey | None = None
        self._sessions: Sessions | None = None
        self.ended = False
        self.broken = False
        self.on_park = on_park
        self.on_wait = on_wait
        self._respond = respond
        self._call_limits = call_limits

    def hold(self, key: MemberKey, sessions: Sessions) -> bool:
        """Hold the member's session while this call lasts; False where too many are held."""
        if not self._call_limits.parked.take():
            return False
        self._call_limits.disconnects.opened()
        self.held, self._sessions = key, sessions
        sessions.call_opened(key)
        return True

    def parking(self) -> None:
        """The answer will be long in coming.

        The call is no longer active work (`on_park` is told once).
        """
        self.in_entry = False
        told, self.on_park = self.on_park, None
        if told is not None:
            told()

    def waits(self) -> None:
        """It waits before it goes into the log. Until then it is no active work (`on_wait`)."""
        self.offered = True
        if self.on_wait is not None:
            self.on_wait()

    def narrow(self, command: Command, widen: Callable[[Answer], Answer]) -> None:
        """Ask for less: `command` goes into the log, and `widen` makes its answer the whole one."""
        respond = self._respond
        self.command = command
        self._respond = lambda answer: respond(widen(answer))

    def answer(self, answer: Answer) -> None:
        """End with a reply. A second end changes nothing: the caller may have gone in between.

        Of that one `on_outcome` is told all the same.
        """
        self._tell(answer)
        if not self.ended:
            self._end(replied=True)
            self._respond(answer)

    def abandon(self, *, with_edge: bool = False) -> None:
        """The caller is gone.

        Un-park, but keep the member (cancel is not leave, gp-2.16). `with_edge`: what is gone is
        the node that passed the call on: the full session begins, as nobody knows of the caller.
        """
        if not self.ended:
            self.broken = not with_edge
            self._end(replied=with_edge)
        if not self.offered:
            self._tell(None)

    def _tell(self, answer: Answer | None) -> None:
        told, self.on_outcome = self.on_outcome, None
        if told is not None:
            told(answer, self.offered)

    def _end(self, *, replied: bool) -> None:
        self.ended = True
        key, sessions = self.held, self._sessions
        if key is not None and sessions is not None:
            self._call_limits.parked.give()
            self._call_limits.disconnects.closed()
            sessions.call_closed(key, replied=replied)
            if not replied:
                self._call_limits.disconnects.broke(lambda: sessions.heard(key))
