"""What must hold whatever happens. A broken invariant stops the process: it is a bug, not an outcome."""


class InvariantError(Exception):
    """State is not what the rules allow. Never retriable."""


def invariant(condition: bool, message: str) -> None:
    """Stop where `condition` does not hold. Unlike `assert` it stays under -O."""
    if not condition:
        raise InvariantError(message)
