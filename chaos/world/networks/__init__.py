"""What nodes and clients talk through: each network, and the processes that hold its links."""
