"""Exports that were damaged, and folders that hold none."""

import shutil

from muster.cli.errors import ExitCode
from tests.bad_input.registry import case
from tests.bad_input.world import Seen, World, command, run


@case("export_of_nothing")
def export_of_nothing(world: World):
    return [
        run("export", f"--data-dir={folder}").seen
        for folder in (world.scratch / "missing", world.scratch)
    ]


def replay(world: World, source) -> Seen:
    """`muster replay` into a new folder."""
    output = world.fresh_folder("tables")
    return command("replay", f"--input={source}", f"--to={output}").seen


@case("replay_of_nothing")
def replay_of_nothing(world: World):
    empty = world.fresh_folder("empty")
    empty.mkdir()
    return [replay(world, world.scratch / "missing"), replay(world, empty)]


@case("replay_into_something")
def replay_into_something(world: World):
    source = exported(world)
    return command("replay", f"--input={source}", f"--to={source}").seen


def exported(world: World):
    """A copy of what node 0's exporter wrote, beside the node that runs."""
    if world.export is None:
        world.commit_succeeds()
        folder = world.fresh_folder("export")
        node = world.cluster.nodes[0]
        done = run("export", f"--data-dir={node.data_dir}", f"--to={folder}")
        assert done.code == ExitCode.OK, done.err
        sound = replay(world, folder)
        assert sound.answer == "exit 0", "the export is sound before it is damaged"
        world.export = folder
    return shutil.copytree(world.export, world.fresh_folder("damaged"))


def damaged(world: World, damage) -> Seen:
    """`replay` of an export in which `damage` has changed a segment; the file is named."""
    source = exported(world)
    segment = max(source.glob("shard=*/part-*.parquet"), key=lambda path: path.stat().st_size)
    damage(segment)
    seen = replay(world, source)
    assert segment.stem in seen.text
    return seen


@case("segment_truncated")
def segment_truncated(world: World):
    def damage(path):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return [damaged(world, damage), damaged(world, lambda path: path.write_bytes(b""))]


@case("segment_flipped")
def segment_flipped(world: World):
    def flip(path, place):
        content = bytearray(path.read_bytes())
        content[place] ^= 0x01
        path.write_bytes(content)

    return [damaged(world, lambda path, p=place: flip(path, p)) for place in (4, 200, -5)]


@case("segment_lost")
def segment_lost(world: World):
    return damaged(world, lambda path: path.unlink())
