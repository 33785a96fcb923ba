"""What nodes are equipped with, so that it can be broken: disks, clocks, limits."""
