"""Builds that a store which forgot confuses, in moments that simulated seeds need not meet."""

import musterd.raft.codec
import musterd.raft.driver
from musterd.chaos.mutants.build import Build
from musterd.raft.codec import COUNT_END, Message
from musterd.raft.driver import Driver
from musterd.raft.lives import PeerLives
from musterd.raft.peers import Admission
from musterd.raft.replica.replica import Replica
from musterd.storage.store import Store

_told_of_loss = Driver._told_of_loss


def _told_of_present(driver: Driver, peer: int, message: Message) -> None:
    if message["life"] == driver.store.life:
        _told_of_loss(driver, peer, message)


def _never_later(_lives: PeerLives, _node: int) -> int:
    return COUNT_END


def _never_outdated(_lives: PeerLives, _hello: object) -> bool:
    return False


def _refuse_nothing(*_counts: int) -> None:
    """Whatever is said may be so."""


class KeepingVotes(Replica):
    """Goes on with the votes that it has counted, also where a voter's store forgot them."""

    def peer_started_anew(self, node: int) -> None:
        votes, self._votes_from = self._votes_from, set()
        try:
            super().peer_started_anew(node)
        finally:
            self._votes_from = votes - {node}


class MarkingHard(Replica):
    """Calls the batch of its admission hard, which is empty where a start reads that again."""

    def _begin_to_vote(self, admission: Admission, was_learner: bool) -> None:
        super()._begin_to_vote(admission, was_learner)
        if admission.node == self._me.id and was_learner and not self.learner:
            store: Store = self._host.store
            store.mark_hard()


BUILDS = (
    Build(
        "deafening_hello",
        "Keeps a connection whose hello was of another life than what is said on it.",
        (
            (Driver, "_told_of_loss", _told_of_present),
            (PeerLives, "known_life", _never_later),
        ),
    ),
    Build(
        "outdated_hello",
        "Takes a late hello of an earlier life of the same process for the present one.",
        ((PeerLives, "is_outdated", _never_outdated),),
    ),
    Build(
        "absurd_life",
        "Notes whatever life or epoch a peer names.",
        ((musterd.raft.codec, "_refuse_absurd", _refuse_nothing),),
    ),
    Build(
        "votes_kept", KeepingVotes.__doc__ or "", ((musterd.raft.driver, "Replica", KeepingVotes),)
    ),
    Build(
        "empty_hard_batch",
        MarkingHard.__doc__ or "",
        ((musterd.raft.driver, "Replica", MarkingHard),),
    ),
)
