"""The equipment of nodes that can be broken: disks, clocks, limits."""
