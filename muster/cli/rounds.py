"""What a command keeps from one round to the next (`--watch`).

The nodes that it has heard of: so a watch goes on where the node that it was started with is gone.
Only the latest answer is kept: a cluster has at most 1,000 nodes. And the certificates in use: so
it goes on while their files are renewed.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from muster.net.bearer_token import BearerToken
from muster.net.credentials import Credentials
from muster.net.tls import Tls


@dataclass(slots=True)
class _Kept:
    nodes: list[str] = field(default_factory=list)
    credentials: Credentials | None = None


_KEPT: ContextVar[_Kept | None] = ContextVar("muster_rounds", default=None)


@contextmanager
def kept() -> Iterator[None]:
    """Within this, what is learned is also known later."""
    token = _KEPT.set(_Kept())
    try:
        yield
    finally:
        _KEPT.reset(token)


def learn(endpoints: Iterable[str]) -> None:
    """These are the cluster's nodes, somebody says."""
    now = _KEPT.get()
    found = [endpoint for endpoint in endpoints if endpoint]
    if now is not None and found:
        now.nodes = found


def with_known(bootstrap: list[str]) -> list[str]:
    """The nodes that were named, then those that are known beside them."""
    now = _KEPT.get()
    return [*bootstrap, *(one for one in (now.nodes if now else ()) if one not in bootstrap)]


def credentials_of(files: Tls | None, token: BearerToken) -> Credentials:
    """Read the files; those of the round before go on while the files do not belong together.

    Raises:
        InvalidConfig: a file cannot be read, and there was no round before.
    """
    now = _KEPT.get()
    if now is None:
        return Credentials(files, token)
    if now.credentials is None:
        now.credentials = Credentials(files, token)
    else:
        now.credentials.renew()
    return now.credentials
