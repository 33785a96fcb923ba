"""The manifest of a backup: its facts, and the hash of each file. It is written last.

JSON with a checksum over the other fields. It comes from anywhere: nothing of it is believed before
it was compared with a bound, and no name of a file is taken from it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from musterd.backup.errors import ArchiveError
from musterd.raft.identity import SHARDS_MAX

NAME: Final = "manifest.json"
FORMAT: Final = 1
"""The format of a backup; a reader refuses a higher one."""

BYTES_MAX: Final = 1024 * 1024
TEXT_MAX: Final = 256
NUMBER_MAX: Final = 2**63 - 1
_HEX: Final = frozenset("0123456789abcdef")


def records_name(shard: int) -> str:
    """The name of the file with a shard's records."""
    return f"shard-{shard:04d}.records"


@dataclass(frozen=True, slots=True)
class ShardCut:
    """One shard's state at one applied index, and the file that has it."""

    shard: int
    index: int
    """The last entry that the state holds."""
    term: int
    """That entry's."""
    digest: str
    """The state's, as its leader kept it: 32 hex digits."""
    records: int
    bytes: int
    """The file's."""
    sha256: str
    """The file's, 64 hex digits."""
    cut_wall_ms: int
    """When it was cut, milliseconds since 1970 by the clock of who took the backup."""

    @property
    def file(self) -> str:
        """The name of its file in the backup."""
        return records_name(self.shard)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The facts about one backup. `shards` has each shard of the cluster once, by number."""

    cluster_id: str
    build: str
    """The version of the server's packages that took it."""
    began_wall_ms: int
    finished_wall_ms: int
    shards: tuple[ShardCut, ...]
    format: int = FORMAT

    @property
    def check(self) -> str:
        """SHA-256 over the other fields, 64 hex digits: it names this backup, wherever it is."""
        return _check(asdict(self))

    def encode(self) -> bytes:
        """As JSON, one field a line."""
        body = asdict(self)
        return (
            json.dumps({**body, "check": _check(body)}, indent=1, sort_keys=True) + "\n"
        ).encode()


def decode(data: bytes, where: str = NAME) -> Manifest:
    """Return the manifest that `data` holds. Raises ArchiveError, which begins with `where`."""
    if len(data) > BYTES_MAX:
        raise ArchiveError(f"{where}: longer than {BYTES_MAX} bytes, no manifest")
    try:
        body = json.loads(data)
        check, version = body.pop("check"), int(body["format"])
    except (
        ValueError,
        OverflowError,
        RecursionError,
        KeyError,
        TypeError,
        AttributeError,
    ) as error:
        raise ArchiveError(f"{where}: not a manifest: {error}") from error
    if version > FORMAT:
        raise ArchiveError(f"{where}: format {version}; this build reads up to {FORMAT}")
    if check != _check(body):
        raise ArchiveError(f"{where}: its checksum does not match its content")
    cuts = _cuts(body.get("shards"), where)
    known = _fields(Manifest, {**body, "shards": 0}, where)
    return Manifest(**{**known, "shards": cuts})


def _cuts(shards: object, where: str) -> tuple[ShardCut, ...]:
    if not isinstance(shards, list) or not 1 <= len(shards) <= SHARDS_MAX:
        raise ArchiveError(f"{where}: it has no list of shards")
    cuts = tuple(ShardCut(**_fields(ShardCut, cut, where)) for cut in shards)
    if [cut.shard for cut in cuts] != list(range(len(cuts))):
        raise ArchiveError(f"{where}: its shards are not each there once, by number")
    for name, digits in (("digest", 32), ("sha256", 64)):
        for cut in cuts:
            text = getattr(cut, name)
            if len(text) != digits or not _HEX.issuperset(text):
                raise ArchiveError(f"{where}: the {name} of shard {cut.shard} is none")
    return cuts


def _fields(of: type[ShardCut | Manifest], body: object, where: str) -> dict[str, Any]:
    """The fields of a dataclass, each of its type and within bounds; exactly those."""
    names = {one.name: one.type for one in fields(of)}
    if not isinstance(body, dict) or body.keys() != names.keys():
        raise ArchiveError(f"{where}: other fields than a manifest of format {FORMAT} has")
    for name, kind in names.items():
        value = body[name]
        if kind is str:
            fits = isinstance(value, str) and len(value) <= TEXT_MAX
        else:
            fits = type(value) is int and 0 <= value <= NUMBER_MAX
        if not fits:
            raise ArchiveError(f"{where}: {name} is {repr(value)[:40]}")
    return body


def _check(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
