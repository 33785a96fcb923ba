"""Builds that take from a peer what no peer says, where all that it says is well formed."""

import raft.codec
from chaos.mutants.build import Build
from raft.codec import Reach


def _any(_reach: Reach, _what: str, _own: int, _said: int) -> None:
    """However far ahead."""


_KINDS = frozenset(range(256))

BUILDS = (
    Build("any_step", "Takes any term, and any life of its own.", ((Reach, "check", _any),)),
    Build(
        "any_kind",
        "Takes entries into its log that it cannot apply.",
        ((raft.codec, "KINDS", _KINDS), (raft.codec, "_PLAIN", _KINDS)),
    ),
)
