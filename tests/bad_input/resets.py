"""`muster group reset-offsets` and `muster member`: wrong arguments, and what stands in the way."""

from tests.bad_input.registry import case
from tests.bad_input.requests import leave
from tests.bad_input.world import PARTITIONS, TOPIC, World, command

GROUP = "resets"


def reset(world: World, *args, group=GROUP):
    """The command on a group that has one offset."""
    assert world.commit(GROUP, 40).status.code == 0
    seen = command("group", "reset-offsets", group, *args, world.bootstrap()).seen
    assert world.read(GROUP) == 40
    return seen


@case("reset_which")
def reset_which(world: World):
    return [
        reset(world, "--to-offset=0", "--execute"),
        reset(world, "--to-offset=0", "--all-topics", f"--topic={TOPIC}", "--execute"),
    ]


@case("reset_where")
def reset_where(world: World):
    return [
        reset(world, "--all-topics", "--execute"),
        reset(world, "--all-topics", "--to-offset=0", "--to-latest", "--execute"),
    ]


@case("reset_both")
def reset_both(world: World):
    return reset(world, "--all-topics", "--to-offset=0", "--execute", "--dry-run")


@case("reset_place")
def reset_place(world: World):
    return [
        reset(world, f"--topic={TOPIC}:{text}", "--to-offset=0", "--execute")
        for text in ("", "x", "-1", "0,,1")
    ]


@case("reset_partition")
def reset_partition(world: World):
    return reset(world, f"--topic={TOPIC}:{PARTITIONS}", "--to-offset=0", "--execute")


@case("reset_file")
def reset_file(world: World):
    seen = []
    for name, text in (
        ("f.csv", "orders\n"),
        ("f.csv", f"{TOPIC},0,-1\n"),
        ("f.csv", f"{TOPIC},0,1\n{TOPIC},0,2\n"),
        ("f.csv", ""),
        ("f.json", "{"),
        ("f.json", "{}"),
        ("f.json", '[{"topic": "orders", "partition": 0, "offset": "1"}]'),
    ):
        path = world.scratch / name
        path.write_text(text)
        seen.append(reset(world, f"--from-file={path}", "--execute"))
    return [*seen, reset(world, f"--from-file={world.scratch / 'none.csv'}", "--execute")]


@case("reset_file_and_topic")
def reset_file_and_topic(world: World):
    return reset(world, "--from-file=f.csv", "--all-topics", "--execute")


@case("reset_export")
def reset_export(world: World):
    path = world.scratch / "kept.csv"
    path.write_text("kept")
    seen = reset(world, "--all-topics", "--to-current", f"--export={path}")
    assert path.read_text() == "kept"
    return seen


@case("reset_no_end")
def reset_no_end(world: World):
    return [
        reset(world, f"--topic={TOPIC}:0", "--to-earliest", "--execute"),
        reset(world, f"--topic={TOPIC}:0", "--to-latest", "--execute"),
        reset(world, f"--topic={TOPIC}:1", "--shift-by=1", "--execute"),
    ]


@case("reset_in_use")
def reset_in_use(world: World):
    group = "resets-in-use"
    member_id, _ = world.member(group)
    try:
        return [
            reset(world, f"--topic={TOPIC}", "--to-offset=0", group=group),
            reset(world, f"--topic={TOPIC}", "--to-offset=0", "--execute", group=group),
        ]
    finally:
        leave(world, group, member_id)


@case("member_which")
def member_which(world: World):
    return [
        command("member", "describe", "g", world.bootstrap()).seen,
        command("member", "describe", "g", "m", "--instance=i", world.bootstrap()).seen,
    ]


@case("member_unknown")
def member_unknown(world: World):
    assert world.commit(GROUP, 40).status.code == 0
    return [
        command("member", "describe", GROUP, "m", world.bootstrap()).seen,
        command("member", "describe", GROUP, "--instance=i", world.bootstrap()).seen,
    ]
