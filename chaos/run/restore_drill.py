"""A drill: backups of a cluster that is broken meanwhile, each verified, the last one restored.

What has to hold: a backup is whole or there is none; it has every commit that was acknowledged
before it began; its digests are those of the replayed history up to each cut; and a cluster that is
restored of it has the same offsets on every node, and commits. Where the cluster has certificates,
every caller shows the world's, and the restored one has others and the same flags: the rules of the
backup, which hold there, too, have to let that client do all of it.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Final

from muster.client import Client
from muster.errors import MusterError
from muster.types import TopicPartition
from musterd.backup.archive import load_shard, read_manifest, verify
from musterd.backup.folders import Directory, Folder
from musterd.backup.manifest import Manifest
from musterd.backup.ticket import make_ticket
from musterd.chaos.faults import catalog as catalog  # noqa: PLC0414 - which enters the kinds
from musterd.chaos.faults.contract import create
from musterd.chaos.world.equipment.certificates import Certificates
from musterd.chaos.world.world import World
from musterd.coordinator import codec
from musterd.coordinator.machine.shard_state import Entry, ShardState, apply_entry
from musterd.coordinator.node.init import initialise_restored
from musterd.coordinator.node.loopback import ClusterError
from musterd.export.layout import NOOP, shard_folder
from musterd.export.parquet_files import read_rows

TOPIC: Final = "drill"
GROUPS: Final = tuple(f"drill-{number}" for number in range(24))
KEY: Final = TopicPartition(TOPIC, 0)
COMMAND_S_MAX: Final = 180.0
LOADED_S_MAX: Final = 60.0
HOLD_S: Final = 1.0


class DrillError(Exception):
    """A backup or a restore did not keep what it promises; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Drilled:
    """The figures of a drill."""

    backups: int
    cuts: int
    """Cuts of shards whose digest equals that of the replayed history."""
    restored_s: float
    """From the ticket to the first commit in the restored cluster."""


def drill(world: World, folder: Path, kinds: Sequence[str], seed: int) -> Drilled:
    """Take a backup beside one fault of each of `kinds`, then restore the last one.

    Raises DrillError, and what the world raises.
    """
    rng, root = Random(seed), folder / "backups"  # whom a fault hits
    world.create_topic(TOPIC, 1)
    load = _Load(world)
    load.start()
    backups = []
    try:
        for kind in kinds:
            before = load.acknowledged()
            backups.append(_back_up_beside(world, root, kind, rng))
            _require_kept(backups[-1], before, kind)
    finally:
        load.stop()
    cuts = _compare_with_history(world, folder, backups[-1])
    return Drilled(len(backups), cuts, _restore(world, folder, backups[-1]))


class _Load:
    """Commits rising offsets of every group, and knows what was acknowledged."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._acknowledged: dict[str, int] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def start(self) -> None:
        """Begin, and wait until each group has a commit. Raises DrillError where none comes."""
        self._thread.start()
        end_s = time.monotonic() + LOADED_S_MAX
        while len(self._acknowledged) < len(GROUPS):
            if time.monotonic() > end_s:
                raise DrillError("no commit is acknowledged")
            time.sleep(0.05)

    def acknowledged(self) -> dict[str, int]:
        """Group -> the last offset that was acknowledged."""
        return dict(self._acknowledged)

    def stop(self) -> None:
        """Wait for the last answer."""
        self._done.set()
        self._thread.join()

    async def _run(self) -> None:
        async with _client(self._world) as client:
            await asyncio.gather(*(self._commit(client, group) for group in GROUPS))

    async def _commit(self, client: Client, group: str) -> None:
        offset = 0
        while not self._done.is_set():
            offset += 1
            try:
                await client.commit_offsets(group, {KEY: offset})
            except MusterError:
                await asyncio.sleep(0.1)
                continue
            self._acknowledged[group] = offset
            await asyncio.sleep(0.02)


def _client(world: World) -> Client:
    return Client(world.endpoints, tls=world.client_tls)


def _back_up_beside(world: World, root: Path, kind: str, rng: Random) -> Folder:
    """A backup that is taken while a fault is there."""
    command = [sys.executable, "-P", "-m", "muster.cli", "cluster", "backup", "--to", str(root)]
    taking = subprocess.Popen(  # our own command
        world.client_command([*command, "-o", "name"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=world.client_environment,
        text=True,
    )
    fault = create(kind)
    try:
        fault.inject(world, rng)
        time.sleep(HOLD_S)
    finally:
        fault.heal(world)
    world.wait_settled()
    out, errors = taking.communicate(timeout=COMMAND_S_MAX)
    if taking.returncode != 0:
        raise DrillError(f"{kind}: no backup: {errors}")
    return Directory(Path(out.strip()))


def _offsets(folder: Folder, manifest: Manifest) -> dict[str, int]:
    found = {}
    for cut in manifest.shards:
        for group_id, group in load_shard(folder, cut).groups.items():
            if KEY in group.offsets:
                found[group_id] = group.offsets[KEY].offset
    return found


def _require_kept(folder: Folder, before: dict[str, int], kind: str) -> None:
    manifest = read_manifest(folder)
    if wrong := [one.wrong for one in verify(folder, manifest) if one.wrong]:
        raise DrillError(f"{kind}: {folder.url}: {'; '.join(wrong)}")
    kept = _offsets(folder, manifest)
    lost = {group: offset for group, offset in before.items() if kept.get(group, -1) < offset}
    if lost:
        raise DrillError(f"{kind}: {folder.url} lacks acknowledged commits: {lost}")


def _compare_with_history(world: World, folder: Path, backup: Folder) -> int:
    """Replay what a node has applied up to each cut; the digests have to be equal."""
    node_id = world.running()[0]
    world.stop(node_id)
    export = folder / "export"
    world.muster("export", "--data-dir", str(world.nodes[node_id].data_dir), "--to", str(export))
    manifest = read_manifest(backup)
    for cut in manifest.shards:
        digest = replayed(export, cut.shard, cut.index).digest
        if f"{digest:032x}" != cut.digest:
            raise DrillError(f"shard {cut.shard}: the history up to {cut.index} has another digest")
    return len(manifest.shards)


def replayed(export: Path, shard: int, last: int) -> ShardState:
    """The state that a shard's exported commands give, decided again up to entry `last`.

    The export begins with entry 1.
    """
    state = ShardState()
    for path in sorted(shard_folder(export, shard).glob("part-*.parquet")):
        rows = (row for row in read_rows(path) if row.index <= last and row.kind != NOOP)
        for index, some in groupby(rows, key=lambda row: row.index):
            mine = list(some)
            first = mine[0]
            entry = Entry(
                format=1,
                level=first.rules_version,
                time_ms=first.time_ms,
                wall_ms=first.wall_ms,
                limits_version=first.limits_version,
                commands=tuple(codec.decode_command(row.command) for row in mine if row.command),
                topics_version=first.topics_version,
            )
            apply_entry(state, entry, index)
    return state


def _restore(world: World, folder: Path, backup: Folder) -> float:
    """Begin a new cluster with a backup; how long it takes until it commits."""
    began_s = time.monotonic()
    ticket = make_ticket(backup, "restored", int(time.time()))
    file = folder / "ticket.json"
    file.write_bytes(ticket.encode())
    has_tls = world.client_tls is not None
    restored = World(
        len(world.nodes),
        world.shards,
        equipment=(Certificates(ticket.cluster_id),) if has_tls else (),
        flags=world.flags,
    )
    for node in restored.nodes.values():
        for kit in restored.equipment:
            kit.prepare(node.node_id, node.data_dir)
        initialise_restored(node.data_dir, "", node.node_id, list(restored.nodes), file, "")
    with restored:
        kept = _offsets(backup, read_manifest(backup))
        took_s = asyncio.run(_use(restored, kept, began_s))
        try:
            restored.muster("cluster", "verify")
        except ClusterError as error:
            raise DrillError(f"the restored nodes differ: {error}") from error
    return took_s


async def _use(restored: World, kept: dict[str, int], began_s: float) -> float:
    async with _client(restored) as client:
        await client.commit_offsets(GROUPS[0], {KEY: kept[GROUPS[0]]})
        took_s = time.monotonic() - began_s
        stored = {group: (await client.committed(group))[KEY] for group in GROUPS}
        found = {group: one.offset if one else None for group, one in stored.items()}
    if found != {group: kept[group] for group in GROUPS}:
        raise DrillError(f"restored are {found}, the backup has {kept}")
    return took_s
