"""The networks between nodes and clients, and the processes that hold their links."""
