"""Builds whose consensus lacks a rule: elections, replication, commits."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import musterd.raft.codec
import musterd.raft.driver
import musterd.raft.lives
import musterd.raft.replica.ticking
from muster.v1 import peer_pb2 as pb
from musterd.chaos.mutants.build import Build
from musterd.raft.admission import Admitting
from musterd.raft.codec import Message
from musterd.raft.lives import PeerLives
from musterd.raft.peers import Admission, PeerBook, Replacement
from musterd.raft.replica.pysyncobj_adapter import LEADER, NEVER, PeerNode
from musterd.raft.replica.replica import Replica


class WithoutTruncationGuard(Replica):
    """Hands appends to PySyncObj as they come: it cuts behind prevLogIdx whatever matches."""

    def _keep_matching(self, message: Message) -> None:
        entries = message["entries"]
        self._verified = message["prevLogIdx"] + len(entries)
        message["commit_index"] = self._append_commit(message["commit_index"], self._verified)


class WithoutSnapshotCommitCap(Replica):
    """Believes that a snapshot chunk's commit index holds for its own log."""

    def _snapshot_commit(self, leader_commit: int) -> int:
        return leader_commit


class WithoutMajority(Replica):
    """Takes what is durable here for what all hold."""

    def _tick_leading(self) -> None:
        held = {peer: max(self._match[peer], self._log.durable_index()) for peer in self._peers}
        real, self._match = self._match, held
        try:
            super()._tick_leading()
        finally:
            if self._match is held:
                self._match = real


class WithoutPreVote(Replica):
    """Stands as soon as its own time is over, whoever is heard by the others."""

    def _may_elect(self, now: float) -> bool:
        return not self._waits_for_others()


class WithoutStickiness(Replica):
    """Votes for whoever asks, also while it hears a leader."""

    def _sticky(self) -> bool:
        return self._state == LEADER


_LONG = 1 << 40


class WithoutLogComparison(Replica):
    """Votes whatever the candidate's log lacks."""

    def _on_pre_vote(self, peer: PeerNode, message: Message) -> None:
        super()._on_pre_vote(peer, {**message, "last_log_term": _LONG, "last_log_index": _LONG})

    def _on_request_vote(self, peer: PeerNode, message: Message) -> None:
        super()._on_request_vote(peer, {**message, "last_log_term": _LONG, "last_log_index": _LONG})


class WithoutAdmission(Replica):
    """Counts a replaced node as if it remembered what the old one had promised."""

    def _counts(self, peer: PeerNode) -> bool:
        return True

    @property
    def learner(self) -> bool:
        return False


class WithoutLosses(PeerLives):
    """Counts a store that forgot what it had synced as if it had not."""

    def forgotten(self, hello: pb.Hello) -> int | None:
        return None


def _at_last_start(hello: pb.Hello, _life: int) -> int:
    return hello.starts[-1].epoch if hello.starts else -1


class WithoutEveryVoter(Admitting):
    """Admits whoever forgot something before every other voter has noted it."""

    def next_step(
        self, node: int, store_uuid: bytes, life: int, held_by_voters: int, held: int
    ) -> bool | None:
        return super().next_step(node, store_uuid, life, _LONG, held)


class WithoutNewcomersLog(Admitting):
    """Admits whoever forgot something before it holds the log again."""

    def next_step(
        self, node: int, store_uuid: bytes, life: int, held_by_voters: int, held: int
    ) -> bool | None:
        return super().next_step(node, store_uuid, life, held_by_voters, _LONG)


class WithoutForgettingTheMatch(Replica):
    """Believes of a peer that was started again what its last process had acknowledged."""

    def peer_started_anew(self, node: int) -> None:
        self._forget_flight(self._by_id[node])


class WithoutIntroduction(PeerBook):
    """Counts from the start, whoever has or has not heard of it."""

    @property
    def introduced(self) -> bool:
        return True

    @introduced.setter
    def introduced(self, _: bool) -> None:
        return


class WithoutNewcomersVote(PeerBook):
    """Lets a new store vote for nobody before its own log says that it counts."""

    def announced_itself(self, shard: int) -> Admission | None:
        del shard
        return None


class WithoutReplacementOrder(PeerBook):
    """Takes what it reads last of a replaced node for the newest, also from an old log."""

    def allow_replacement(self, said: Replacement) -> bool:
        before = self._replaced.get(said.node)
        if before is not None and before.store_uuid != said.store_uuid:
            said = replace(said, as_of=max(said.as_of, before.as_of + 1))
        return super().allow_replacement(said)


class WithoutReadRound(Replica):
    """Takes its own word for it that it still leads."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        done(self.ready)


class WithoutCheckQuorum(Replica):
    """Answers as long as it believes to lead, whoever it hears."""

    @property
    def quorum_heard(self) -> bool:
        return self._state == LEADER

    def _tick_leading(self) -> None:
        self._last_response = dict.fromkeys(self._peers, NEVER)
        super()._tick_leading()


class WithoutSendTimes(Replica):
    """Counts an answer when it reads it, however long ago it asked."""

    def _sent_at(self, seq: int) -> float | None:
        return self._clock()


def _not_looked_at(_data: memoryview, _said: bytes) -> bool:
    return True


def _replica(name: str, build: type[Any]) -> Build:
    return Build(name, build.__doc__ or "", ((musterd.raft.driver, "Replica", build),))


def _counts_its_stall(_replica: Replica, _since: float, _step_s: float) -> None:
    """What it stood still counts as the silence of others."""


BUILDS = (
    _replica("truncation_guard", WithoutTruncationGuard),
    _replica("snapshot_commit_cap", WithoutSnapshotCommitCap),
    _replica("majority", WithoutMajority),
    _replica("pre_vote", WithoutPreVote),
    _replica("sticky_voters", WithoutStickiness),
    _replica("log_comparison", WithoutLogComparison),
    _replica("admission", WithoutAdmission),
    Build(
        "losses", WithoutLosses.__doc__ or "", ((musterd.raft.driver, "PeerLives", WithoutLosses),)
    ),
    Build(
        "last_start_only",
        "Looks at how far a store reached at its last start, and at no start before.",
        ((musterd.raft.lives, "_lowest_since", _at_last_start),),
    ),
    Build(
        "loss_noted_by_all",
        WithoutEveryVoter.__doc__ or "",
        ((musterd.raft.replica.ticking, "Admitting", WithoutEveryVoter),),
    ),
    Build(
        "loss_log_held",
        WithoutNewcomersLog.__doc__ or "",
        ((musterd.raft.replica.ticking, "Admitting", WithoutNewcomersLog),),
    ),
    _replica("forgotten_match", WithoutForgettingTheMatch),
    Build(
        "introduction",
        WithoutIntroduction.__doc__ or "",
        ((musterd.raft.driver, "PeerBook", WithoutIntroduction),),
    ),
    Build(
        "newcomer_vote",
        WithoutNewcomersVote.__doc__ or "",
        ((musterd.raft.driver, "PeerBook", WithoutNewcomersVote),),
    ),
    Build(
        "replacement_order",
        WithoutReplacementOrder.__doc__ or "",
        ((musterd.raft.driver, "PeerBook", WithoutReplacementOrder),),
    ),
    _replica("read_round", WithoutReadRound),
    _replica("check_quorum", WithoutCheckQuorum),
    _replica("send_times", WithoutSendTimes),
    Build(
        "frame_checksum",
        "Takes what a peer's frame says whatever its checksum is.",
        ((musterd.raft.codec, "_is_intact", _not_looked_at),),
    ),
)

UNIT_BUILDS = (
    Build(
        "own_stall_counts",
        "Counts what the node stood still as the silence of others.",
        ((Replica, "stood_still", _counts_its_stall),),
    ),
)
"""Caught by unit tests."""
