"""Commits that were answered as superseded: whether a newer one can have overtaken them."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from muster.errors import ErrorCode
from musterd.chaos.history import SUPERSEDED, History, Operation, Outcome

NOT_ATTEMPTED = ErrorCode.OPERATION_NOT_ATTEMPTED.name
"""What an atomic commit ends with of which one partition was superseded, and nothing refused."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """A commit that was answered so."""

    commit: Operation
    overtaken: bool
    """Whether a newer commit can have been there."""


def superseded(history: History) -> Iterator[Superseded]:
    """Each of them, in order.

    Only a commit of the same member with a greater `commit_seq` overtakes one, and only at its own
    partition (gp-O9): one that was sent after it, and before it was answered. A refused one does
    not; one whose outcome is unknown may have. A reset or a deletion takes the number with it, so
    that neither explains anything. Of an atomic commit nobody knows which partition it was.
    """
    numbered: dict[tuple[str, str], list[Operation]] = defaultdict(list)
    for one in history.commits():
        if _is_numbered(one) and one.outcome is not Outcome.FAIL and one.error != NOT_ATTEMPTED:
            numbered[one.key.group, one.member_id].append(one)
    for one in history.commits():
        if one.error in {SUPERSEDED, NOT_ATTEMPTED} and one.ended_ns is not None:
            newer = numbered[one.key.group, one.member_id] if _is_numbered(one) else []
            yield Superseded(
                one,
                any(
                    one.began_ns < other.began_ns < one.ended_ns
                    and (other.key == one.key or one.error == NOT_ATTEMPTED)
                    for other in newer
                ),
            )


def _is_numbered(one: Operation) -> bool:
    """A commit outside of a membership is nobody's, whatever its number (sc-O13)."""
    return one.numbered and one.generation >= 0
