"""Backups made in a folder of states that the machine's own world made."""

import hashlib
import io

from musterd.backup import manifest as manifests
from musterd.backup.folders import Directory
from musterd.backup.manifest import Manifest, ShardCut, records_name
from musterd.backup.records_file import END, MAGIC, encode_block
from musterd.coordinator.machine.shard_state import shard_records
from tests.machine.world import World

LIVES = (
    ["join a topics=t,u protocols=range,rr", "join b protocols=range,rr", "fire", "fire"],
    ["join a", "join b", "fire", "fire", "sync a-1 a-1:A b-1:B", "commit a-1 t/0=5@9:m seq=3"],
    ["join a", "fire", "leave a-1", "commit - t/1=2"],
    ["join a instance=i", "join b nonce= drawn=p", "join a nonce=2 instance=i", "fire"],
    ["config size=3 delay=0", "join a", "fire", "sync a-1 a-1:A", "join b"],
    ["join a"],
    ["commit - t/1=2"],
    [
        *("topic t 4", "hear a join", "hear b join instance=i", "settle", "hear a owns t/0 t/1"),
        *("settle", "commit a t/0=5", "hear b away instance=i back=9000"),
    ],
    ["topic t 4", "config policy=upgrade", "hear a join", "tell", "plan size=1 to=2"],
    ["topic t 4", "hear m join", "settle", "join c keeps=", "settle", "join d keeps="],
)
"""Ways to every phase of a group: static members, ids handed out, settings, offsets alone; groups
whose coordinator assigns, with members that are away or classic, and while a plan is stored."""


def world_of(lines):
    """A shard's world after these verbs."""
    world = World()
    for line in lines:
        world.run(line)
    return world


def backed_up(path, states, cluster_id="c"):
    """A finished backup of these states in a directory, and its manifest."""
    folder = Directory(path)
    return folder, fill_folder(folder, states, cluster_id)


def fill_folder(folder, states, cluster_id="c", index=40, wall_ms=5):
    """Write a finished backup of these states; its manifest."""
    cuts = []
    for shard, state in enumerate(states):
        records = sorted(shard_records(state))
        content = MAGIC + (encode_block(records) if records else b"") + END
        with folder.create(records_name(shard)) as file:
            file.write(content)
        digest = hashlib.sha256(content).hexdigest()
        cuts.append(
            ShardCut(
                shard=shard,
                index=index + shard,
                term=3,
                digest=f"{state.digest:032x}",
                records=len(records),
                bytes=len(content),
                sha256=digest,
                cut_wall_ms=wall_ms,
            )
        )
    manifest = Manifest(cluster_id, "0.1.0", 4, 9, tuple(cuts))
    with folder.create(manifests.NAME) as file:
        file.write(manifest.encode())
    return manifest


def stream(*parts):
    """A file of records of these bytes."""
    return io.BytesIO(b"".join(parts))
