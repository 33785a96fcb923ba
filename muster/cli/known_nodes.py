"""Nodes that a command has heard of, kept for its next round (`--watch`).

So a watch goes on where the node that it was started with is gone. Only the latest answer is kept:
a cluster has at most 1,000 nodes.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_KEPT: ContextVar[list[str] | None] = ContextVar("muster_known_nodes", default=None)


@contextmanager
def kept_nodes() -> Iterator[None]:
    """Within this, what is learned is also known later."""
    token = _KEPT.set([])
    try:
        yield
    finally:
        _KEPT.reset(token)


def learn(endpoints: Iterable[str]) -> None:
    """These are the cluster's nodes, somebody says."""
    kept = _KEPT.get()
    found = [endpoint for endpoint in endpoints if endpoint]
    if kept is not None and found:
        kept[:] = found


def with_known(bootstrap: list[str]) -> list[str]:
    """The nodes that were named, then those that are known beside them."""
    return [*bootstrap, *(one for one in _KEPT.get() or () if one not in bootstrap)]
