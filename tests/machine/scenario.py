"""Golden scenarios of the machine: tests/testdata/machine/rules-N/*.txt, run under rules version N.

The first line says why the file exists, with the ids of the rules it shows. Then blocks: commands,
one a line, `----`, their output, an empty line. The commands are described in world.py.
"""

from pathlib import Path

from tests.machine.world import World


def run_file(path: Path, world: type[World] = World) -> tuple[str, str]:
    """The file as recorded, and as this build would record it."""
    recorded = path.read_text()
    head, *blocks = recorded.strip("\n").split("\n\n")
    shard = world(level=int(path.parent.name.removeprefix("rules-")))
    parts = [head]
    for block in blocks:
        lines, _, _ = block.partition("\n----")
        printed = [shard.run(line) for line in lines.splitlines() if not line.startswith("#")]
        parts.append("\n".join([lines, "----", *printed]))
    return recorded, "\n\n".join(parts) + "\n"


def fill(recorded: str, produced: str) -> str:
    """`produced`, if it only adds output to blocks that had none: frozen outcomes never change."""
    old, new = recorded.strip("\n").split("\n\n"), produced.strip("\n").split("\n\n")
    for before, after in zip(old, new, strict=True):
        output = before.partition("\n----")[2].strip("\n")
        if output and before.strip("\n") != after.strip("\n"):
            raise AssertionError(f"a frozen outcome would change:\n{before}\n\nto\n\n{after}")
    return produced
