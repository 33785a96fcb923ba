"""`python -m chaos.sim`: see run.py."""

import sys

from chaos.sim.run import main

if __name__ == "__main__":
    sys.exit(main())
