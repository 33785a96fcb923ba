"""The scripts are no idle talk: on a Replica whose fix is taken out, each shows its flaw again."""

from types import ModuleType

import pytest

import musterd.raft.driver
from musterd.chaos.mutants.consensus import WithoutSnapshotCommitCap, WithoutTruncationGuard
from musterd.raft.codec import Message
from musterd.raft.proposals import Proposals
from musterd.raft.replica.pysyncobj_adapter import FOLLOWER, PeerNode
from musterd.raft.replica.replica import Replica
from tests.raft.flaws import (
    test_leadership_flaws,
    test_log_flaws,
    test_snapshot_flaws,
)
from tests.raft.flaws.hand import Group, Options
from tests.raft.flaws.hand_replica import ReplicaGroup


class CountsEveryVote(Replica):
    """Without pso-F7's fix."""

    def _is_repeated_vote(self, peer: PeerNode) -> bool:
        return False


class HearsOldAnswers(Replica):
    """Without pso-F2's fix."""

    def _on_reply(self, peer: PeerNode, message: Message) -> None:
        message["term"] = self._term
        super()._on_reply(peer, message)


class FollowsAnyCandidate(Replica):
    """Without pso-F8's fix: nobody asks first and nobody sticks to a leader."""

    def _sticky(self) -> bool:
        return False

    def _may_elect(self, now: float) -> bool:
        self._force_term = self._term + 1
        return True


class NeverRegrants(Replica):
    """Without pso-F8b's fix."""

    def _on_request_vote(self, peer: PeerNode, message: Message) -> None:
        again = message["term"] == self._term and self._voted_for == peer.id
        if not (again and self._state == FOLLOWER):
            super()._on_request_vote(peer, message)


class RestlessAfterDefeat(Replica):
    """Without pso-F16's fix."""

    def _demote(self) -> None:
        deadline = self._election_deadline
        super()._demote()
        self._election_deadline = min(deadline, self._clock())


class ForgetsItsClients(Replica):
    """Without pso-F17's fix."""

    def _demote(self) -> None:
        self._proposals = Proposals(self._settings)
        super()._demote()


class NeverStopsProposals(Replica):
    """Without pso-F10's fix: a transfer needs a follower that has everything right now."""

    def transfer_leadership(self, to: int | None = None) -> bool:
        if any(self._match[peer] == self._log.last_index for peer in self._peers):
            return super().transfer_leadership(to)
        return False


BITES: list[tuple[ModuleType, str, type[Replica]]] = [
    (test_log_flaws, "f1", WithoutTruncationGuard),
    (test_log_flaws, "f1b", WithoutTruncationGuard),
    (test_log_flaws, "f1c", WithoutTruncationGuard),
    (test_log_flaws, "f19", WithoutTruncationGuard),
    (test_snapshot_flaws, "f5b", WithoutSnapshotCommitCap),
    (test_snapshot_flaws, "f17", ForgetsItsClients),
    (test_leadership_flaws, "f2", HearsOldAnswers),
    (test_leadership_flaws, "f7", CountsEveryVote),
    (test_leadership_flaws, "f8", FollowsAnyCandidate),
    (test_leadership_flaws, "f8b", NeverRegrants),
    (test_leadership_flaws, "f10", NeverStopsProposals),
    (test_leadership_flaws, "f16", RestlessAfterDefeat),
]


@pytest.mark.parametrize(("module", "flaw", "build"), BITES, ids=[b[1] for b in BITES])
def test_a_script_shows_its_flaw_where_the_fix_is_missing(
    module: ModuleType, flaw: str, build: type[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What passes on the shipped Replica fails on one without the fix."""
    (script,) = (run for name, run in vars(module).items() if name.startswith(f"test_{flaw}_"))

    def make(**options: object) -> Group:
        return ReplicaGroup(Options(**options))  # type: ignore[arg-type]

    script(make)
    monkeypatch.setattr(musterd.raft.driver, "Replica", build)
    with pytest.raises(Exception) as failure:  # noqa: PT011  an assertion or a broken invariant
        script(make)
    assert failure.type.__name__ in {"AssertionError", "InvariantError"}
