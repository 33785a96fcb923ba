"""Limits of a node's callers: calls, bytes, and time of the loop. The surplus is refused."""
