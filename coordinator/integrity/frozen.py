"""Views of a shard's stored state that stand still."""

from typing import NamedTuple, Protocol

from musterd.raft.contract import StateView


class Frozen(NamedTuple):
    """A shard's keys and its running digest, both as of one applied index.

    A scan of the view stays at the moment at which it begins: begin it before anything else runs.
    """

    view: StateView
    digest: int


class Disk(Protocol):
    """Gives frozen views of the stored state. The node is one, between two turns."""

    def freeze(self, shard: int) -> Frozen | None:
        """Return what is stored of a shard now, with all that is applied; None = ask again."""
        ...
