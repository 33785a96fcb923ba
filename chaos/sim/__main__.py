"""`python -m musterd.chaos.sim`: `muster chaos sim`, or `replay-seed` where that is named first."""

import sys

from muster.cli import main

if __name__ == "__main__":
    given = sys.argv[1:]
    main(["chaos", *given] if given[:1] in (["sim"], ["replay-seed"]) else ["chaos", "sim", *given])
