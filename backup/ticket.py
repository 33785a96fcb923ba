"""The ticket of a restore: which backup, when, and the digests with which every node must begin.

`muster cluster restore` writes it once, after it has verified the backup. `muster init --restore`
does on each node what it says, and refuses to where a digest differs. The new cluster's id is made
of the ticket's hash, so nodes that were made of two tickets refuse each other.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from musterd.backup.archive import load_shard, read_manifest, verify
from musterd.backup.errors import ArchiveError, BackupError, UsedTicketError
from musterd.backup.folders import Folder
from musterd.backup.restored_state import SECOND_MS, TOKENS_PER_S, restored
from musterd.raft.identity import SHARDS_MAX

FORMAT: Final = 1
BYTES_MAX: Final = 256 * 1024
NAME_MAX: Final = 46
"""Characters of the new cluster's name: with the hash its id has 64 at most."""

HASH_DIGITS: Final = 16
CLAIMS: Final = "restored"
"""The folder beside backups that has a file for each instant at which one of them was restored, and
for each node that was made with it: `SECOND.NODE-NODE-NODE.NODE`, all nodes and the one."""

CLAIMS_MAX: Final = 1_000
"""Seconds that are tried before a restore is given up."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """One restore of one backup into one new cluster."""

    name: str
    """The new cluster's; its id is longer."""
    url: str
    """Where the backup was when it was verified."""
    manifest: str
    """The backup's `Manifest.check`."""
    instant_s: int
    """When it was restored, in seconds since 1970; no other restore of it has this one, nor one
    of a backup beside it."""
    keep_tokens: bool
    """Whether bearer tokens of the backup stay valid."""
    digests: tuple[str, ...]
    """By shard, the digest of the state to begin with: 32 hex digits."""
    format: int = FORMAT

    @property
    def cluster_id(self) -> str:
        """The id of the new cluster."""
        return f"{self.name}-{_hash(asdict(self))[:HASH_DIGITS]}"

    def encode(self) -> bytes:
        """As JSON with a checksum."""
        body = asdict(self)
        text = json.dumps({**body, "check": _hash(body)}, indent=1, sort_keys=True)
        return (text + "\n").encode()


def decode(data: bytes, where: str) -> Ticket:
    """Return the ticket that `data` holds. Raises ArchiveError, which begins with `where`."""
    if len(data) > BYTES_MAX:
        raise ArchiveError(f"{where}: longer than {BYTES_MAX} bytes, no ticket of a restore")
    try:
        body = json.loads(data)
        check = body.pop("check")
        ticket = Ticket(**{**body, "digests": tuple(body["digests"])})
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveError(f"{where}: not the ticket of a restore: {error}") from error
    texts = [ticket.name, ticket.url, ticket.manifest, *ticket.digests]
    sound = all(isinstance(one, str) for one in texts) and type(ticket.instant_s) is int
    sound &= type(ticket.keep_tokens) is bool
    if not sound or check != _hash(body) or body.keys() != {one.name for one in fields(Ticket)}:
        raise ArchiveError(f"{where}: it is not as `muster cluster restore` wrote it")
    if ticket.format != FORMAT or not 1 <= len(ticket.digests) <= SHARDS_MAX:
        raise ArchiveError(f"{where}: format {ticket.format}; this build reads {FORMAT}")
    return ticket


def _hash(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), default=list)
    return hashlib.sha256(canonical.encode()).hexdigest()


def make_ticket(folder: Folder, name: str, now_s: int, *, keep_tokens: bool = False) -> Ticket:
    """Verify a backup whole, and say how it is restored.

    Digests are compared before anything is written but the claim of the instant, which is made in
    the folder that the backup is in: whoever restores it again, or another one there, which may be
    of the same cluster, gets a later one, whatever the clock. `now_s`: the clock, or a later second
    that the operator chose. Raises BackupError, also where the backup has tokens of later seconds,
    since its cluster may have given out more.
    """
    if not 1 <= len(name) <= NAME_MAX:
        raise BackupError(f"the name of the new cluster has 1 to {NAME_MAX} characters")
    manifest = read_manifest(folder)
    finished_s = manifest.finished_wall_ms // SECOND_MS
    if now_s < finished_s:
        raise BackupError(
            "this machine's clock is before the end of the backup: tokens would be given out again"
        )
    verdicts = list(verify(folder, manifest))
    wrong = [one.wrong for one in verdicts if one.wrong]
    if wrong:
        raise ArchiveError("; ".join(wrong))
    claims = folder.root().folder(CLAIMS)
    from_s = max(now_s, finished_s + 1)
    token_s = max(one.token for one in verdicts) // TOKENS_PER_S
    claimed_s = max(_claimed(claims), default=0)
    ahead_s = max(token_s, claimed_s - CLAIMS_MAX)  # a clock may be a little off
    _check_ahead(ahead_s, from_s, manifest.began_wall_ms // SECOND_MS)
    instant_s = _claim(claims, from_s)
    digests = tuple(
        f"{restored(load_shard(folder, cut), instant_s, keep_tokens=keep_tokens).digest:032x}"
        for cut in manifest.shards
    )
    return Ticket(name, folder.url, manifest.check, instant_s, keep_tokens, digests)


def _check_ahead(ahead_s: int, from_s: int, began_s: int) -> None:
    """Refuse an instant that does not come after the second that a cluster's tokens are of.

    Tokens that were given out since the backup was begun reach as far beyond it as time has passed.
    """
    if ahead_s >= from_s:
        raise BackupError(
            "the cluster of this backup, or one that was restored of it or of a backup beside it, "
            f"has fencing tokens of the second {ahead_s}, {ahead_s - from_s} s after {from_s}: it "
            "was restored by a clock that ran ahead, and tokens would be given out again. Where "
            "this clock is right, give --instant a second after all that tickets of these "
            f"clusters' backups name, and not before {ahead_s + CLAIMS_MAX + 1 + from_s - began_s}"
        )


def _claimed(claims: Folder) -> list[int]:
    """The seconds as of which backups were restored."""
    return [int(name) for name in claims.files() if name.isascii() and name.isdigit()]


def _claim(claims: Folder, from_s: int) -> int:
    """The first second from `from_s` on, and after all that were claimed, that is nobody's."""
    first = max([from_s, *(one + 1 for one in _claimed(claims))])
    for instant_s in range(first, first + CLAIMS_MAX):
        if claims.claim(str(instant_s), b"a cluster was restored with tokens of this second\n"):
            return instant_s
    raise BackupError(f"{claims.url}: others restore backups at the same time; repeat it")


def use_ticket(folder: Folder, ticket: Ticket, nodes: Sequence[int], node_id: int, by: str) -> None:
    """Note beside the backup that this node is made with the ticket, which no other may be.

    `by`: what only the data directory has, whose interrupted init goes on. So of one list of nodes
    each is made once, and nobody else gives out tokens of the ticket's second. Raises
    UsedTicketError, and BackupError where nothing can be written beside the backup.
    """
    claims = folder.root().folder(CLAIMS)
    cluster = f"{ticket.instant_s}.{'-'.join(str(one) for one in sorted(nodes))}."
    name = f"{cluster}{node_id}"
    _check_other_nodes(claims, ticket, cluster)
    try:
        is_first = claims.claim(name, by.encode())
    except BackupError as error:
        raise BackupError(
            f"{error}; that a ticket is used is noted beside the backup: let this user write there,"
            " or copy the backup to where it may, one place for all nodes, and give --backup"
        ) from error
    if not is_first:
        with closing(claims.open(name)) as file:
            if file.read(len(by) + 1) != by.encode():
                raise UsedTicketError(
                    f"node {node_id} was made with this ticket already: {claims.url}/{name}"
                )
    _check_other_nodes(claims, ticket, cluster)  # whoever came meanwhile sees this one, too


def _check_other_nodes(claims: Folder, ticket: Ticket, cluster: str) -> None:
    """Refuse a ticket with which a cluster of other nodes was begun."""
    for name in claims.files():
        if name.startswith(f"{ticket.instant_s}.") and not name.startswith(cluster):
            raise UsedTicketError(
                f"a cluster of other nodes was begun with this ticket: {claims.url}/{name}"
            )
