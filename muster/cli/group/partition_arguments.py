"""TOPIC or TOPIC:0,1,3: how a command line names partitions."""

from muster.cli.errors import CommandError, ExitCode

DIGITS_MAX = 20
"""More than 64 bits need; Python refuses to convert very long ones."""


def whole_number(text: str) -> int | None:
    """The number that ASCII digits spell, or None."""
    fits = text.isascii() and text.isdecimal() and len(text) <= DIGITS_MAX
    return int(text) if fits else None


def parse_place(text: str) -> tuple[str, list[int] | None]:
    """A topic, and its partitions that are named or None for all. Raises CommandError (usage)."""
    topic, colon, numbers = text.rpartition(":")
    if not colon:
        return text, None
    found = [whole_number(part) for part in numbers.split(",")]
    if not topic or None in found:
        raise CommandError(
            f"{text!r} is neither a topic nor TOPIC:PARTITION,...",
            next_step="give `orders` for all of a topic's offsets, `orders:0,1` for some",
            exit_code=ExitCode.USAGE,
        )
    return topic, [number for number in found if number is not None]
