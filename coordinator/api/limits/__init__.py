"""What callers may take of a node: calls, bytes, and time of the loop. The surplus is refused."""
