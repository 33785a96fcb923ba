"""Patterns of topics' names: regular expressions of RE2, which take linear time (gp-1.10).

A pattern stands for a topic where it matches the whole name. What a caller sends is bounded here:
its length, the memory of its program, and the program's size, so that neither compiling nor
matching one name holds the loop for longer than a few ms.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from musterd.coordinator.machine.access import Operation, Resource, authorize
from musterd.coordinator.machine.limits import LIMITS
from musterd.coordinator.machine.plan.pace import SLICE_STEPS
from musterd.coordinator.machine.records.shard_records import ShardState

if TYPE_CHECKING:
    import re2

PROGRAM_BYTES_MAX: Final = 128 * 1024
"""Memory of one compiled pattern, and of what it keeps while it matches."""

INSTRUCTIONS_MAX: Final = 1_000
"""Instructions of one compiled pattern. A name takes each of them once a byte, at most."""

COMPILED_MAX: Final = 128
"""Compiled patterns that a node keeps."""

INSTRUCTIONS_PER_SLICE: Final = 4_000
"""Names times instructions that one slice of matching takes: some ms where all goes badly. Whether
one principal may know of a name counts as one instruction."""

_SHOWN: Final = 80
"""Characters of a pattern in a message."""

_COMPILE_FAILED: Final = "pattern too large"


@lru_cache(maxsize=COMPILED_MAX)
def _compiled(pattern: str) -> "re2._Regexp | str":
    """The program, or what is wrong with the pattern."""
    import re2  # noqa: PLC0415  # 1 MiB, which a node without patterns does without

    size = len(pattern.encode())
    if size > LIMITS.pattern_max_bytes:
        return f"A pattern has at most {LIMITS.pattern_max_bytes} bytes; this one has {size}."
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        program = re2.compile(pattern, options)
    except re2.error as error:
        return _reason(pattern, error)
    if program.programsize > INSTRUCTIONS_MAX:
        return _TOO_LARGE
    return program


_TOO_LARGE: Final = (
    f"The pattern is too large: compiled it takes more than {INSTRUCTIONS_MAX} instructions or "
    f"{PROGRAM_BYTES_MAX} bytes. Name fewer alternatives, or repeat less."
)


def _reason(pattern: str, error: Exception) -> str:
    """What RE2 says, and where: it quotes the part that is wrong."""
    said = error.args[0]
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
    if text.startswith(_COMPILE_FAILED):
        return _TOO_LARGE
    what, _, part = text.partition(": ")
    place = pattern.find(part) + 1 if part else 0
    where = f", at character {place}: {part[:_SHOWN]!r}" if place else ""
    return f"The pattern is no regular expression of RE2: {what}{where}."


def why_invalid(pattern: str) -> str:
    """What is wrong with a pattern, as a sentence with its place; "" where nothing is."""
    found = _compiled(pattern)
    return found if isinstance(found, str) else ""


def may_read(
    registry: ShardState, superusers: Iterable[str], principals: Iterable[str]
) -> Callable[[str], bool]:
    """Return whether all of these principals may know of a topic, as a question about its name."""
    asked = [one for one in principals if one not in superusers] if registry.rules else []

    def may(topic: str) -> bool:
        return all(
            authorize(registry.rule_index, one, Operation.DESCRIBE, Resource.TOPIC, topic)
            for one in asked
        )

    return may


def matching(
    pattern: str,
    names: Sequence[str],
    former: Sequence[str],
    may: Callable[[str], bool],
    principals: int = 0,
) -> Generator[int, None, tuple[str, ...]]:
    """Find the topics that a pattern stands for, sorted, in slices.

    It yields how many steps of a turn each slice took. Of more than `pattern_max_topics` those
    that it stood for before come first, then names in their order. What is no pattern (that of a
    build with another RE2) stands for nothing.

    Args:
        pattern: as the member sent it.
        names: all topics there are.
        former: what it stood for so far.
        may: whether those who have the pattern may know of a topic.
        principals: how many `may` asks for.
    """
    program = _compiled(pattern)
    if isinstance(program, str):
        return ()
    size = max(1, program.programsize) + principals
    at_once = max(1, INSTRUCTIONS_PER_SLICE // size)
    found: list[str] = []
    for first in range(0, len(names), at_once):
        part = names[first : first + at_once]
        found += [name for name in part if program.fullmatch(name) is not None and may(name)]
        yield max(1, SLICE_STEPS * len(part) * size // INSTRUCTIONS_PER_SLICE)
    if len(found) > LIMITS.pattern_max_topics:
        known = frozenset(former)
        found.sort(key=lambda name: (name not in known, name))
        del found[LIMITS.pattern_max_topics :]
    return tuple(sorted(found))
