"""A broken invariant stops the process: going on would turn one wrong value into many."""


class BrokenInvariantError(Exception):
    """Something that can never be is. The process ends; nothing may catch this to carry on."""


def invariant(condition: object, message: str) -> None:
    """Raise BrokenInvariantError unless `condition` holds; unlike assert also with -O."""
    if not condition:
        raise BrokenInvariantError(message)
