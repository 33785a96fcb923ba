"""`python -m musterd.chaos.world.equipment.drift` makes wall clocks run faster or slower.

That often a node looks at the file; it is written more often, so that each step is as it should.

The library's own rate also stretches waits that have nothing to do with the wall clock, among them
the interpreter's for its lock; offsets do not.
"""

import selectors
import sys
import time
from pathlib import Path

from musterd.chaos import child

STEP_S = 0.05


def set_clock(file: Path, what: str) -> None:
    """Write what a clock's file says, so that nobody reads half of it."""
    fresh = file.with_suffix(".new")
    fresh.write_text(f"{what}\n")
    fresh.replace(file)


def main() -> None:
    """Move the clocks of `files` by `rate` - 1 seconds a second until stdin ends."""
    config = child.config()
    files = [Path(file) for file in config["files"]]
    start_s = time.monotonic()
    child.answer(ready=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not selector.select(STEP_S):
            ahead_s = (config["rate"] - 1) * (time.monotonic() - start_s)
            for file in files:
                set_clock(file, f"{ahead_s:+.3f}")


if __name__ == "__main__":
    main()
