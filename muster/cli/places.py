"""TOPIC or TOPIC:0,1,3: how a command line names partitions."""

from muster.cli.errors import CommandError, ExitCode


def parse_place(text: str) -> tuple[str, list[int] | None]:
    """A topic, and its partitions that are named or None for all. Raises CommandError (usage)."""
    topic, colon, numbers = text.rpartition(":")
    if not colon:
        return text, None
    parts = numbers.split(",")
    if not topic or not all(p.isascii() and p.isdecimal() and len(p) < 20 for p in parts):
        raise CommandError(
            f"{text!r} is neither a topic nor TOPIC:PARTITION,...",
            next_step="give `orders` for all of a topic's offsets, `orders:0,1` for some",
            exit_code=ExitCode.USAGE,
        )
    return topic, [int(part) for part in parts]
