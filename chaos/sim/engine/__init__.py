"""A cluster in one process on virtual time: loop, network, nodes, their disks and servicers."""
