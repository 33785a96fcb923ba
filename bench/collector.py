"""Python's garbage collector in the processes of a bench."""

import gc


def tune_gc() -> None:
    """Collect rarely: a full collection would stop the process for long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)
