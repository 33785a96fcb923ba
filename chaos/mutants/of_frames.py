"""Builds that take from a peer what no peer says, where all that it says is well formed."""

import musterd.raft.codec
from musterd.chaos.mutants.build import Build
from musterd.raft.codec import Reach


def _any(_reach: Reach, _what: str, _own: int, _said: int) -> None:
    """However far ahead."""


_KINDS = frozenset(range(256))

BUILDS = (
    Build("any_step", "Takes any term, and any life of its own.", ((Reach, "check", _any),)),
    Build(
        "any_kind",
        "Takes entries into its log that it cannot apply.",
        ((musterd.raft.codec, "KINDS", _KINDS), (musterd.raft.codec, "_PLAIN", _KINDS)),
    ),
)
