"""Python's garbage collector, out of the way of work on millions of small objects that stay."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """It would look at all of them, over and over, and find nothing to drop."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
