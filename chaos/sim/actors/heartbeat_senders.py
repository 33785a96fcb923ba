"""Members that only send heartbeats, always in time: none of their sessions may ever end.

Each reports when so much of its session is over (`Scenario.beat_share`), and tries the next node
where nobody answers. A heartbeat that arrives takes one full round of the node's loop until its
handler runs, as behind a socket and a library (coordinator/runtime/sessions.py counts with three).
"""

from collections.abc import Callable

from musterd.chaos.sim.actors.sdk_members import Fleet
from musterd.coordinator.machine.commands import Assignment, Command, JoinGroup, Protocol, SyncGroup
from musterd.coordinator.machine.errors import Error
from musterd.coordinator.machine.replies import Joined, Refused, Synced
from musterd.coordinator.runtime.answers import Answer, NotHere
from musterd.coordinator.runtime.sessions import MemberKey
from musterd.coordinator.runtime.shard import Shard

SESSION_MS = 1_000
REBALANCE_MS = 1_500
CALL_S = 2.0
"""So long a Join or Sync is waited for, ..."""
BEAT_S = 0.3
"""... and so long a heartbeat, before another node is asked, ..."""
BACKOFF_S = 0.15
"""... not at once, but within so long.

A leader that stood still for S forgives S twice, but for a step of shard time (0.1 s). The shortest
stall of a scenario that outlasts a heartbeat (0.3 s) forgives 0.5 s, and a member that reports when
0.96 of its session is over needs 0.26 s + this + two hops of up to 0.04 s. With 0.4 s here, 7 of
1,500 seeds of groups-stalls blamed the leader for what the member had waited.
"""


def start(members: Fleet) -> None:
    """All join within the first second of leadership; they are there until the end."""
    for number in range(members.world.scenario.members):
        shard = number % members.world.scenario.shards
        one = Punctual(members, shard, f"p{shard}", f"m{number}")
        members.world.schedule(0.6 + number * 0.01, one.join)


class Punctual:
    """A member that joins once and from then on only sends heartbeats, in time."""

    def __init__(self, members: Fleet, shard: int, group: str, name: str) -> None:
        self._all, self._world = members, members.world
        self._shard, self._group, self._name = shard, group, name
        self._counts = members.checkers[shard].shard.counts
        self._node = members.world.rng.randrange(len(members.world.nodes))
        self._nonce = members.world.rng.randbytes(16).hex()
        self._member_id, self._generation = "", -1
        self._attempt = 0

    def _ask(
        self, run: Callable[[Shard], None], patience_s: float, again: Callable[[], None]
    ) -> None:
        """Let `run` happen at the node that is believed to lead; `again` where nobody answers."""
        self._attempt += 1
        attempt = self._attempt
        node, shard = self._world.nodes[self._node], self._all.shard_at(self._node, self._shard)

        def gave_up() -> None:
            self._node = (self._node + 1) % len(self._world.nodes)
            self._attempt += 1
            self._later(BACKOFF_S * self._world.rng.random(), self._attempt, again)

        self._later(patience_s if shard else 0.02, attempt, gave_up)
        if shard is not None:
            turns = self._all.turns_at(self._node)
            life, seen = node.incarnation, turns._loop_round

            def arrived() -> None:
                if attempt != self._attempt:
                    return  # given up, hence cancelled: no handler sees it
                if turns._loop_round > seen:
                    run(shard)
                else:
                    self._world.schedule(0.002, node.run_later, life, arrived)

            self._world.schedule(
                0.001 + self._world.rng.random() * 0.004, node.run_later, life, arrived
            )

    def _later(self, delay_s: float, attempt: int, run: Callable[[], None]) -> None:
        def check() -> None:
            if attempt == self._attempt and self._world.now < self._world.scenario.chaos_s:
                run()

        self._world.schedule(delay_s, check)

    def _call(self, command: Command, then: Callable[[Answer], None]) -> None:
        def run(shard: Shard) -> None:
            attempt = self._attempt

            def respond(answer: Answer) -> None:
                if isinstance(answer, NotHere):
                    self._turned_away(answer, attempt, lambda: self._call(command, then))
                else:
                    self._later(0.002, attempt, lambda: then(answer))

            shard.submit(command, 1_000, respond)

        self._ask(run, CALL_S, lambda: self._call(command, then))

    def _turned_away(self, answer: NotHere, attempt: int, again: Callable[[], None]) -> None:
        def go() -> None:
            hint = answer.leader
            self._node = (self._node + 1) % len(self._world.nodes) if hint is None else hint
            again()

        self._later(0.02, attempt, go)

    def join(self) -> None:
        """Into the next generation; a repeat names the same nonce, hence the same member."""
        join = JoinGroup(
            group_id=self._group,
            member_id=self._member_id,
            client_id=self._name,
            client_host="sim",
            join_nonce=self._nonce,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            protocol_type="consumer",
            protocols=(Protocol("range", b""),),
            subscribed_topics=("t",),
            reason="",
            with_assignment=(int(self._nonce, 16) + self._generation) % 2 == 0,
        )
        self._call(join, self._joined)

    def _joined(self, answer: Answer) -> None:
        if not isinstance(answer, Joined):
            self._join_again(answer)
            return
        self._member_id, self._generation = answer.member_id, answer.generation
        self._counts.generations += 1
        leads = answer.leader_id == self._member_id
        assignments = tuple(Assignment(m.member_id, b"") for m in answer.members) if leads else ()
        sync = SyncGroup(
            group_id=self._group,
            member_id=self._member_id,
            generation=self._generation,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        self._call(sync, self._synced)

    def _synced(self, answer: Answer) -> None:
        if isinstance(answer, Synced):
            self._beat()
        else:
            self._join_again(answer)

    def _join_again(self, answer: Answer) -> None:
        if isinstance(answer, Refused) and answer.error is Error.UNKNOWN_MEMBER_ID:
            self._member_id = ""
            self._nonce = self._world.rng.randbytes(16).hex()
        self._attempt += 1
        self._later(0.02, self._attempt, self.join)

    def _beat(self) -> None:
        key = MemberKey(self._group, self._member_id)

        def run(shard: Shard) -> None:
            attempt, status = self._attempt, shard.heartbeat(key, self._generation)
            if isinstance(status, NotHere):
                self._turned_away(status, attempt, self._beat)
            elif status is Error.NONE and shard.sessions is not None:
                shard.sessions.heard(key)
                self._counts.beats += 1
                wait_s = self._world.scenario.beat_share * SESSION_MS / 1_000
                self._attempt += 1
                self._later(wait_s, self._attempt, self._beat)
            elif isinstance(status, Error):
                if status is Error.REBALANCE_IN_PROGRESS and shard.sessions is not None:
                    shard.sessions.heard(key)
                self._join_again(Refused(status, ""))

        self._ask(run, BEAT_S, self._beat)
