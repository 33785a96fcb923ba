"""A broken invariant stops the process: going on would turn one wrong value into many."""


class InvariantError(Exception):
    """Something that can never be is: a bug, not an outcome. Nothing may catch this to carry on."""


def invariant(condition: object, message: str) -> None:
    """Raise InvariantError unless `condition` holds; unlike assert also with -O."""
    if not condition:
        raise InvariantError(message)
