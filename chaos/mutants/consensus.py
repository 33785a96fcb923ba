"""Builds whose consensus lacks a rule: elections, commits, lives of stores, frames of peers."""

from collections.abc import Callable
from dataclasses import replace

from muster.v1 import peer_pb2 as pb
from musterd.chaos.mutants.build import Builds, gives
from musterd.raft import codec, driver, lives
from musterd.raft.admission import Admitting
from musterd.raft.codec import COUNT_END, Message, Reach
from musterd.raft.driver import Driver
from musterd.raft.lives import PeerLives
from musterd.raft.peers import PeerBook, Replacement, ReplicaAdmission
from musterd.raft.replica import ticking
from musterd.raft.replica.pysyncobj_adapter import LEADER, NEVER, PeerNode
from musterd.raft.replica.replica import Replica
from musterd.storage.store import Store

BUILDS = Builds()
_LONG = 1 << 40
_ANY_KIND = frozenset(range(256))
_told_of_loss = Driver._told_of_loss


@BUILDS.replaces("truncation_guard", driver)
class WithoutTruncationGuard(Replica):
    """Hands appends to PySyncObj as they come: it cuts behind prevLogIdx whatever matches."""

    def _keep_matching(self, message: Message) -> None:
        entries = message["entries"]
        self._verified = message["prevLogIdx"] + len(entries)
        message["commit_index"] = self._append_commit(message["commit_index"], self._verified)


@BUILDS.replaces("snapshot_commit_cap", driver)
class WithoutSnapshotCommitCap(Replica):
    """Believes that a snapshot chunk's commit index holds for its own log."""

    def _snapshot_commit(self, leader_commit: int) -> int:
        return leader_commit


@BUILDS.replaces("majority", driver)
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


@BUILDS.replaces("pre_vote", driver)
class WithoutPreVote(Replica):
    """Stands as soon as its own time is over, whoever is heard by the others."""

    def _may_elect(self, now: float) -> bool:
        return not self._waits_for_others()


@BUILDS.replaces("log_comparison", driver)
class WithoutLogComparison(Replica):
    """Votes whatever the candidate's log lacks."""

    def _on_pre_vote(self, peer: PeerNode, message: Message) -> None:
        super()._on_pre_vote(peer, {**message, "last_log_term": _LONG, "last_log_index": _LONG})

    def _on_request_vote(self, peer: PeerNode, message: Message) -> None:
        super()._on_request_vote(peer, {**message, "last_log_term": _LONG, "last_log_index": _LONG})


@BUILDS.replaces("admission", driver)
class WithoutAdmission(Replica):
    """Counts a replaced node as if it remembered what the old one had promised."""

    learner = property(gives(False))
    _counts = gives(True)


@BUILDS.replaces("last_start_only", lives, "_lowest_since")
def _at_last_start(hello: pb.Hello, _life: int) -> int:
    """Looks at how far a store reached at its last start, and at no start before."""
    return hello.starts[-1].epoch if hello.starts else -1


@BUILDS.replaces("loss_noted_by_all", ticking)
class WithoutEveryVoter(Admitting):
    """Admits whoever forgot something before every other voter has noted it."""

    def next_step(
        self, node: int, store_uuid: bytes, life: int, held_by_voters: int, held: int
    ) -> bool | None:
        return super().next_step(node, store_uuid, life, _LONG, held)


@BUILDS.replaces("loss_log_held", ticking)
class WithoutNewcomersLog(Admitting):
    """Admits whoever forgot something before it holds the log again."""

    def next_step(
        self, node: int, store_uuid: bytes, life: int, held_by_voters: int, held: int
    ) -> bool | None:
        return super().next_step(node, store_uuid, life, held_by_voters, _LONG)


@BUILDS.replaces("forgotten_match", driver)
class WithoutForgettingTheMatch(Replica):
    """Believes of a peer that was started again what its last process had acknowledged."""

    def peer_started_anew(self, node: int) -> None:
        self._forget_in_flight(self._by_id[node])


@BUILDS.replaces("introduction", driver)
class WithoutIntroduction(PeerBook):
    """Counts from the start, whoever has or has not heard of it."""

    introduced = property(gives(True), gives(None))


@BUILDS.replaces("replacement_order", driver)
class WithoutReplacementOrder(PeerBook):
    """Takes what it reads last of a replaced node for the newest, also from an old log."""

    def allow_replacement(self, said: Replacement) -> bool:
        before = self._replaced.get(said.node)
        if before is not None and before.store_uuid != said.store_uuid:
            said = replace(said, as_of=max(said.as_of, before.as_of + 1))
        return super().allow_replacement(said)


@BUILDS.replaces("read_round", driver)
class WithoutReadRound(Replica):
    """Takes its own word for it that it still leads."""

    def read_index(self, done: Callable[[bool], None]) -> None:
        done(self.ready)


@BUILDS.replaces("check_quorum", driver)
class WithoutCheckQuorum(Replica):
    """Answers as long as it believes to lead, whoever it hears."""

    @property
    def quorum_heard(self) -> bool:
        return self._state == LEADER

    def _tick_leading(self) -> None:
        self._last_response = dict.fromkeys(self._peers, NEVER)
        super()._tick_leading()


@BUILDS.replaces("send_times", driver)
class WithoutSendTimes(Replica):
    """Counts an answer when it reads it, however long ago it asked."""

    def _sent_at(self, seq: int) -> float | None:
        return self._clock()


def _told_of_present(driver: Driver, peer: int, message: Message) -> None:
    if message["life"] == driver.store.life:
        _told_of_loss(driver, peer, message)


@BUILDS.replaces("votes_kept", driver)
class KeepingVotes(Replica):
    """Goes on with the votes that it has counted, also where a voter's store forgot them."""

    def peer_started_anew(self, node: int) -> None:
        votes, self._votes_from = self._votes_from, set()
        try:
            super().peer_started_anew(node)
        finally:
            self._votes_from = votes - {node}


@BUILDS.replaces("empty_hard_batch", driver)
class MarkingHard(Replica):
    """Calls the batch of its admission hard, which is empty where a start reads that again."""

    def _begin_to_vote(self, admission: ReplicaAdmission, was_learner: bool) -> None:
        super()._begin_to_vote(admission, was_learner)
        if admission.node == self._me.id and was_learner and not self.learner:
            store: Store = self._host.store
            store.mark_hard()


BUILDS.add(
    "deafening_hello",
    "Keeps a connection whose hello was of another life than what is said on it.",
    (Driver, "_told_of_loss", _told_of_present),
    (PeerLives, "known_life", gives(COUNT_END)),
)
BUILDS.add(
    "any_kind",
    "Takes entries into its log that it cannot apply.",
    (codec, "KINDS", _ANY_KIND),
    (codec, "_PLAIN", _ANY_KIND),
)
BUILDS.add_all(
    ("outdated_hello",
     "Takes a late hello of an earlier life of the same process for the present one.",
     PeerLives, "is_outdated", gives(False)),
    ("absurd_life", "Notes whatever life or epoch a peer names.",
     codec, "_refuse_absurd", gives(None)),
    ("own_stall_counts", "Counts what the node stood still as the silence of others.",
     Replica, "stood_still", gives(None)),
    ("frame_checksum", "Takes what a peer's frame says whatever its checksum is.",
     codec, "_is_intact", gives(True)),
    ("any_step", "Takes any term, and any life of its own.",
     Reach, "check", gives(None)),
    ("losses", "Counts a store that forgot what it had synced as if it had not.",
     PeerLives, "forgotten", gives(None)),
    ("newcomer_vote", "Lets a new store vote for nobody before its own log says that it counts.",
     PeerBook, "announced_itself", gives(None)),
    ("sticky_voters", "Votes for whoever asks, also while it hears a leader.",
     Replica, "_sticky", lambda replica: replica._state == LEADER),
)  # fmt: skip
