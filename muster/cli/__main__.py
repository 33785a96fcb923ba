"""`python -m muster.cli`: the same as `muster`."""

from muster.cli import main

main()
